"""Releasing a chapter: what is in the trees and what is not, points, variants, oral questions, texts for teachers."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import nanoinfer
from nanocourse.exercises import chapters, sources
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import local
from nanocourse.grade.assignment import Assignment, load_secret
from nanocourse.grade.hidden_inputs import judged, questions
from nanocourse.grade.isolation.confine import PACKAGES
from nanocourse.grade.variant_strength import VariantStrength
from nanocourse.learner.folder import Folder
from nanocourse.release import pins, student, teacher, wheels
from nanocourse.release import student_notebook as notebook
from nanocourse.release import student_text as text
from nanocourse.release.oral import draw as oral
from nanocourse.release.oral import truth
from nanocourse.release.oral.texts import TEXTS
from nanocourse.release.plan import choose_editions, enough, plan, secret_of
from nanocourse.release.release import release
from nanoinfer import cli
from tests.course.learner_files import Keep, checked

pytest.importorskip("hatchling")
pytest.importorskip("jupytext")

NUMBERS = (1, 2, 3)
EVERY = [chapter.number for chapter in chapters.chapters()]
TEACHING = chapters.root() / "chapters" / "TEACHING.md"
VARIANT = "a name that is long enough"
ALL = [one for number in NUMBERS for one in chapters.exercises(chapters.chapter(number))]
each = pytest.mark.parametrize("exercise", ALL, ids=[one.id for one in ALL])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.make(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def quick(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is built once for all tests of this file."""
    monkeypatch.setattr(wheels, "make", lambda folder: _copied(wheel, folder))


