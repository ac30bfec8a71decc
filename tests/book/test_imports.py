"""Who imports whom: no circles, arrows between packages by name, the syllabus, and what a learner must install."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from nanobook.figures.packages import packages, room_of
from nanobook.source import PACKAGES, Graph, code_lines, folder_of, grouped, import_graph, imported, modules, reduced
from nanobook.syllabus import ENGINE, Syllabus, syllabus

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "nanoinfer": set(),
    "nanobench": {"nanoinfer"},
    "nanocourse": {"nanoinfer"},
    "nanobook": {"nanoinfer", "nanobench", "nanocourse"},
    "training": {"nanoinfer"},
}
OURS = {*PACKAGES, "tests"}
# What the engine itself depends on, and what is installed for learning with it.
ENGINES_OWN = {
    "torch",
    "triton",
    "numpy",
    "tiktoken",
    "safetensors",
    "huggingface_hub",
    "typer",
    "rich",
    "prompt_toolkit",
}
SERVING = {*ENGINES_OWN, "fastapi", "starlette", "uvicorn", "uvloop", "prometheus_client", "pydantic"}
LEARNING = {*ENGINES_OWN, "matplotlib", "pytest", "IPython", "ipywidgets", "jupyter"}

pytestmark = pytest.mark.skipif(not (ROOT / "chapters").is_dir(), reason="not a checkout")


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
    """Imports of the engine that lead to a later chapter, or from a chapter to a module of none."""
    found = []
    for name, needed in graph.items():
        chapter = known.chapter_of(name)
        for other in needed:
            theirs = known.chapter_of(other)
            if chapter is not None and (theirs is None or theirs > chapter):
                found.append(f"{name} imports {other}")
    return found


def foreign(files: Iterable[Path], allowed: set[str]) -> set[str]:
    """Imports beyond the standard library, the allowed ones, and modules that lie beside the file."""
    return {
        f"{file.name}: {name}"
        for file in files
        for name in imported(file)
        if (top := name.partition(".")[0]) not in allowed | sys.stdlib_module_names
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
    def test_modules_import_each_other_in_no_circle(self, graph: Graph) -> None:
        assert len(graph) > 150
        assert circle(graph) == []

    def test_rooms_and_packages_import_each_other_in_no_circle(self, graph: Graph) -> None:
        assert circle(grouped(graph, {name: room for name in graph if (room := room_of(name))})) == []
        assert circle(grouped(graph, {name: name.partition(".")[0] for name in graph})) == []

    def test_arrows_between_packages_are_allowed_by_name(self, graph: Graph) -> None:
        assert forbidden(graph) == set()
        assert circle(ALLOWED) == []

    def test_every_module_of_the_engine_is_listed_once(self, files: Mapping[str, Path], engine: Graph) -> None:
        known = syllabus()
        listed = [name for chapter in known.chapters for name in chapter.modules] + list(known.outside)
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

    def test_the_picture_shows_every_room(self, graph: Graph) -> None:
        drawing = packages()
        rooms = {room for name in graph if not name.startswith("training") and (room := room_of(name))}
        assert {row[0].strip("`") for row in drawing.rows} == rooms
        assert drawing.draw().axes


class TestWhatALearnerInstalls:
    def test_the_engine(self, files: Mapping[str, Path]) -> None:
        own = {name: path for name, path in files.items() if name.partition(".")[0] == ENGINE}
        served = [own.pop(name) for name in list(own) if name.startswith(f"{ENGINE}.serve.")]
        spread = [own.pop(name) for name in list(own) if name.startswith(f"{ENGINE}.parallel.")]
        assert foreign(own.values(), {*OURS, *ENGINES_OWN}) == set()
        assert foreign(spread, {*OURS, *ENGINES_OWN, "pyarrow", "ray"}) == set()
        assert foreign(served, {*OURS, *SERVING}) == set()

    @pytest.mark.parametrize("pattern", ["chapters/*/small*.py", "chapters/*/exercises/*.py", "notebooks/*.py"])
    def test_the_chapters(self, pattern: str) -> None:
        found = list(ROOT.glob(pattern))
        assert len(found) >= 4
        assert foreign(found, {*OURS, *LEARNING}) == set()

    def test_the_engines_tests(self) -> None:
        assert foreign((ROOT / "tests" / "engine").glob("*.py"), {*OURS, *LEARNING, "hypothesis"}) == set()


class TestTheTestsThemselves:
    """Each of the functions above finds what it is for, in a small tree."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        self.write(tmp_path, "nanoinfer/__init__.py", "from nanoinfer.llm import LLM")
        self.write(tmp_path, "nanoinfer/llm.py", "class LLM: ...")
        self.write(tmp_path, "nanoinfer/cache/__init__.py", "")
        self.write(tmp_path, "nanoinfer/cache/dense.py", "from .naive import Naive")
        self.write(tmp_path, "nanoinfer/cache/naive.py", "import nanoinfer.llm")
        return tmp_path

    def write(self, root: Path, name: str, text: str) -> Path:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def graph(self, root: Path) -> Graph:
        packages = [path.parent for path in root.glob("*/__init__.py")]
        return import_graph({name: path for p in packages for name, path in modules(p.name, p).items()})

    def test_the_graph_of_a_tree(self, tree: Path) -> None:
        found = self.graph(tree)
        assert found["nanoinfer.cache.dense"] == {"nanoinfer.cache.naive"}
        assert found["nanoinfer.cache.naive"] == {"nanoinfer.llm"}
        assert circle(found) == []

    @pytest.mark.parametrize(
        "code",
        [
            "import nanoinfer.cache.dense", "from nanoinfer.cache import dense", "from nanoinfer.cache.dense import f",
            "from .dense import f", "from . import dense", "from ..cache import dense",
            "def f():\n    from nanoinfer.cache import dense", "try:\n    from . import dense\nexcept ImportError: ...",
            "if TYPE_CHECKING:\n    import os\nelse:\n    from . import dense",
        ],
    )  # fmt: skip
    def test_a_circle_is_found_however_it_is_imported(self, tree: Path, code: str) -> None:
        self.write(tree, "nanoinfer/cache/naive.py", code)
        assert set(circle(self.graph(tree))) == {"nanoinfer.cache.dense", "nanoinfer.cache.naive"}

    def test_a_circle_through_a_name_that_the_package_passes_on(self, tree: Path) -> None:
        self.write(tree, "nanoinfer/llm.py", "import nanoinfer.cache.dense")
        self.write(tree, "nanoinfer/cache/naive.py", "def f():\n    from nanoinfer import LLM")
        assert "nanoinfer.llm" in circle(self.graph(tree))

    @pytest.mark.parametrize("condition", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
    def test_what_only_a_type_checker_imports_is_no_circle(self, tree: Path, condition: str) -> None:
        self.write(tree, "nanoinfer/cache/naive.py", f"if {condition}:\n    from . import dense")
        assert circle(self.graph(tree)) == []

    def test_a_circle_of_rooms_and_an_arrow_that_is_not_allowed(self, tree: Path) -> None:
        self.write(tree, "nanoinfer/engine/__init__.py", "")
        self.write(tree, "nanoinfer/engine/state.py", "import nanoinfer.cache.naive")
        self.write(tree, "nanoinfer/cache/paged.py", "import nanoinfer.engine.eager")
        self.write(tree, "nanoinfer/engine/eager.py", "import nanobench.core")
        self.write(tree, "nanobench/__init__.py", "")
        self.write(tree, "nanobench/core.py", "import nanoinfer")
        found = self.graph(tree)
        assert circle(found) == []
        assert circle(grouped(found, {name: room for name in found if (room := room_of(name))}))
        assert forbidden(found) == {("nanoinfer", "nanobench")}

    def test_an_import_of_a_later_chapter_and_of_a_module_of_none(self) -> None:
        wrong = {"cache.dense": {"cache.paged", "llm", "cache.naive"}, "llm": {"cache.paged"}, "cli.shell": {"llm"}}
        assert sorted(against(syllabus(), wrong)) == ["cache.dense imports cache.paged", "cache.dense imports llm"]
        with pytest.raises(KeyError, match=r"cache\.sparse"):
            against(syllabus(), {"cache.sparse": set()})

    def test_a_library_that_is_not_listed_is_found(self, tmp_path: Path) -> None:
        beside = self.write(tmp_path, "beside.py", "")
        small = self.write(tmp_path, "small.py", "import torch, pandas, os.path\nimport beside\nfrom scipy import fft")
        assert foreign([small, beside], {*OURS, *LEARNING}) == {"small.py: pandas", "small.py: scipy.fft"}

    def test_lines_of_code_leave_out_what_is_none(self) -> None:
        source = '"""Doc\n\nstring."""\n\nX = 1  # a comment\n# another\n\n\n'
        source += 'def f():\n    """Doc."""\n    return (\n        X\n    )\n'
        assert code_lines(source) == 5

    def test_arrows_that_follow_from_others_are_left_out(self) -> None:
        assert reduced({"a": set(), "b": {"a"}, "c": {"a", "b"}}) == {"a": set(), "b": {"a"}, "c": {"b"}}
