"""Replacing functions of the engine by others for the duration of a block."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from nanocourse.exercises.exercise import Exercise, Function, Places


@contextmanager
def replaced(places: Places) -> Iterator[None]:
    """Each place of the engine holds what is given for it until the block ends."""
    with ExitStack() as stack:
        for place, value in places.items():
            module, _, path = place.partition(":")
            owner: Any = importlib.import_module(module)
            *outer, name = path.split(".")
            for part in outer:
                owner = getattr(owner, part)
            before = vars(owner).get(name)
            if before is None:  # a class whose instances alone have it
                stack.callback(delattr, owner, name)
            else:
                stack.callback(setattr, owner, name, before)
            setattr(owner, name, value)
        yield


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

    swap = exercise.spec.swap
    with replaced(swap(counted) if swap else {str(exercise.spec.reference): counted}):
        yield