def _copied(wheel: Path, folder: Path) -> Path:
    os.link(wheel, folder / wheel.name)
    return folder / wheel.name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> SimpleNamespace:
    """A release of chapter 1, and its plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wheels, "make", lambda folder: _copied(wheel, folder))
        planned, to = plan(1, variant=VARIANT), tmp_path_factory.mktemp("release") / "deep" / "one"
        release(planned, to)
    return SimpleNamespace(plan=planned, to=to, student=to / "student", autograder=to / "autograder")


def files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file())


# What is in it


def test_the_stubs_are_those_of_course_start(made: SimpleNamespace) -> None:
    folder = Folder(made.student / "my-course")
    assert folder.load().editions == made.plan.editions
    for mine, planned in zip(folder.exercises(made.plan.chapter), made.plan.exercises, strict=True):
        assert (mine.id, mine.edition and mine.edition.name) == (planned.id, planned.edition and planned.edition.name)
    names = sorted(path.name for path in folder.chapter(made.plan.chapter).iterdir())
    assert names == sorted(one.file for one in made.plan.exercises)
    assert not list(made.student.rglob(".gitignore"))  # students may keep their work in git


def test_released_stubs_are_not_begun(made: SimpleNamespace, tmp_path: Path) -> None:
    keep = Keep()
    try:
        for one in made.plan.exercises:
            source = (made.student / "my-course" / "01-naive" / one.file).read_bytes()
            assert checked(one, source, tmp_path, keep).status == "not begun"
    finally:
        keep.end()


def test_the_tree_has_what_its_pages_name(made: SimpleNamespace) -> None:
    for page in made.student.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            if page.parent.name != "weights":  # the model's own card
                assert (page.parent / link).exists(), (page, link)
        for link in re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text(encoding="utf-8")):
            assert (page.parent / link).is_file(), (page, link)


def test_the_teachers_pages_show_their_figures(made: SimpleNamespace) -> None:
    folder = made.to / "teacher"
    shown = (folder / "TEACHING.md").read_text(encoding="utf-8")
    assert (folder / re.findall(r'src="([^"]+)"', shown)[0]).is_file()
    for page in folder.glob("*.md"):
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (folder / link).exists(), (page, link)


def test_the_text_has_none_of_the_books_markers(made: SimpleNamespace) -> None:
    page = (made.student / "chapters" / "01-naive" / "README.md").read_text(encoding="utf-8")
    assert "[[[cog" not in page
    assert "<!--=" not in page
    assert "exempt:" not in page
    assert re.findall(r"> Left out here: exercise (\S+) asks for it\.", page) == ["1.2", "1.3", "1.1"]


def test_the_notebook_is_both_forms_of_one_source(made: SimpleNamespace) -> None:
    source = (made.student / "notebooks" / "01-naive.py").read_text(encoding="utf-8")
    shown = json.loads((made.student / "notebooks" / "01-naive.ipynb").read_text(encoding="utf-8"))
    assert notebook.ipynb(source) == (made.student / "notebooks" / "01-naive.ipynb").read_text(encoding="utf-8")
    code = [cell for cell in shown["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 20
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]
    ast.parse("\n".join("".join(cell["source"]) for cell in code))
    assert 'answers.source("1.1"' not in source


def test_requirements_are_pinned(made: SimpleNamespace) -> None:
    for path in (made.student / "requirements.txt", made.autograder / "requirements.txt"):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[0] not in "#-"]
        assert lines[0] == f"./{next(made.autograder.glob('*.whl')).name}"
        for name in ("torch", "tiktoken", "safetensors", "typer", "rich"):
            assert [line for line in lines if re.fullmatch(rf"{name}==[\w.]+", line)], name
        assert [line for line in lines if re.fullmatch(r'triton==[\w.]+; sys_platform == "linux"', line)]
        assert all("==" in line for line in lines[1:])
        names = [line.partition("==")[0].lower().replace("_", "-") for line in lines[1:]]
        assert len(set(names)) == len(names)


def test_a_pin_of_another_pins_package_is_for_this_python_alone(made: SimpleNamespace) -> None:
    line = next(
        line for line in pins.requirements(next(made.autograder.glob("*.whl"))).splitlines() if "click==" in line
    )
    assert line.endswith(f'python_version == "{sys.version_info.major}.{sys.version_info.minor}"')


def test_the_autograder_is_what_gradescope_unpacks(made: SimpleNamespace) -> None:
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


def test_setup_hides_every_package_from_other_users(made: SimpleNamespace, wheel: Path, tmp_path: Path) -> None:
    """Where a kernel has no Landlock this is what keeps the answers from a worker, which is another user."""
    source, site, bin = tmp_path / "source", tmp_path / "venv" / "site", tmp_path / "venv" / "bin"
    shutil.copytree(made.autograder, source)
    zipfile.ZipFile(wheel).extractall(site)
    scripts = {
        tmp_path / "python3": "exit 0",  # which would make the environment, and pip below install the wheel
        bin / "python": f'[ "$2" = pip ] || PYTHONPATH={site} exec {sys.executable} "$@"',
    }
    bin.mkdir()
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


def test_the_secret_lies_in_one_place(made: SimpleNamespace) -> None:
    named = [path for path in files(made.to) if made.plan.secret.encode() in path.read_bytes()]
    assert [path.name for path in named if path.suffix != ".zip"] == ["secret.txt"]
    assert VARIANT not in "".join(path.read_text(encoding="utf-8") for path in made.to.rglob("*.md"))


def test_licences_are_in_the_trees(made: SimpleNamespace) -> None:
    licences = made.student / "licences"
    told = {name: (licences / name).read_text(encoding="utf-8") for name in os.listdir(licences)}
    assert "MIT License" in told["MIT.txt"]
    assert "creativecommons.org/licenses/by/4.0" in told["CC-BY-4.0.txt"]
    assert "MIT No Attribution" in told["MIT-0.txt"]
    assert "Software Copyright (c) 2019 OpenAI" in told["THIRD_PARTY.md"]
    assert told["MIT-0.txt"] == (made.student / "my-course" / "LICENSE").read_text(encoding="utf-8")
    assert "CC0" in (made.student / "weights" / "README.md").read_text(encoding="utf-8")
    for stub in (made.student / "my-course").rglob("ex*.py"):
        assert stub.read_text(encoding="utf-8").startswith("# SPDX-License-Identifier: MIT-0\n")
    for folder in (made.autograder, made.to / "wheel"):
        assert {"LICENSE", "LICENSE-TEXT", "THIRD_PARTY.md"} <= set(os.listdir(folder))
    names = zipfile.ZipFile(next((made.to / "wheel").glob("*.whl"))).namelist()
    assert [name for name in names if name.endswith("licenses/THIRD_PARTY.md")]


def test_the_weights_are_those_that_ship(made: SimpleNamespace) -> None:
    shipped = Path(nanoinfer.__file__).parent / "data" / "small"
    for name in ("model.safetensors", "config.json"):
        assert (made.student / "weights" / name).read_bytes() == (shipped / name).read_bytes()


# What is not in it


def bodies(source: str) -> list[list[str]]:
    """What each function of a source does, statement by statement, without docstrings, names of arguments left."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            kept = [one for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
            found.append([ast.dump(one) for one in kept])
    return found


