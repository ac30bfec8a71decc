"""Who imports whom: no circles, arrows between packages by name, the syllabus, and what a learner must install."""

from __future__ import annotations

import sys
import tokenize
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from nanobook.lines import BUDGETS, sums
from nanobook.source import PACKAGES, Graph, code_lines, folder_of, grouped, import_graph, imported, modules
from nanobook.syllabus import ENGINE, Syllabus, engine_root, file_of, syllabus
from tests.book.chapter_pages import ROOT, checkout

ALLOWED = {
    "nanoinfer": set(),
    "nanobench": {"nanoinfer"},
    "nanocourse": {"nanoinfer"},
    "nanobook": {"nanoinfer", "nanobench", "nanocourse"},
    "training": {"nanoinfer"},
}
# What the engine itself depends on, what serves it, what spreads it, and what is installed for learning with it.
ENGINES_OWN = {
    "torch", "triton", "numpy", "tiktoken", "safetensors", "huggingface_hub", "typer", "rich", "prompt_toolkit"
}  # fmt: skip
HELD = ("chapter 1", "chapter 2", "chapter 3", "chapter 4", "chapter 6", "labs")
OURS = {*PACKAGES, "tests", *ENGINES_OWN}
SERVING = {"starlette", "uvicorn", "uvloop", "prometheus_client", "pydantic", "pydantic_core"}
SPREADING = {"pyarrow", "ray"}
LEARNING = {"matplotlib", "pytest", "IPython", "ipywidgets", "jupyter"}
GraphOf = Callable[[Mapping[str, str]], Graph]

pytestmark = checkout


def room_of(module: str) -> str | None:
    """`nanoinfer.cache` for `nanoinfer.cache.paged`; None for a package itself and for what starts it."""
    package, _, rest = module.partition(".")
    return f"{package}.{rest.partition('.')[0]}" if rest and rest != "__main__" else None


def circle(graph: Graph) -> list[str]:
    """The names of one circle; none where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def forbidden(graph: Graph) -> set[tuple[str, str]]:
    """Imports from one package to another that the table does not allow."""
    arrows = {(a.partition(".")[0], b.partition(".")[0]) for a, needed in graph.items() for b in needed}
    return {(a, b) for a, b in arrows if a != b and b not in ALLOWED[a]}


def against(known: Syllabus, graph: Graph) -> list[str]:
    """Imports of the engine that lead to a later chapter, or from a chapter to a module of none or of a lab."""
    labs = {name for chapter in known.chapters for name in chapter.labs}
    found = []
    for name, needed in graph.items():
        chapter = known.chapter_of(name)
        for other in needed:
            theirs = known.chapter_of(other)
            if chapter is not None and (theirs is None or theirs > chapter or (other in labs and name not in labs)):
                found.append(f"{name} imports {other}")
    return found


def foreign(files: Iterable[Path], allowed: set[str]) -> set[str]:
    """Imports beyond the standard library, our own, the allowed ones, and modules that lie beside the file."""
    return {
        f"{file.name}: {name}"
        for file in files
        for name in imported(file)
        if (top := name.partition(".")[0]) not in OURS | allowed | sys.stdlib_module_names
        and not any(folder.joinpath(f"{top}.py").is_file() for folder in file.parents[:3])
        and top
    }


@pytest.fixture(scope="module")
def files() -> Mapping[str, Path]:
    found = modules("training", ROOT / "tools" / "training")
    return found | {name: path for package in PACKAGES for name, path in modules(package, folder_of(package)).items()}


@pytest.fixture(scope="module")
def graph(files: Mapping[str, Path]) -> Graph:
    return import_graph(files)


@pytest.fixture(scope="module")
def engine(graph: Graph) -> Graph:
    """The engine's modules by the names that the syllabus has."""
    own = {name: needed for name, needed in graph.items() if name.startswith(f"{ENGINE}.")}
    return {
        name.removeprefix("nanoinfer."): {n.removeprefix("nanoinfer.") for n in own[name] & own.keys()} for name in own
    }


