"""Replacing a function of the engine by another one for the duration of a block."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nanocourse.exercises.exercise import Exercise, Function


@contextmanager
def replaced(target: str, function: Function) -> Iterator[None]:
    """`target`, "module:name" or "module:class.name", is `function` until the block ends."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    before = vars(owner)[name]
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)


def has_place(exercise: Exercise) -> bool:
    """Whether the exercise's function runs in the engine."""
    return exercise.edition is None and (exercise.spec.swap is not None or isinstance(exercise.spec.reference, str))


@contextmanager
def swapped(exercise: Exercise, function: Function, called: Callable[[], None] = lambda: None) -> Iterator[None]:
    """The engine runs `function` for this exercise until the block ends. called: called at each call.

    Raises ValueError if the exercise has no place in the engine.
    """
    if not has_place(exercise):
        raise ValueError(f"exercise {exercise.id} has no place in the engine")

    @functools.wraps(function)
    def counted(*args: Any) -> Any:
        called()
        return function(*args)

    reference = exercise.spec.reference
    place = exercise.spec.swap(counted) if exercise.spec.swap else replaced(str(reference), counted)
    with place:
        yield
