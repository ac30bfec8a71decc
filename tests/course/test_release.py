"""Releasing a chapter: what is in the trees and what is not, the same bytes twice, written whole or not at all."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

import nanoinfer
from nanocourse.exercises import chapters, sources
from nanocourse.exercises.exercise import Exercise
from nanocourse.grade.assignment import Assignment, load_secret
from nanocourse.grade.isolation.confine import PACKAGES
from nanocourse.learner.folder import Folder
from nanocourse.release import student, teacher, wheels
from nanocourse.release import student_notebook as notebook
from nanocourse.release.plan import plan
from nanocourse.release.release import release
from tests.course.learner_files import Course, Keep, Released, checked

pytest.importorskip("hatchling")
pytest.importorskip("jupytext")

VARIANT = "a name that is long enough"


@pytest.fixture
def quick(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is not built again."""
    monkeypatch.setattr(wheels, "make", lambda folder: Path(shutil.copy2(wheel, folder)))


def files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file())


# What is in it


def test_stubs_are_those_of_course_start_and_are_not_begun(made: Released, keep: Keep, tmp_path: Path) -> None:
    folder = Folder(made.student / "my-course")
    assert folder.load().editions == made.plan.editions
    names = sorted(path.name for path in folder.chapter(made.plan.chapter).iterdir())
    assert names == sorted(one.file for one in made.plan.exercises)
    for mine, planned in zip(folder.exercises(made.plan.chapter), made.plan.exercises, strict=True):
        assert (mine.id, mine.edition and mine.edition.name) == (planned.id, planned.edition and planned.edition.name)
        source = folder.file(made.plan.chapter, planned).read_bytes()
        assert source.startswith(b"# SPDX-License-Identifier: MIT-0\n")
        assert checked(planned, source, tmp_path, keep).status == "not begun"
    assert not list(made.student.rglob(".gitignore"))  # students may keep their work in git


def test_trees_have_what_their_pages_name(made: Released) -> None:
    pages = [*made.student.rglob("*.md"), *(made.to / "teacher").glob("*.md")]
    for page in pages:
        shown = page.read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", shown) + re.findall(r'(?:src|srcset)="([^"]+)"', shown)
        if page.parent.name != "weights":  # the model's own card
            assert [link for link in links if not (page.parent / link).exists()] == [], page
    shipped = Path(nanoinfer.__file__).parent / "data" / "small"
    for name in ("model.safetensors", "config.json"):
        assert (made.student / "weights" / name).read_bytes() == (shipped / name).read_bytes()
    assert set(os.listdir(made.student / "licences")) >= {"MIT.txt", "CC-BY-4.0.txt", "MIT-0.txt", "THIRD_PARTY.md"}
    for folder in (made.autograder, made.to / "wheel"):
        assert {"LICENSE", "LICENSE-TEXT", "THIRD_PARTY.md"} <= set(os.listdir(folder))
    notebooks = made.student / "notebooks"
    source = (notebooks / "01-naive.py").read_text(encoding="utf-8")
    assert notebook.ipynb(source) == (notebooks / "01-naive.ipynb").read_text(encoding="utf-8")


def test_requirements_are_pinned(made: Released) -> None:
    for path in (made.student / "requirements.txt", made.autograder / "requirements.txt"):
        wheel, *lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[0] not in "#-"]
        assert wheel == f"./{next(made.autograder.glob('*.whl')).name}"
        names = [line.partition("==")[0].lower().replace("_", "-") for line in lines]
        assert len(set(names)) == len(names)
        assert {"torch", "tiktoken", "safetensors", "typer", "rich", "triton"} <= set(names)
        assert all("==" in line for line in lines)
        assert 'sys_platform == "linux"' in lines[names.index("triton")]
        indirect = lines[names.index("click")]  # another pin's package is for this Python alone
        assert indirect.endswith(f'python_version == "{sys.version_info.major}.{sys.version_info.minor}"')


def test_the_autograder_is_what_gradescope_unpacks(made: Released) -> None:
    archive = zipfile.ZipFile(made.to / "autograder.zip")
    assert sorted(archive.namelist()) == sorted(path.name for path in made.autograder.iterdir())
    for name in archive.namelist():
        assert archive.read(name) == (made.autograder / name).read_bytes()
    for name in ("setup.sh", "run_autograder"):  # at the root, and executable
        assert archive.getinfo(name).external_attr >> 16 & stat.S_IXUSR
        assert subprocess.run(["bash", "-n", made.autograder / name], check=False).returncode == 0
    assert Assignment.load(made.autograder) == made.plan.assignment
    assert load_secret(made.autograder) == made.plan.secret
    assert stat.S_IMODE((made.autograder / "secret.txt").stat().st_mode) == 0o600
    names = zipfile.ZipFile(next(made.autograder.glob("*.whl"))).namelist()
    assert [name for name in names if name.endswith("model.safetensors")] == ["nanoinfer/data/small/model.safetensors"]


def test_setup_hides_every_package_from_other_users(made: Released, wheel: Path, tmp_path: Path) -> None:
    """Where a kernel has no Landlock this is what keeps the answers from a worker, which is another user."""
    source, site, bin = tmp_path / "source", tmp_path / "venv" / "site", tmp_path / "venv" / "bin"
    shutil.copytree(made.autograder, source)
    zipfile.ZipFile(wheel).extractall(site)
    bin.mkdir()
    scripts = {
        tmp_path / "python3": "exit 0",  # which would make the environment, and pip below install the wheel
        bin / "python": f'[ "$2" = pip ] || PYTHONPATH={site} exec {sys.executable} "$@"',
    }
    for path, line in scripts.items():
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NANOINFER_VENV": str(tmp_path / "venv")}
    subprocess.run(["bash", source / "setup.sh"], cwd="/", env=environment, check=True)
    ours = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name}
    assert ours == set(PACKAGES)
    for name in ours:
        for path in (site / name, *(site / name).rglob("*")):
            assert not path.stat().st_mode & 0o077, path
    assert bin.stat().st_mode & 0o005 == 0o005
    assert not (source / "secret.txt").stat().st_mode & 0o077