class TestThePackages:
    def test_nothing_imports_in_a_circle(self, graph: Graph) -> None:
        """No modules, no rooms, no packages."""
        assert len(graph) > 150
        assert circle(graph) == []
        assert circle(grouped(graph, {name: room for name in graph if (room := room_of(name))})) == []
        assert circle(grouped(graph, {name: name.partition(".")[0] for name in graph})) == []

    def test_arrows_between_packages_are_allowed_by_name(self, graph: Graph) -> None:
        assert forbidden(graph) == set()
        assert circle(ALLOWED) == []

    def test_every_module_of_the_engine_is_listed_once(self, files: Mapping[str, Path], engine: Graph) -> None:
        known = syllabus()
        listed = [name for chapter in known.chapters for name in chapter.modules + chapter.labs] + list(known.outside)
        assert len(listed) == len(set(listed))
        assert {f"nanoinfer.{name}" for name in listed} <= files.keys()
        for name in engine:
            if files[f"{ENGINE}.{name}"].name != "__init__.py":  # that one has a docstring alone
                known.chapter_of(name)

    def test_imports_follow_the_syllabus(self, engine: Graph, files: Mapping[str, Path]) -> None:
        rooms = {name for name in engine if files[f"{ENGINE}.{name}"].name == "__init__.py"}
        assert not any(engine[name] for name in rooms - {"cli"})
        plain = {name: needed - rooms for name, needed in engine.items() if name not in rooms}
        assert against(syllabus(), plain) == []

    def test_chapter_1_has_no_identifier_of_a_later_one(self) -> None:
        later = {"lag", "in_flight", "preempt", "logprobs", "draft", "rank", "capture", "graph", "dummy", "observer"}
        for module in syllabus().chapters[0].modules:
            source = (engine_root() / file_of(module)).read_text(encoding="utf-8").splitlines(keepends=True)
            tokens = tokenize.generate_tokens(iter(source).__next__)
            assert not later & {token.string for token in tokens if token.type == tokenize.NAME}, module


class TestWhatALearnerInstalls:
    def test_the_engine(self, files: Mapping[str, Path]) -> None:
        """Its rooms that need more than the others, and all others."""
        more = {f"{ENGINE}.serve": SERVING, f"{ENGINE}.parallel": SPREADING}
        own = {name: path for name, path in files.items() if name.startswith(ENGINE)}
        found = {name: foreign([path], more.get(name.rpartition(".")[0], set())) for name, path in own.items()}
        assert {name: libraries for name, libraries in found.items() if libraries} == {}

    @pytest.mark.parametrize(
        "pattern", ["chapters/*/small*.py", "chapters/*/exercises/*.py", "notebooks/*.py", "tests/engine/*.py"]
    )
    def test_chapters_and_the_engines_tests(self, pattern: str) -> None:
        found = list(ROOT.glob(pattern))
        assert found
        assert foreign(found, {*LEARNING, *(["hypothesis"] if pattern.startswith("tests") else [])}) == set()


TREE = {
    "nanoinfer/__init__.py": "from nanoinfer.llm import LLM",
    "nanoinfer/llm.py": "class LLM: ...",
    "nanoinfer/cache/__init__.py": "",
    "nanoinfer/cache/dense.py": "from .naive import Naive",
    "nanoinfer/cache/naive.py": "import nanoinfer.llm",
}