def answers(exercise: Exercise) -> dict[str, str]:
    """All that must not be given away: the right answer, its variants and editions, the wrong answers next to them."""
    found = {"reference": sources.function_source(exercise.function)}
    found |= {edition.name: sources.function_source(edition.reference) for edition in exercise.editions}
    return found | {one.name: sources.answer_source(exercise, one) for one in (*exercise.right, *exercise.real_wrong)}


def code_in(path: Path) -> Iterator[str]:
    """The Python code of a file of the tree: all of it, a cell's, a fence's."""
    if path.suffix not in (".py", ".ipynb", ".md"):
        return
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield content
    elif path.suffix == ".ipynb":
        yield from ("".join(c["source"]) for c in json.loads(content)["cells"] if c["cell_type"] == "code")
    elif path.suffix == ".md":
        yield from (textwrap.dedent(one) for one in re.findall(r"```python\n(.*?)```", content, re.S))


def given_away(tree: Path, exercises: list[Exercise]) -> list[tuple[str, str, str]]:
    """Answers whose statements stand one behind the other in the tree, as a function's body or anywhere else."""
    runs = []
    for path in files(tree):
        for code in code_in(path):
            try:
                every = [getattr(node, "body", []) for node in ast.walk(ast.parse(code))]
            except SyntaxError:  # a part of a function, as the text quotes it
                continue
            runs += [(path.name, [ast.dump(one) for one in body]) for body in every if isinstance(body, list)]
    found, known = [], {statement for _, run in runs for statement in run}
    for exercise in exercises:
        for name, source in answers(exercise).items():
            for body in bodies(source):
                if known.issuperset(body):
                    found += [(exercise.id, name, file) for file, run in runs if _within(body, run)]
    return found


def _within(body: list[str], run: list[str]) -> bool:
    return bool(body) and any(run[at : at + len(body)] == body for at in range(len(run) - len(body) + 1))


@pytest.mark.parametrize("number", EVERY)
def test_no_answer_is_in_the_students_tree(number: int, wheel: Path, tmp_path: Path) -> None:
    planned = plan(number, variant=VARIANT)
    student.write(planned, wheel, tmp_path / "student")
    assert given_away(tmp_path / "student", [*planned.exercises, *chapters.exercises(planned.chapter)]) == []


@pytest.mark.parametrize("place", ["my-course/01-naive/ex4_filters.py", "notebooks/01-naive.py", "README.md"])
def test_an_answer_would_be_found(made: SimpleNamespace, tmp_path: Path, place: str) -> None:
    source = sources.function_source(chapters.exercise("1.4").function)
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"```python\n{source}```\n" if path.suffix == ".md" else source, encoding="utf-8")
    assert ("1.4", "reference", path.name) in given_away(tmp_path, [chapters.exercise("1.4")])