def test_the_secret_lies_in_one_place(made: Released) -> None:
    named = [path for path in files(made.to) if made.plan.secret.encode() in path.read_bytes()]
    assert [path.name for path in named if path.suffix != ".zip"] == ["secret.txt"]
    assert VARIANT not in "".join(path.read_text(encoding="utf-8") for path in made.to.rglob("*.md"))


# What is not in it


def statements(body: list[ast.stmt]) -> list[str]:
    """A function's statements without its docstring."""
    kept = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return [ast.dump(one) for one in kept]


def answers(exercise: Exercise) -> dict[str, list[list[str]]]:
    """The right answer, its variants and editions, and the wrong answers next to them: each function's statements."""
    found = {"reference": sources.function_source(exercise.function)}
    found |= {edition.name: sources.function_source(edition.reference) for edition in exercise.editions}
    found |= {one.name: sources.answer_source(exercise, one) for one in (*exercise.right, *exercise.real_wrong)}
    return {
        name: [statements(node.body) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
        for name, source in found.items()
    }


def code_in(path: Path) -> list[str]:
    """The Python code of a file of the tree: all of it, a cell's, a fence's."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    if path.suffix == ".md":
        blocks = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)
        return [textwrap.dedent(block) for block in blocks]
    return [path.read_text(encoding="utf-8")] if path.suffix == ".py" else []


def given_away(tree: Path, exercises: list[Exercise]) -> list[tuple[str, str, str]]:
    """Answers whose statements stand one behind the other in the tree, as a function's body or anywhere else."""
    runs = []
    for path in files(tree):
        for code in code_in(path):
            try:
                bodies = [getattr(node, "body", []) for node in ast.walk(ast.parse(code))]
            except SyntaxError:  # a part of a function, as the text quotes it
                continue
            runs += [(path.name, [ast.dump(one) for one in body]) for body in bodies if isinstance(body, list)]

    def within(body: list[str], run: list[str]) -> bool:
        return any(run[at : at + len(body)] == body for at in range(len(run) - len(body) + 1))

    found, known = [], {statement for _, run in runs for statement in run}
    for exercise in exercises:
        for name, bodies_of in answers(exercise).items():
            for body in bodies_of:
                if body and known.issuperset(body):
                    found += [(exercise.id, name, file) for file, run in runs if within(body, run)]
    return found


@pytest.mark.parametrize("number", [chapter.number for chapter in chapters.chapters()])
def test_no_answer_is_in_the_students_tree(number: int, wheel: Path, tmp_path: Path) -> None:
    planned = plan(number, variant=VARIANT)
    student.write(planned, wheel, tmp_path / "student")
    assert given_away(tmp_path / "student", [*planned.exercises, *chapters.exercises(planned.chapter)]) == []


@pytest.mark.parametrize("place", ["my-course/01-naive/ex4_filters.py", "notebooks/01-naive.py", "README.md"])
def test_an_answer_would_be_found(tmp_path: Path, place: str) -> None:
    source = sources.function_source(chapters.exercise("1.4").function)
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"```python\n{source}```\n" if path.suffix == ".md" else source, encoding="utf-8")
    assert ("1.4", "reference", path.name) in given_away(tmp_path, [chapters.exercise("1.4")])