class TestTheTestsThemselves:
    """Each of the functions above finds what it is for, in a small tree."""

    @pytest.fixture
    def graph_of(self, tmp_path: Path) -> GraphOf:
        """The graph of the tree with some files changed."""

        def made(changes: Mapping[str, str]) -> Graph:
            for name, text in {**TREE, **changes}.items():
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(text)
            packages = [path.parent for path in tmp_path.glob("*/__init__.py")]
            return import_graph({name: path for p in packages for name, path in modules(p.name, p).items()})

        return made

    @pytest.mark.parametrize(
        "code",
        [
            "import nanoinfer.cache.dense", "from nanoinfer.cache import dense", "from nanoinfer.cache.dense import f",
            "from .dense import f", "from ..cache import dense", "def f():\n    from nanoinfer.cache import dense",
            "try:\n    from . import dense\nexcept ImportError: ...",
            "if TYPE_CHECKING:\n    import os\nelse:\n    from . import dense",
        ],
    )  # fmt: skip
    def test_a_circle_is_found_however_it_is_imported(self, graph_of: GraphOf, code: str) -> None:
        found = circle(graph_of({"nanoinfer/cache/naive.py": code}))
        assert set(found) == {"nanoinfer.cache.dense", "nanoinfer.cache.naive"}

    def test_a_circle_through_a_name_that_the_package_passes_on(self, graph_of: GraphOf) -> None:
        passed_on = "def f():\n    from nanoinfer import LLM"
        found = graph_of({"nanoinfer/llm.py": "import nanoinfer.cache.dense", "nanoinfer/cache/naive.py": passed_on})
        assert "nanoinfer.llm" in circle(found)

    def test_what_only_a_type_checker_imports_is_no_circle(self, graph_of: GraphOf) -> None:
        assert circle(graph_of({"nanoinfer/cache/naive.py": "if TYPE_CHECKING:\n    from . import dense"})) == []

    def test_a_circle_of_rooms_and_an_arrow_that_is_not_allowed(self, graph_of: GraphOf) -> None:
        found = graph_of({
            "nanoinfer/engine/__init__.py": "", "nanoinfer/engine/state.py": "import nanoinfer.cache.naive",
            "nanoinfer/cache/paged.py": "import nanoinfer.engine.eager",
            "nanoinfer/engine/eager.py": "import nanobench.core",
            "nanobench/__init__.py": "", "nanobench/core.py": "import nanoinfer",
        })  # fmt: skip
        assert circle(found) == []
        assert circle(grouped(found, {name: room for name in found if (room := room_of(name))}))
        assert forbidden(found) == {("nanoinfer", "nanobench")}

    def test_an_import_of_a_later_chapter_and_of_a_module_of_none(self) -> None:
        wrong = {"cache.dense": {"cache.paged", "llm", "cache.none"}, "llm": {"cache.paged"}, "cli.shell": {"llm"}}
        assert sorted(against(syllabus(), wrong)) == ["cache.dense imports cache.paged", "cache.dense imports llm"]
        lab = {"labs.one_kernel.kernel": {"labs.one_kernel.parts"}, "make": {"labs.one_kernel.kernel"}}
        assert against(syllabus(), lab | {"engine.choice": {"labs.one_kernel.kernel"}}) == [
            "engine.choice imports labs.one_kernel.kernel"
        ]
        with pytest.raises(KeyError, match=r"cache\.sparse"):
            against(syllabus(), {"cache.sparse": set()})

    def test_a_library_that_is_not_listed_is_found(self, tmp_path: Path) -> None:
        (tmp_path / "beside.py").touch()
        small = tmp_path / "small.py"
        small.write_text("import torch, pandas, os.path\nimport beside\nfrom scipy import fft")
        assert foreign([small, tmp_path / "beside.py"], LEARNING) == {"small.py: pandas", "small.py: scipy.fft"}


def test_lines_of_code_leave_out_what_is_none() -> None:
    source = '"""Doc\n\nstring."""\n\nX = 1  # a comment\n# another\n\n\n'
    source += 'def f():\n    """Doc."""\n    return (\n        X\n    )\n'
    assert code_lines(source) == 5


def test_areas_stay_within_their_budgets() -> None:
    lines, _ = sums(ROOT)
    assert {area: lines[area] for area in HELD if lines[area] > BUDGETS[area]} == {}
