"""Releasing a chapter: what is in the trees and what is not, the same bytes twice, written whole or not at all."""

from __future__ import annotations

import ast
import contextlib
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


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# What is in it


def test_stubs_are_those_of_course_start_and_are_not_begun(made: Released, keep: Keep, tmp_path: Path) -> None:
    folder = Folder(made.student / "my-course")
    assert folder.load().editions == made.plan.editions
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
    assert (made.student / "weights" / "model.safetensors").is_file()
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
        assert all("==" in line for line in lines if not line.startswith("tomli"))  # of Python 3.10, and not here
        assert 'sys_platform == "linux"' in lines[names.index("triton")]


def test_the_autograder_is_what_gradescope_unpacks(made: Released) -> None:
    archive = zipfile.ZipFile(made.to / "autograder.zip")
    assert sorted(archive.namelist()) == sorted(path.name for path in made.autograder.iterdir())
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


def plain(source: str) -> str:
    """Code without comments, breaks and indentation: a statement a line."""
    return "".join(line.strip() + "\n" for line in ast.unparse(ast.parse(source)).splitlines())


def answers(exercise: Exercise) -> Iterator[tuple[str, str]]:
    """The right answer, its variants and editions, and the wrong answers next to them: what each function does."""
    yield "reference", sources.function_source(exercise.function)
    yield from ((one.name, sources.function_source(one.reference)) for one in exercise.editions)
    yield from ((one.name, sources.answer_source(exercise, one)) for one in (*exercise.right, *exercise.real_wrong))


def given_away(tree: Path, exercises: list[Exercise]) -> list[tuple[str, str, str]]:
    """Functions of answers whose statements, but for the docstring, stand one behind the other anywhere in the tree."""
    shown = []
    for path in files(tree):
        text = path.read_text(encoding="utf-8") if path.suffix in (".md", ".py") else ""
        for code in re.findall(r"```python\n(.*?)```", text, re.S) if path.suffix == ".md" else [text]:
            with contextlib.suppress(SyntaxError):  # a part of a function, as the text quotes it
                shown.append((path.name, "\n" + plain(textwrap.dedent(code))))
    found = []
    for exercise in exercises:
        for name, source in answers(exercise):
            functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
            bodies = [node.body[ast.get_docstring(node) is not None :] for node in functions]
            for does in ("\n" + plain("\n".join(map(ast.unparse, body))) for body in bodies if body):
                found += [(exercise.id, name, file) for file, code in shown if does in code]
    return found


@pytest.mark.parametrize("number", [chapter.number for chapter in chapters.chapters()])
def test_no_answer_is_in_the_students_tree(number: int, wheel: Path, tmp_path: Path) -> None:
    planned = plan(number, variant=VARIANT)
    student.write(planned, wheel, tmp_path / "student")
    assert given_away(tmp_path / "student", [*planned.exercises, *chapters.exercises(planned.chapter)]) == []


@pytest.mark.parametrize("place", ["ex4_filters.py", "README.md"])
def test_an_answer_would_be_found(tmp_path: Path, place: str) -> None:
    source = sources.function_source(chapters.exercise("1.4").function)
    (tmp_path / place).write_text(f"```python\n{source}```\n" if place == "README.md" else source, encoding="utf-8")
    assert ("1.4", "reference", place) in given_away(tmp_path, [chapters.exercise("1.4")])


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


def test_an_installation_gives_its_wheel_back(tmp_path: Path) -> None:
    info = "nanoinfer-1.0.dist-info"
    kept = ["nanoinfer/__init__.py", "nanoinfer/data/a.txt", f"{info}/METADATA", f"{info}/licenses/LICENSE"]
    added = ["nanoinfer/__pycache__/x.pyc", f"{info}/INSTALLER"]
    for name in (*kept, *added):
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(name)
    record = "".join(f"{name},,\n" for name in [*kept, *added, "../../bin/nanoinfer", f"{info}/RECORD"])
    (tmp_path / "site" / info / "RECORD").write_text(record)
    again = wheels._pack(PathDistribution(tmp_path / "site" / info), tmp_path)
    archive = zipfile.ZipFile(again)
    assert again.name == "nanoinfer-1.0-py3-none-any.whl"
    assert {name: archive.read(name).decode() for name in kept} == {name: name for name in kept}
    assert set(archive.namelist()) == {*kept, f"{info}/RECORD"}


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, quick: None) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for target in ("full", "full/mine.txt", "full/mine.txt/below"):
        with pytest.raises(ValueError, match="to must be a folder"):
            release(plan(1), tmp_path / target)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "mine.txt"]


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    seen = []

    def stop(*_: object) -> None:
        seen.extend(path.name for path in tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(teacher, "write", stop)
    with pytest.raises(KeyboardInterrupt):
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