def test_no_text_for_teachers_is_in_the_students_tree(made: Released) -> None:
    shown = "\n".join(path.read_text(encoding="utf-8") for path in files(made.student) if path.suffix in (".md", ".py"))
    folder = made.plan.chapter.folder
    pages = [folder / "teacher.md", folder / "criteria.md", folder / "questions.md", folder.parent / "TEACHING.md"]
    kept = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines() if len(line) >= 60]
    for exercise in made.plan.exercises:
        kept += [*(wrong.says for wrong in exercise.wrong), *exercise.spec.hints]
    assert [line for line in kept if line in shown] == []


# The same bytes, whole or not at all


def test_the_same_variant_gives_the_same_bytes(made: Released, tmp_path: Path, quick: None) -> None:
    release(plan(1, variant=VARIANT), tmp_path / "again")
    one, other = ({str(p.relative_to(to)): p for p in files(to)} for to in (made.to, tmp_path / "again"))
    assert one.keys() == other.keys()
    for name, path in one.items():
        assert path.read_bytes() == other[name].read_bytes(), name
        assert path.stat().st_mode == other[name].stat().st_mode, name


def test_a_wheel_is_built_the_same_twice(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "nanoinfer").mkdir(parents=True)
    (root / "nanoinfer" / "__init__.py").write_text("")
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "nanoinfer"\nversion = "1"\n'
    )
    built = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        built.append(wheels._build(root, tmp_path / name).read_bytes())
        os.utime(root / "nanoinfer" / "__init__.py", (1, 1))
    assert built[0] == built[1]


def test_an_installation_gives_its_wheel_back(tmp_path: Path) -> None:
    info = "nanoinfer-1.0.dist-info"
    content = {"nanoinfer/__init__.py": "x = 1\n", "nanoinfer/data/a.txt": "a\n"}
    content |= {f"{info}/{name}": f"{name}\n" for name in ("METADATA", "WHEEL", "licenses/LICENSE")}
    added = {"nanoinfer/__pycache__/x.pyc": "", f"{info}/INSTALLER": "pip"}
    for name, text_of in (content | added).items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text_of)
    record = "".join(f"{name},,\n" for name in [*content, *added, "../../bin/nanoinfer", f"{info}/RECORD"])
    (tmp_path / "site" / info / "RECORD").write_text(record)
    again = wheels._pack(PathDistribution(tmp_path / "site" / info), tmp_path)
    archive = zipfile.ZipFile(again)
    assert again.name == "nanoinfer-1.0-py3-none-any.whl"
    assert set(archive.namelist()) == {*content, f"{info}/RECORD"}
    assert all(archive.read(name).decode() == text_of for name, text_of in content.items())
    recorded = archive.read(f"{info}/RECORD").decode()
    assert "nanoinfer/__init__.py,sha256=" in recorded
    assert recorded.count("\n") == len(content) + 1


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, quick: None) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target in ("full", "file", "file/below"):
        with pytest.raises(ValueError, match="to must be a folder"):
            release(plan(1), tmp_path / target)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "mine.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_nothing_half_written_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], quick: None
) -> None:
    seen = []

    def stop(*_: object) -> None:
        seen.extend(path.name for path in tmp_path.iterdir())
        raise error

    monkeypatch.setattr(teacher, "write", stop)
    with pytest.raises(error):
        release(plan(1, only="1.3"), tmp_path / "new" / "one")
    assert len(seen) == 1  # it was being written, beside the place
    assert list(tmp_path.iterdir()) == []


# The command


def test_the_command_releases(tmp_path: Path, course: Course, quick: None) -> None:
    to = tmp_path / "one"
    to.mkdir()  # an empty folder is taken
    done = course("release", "1", "--to", to, "--only", "1.3", "--points", "1.3=7", "--no-strength")
    assert done.code == 0, done.err
    assert "1 exercise, 7 points" in done.out
    assert f"{to / 'autograder' / 'secret.txt'}: the secret" in done.out
    assert "At risk, since a copy from the book passes: 1.3, 7 of 7 points" in done.out
    assert load_secret(to / "autograder")
    assert [path.name for path in (to / "student" / "my-course" / "01-naive").iterdir()] == ["ex3_last.py"]