def test_no_text_for_teachers_is_in_the_students_tree(made: SimpleNamespace) -> None:
    shown = "\n".join(path.read_text(encoding="utf-8") for path in files(made.student) if path.suffix in (".md", ".py"))
    folder = made.plan.chapter.folder
    kept = [folder / "teacher.md", folder / "criteria.md", folder / "questions.md", TEACHING]
    for page in kept:
        for line in page.read_text(encoding="utf-8").splitlines():
            assert len(line) < 60 or line not in shown, (page.name, line)
    for exercise in made.plan.exercises:
        for wrong in exercise.wrong:
            assert wrong.says not in shown
        for hint in exercise.spec.hints:
            assert hint not in shown


@pytest.mark.parametrize("number", NUMBERS)
def test_excerpts_that_are_an_answer_are_left_out(number: int) -> None:
    planned = plan(number)
    page = (planned.chapter.folder / "README.md").read_text(encoding="utf-8")
    shown = text.released(page, text.answers(planned.exercises), lambda link: True)
    assert 0 < shown.count("> Left out here: exercise") < page.count("cog excerpt(")
    one = plan(number, only=planned.exercises[0].id)
    fewer = text.released(page, text.answers(one.exercises), lambda link: True)
    assert fewer.count("> Left out here") < shown.count("> Left out here")


# Points and variants


def test_the_same_variant_gives_the_same_bytes(made: SimpleNamespace, tmp_path: Path, quick: None) -> None:
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
        built.append(wheels._build(root, tmp_path / name))
        os.utime(root / "nanoinfer" / "__init__.py", (1, 1))
    assert built[0].read_bytes() == built[1].read_bytes()


def test_an_installation_gives_its_wheel_back(tmp_path: Path) -> None:
    from importlib.metadata import PathDistribution

    content = {"nanoinfer/__init__.py": "x = 1\n", "nanoinfer/data/a.txt": "a\n"}
    content |= {f"nanoinfer-1.0.dist-info/{name}": f"{name}\n" for name in ("METADATA", "WHEEL", "licenses/LICENSE")}
    site = tmp_path / "site"
    added = {"nanoinfer/__pycache__/x.pyc": "", "nanoinfer-1.0.dist-info/INSTALLER": "pip"}
    for name, text_of in (content | added).items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text_of)
    record = "".join(f"{name},,\n" for name in [*content, *added, "../../bin/nanoinfer"])
    (site / "nanoinfer-1.0.dist-info" / "RECORD").write_text(record + "nanoinfer-1.0.dist-info/RECORD,,\n")
    again = wheels._pack(PathDistribution(site / "nanoinfer-1.0.dist-info"), tmp_path)
    archive = zipfile.ZipFile(again)
    assert again.name == "nanoinfer-1.0-py3-none-any.whl"
    assert set(archive.namelist()) == {*content, "nanoinfer-1.0.dist-info/RECORD"}
    assert all(archive.read(name).decode() == text_of for name, text_of in content.items())
    recorded = archive.read("nanoinfer-1.0.dist-info/RECORD").decode()
    assert "nanoinfer/__init__.py,sha256=" in recorded
    assert recorded.count("\n") == len(content) + 1


def test_another_variant_gives_other_editions_and_another_secret() -> None:
    chosen = {tuple(plan(1, variant=f"{VARIANT} {at}").editions.items()) for at in range(12)}
    assert len(chosen) > 4
    assert secret_of(1, "one") != secret_of(2, "one") != secret_of(1, "two")


@pytest.mark.parametrize("number", EVERY)
def test_a_variant_has_two_editions_and_half_the_points(number: int) -> None:
    for at in range(8):
        planned = plan(number, variant=f"{VARIANT} {at}")
        worth = {part.id: part.points for part in planned.assignment.parts}
        assert len(planned.editions) >= 2
        assert sum(worth[id] for id in planned.editions) >= 0.5 * planned.assignment.points
        assert enough(planned.editions, worth)
        assert planned.warnings == ()
        for id, name in planned.editions.items():
            assert chapters.exercise(id).as_edition(name)


