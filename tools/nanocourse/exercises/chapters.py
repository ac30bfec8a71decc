"""Finding the chapters and loading their exercises, from a clone or from the installed wheel."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from nanocourse.exercises.bank import wrong_answers
from nanocourse.exercises.exercise import Exercise, Function, Right, Spec
from nanocourse.exercises.moved import told
from nanocourse.exercises.page import texts


@dataclass(frozen=True)
class Chapter:
    """A chapter's folder. engine: the one that its exercises run in."""

    number: int
    folder: Path
    title: str
    engine: str

    @property
    def exercises(self) -> Path:
        return self.folder / "exercises"

    @property
    def text(self) -> str:
        """The chapter's text, as a path from the root of the repository."""
        return f"chapters/{self.folder.name}/README.md"


def root() -> Path:
    """The book's folder: the clone, or `book` in the installed package. FileNotFoundError if there is none."""
    package = Path(__file__).parents[1]
    for folder in (package / "book", package.parents[1]):
        if any(folder.glob("chapters/??-*/exercises/chapter.json")):
            return folder
    raise FileNotFoundError("this installation has no book: install nanoinfer again")


def chapters(folder: Path | None = None) -> list[Chapter]:
    """All chapters that have exercises, in order."""
    found = []
    for path in sorted((folder or root() / "chapters").glob("??-*/exercises/chapter.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        number = int(path.parts[-3][:2])
        found.append(Chapter(number, path.parents[1], str(data["title"]), str(data["engine"])))
    return found


def chapter(number: int) -> Chapter:
    """One chapter. ValueError where it has no exercises."""
    known = chapters()
    for one in known:
        if one.number == number:
            return one
    raise ValueError(f"chapter must be one of {', '.join(str(one.number) for one in known)}, not {number}")


def exercises(of: Chapter) -> list[Exercise]:
    """The exercises of a chapter, in order."""
    return [load(path, of.number) for path in exercise_files(of)]


def read(of: Chapter, section: str) -> tuple[str, int]:
    """The page that has a section, the chapter's text or one beside it, and the section's number there."""
    for path in (root() / of.text, *sorted(of.folder.glob("*.md"))):
        titles = re.findall(r"^## \d+\. (.+)$", path.read_text(encoding="utf-8"), re.M)
        if section in titles:
            return f"chapters/{of.folder.name}/{path.name}", titles.index(section) + 1
    raise ValueError(f"no page of chapter {of.number} has a section {section!r}")


def first(of: Chapter, among: list[Exercise]) -> tuple[Exercise, str, int]:
    """The exercise whose section comes first, with the page and that section's number."""
    each = [(one, *read(of, one.spec.section)) for one in among]
    return min(each, key=lambda found: (found[1] != of.text, found[2]))


def exercise_files(of: Chapter) -> list[Path]:
    """The exercises' files in order, without the files of their answers."""
    named = {path: re.fullmatch(r"ex(\d+)_(\w+)\.py", path.name) for path in of.exercises.glob("ex*.py")}
    own = [(int(match[1]), path) for path, match in named.items() if match and not match[2].endswith("_answers")]
    return [path for _, path in sorted(own)]


def exercise(id: str) -> Exercise:
    """One exercise by its id, "1.4". ValueError where there is none of that id."""
    match = re.fullmatch(r"(\d+)\.(\d+)", id)
    if not match:
        raise ValueError(f"exercise must be a chapter and a number, as 1.4, not {id!r}")
    of = chapter(int(match[1]))
    for path in exercise_files(of):
        if path.name.startswith(f"ex{match[2]}_"):
            return load(path, of.number)
    raise ValueError(told(id) or f"chapter {of.number} has {len(exercise_files(of))} exercises, and none is {id}")


def load(path: Path, chapter: int) -> Exercise:
    """An exercise, from its file, its page, the file of its answers and the chapter's table of wrong ones.

    ValueError if they do not declare what they must, OSError if there is no page.
    """
    match = re.fullmatch(r"ex(\d+)_(\w+)\.py", path.name)
    if not match:
        raise ValueError(f"{path.name} is not an exercise's file")
    own = run_file(path, f"nanoinfer_ch{chapter:02d}_{path.stem}")
    beside = path.with_name(f"{path.stem}_answers.py")
    answers = run_file(beside, f"nanoinfer_ch{chapter:02d}_{beside.stem}") if beside.is_file() else None
    known = _public(answers) if answers else []
    id = f"{chapter}.{match[1]}"
    spec: Spec = replace(_declared(own, "EXERCISE"), **texts(path.with_suffix(".md"), id))
    return Exercise(
        id=id, slug=match[2].replace("_", "-"), path=path, spec=spec,
        function=resolve(spec.reference), checks=_declared(own, "CHECKS"),
        wrong=wrong_answers(path.with_name("wrong.toml"), id), equivalent=getattr(answers, "EQUIVALENT", {}),
        right=tuple(Right(one) for one in known if not hasattr(one, "edition")),
        editions=tuple(vars(one)["edition"] for one in known if hasattr(one, "edition")),
    )  # fmt: skip


def _public(module: ModuleType) -> list[Function]:
    """The functions that a module defines, in their order, without those whose names begin with an underscore."""
    own = [one for one in vars(module).values() if inspect.isfunction(one) and one.__module__ == module.__name__]
    return [one for one in own if not one.__name__.startswith("_")]


def resolve(reference: Function | str) -> Function:
    """The function that `module:name` or `module:class.name` stands for; a function is returned as it is."""
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    function: Function = found
    return function


def run_file(path: Path, name: str) -> ModuleType:
    """A chapter's file as a module. It is in sys.modules while it runs, as dataclasses and `inspect` require."""
    inner = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=inner)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def beside(file: str, name: str) -> ModuleType:
    """A file of the exercise's folder, or of the chapter's, as a module. ValueError if there is none of that name."""
    own = Path(file)
    found = next((path for folder in own.parents[:2] if (path := folder / name).is_file()), None)
    if found is None:
        raise ValueError(f"there is no {name} beside {own.name}")
    return run_file(found, f"nanoinfer_ch{own.parents[1].name[:2]}_{found.stem}")


def run_folder(folder: Path) -> Callable[[str], ModuleType]:
    """A chapter's folder as a package: a function that gives its modules by name. `import` takes no `05-queue`."""
    name = f"chapter_{folder.parent.name[:2]}_{folder.name}"
    if name not in sys.modules:
        run_file(folder / "__init__.py", name)
    return lambda module: importlib.import_module(f"{name}.{module}")


def _declared(module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        raise ValueError(f"{Path(module.__file__ or '').name} declares no {name}")
    return getattr(module, name)
