"""A learner's folder: their files, one folder a chapter, and what they have tried, guessed and asked for.

It makes git ignore it (its `.gitignore` holds `*`), wherever it is. Nothing in it is ever overwritten except the
progress file, which is written whole and then replaces the old one.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanocourse.checks.replay import OWN
from nanocourse.checks.results import ExerciseResult
from nanocourse.exercises import moved, stubs
from nanocourse.exercises.chapters import Chapter, exercises
from nanocourse.exercises.exercise import Exercise

DEFAULT = "my-course"
PROGRESS = "progress.json"
SCHEMA, SCHEMA_VERSION = "nanoinfer.course.progress", 1

LICENCE = """\
MIT No Attribution

The stubs in this folder, and whatever you make of them:

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


@dataclass
class Tries:
    """What was tried of one exercise. passed: the file's hash when it last did."""

    tries: int = 0
    passed: str = ""
    last: str = ""
    hints: int = 0

    def holds(self, file: Path) -> bool:
        """Whether it passed at the last check, and the file has not changed since."""
        return self.last == "passed" and hashlib.sha256(file.read_bytes()).hexdigest() == self.passed


@dataclass
class Progress:
    """Everything that is remembered about a learner; only `passed` may count for marks.

    own: their number, which makes inputs that nobody else has. Empty until something is checked.
    """

    exercises: dict[str, Tries] = field(default_factory=dict)
    editions: dict[str, str] = field(default_factory=dict)  # exercise -> its edition, where it is not the plain one
    predictions: list[dict[str, Any]] = field(default_factory=list)
    quiz: dict[str, dict[str, int]] = field(default_factory=dict)
    own: str = ""

    def of(self, id: str) -> Tries:
        """The tries of an exercise."""
        return self.exercises.setdefault(id, Tries())

    def record(self, result: ExerciseResult) -> None:
        """Count a check that was run; an untouched stub is no try, nor is no file, nor what has passed as it is."""
        tries, digest = self.of(result.id), dict(result.receipt.files).get(result.file, "")
        tries.tries += result.status != "not begun" and digest not in ("", tries.passed)
        tries.last = result.status
        if result.status == "passed":
            tries.passed = digest


class Folder:
    """A learner's folder. ValueError if its progress file cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    def chapter(self, chapter: Chapter) -> Path:
        """Where the learner's files of a chapter lie."""
        return self.path / chapter.folder.name

    def file(self, chapter: Chapter, exercise: Exercise) -> Path:
        """The learner's file of an exercise, whether it exists or not."""
        return self.chapter(chapter) / exercise.file

    def exercises(self, chapter: Chapter) -> list[Exercise]:
        """The chapter's exercises, each in the edition that this learner was given."""
        editions = self.load().editions
        return [one.as_edition(editions[one.id]) if one.id in editions else one for one in exercises(chapter)]

    def moved(self) -> list[str]:
        """A sentence about each file here whose exercise has moved to another chapter."""
        return [moved.told(id) for id, one in moved.MOVED.items() if (self.path / one.was).is_file()]

    def start(self, chapter: Chapter) -> list[tuple[Path, bool]]:
        """Write the stubs that do not exist yet. Returns each file, and whether it was written."""
        own = self.chapter(chapter)
        own.mkdir(parents=True, exist_ok=True)
        for name, text in ((".gitignore", "*\n"), ("LICENSE", LICENCE)):
            if not (self.path / name).exists():
                (self.path / name).write_text(text, encoding="utf-8")
        self.save(self.load())
        return [(own / one.file, stubs.write(one, chapter, own)) for one in self.exercises(chapter)]

    def load(self) -> Progress:
        """The progress so far; empty if there is none."""
        path = self.path / PROGRESS
        if not path.is_file():
            return Progress()
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA or data["schema_version"] != SCHEMA_VERSION:
                raise ValueError
            for one in data["exercises"].values():
                one.pop("failing", None)  # of older files
            tries = {str(id): Tries(**one) for id, one in data["exercises"].items()}
            own = str(data.get("own", ""))
            if own and not OWN.fullmatch(own):
                raise ValueError
            tries, editions = moved.renamed(tries), moved.renamed(data["editions"])
            return Progress(tries, editions, list(data["predictions"]), dict(data["quiz"]), own)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise ValueError(f"{path} is not a readable progress file: move it away to start again") from error

    def save(self, progress: Progress) -> None:
        """Save the progress."""
        data = {
            "schema": SCHEMA, "schema_version": SCHEMA_VERSION,
            "exercises": {id: vars(one) for id, one in sorted(progress.exercises.items())},
            "editions": progress.editions, "predictions": progress.predictions, "quiz": progress.quiz,
            "own": progress.own,
        }  # fmt: skip
        self.path.mkdir(parents=True, exist_ok=True)
        fresh = self.path / f"{PROGRESS}.{os.getpid()}"
        fresh.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.path / PROGRESS)

    def note(self, progress: Progress) -> None:
        """Save the progress where that is possible, and warn where it is not: what it notes happened all the same."""
        try:
            self.save(progress)
        except OSError as error:
            warnings.warn(f"{self.path} cannot be written ({error.strerror}): this is not noted", stacklevel=2)