def test_correct_variants_pass_on_hidden_inputs_of_any_secret() -> None:
    """1.5 has inputs at which float32 and float64 part, and both are right: no secret may draw them."""
    exercise = chapters.exercise("1.5")
    for at in range(5):
        for asked in questions(exercise, f"{at:064x}", "anna", 3):
            for right in exercise.right:
                got = local(sources.answer_function(exercise, right), asked.call(exercise))
                assert judged(exercise, asked, got) == "passed", (right.name, asked.check.name)


def test_sets_without_enough_variants_are_warned_about() -> None:
    planned = plan(1, only="1.3,1.7", variant=VARIANT)
    assert planned.editions == {"1.3": "time-first"}
    assert "1 of 2 exercises come in another edition" in planned.warnings[0]
    heavy = plan(1, only="1.3,1.4,1.7", points="1.7=100", variant=VARIANT)
    assert len(heavy.editions) == 2
    assert "17% of the points" in heavy.warnings[0]
    assert "can be guessed" in plan(1, variant="7").warnings[-1]
    assert "as printed" in plan(1).warnings[0]


def test_every_exercise_of_chapter_4_has_an_edition() -> None:
    """Its answers are short, and all of them are public."""
    assert [one.id for one in chapters.exercises(chapters.chapter(4)) if not one.editions] == []


def test_what_is_at_risk_is_said() -> None:
    planned = plan(1, only="1.3,1.4,1.7", variant=VARIANT)
    said = teacher.risk(planned)
    assert "At risk, since a copy from the book passes: 1.7, 10 of 30 points." in said
    assert "Of 1.7 there is no other edition." in said
    assert said in teacher.editions(planned)
    assert "1.3, 1.4, 20 of 20 points" in teacher.editions(plan(1, only="1.3,1.4"))
    assert teacher.risk(plan(4, only="4.2,4.6", variant=VARIANT)) == ""


def test_without_a_variant_the_secret_is_random() -> None:
    assert plan(1).secret != plan(1).secret
    assert plan(1).editions == {}


