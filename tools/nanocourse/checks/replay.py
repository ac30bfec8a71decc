"""The name of an input, short enough to be copied from a message: from it the very same input is made again.

`1.4/3f2a9c01/ragged/0/small+2:rows=1,columns=3:simple:scores` is exercise, the learner's own number, check, case, and
what shrinking has asked for: sizes, simple numbers, zeros. Inputs that all learners have are without a number.
"""

from __future__ import annotations

import re
from urllib.parse import quote_plus, unquote_plus

from nanocourse.exercises.cases import Case
from nanocourse.exercises.exercise import Check, Exercise

SEED = "course"  # of the inputs that all learners have; a grader brings its own
OWN = re.compile(r"[0-9a-f]{8}")  # a learner's number
NAME = re.compile(r"\b\d+\.\d+/[\w%+/.-]+(?::[\w%+=,.-]*){0,3}")  # such a name within a text


def seed_of(own: str) -> str:
    """The seed of a learner's own inputs."""
    return f"{SEED}/{own}" if own else SEED


def name_of(exercise: Exercise, case: Case) -> str:
    """The name of an input; empty for one of another seed than a learner's, which nobody may have."""
    head, _, rest = case.seed.partition("/")
    if head != SEED:
        return ""
    sizes = ",".join(f"{quote_plus(name)}={value}" for name, value in case.sizes.items())
    zeros = ",".join(quote_plus(name) for name in sorted(case.zeros))
    parts = [f"{exercise.id}/{quote_plus(rest, safe='/')}", sizes, "simple" * case.simple, zeros]
    return ":".join(parts).rstrip(":")


def input_of(exercise: Exercise, name: str) -> tuple[Check, Case]:
    """The check and the input of that name. ValueError if it is none of this exercise."""
    head, sizes, simple, zeros = [*name.split(":"), "", "", ""][:4]
    id, _, rest = head.partition("/")
    parts = unquote_plus(rest).split("/")
    wanted = parts[1] if OWN.fullmatch(parts[0]) and len(parts) > 1 else parts[0]
    check = next((one for one in exercise.checks if one.name == wanted), None)
    asked = dict(item.split("=", 1) for item in sizes.split(",") if "=" in item)
    if id != exercise.id or check is None or simple not in ("", "simple") or not all(map(_size, asked.values())):
        raise ValueError(f"{name[:200]!r} names no input of exercise {exercise.id}")
    numbers = {unquote_plus(size): int(value) for size, value in asked.items()}
    named = frozenset(unquote_plus(one) for one in zeros.split(",") if one)
    return check, Case(f"{SEED}/{unquote_plus(rest)}", numbers, bool(simple), named)


def _size(text: str) -> bool:
    return text.isdecimal() and len(text) <= 4  # no check asks for more, and memory is not without end
