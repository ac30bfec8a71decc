"""What grading leaves behind: one record a submission, of JSON types, from which all exports are made.

Nothing in it comes from a student's process except the fact that a value agreed, and what the file printed when it was
read, before any hidden input was there.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanocourse.checks.results import Status

SCHEMA, SCHEMA_VERSION = "nanoinfer.course.grade", 1


@dataclass(frozen=True)
class CheckGrade:
    """One hidden check. says: what it requires; none of its inputs."""

    name: str
    says: str
    status: Status
    points: float
    of: float


@dataclass(frozen=True)
class ExerciseGrade:
    """One exercise. problem: why it could not be run. mistake: a known wrong answer's name. note: about points."""

    id: str
    title: str
    edition: str
    file: str
    sha256: str
    checks: tuple[CheckGrade, ...]
    problem: str = ""
    mistake: str = ""
    note: str = ""

    @property
    def points(self) -> float:
        return round(math.fsum(check.points for check in self.checks), 4)

    @property
    def of(self) -> float:
        return round(math.fsum(check.of for check in self.checks), 4)


@dataclass(frozen=True)
class Isolation:
    """Layers that held while the work was run, and those that did not, each with the reason."""

    present: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> bool:
        return bool(self.present) and not self.missing

    def told(self) -> str:
        """One sentence."""
        if not self.present:
            return "not isolated, time limits only: " + "; ".join(f"{name}: {why}" for name, why in self.missing)
        lacks = "; ".join(f"{name} ({why})" for name, why in self.missing)
        return f"isolated by {', '.join(self.present)}" + (f"; missing: {lacks}" if lacks else "")


@dataclass(frozen=True)
class GradeRecord:
    """One submission. assignment, secret, files: marks by which a later run sees whether anything has changed."""

    submission: str
    title: str
    exercises: tuple[ExerciseGrade, ...]
    isolation: Isolation = Isolation()
    assignment: str = ""
    secret: str = ""
    files: str = ""
    seeds: int = 0
    version: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    complete: bool = False

    @property
    def points(self) -> float:
        return round(math.fsum(one.points for one in self.exercises), 4)

    @property
    def of(self) -> float:
        return round(math.fsum(one.of for one in self.exercises), 4)

    @property
    def empty(self) -> bool:
        """Whether nothing was handed in."""
        return self.complete and not any(one.file for one in self.exercises)

    def to_json(self) -> dict[str, Any]:
        """The whole record, with its sums."""
        head = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "points": self.points, "of": self.of}
        return head | asdict(self)

    def save(self, path: Path) -> None:
        """Write the record whole, then replace the old one: a reader sees one or the other."""
        write(path, json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> GradeRecord:
        """Read a saved record. ValueError, one sentence, if there is none."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA or data["schema_version"] != SCHEMA_VERSION:
                raise ValueError("another schema")
            own = {key: value for key, value in data.items() if key in cls.__dataclass_fields__}
            own["exercises"] = tuple(
                ExerciseGrade(**(one | {"checks": tuple(CheckGrade(**check) for check in one["checks"])}))
                for one in own["exercises"]
            )
            isolation = own["isolation"]
            missing = tuple((str(name), str(why)) for name, why in isolation["missing"])
            own |= {"isolation": Isolation(tuple(isolation["present"]), missing), "notes": tuple(own["notes"])}
            return cls(**own)
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} is not a readable record: {error}") from error


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all, readable only by its owner: marks are private."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