def test_points_and_only() -> None:
    planned = plan(1, only="1.4, 1.2", points="1.4=20, 1.2=2.5")
    assert [(part.id, part.points) for part in planned.assignment.parts] == [("1.2", 2.5), ("1.4", 20)]
    assert plan(2).assignment.points == 10 * len(plan(2).exercises)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"only": "1.9"}, "only must name exercises from 1.1 to 1.8, not '1.9'"),
        ({"only": "2.1"}, "not '2.1'"),
        ({"only": ""}, "not ''"),
        ({"only": "1.1,1.1"}, "only names 1.1 twice"),
        ({"points": "1.2"}, "points must be given as 1.2=10,1.4=20"),
        ({"points": "1.2=0"}, "above 0"),
        ({"points": "1.2=-3"}, "above 0"),
        ({"points": "1.2=1e400"}, "above 0"),
        ({"points": "1.2=10,1.2=20"}, "points names 1.2 twice"),
        ({"points": "1.2=10", "only": "1.3"}, "points names 1.2, which is none of 1.3"),
        ({"variant": " "}, "variant must be a text"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_sentence(arguments: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        plan(1, **arguments)


# Written whole or not at all


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, quick: None) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target in ("full", "file", "file/below"):
        with pytest.raises(ValueError, match="to must be a folder"):
            release(plan(1), tmp_path / target)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "mine.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ValueError])
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


def test_an_empty_folder_is_taken(tmp_path: Path, quick: None) -> None:
    (tmp_path / "empty").mkdir()
    strength = VariantStrength("3.4", "", 7, 8, ("slipped",))
    release(plan(3, only="3.4", variant=VARIANT), tmp_path / "empty", [strength])
    assert sorted(path.name for path in (tmp_path / "empty").iterdir()) == [
        "autograder", "autograder.zip", "student", "teacher", "wheel",
    ]  # fmt: skip
    notes = (tmp_path / "empty" / "teacher" / "README.md").read_text(encoding="utf-8")
    assert "- 3.4: 7 of 8; not slipped" in notes
    assert "contains the solutions" in notes


# Texts for teachers


@pytest.mark.parametrize("chapter", chapters.chapters(), ids=lambda one: one.folder.name)
def test_there_are_texts_for_every_chapter(chapter: chapters.Chapter) -> None:
    folder, number = chapter.folder, chapter.number
    questions = re.findall(r"^## (\d)\. ", (folder / "written.md").read_text(encoding="utf-8"), re.M)
    criteria = re.findall(r"^\| (\d)\. ", (folder / "criteria.md").read_text(encoding="utf-8"), re.M)
    assert questions == criteria == ["1", "2", "3", "4", "5"]
    assert f"predict {number}" in (folder / "written.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", EVERY)
def test_the_teachers_notes_have_every_exercise(number: int) -> None:
    chapter = chapters.chapter(number)
    notes = (chapter.folder / "teacher.md").read_text(encoding="utf-8")
    asked = notes.split("## Oral questions")[1]
    for exercise in chapters.exercises(chapter):
        row = next(line for line in notes.splitlines() if line.startswith(f"| {exercise.id} {exercise.slug} "))
        assert re.search(r"\| \d+ to \d+ \|", row), exercise.id
        told = re.search(rf"\*\*{re.escape(exercise.id)}\*\* (.+?)(?=\n\n|\Z)", asked, re.S)
        assert told, exercise.id
        assert len(re.findall(r"[.?](?=\s|$)", told[1])) >= 3, exercise.id


@pytest.mark.parametrize("number", EVERY)
def test_teachers_are_told_which_editions_there_are(number: int) -> None:
    chapter = chapters.chapter(number)
    notes = " ".join((chapter.folder / "teacher.md").read_text(encoding="utf-8").split())
    told = re.search(r"which no chapter prints: ([\d., and]+)\.", notes)
    assert told
    ids = [one.id for one in chapters.exercises(chapter) if one.editions]
    assert re.findall(r"\d\.\d", told[1]) == ids


def test_times_are_called_guesses() -> None:
    """Nobody was timed. Who times a class may change the heading, here too."""
    for page in (TEACHING, *TEACHING.parent.glob("*/teacher.md")):
        shown = page.read_text(encoding="utf-8")
        assert "nobody has been timed yet" in " ".join(shown.split()).lower()
        assert re.findall(r"^\| exercise \| ([^|]*minutes[^|]*) \|", shown, re.M) == ["minutes (a guess)"], page


def test_the_teacher_is_told_what_the_students_process_is_believed(made: SimpleNamespace) -> None:
    notes = " ".join((made.to / "teacher" / "README.md").read_text(encoding="utf-8").split())
    assert "Nothing that the student's process says of itself counts" not in notes
    told = notes.partition("**What cannot be moved out of the student's process**")[2].partition("**What no")[0]
    assert all(id in told for id in ("4.1", "4.2", "4.5", "4.6", "4.7", "4.8"))
    assert "oral" in told


def commands(shown: str) -> list[list[str]]:
    """What the container is asked in a page: the words behind the image's name."""
    runs = re.findall(r"^docker run (.+)$", shown, re.M)
    return [shlex.split(run.partition(" nanoinfer-grader ")[2]) for run in runs]


def test_the_containers_commands_are_those_of_the_command_line(made: SimpleNamespace) -> None:
    """No container can be built in a test: its recipe is held against the release, its commands against our own."""
    import typer

    from nanocourse.cli.course import app

    recipe = (made.autograder / "Dockerfile").read_text(encoding="utf-8")
    setup = (made.autograder / "setup.sh").read_text(encoding="utf-8")
    assert "RUN bash /autograder/source/setup.sh" in recipe
    venv = re.search(r"NANOINFER_VENV:-([\w/]+)\}", setup)
    assert venv
    assert f'ENTRYPOINT ["{venv[1]}/bin/nanoinfer", "course"]' in recipe
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    asked = commands(TEACHING.read_text(encoding="utf-8"))
    assert {words[0] for words in asked} == {"grade", "similar", "oral", "verify"}
    for name, *words in asked:
        context = known[name].make_context(name, words)  # raises for an option or an argument that there is not
        assert str(context.params["assignment"]) == "/autograder/source"
    assert made.to.joinpath("teacher", "TEACHING.md").read_text(encoding="utf-8").count("docker run") == len(asked)


def test_syllabi_have_every_exercise_once() -> None:
    page = TEACHING.read_text(encoding="utf-8")
    for exercise in ALL:
        assert len(re.findall(rf"^\| {exercise.id} {exercise.slug} ", page, re.M)) == 1, exercise.id
        own = (chapters.chapter(exercise.chapter).folder / "teacher.md").read_text(encoding="utf-8")
        minutes = re.search(rf"^\| {exercise.id} {exercise.slug} \| ([^|]+) \|", page, re.M)
        assert minutes
        assert f"| {exercise.id} {exercise.slug} | {minutes[1]} |" in own


def test_the_graph_of_the_syllabi_is_the_chapters_own() -> None:
    from nanobench.report.figures.words import picture
    from nanobook.examples import load

    drawn = load(chapters.root() / "chapters" / "teaching" / "drawings.py")
    assert list(drawn.NEEDS) == [exercise.id for exercise in ALL]
    for exercise in ALL:
        name, needed, _ = drawn.NEEDS[exercise.id]
        notes = (chapters.chapter(exercise.chapter).folder / "teacher.md").read_text(encoding="utf-8")
        row = re.search(rf"^\| {exercise.id} {exercise.slug} \| [^|]+ \| ([^|]+) \|", notes, re.M)
        assert row
        assert (name, list(needed)) == (exercise.slug, re.findall(r"\d\.\d", row[1]))
    (one,) = drawn.drawings()
    assert picture(f"../figures/{one.name}", one.alt) in TEACHING.read_text(encoding="utf-8")


def test_the_four_weeks_sets_have_enough_variants() -> None:
    page = TEACHING.read_text(encoding="utf-8")
    for ids in (["1.1", "1.2", "1.3", "1.6"], ["1.4", "1.5", "1.7", "1.8"], ["2.1", "2.2", "2.3", "2.4"],
                ["3.1", "3.2", "3.5", "3.7"]):  # fmt: skip
        assert f"| {', '.join(ids)}" in page or f"| {ids[0]} to {ids[-1]}" in page
        chosen = [chapters.exercise(id) for id in ids]
        worth = dict.fromkeys(ids, 10.0)
        assert enough(choose_editions(chosen, worth, "00"), worth)


# Oral questions


@each
def test_oral_questions_quote_the_learners_own_lines(exercise: Exercise) -> None:
    answered = {one.name: sources.answer_source(exercise, one) for one in (*exercise.right, *exercise.real_wrong)}
    for name, source in answered.items():
        lines = [line.strip() for line in source.splitlines()]
        rounds = [oral.questions(exercise, source, "ab" * 32, again) for again in range(2)]
        for found in rounds:
            assert len(found) == 4, name
            assert all(question.code == lines[question.line - 1] for question in found)
            assert all(question.kind in TEXTS and "{" not in question.text.split("`")[-1] for question in found)
            assert len({(one.line, one.text) for one in found}) == 4, name
            assert found[-1].kind in ("another form", "a mistake")
            for one in found:
                compile(one.changed, "changed", "exec")
                assert one.changed or one.seen or one.known or one.kind == "invariant", one
        assert oral.questions(exercise, source, "ab" * 32) == rounds[0]
    many = [oral.questions(exercise, max(answered.values(), key=len), f"{at:02d}" * 32) for at in range(8)]
    assert len({tuple(question.text for question in found) for found in many}) > 2


@each
def test_a_stub_is_refused(exercise: Exercise) -> None:
    source = student.stubs.stub(exercise, chapters.chapter(exercise.chapter))
    with pytest.raises(ValueError, match="is the untouched stub"):
        oral.questions(exercise, source, "ab" * 32)


@pytest.mark.parametrize(
    "source, said",
    [("def threshold(:\n", "cannot be read as Python"), ("x = 1\n", "has no function threshold"), ("\0", "cannot be"),
     ("def threshold(scores, top_k, top_p):\n    pass\n", "is the untouched stub")],
)  # fmt: skip
def test_a_file_without_an_answer_is_refused(source: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        oral.questions(chapters.exercise("1.4"), source, "ab" * 32)


def test_one_line_is_enough_to_ask_about() -> None:
    source = "def threshold(scores, top_k, top_p):\n    return scores.amin(-1, keepdim=True)\n"
    assert len(oral.questions(chapters.exercise("1.4"), source, "ab" * 32)) == 4


# The commands


def invoke(capsys: pytest.CaptureFixture[str], *arguments: str) -> SimpleNamespace:
    capsys.readouterr()
    code = cli.run(["course", *arguments])
    captured = capsys.readouterr()
    return SimpleNamespace(code=code, out=captured.out, err=captured.err)


def test_the_command_releases(tmp_path: Path, capsys: pytest.CaptureFixture[str], quick: None) -> None:
    to = tmp_path / "one"
    done = invoke(capsys, "release", "1", "--to", str(to), "--only", "1.3", "--points", "1.3=7", "--no-strength")
    assert done.code == 0, done.err
    assert "1 exercise, 7 points" in done.out
    assert f"{to / 'autograder' / 'secret.txt'}: the secret" in done.out
    assert "At risk, since a copy from the book passes: 1.3, 7 of 7 points" in done.out
    assert load_secret(to / "autograder")
    assert sorted(path.name for path in (to / "student" / "my-course" / "01-naive").iterdir()) == ["ex3_last.py"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["9", "--to", "x"], "chapter must be one of"),
        (["1", "--to", "x", "--only", "1.9"], "--only must name"),
        (["1", "--to", "x", "--points", "1.1=x"], "--points must be given"),
        (["1", "--to", "x", "--variant", ""], "--variant must be"),
        (["1", "--to", "."], "--to must be a folder"),
    ],
)
def test_the_command_refuses_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("")
    done = invoke(capsys, "release", *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert os.listdir(tmp_path) == ["mine"]


def test_the_command_asks(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is true is not computed here: see `test_oral`."""
    monkeypatch.setattr(truth, "lines_that_ran", lambda of: frozenset())
    monkeypatch.setattr(truth, "truths", lambda of, question: iter([f"it is {question.kind}"]))
    exercise = next(one for one in made.plan.exercises if one.id == "1.4")
    deep = tmp_path / "anna" / "my-course"
    deep.mkdir(parents=True)
    source = sources.answer_source(exercise, exercise.right[0])
    (deep / exercise.file).write_bytes(b"\xef\xbb\xbf" + source.replace("\n", "\r\n").encode())
    with zipfile.ZipFile(tmp_path / "anna.zip", "w") as archive:
        archive.write(deep / exercise.file, f"anna/{exercise.file}")
        archive.writestr(f"__MACOSX/anna/{exercise.file}", "not Python")
    given = []
    for submission in (tmp_path / "anna", tmp_path / "anna.zip", deep / exercise.file):
        done = invoke(capsys, "oral", str(submission), "1.4", "--assignment", str(made.autograder))
        assert done.code == 0, done.err
        assert done.out.count("Listen for:") == done.out.count("True: it is ") == 4
        given.append(done.out.partition("\n")[2])
    assert len(set(given)) == 1
    done = invoke(capsys, "oral", str(made.student), "1.4", "--assignment", str(made.autograder))
    assert done.code == 2
    assert "is the untouched stub" in done.err
