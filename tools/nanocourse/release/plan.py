"""What a release contains, decided before anything is written: exercises, points, editions, secret.

A teacher names a variant by a text. The secret, and the exercises that come in another edition, follow from it.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nanocourse.exercises import chapters, moved
from nanocourse.exercises.chapters import Chapter
from nanocourse.exercises.exercise import Exercise
from nanocourse.grade.assignment import Assignment, Part, new_secret
from nanocourse.grade.grade_submission import exercises_of

POINTS = 10.0  # of an exercise that --points does not name
VARIANTS, SHARE = 2, 0.5  # what a set should have at least: exercises in another edition, and their share of the points
GUESSABLE = 16  # characters; a shorter name of a variant can be found by trying


@dataclass(frozen=True)
class Plan:
    """A release as it will be written. exercises: each in its edition. warnings: sentences for the teacher."""

    chapter: Chapter
    exercises: tuple[Exercise, ...]
    assignment: Assignment
    secret: str
    warnings: tuple[str, ...]

    @property
    def editions(self) -> dict[str, str]:
        """The exercises that come in another edition than the printed one, with its name."""
        return {part.id: part.edition for part in self.assignment.parts if part.edition}

    @property
    def at_risk(self) -> tuple[str, ...]:
        """The exercises that come as they are printed: their answers can be copied from public pages."""
        return tuple(part.id for part in self.assignment.parts if not part.edition)

    def points(self, id: str) -> float:
        """What an exercise is worth."""
        return next(part.points for part in self.assignment.parts if part.id == id)


def plan(number: int, only: str | None = None, points: str | None = None, variant: str | None = None) -> Plan:
    """The plan of a release. ValueError, one sentence, for a chapter, exercise or number that does not exist.

    only: ids with commas between. points: `1.2=10,1.4=20`. variant: the variant's name; None draws a random secret and
    takes every exercise as it is printed.
    """
    chapter = chapters.chapter(number)
    every = chapters.exercises(chapter)
    chosen = _only(every, only)
    worth = dict.fromkeys((one.id for one in chosen), POINTS) | _points(chosen, points)
    if variant is not None and not variant.strip():
        raise ValueError("variant must be a text that names the variant, and not empty")
    secret = new_secret() if variant is None else secret_of(number, variant)
    editions = {} if variant is None else choose_editions(chosen, worth, secret)
    parts = tuple(Part(one.id, worth[one.id], editions.get(one.id, "")) for one in chosen)
    assignment = Assignment(number, f"Chapter {number}: {chapter.title}", parts)
    exercises = tuple(exercise for _, exercise in exercises_of(assignment))
    return Plan(chapter, exercises, assignment, secret, tuple(_warnings(chosen, worth, editions, variant)))


def secret_of(chapter: int, variant: str) -> str:
    """The secret that a variant's name stands for: whoever knows the name knows the secret."""
    return hashlib.sha256(f"nanoinfer.course.variant/{chapter}/{variant}".encode()).hexdigest()


def choose_editions(chosen: Sequence[Exercise], worth: dict[str, float], secret: str) -> dict[str, str]:
    """Exercises in an order that the secret determines, until two have another edition with half the points."""
    draw = random.Random(f"editions/{secret}")
    candidates = [one for one in chosen if one.editions]
    draw.shuffle(candidates)
    found: dict[str, str] = {}
    for one in candidates:
        if enough(found, worth):
            break
        found[one.id] = draw.choice(one.editions).name
    return found


def enough(editions: dict[str, str], worth: dict[str, float]) -> bool:
    """Whether enough exercises come in another edition, with enough of the points."""
    return len(editions) >= VARIANTS and share(editions, worth) >= SHARE


def share(editions: dict[str, str], worth: dict[str, float]) -> float:
    """The share of the points that comes in another edition."""
    return math.fsum(worth[id] for id in editions) / math.fsum(worth.values())


def _only(every: Sequence[Exercise], only: str | None) -> list[Exercise]:
    if only is None:
        return list(every)
    known = {one.id: one for one in every}
    ids = [text.strip() for text in only.split(",")]
    for id in ids:
        if id not in known:
            raise ValueError(
                moved.told(id) or f"only must name exercises from {every[0].id} to {every[-1].id}, not {id!r}"
            )
        if ids.count(id) > 1:
            raise ValueError(f"only names {id} twice")
    return [one for one in every if one.id in ids]


def _points(chosen: Sequence[Exercise], text: str | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for item in text.split(",") if text is not None else ():
        match = re.fullmatch(r"\s*(\d+\.\d+)\s*=\s*(\d+(?:\.\d+)?)\s*", item)
        if not match or not 0 < float(match[2]) < math.inf:
            raise ValueError(f"points must be given as 1.2=10,1.4=20, with numbers above 0, and not as {item!r}")
        if match[1] not in {one.id for one in chosen}:
            raise ValueError(f"points names {match[1]}, which is none of {', '.join(one.id for one in chosen)}")
        if match[1] in found:
            raise ValueError(f"points names {match[1]} twice")
        found[match[1]] = float(match[2])
    return found


def _warnings(
    chosen: Sequence[Exercise], worth: dict[str, float], editions: dict[str, str], variant: str | None
) -> list[str]:
    if variant is None:
        return ["All exercises are as printed: --variant NAME gives some of them in an edition that no page prints."]
    warnings = []
    if not enough(editions, worth):
        with_one = ", ".join(one.id for one in chosen if one.editions)
        warnings.append(
            f"{len(editions)} of {len(chosen)} exercises come in another edition, with {share(editions, worth):.0%} of "
            f"the points: two, with half of them, is what to aim for. Editions exist of {with_one or 'none of these'}."
        )
    if len(variant) < GUESSABLE:
        warnings.append(
            f"A variant's name of fewer than {GUESSABLE} characters can be guessed, and whoever knows the name has the "
            "hidden inputs: take a longer one for marks."
        )
    return warnings
