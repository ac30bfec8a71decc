"""What a release gives to the grader: `assignment.json`, which is public, and `secret.txt`, which is not.

Whoever has the secret can compute the hidden inputs, so it is in no student's tree and in no worker.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

SCHEMA, SCHEMA_VERSION = "nanoinfer.course.assignment", 1
FILE, SECRET_FILE = "assignment.json", "secret.txt"
SECRET_BYTES = 32


@dataclass(frozen=True)
class Part:
    """One exercise of an assignment. edition: the name of one; empty for the form that the chapter prints."""

    id: str
    points: float = 10.0
    edition: str = ""


@dataclass(frozen=True)
class Limits:
    """What a submission may use.

    submission_s: for everything together, below Gradescope's ten minutes; check_s: for one check with all its inputs;
    each call has the exercise's own limit as well. memory_mb: in addition to what Python with torch takes. disk_mb: the
    scratch folder.
    """

    submission_s: float = 540.0
    check_s: float = 60.0
    memory_mb: int = 512
    disk_mb: int = 16


@dataclass(frozen=True)
class Assignment:
    """What is graded. seeds: sets of hidden inputs for each check. title: what students see."""

    chapter: int
    title: str
    parts: tuple[Part, ...]
    seeds: int = 8
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for says, value, holds in _rules(self):
            if not holds:
                raise ValueError(f"{says}, not {value!r}")

    @property
    def points(self) -> float:
        """The most points that can be reached."""
        return math.fsum(part.points for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of everything that a result depends on except the secret."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The text of `assignment.json`."""
        data = {
            "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "chapter": self.chapter, "title": self.title,
            "exercises": [asdict(part) for part in self.parts], "seeds": self.seeds, "limits": asdict(self.limits),
        }  # fmt: skip
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

    def save(self, path: Path) -> None:
        """Write `assignment.json`, into `path` if that is a folder, otherwise as that file."""
        _file(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Assignment:
        """Read a folder's `assignment.json`, or that file. ValueError, one sentence, if it is not valid."""
        file = _file(path)
        try:
            return cls._read(json.loads(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise ValueError(f"{file} is not an assignment: {error}") from error

    @classmethod
    def _read(cls, data: Any) -> Assignment:
        _known(data, {"schema", "schema_version", "chapter", "title", "exercises", "seeds", "limits"}, "it")
        if data.get("schema") != SCHEMA:
            raise ValueError(f"its schema must be {SCHEMA}")
        if data.get("schema_version") != SCHEMA_VERSION:
            version = data.get("schema_version")
            raise ValueError(f"it has schema version {version!r}, and this nanoinfer reads {SCHEMA_VERSION}")
        exercises, limits = data.get("exercises"), data.get("limits", {})
        if not isinstance(exercises, list):
            raise ValueError("exercises must be a list")
        for one in exercises:
            _known(one, {one.name for one in fields(Part)}, "an exercise")
        _known(limits, {one.name for one in fields(Limits)}, "limits")
        return cls(
            chapter=data.get("chapter", 0), title=data.get("title", ""), seeds=data.get("seeds", 8),
            parts=tuple(Part(**({"id": ""} | one)) for one in exercises), limits=Limits(**limits),
        )  # fmt: skip


def new_secret() -> str:
    """A new random secret: 64 hexadecimal digits from the system's generator."""
    return secrets.token_hex(SECRET_BYTES)


def load_secret(path: Path) -> str:
    """The secret beside an assignment, or in this file. ValueError if there is none or it is too short.

    path: a folder, an `assignment.json`, or the file with the secret itself.
    """
    file = path / SECRET_FILE if path.is_dir() else path.with_name(SECRET_FILE) if path.suffix == ".json" else path
    try:
        text = file.read_text(encoding="ascii").strip()
        given = bytes.fromhex(text)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{file} must hold only hexadecimal digits") from error
    if len(given) < SECRET_BYTES:
        raise ValueError(f"{file} holds {len(given)} bytes, and a secret has at least {SECRET_BYTES}")
    return text.lower()


def inputs_seed(secret: str, submission_id: str, exercise_id: str, k: int) -> str:
    """The seed of the k-th set of hidden inputs: HMAC-SHA256 (RFC 2104) of the arguments, keyed by the secret."""
    message = json.dumps(["inputs", submission_id, exercise_id, k])  # JSON, so that no two triples give one text
    return hmac.new(bytes.fromhex(secret), message.encode(), hashlib.sha256).hexdigest()


def secret_mark(secret: str) -> str:
    """A mark that tells two secrets apart and reveals nothing else: 16 hexadecimal digits."""
    return hmac.new(bytes.fromhex(secret), b"mark", hashlib.sha256).hexdigest()[:16]


def _file(path: Path) -> Path:
    return path / FILE if path.is_dir() else path


def _known(data: object, names: set[str], what: str) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"{what} must be an object")
    unknown = sorted(set(data) - names)
    if unknown:
        raise ValueError(f"{what} has no {unknown[0]!r}; it has {', '.join(sorted(names))}")


def _rules(of: Assignment) -> Iterator[tuple[str, object, bool]]:
    """What must be true of an assignment, in words; of which value; and whether it is."""
    yield "chapter must be a whole number from 1 on", of.chapter, _number(of.chapter, int) and of.chapter < 100
    yield "title must be a text that students can read", of.title, isinstance(of.title, str) and bool(of.title.strip())
    yield "exercises must name at least one exercise", of.parts, bool(of.parts)
    for part in of.parts:
        own = re.fullmatch(rf"{of.chapter}\.\d+", str(part.id)) is not None
        yield f"exercises must be of chapter {of.chapter}, as {of.chapter}.1", part.id, own
        yield f"points of {part.id} must be a number above 0", part.points, _number(part.points, float)
        named = isinstance(part.edition, str)
        yield f"edition of {part.id} must be a name, or empty for the printed one", part.edition, named
    ids = [part.id for part in of.parts]
    yield "no exercise may be named twice", ids, len(set(ids)) == len(ids)
    yield "seeds must be a whole number from 1 to 20", of.seeds, _number(of.seeds, int) and of.seeds <= 20
    for one in fields(Limits):
        value = getattr(of.limits, one.name)
        yield f"{one.name} must be a number above 0", value, _number(value, type(one.default))


def _number(value: object, kind: type) -> bool:
    """Whether it is a number above 0: a whole one, if it is to be an int."""
    known = isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)
    return known and 0 < value < math.inf  # type: ignore[operator]
