"""What a scene needs: it plays an answer in more than one call, in this process or, a learner's, in a worker.

A scene runs where it is known what is right, and so do the functions and objects that it lends. An answer in a worker
is asked one call at a time, and `record` gives what it did as a list of operations, which is replayed here.
"""

from __future__ import annotations

import marshal
from asyncio import CancelledError
from collections.abc import Callable, Generator, Sequence
from functools import partial, wraps
from types import GeneratorType
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from nanocourse.exercises.outcomes import NotAsItWas


class Stopped(BaseException):
    """An end that is no Exception, and of no class that anybody names."""


# What a scene may raise in an answer, as that; all else is a ValueError there.
CROSSING: dict[str, type[BaseException]] = {
    one.__name__: one
    for one in (
        MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError, Stopped, StopIteration, RuntimeError,
    )
}  # fmt: skip


class NoVerdict(BaseException):
    """A test said nothing of an engine: it was not begun, or it returned something; its argument is the error."""


def nothing(result: Any) -> None:
    """TypeError for the result of a function that should return None."""
    if result is not None:
        raise TypeError(f"the result must be None, not a {type(result).__name__}")


class Remote:
    """A function of an answer in another process. kept: what scenes remember of the answer, between calls too."""

    kept: dict[str, Any]

    def __call__(self, *args: Any) -> Any:
        """Call it. Tensors among the arguments are the same ones there: what it writes into them is written here."""
        raise NotImplementedError

    def record(self, *args: Any) -> tuple[Any, Any]:
        """Its recording, which `replay` runs in this process, and its result."""
        raise NotImplementedError


class Formed(Remote):
    """An answer to another edition, as an answer to the printed form: see `Edition.played`.

    args: the arguments of the printed form as those of the edition. result: what the edition's answer returned, and the
    printed form's arguments, as the printed form's result; TypeError for what is none. Neither computes with tensors,
    since the answer alone is recorded; views are all that they make.
    """

    def __init__(self, answer: Callable[..., Any], args: Callable[..., Any], result: Callable[..., Any]) -> None:
        self.answer, self._args, self._result = answer, args, result

    @property
    def kept(self) -> dict[str, Any]:  # type: ignore[override]
        return kept_of(self.answer)

    def __call__(self, *args: Any) -> Any:
        return self._result(self.answer(*self._args(*args)), *args)

    def record(self, *args: Any) -> tuple[Any, Any]:
        graph, result = record(self.answer, *self._args(*args))
        return graph, self._result(result, *args)


class Resumed:
    """A generator as a function, which can be asked for from another process."""

    def __init__(self, generator: Generator[Any, Any, Any]) -> None:
        self._generator = generator

    def __call__(self, results: Sequence[Any]) -> tuple[list[Any], bool]:
        """What it yields when it is sent these, one after the other; and whether the last of it is what it returned."""
        told: list[Any] = []
        try:
            for result in results:
                told.append(self._generator.send(result))
        except StopIteration as end:
            return [*told, end.value], True
        return told, False


class RemoteError(Exception):
    """What such a function raised, as an exception of a class of that name. where: the line that raised it.

    lent: what was raised in this process, where it is that, handed on by the function as the object that it was.
    """

    where = ""
    lent: BaseException | None = None

    @classmethod
    def of(cls, kind: str, message: str, where: str) -> RemoteError:
        made: RemoteError = type(kind if kind.isidentifier() else "Error", (cls,), {"where": where})(message)
        return made


class Lent:
    """An object of which an answer sees these methods and values alone, in whatever process it is."""

    def __init__(self, of: Any, methods: Sequence[str], values: Sequence[str] = ()) -> None:
        self._calls = {name: getattr(of, name) for name in methods}
        self._values = {name: partial(getattr, of, name) for name in values}

        self.parts = self._calls, self._values

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]()
        if name not in self._calls:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._calls[name]


def keeping(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The answer, which must leave the lists and dicts that it is handed as they are, until its programs have ended.

    Programs are generators that it returns; they are handed what a yield gives, too. NotAsItWas where one changes it.
    """
    kept_of(answer)  # so that a scene remembers it by either

    @wraps(answer)
    def careful(*args: Any) -> Any:
        before = _bits(args)
        made = answer(*args)
        if _bits(args) != before:
            raise NotAsItWas
        if isinstance(made, list):
            return [_kept(one, args) if isinstance(one, GeneratorType) else one for one in made]
        return _kept(made, args) if isinstance(made, GeneratorType) else made

    return careful


def _kept(program: Generator[Any, Any, Any], args: Sequence[Any]) -> Generator[Any, Any, Any]:
    """The same program."""
    handed: list[tuple[Any, Any]] = [(args, _bits(args))]
    given, result, over = None, None, False
    while not over:
        try:
            asked = program.send(given)
        except StopIteration as end:
            over, result = True, end.value
        for one, before in handed:
            if _bits(one) != before:
                raise NotAsItWas
        if not over:
            given = yield asked
            if isinstance(given, list | dict):
                handed.append((given, _bits(given)))
    return result


def _bits(value: Any) -> Any:
    """What tells whether plain values have changed: 0.0 is not -0.0. It is cheap, since programs go on many times."""
    try:
        return marshal.dumps(value, 2)
    except ValueError:  # tensors, or functions
        return repr(tree_map_only(Tensor, id, value))


def record(function: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """A recording of one call, by the stand-in for a graph, and the call's result."""
    from nanoinfer.engine import fake_graph  # it loads torch

    return function.record(*args) if isinstance(function, Remote) else fake_graph.record(partial(function, *args))


def kept_of(answer: Callable[..., Any]) -> dict[str, Any]:
    """What a scene remembers of an answer."""
    if isinstance(answer, Remote):
        return answer.kept
    found: dict[str, Any] = answer.__dict__.setdefault("kept", {})
    return found
