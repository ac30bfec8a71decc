"""The worker's side of a scene: what the grader lends is a stand-in here, and what tensors hold is brought up to date.

Nothing here is believed: it runs beside a student's code, which may have rewritten all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from nanocourse.checks import recording, wire
from nanocourse.checks.memory import Shared
from nanocourse.exercises.scene import CROSSING, keeping

Ask = Callable[[dict[str, Any], list[bytes]], tuple[dict[str, Any], bytes]]


class Answering:
    """One scene. function: the answer. ask: sends a request to the grader, and gives the reply.

    kept: what the answer is handed must stay as it is.
    """

    def __init__(self, number: int, function: Any, ask: Ask, kept: bool) -> None:
        function = keeping(function) if kept else function
        self.number, self._ask = number, ask
        self._shared, self._functions, self._handles = Shared(-1), [function], list[object]()
        self._raised: list[BaseException] = []  # by what is lent

    def read(self, asked: dict[str, Any], body: bytes) -> Callable[[], Any]:
        """What is asked for, ready to be called: it gives what `reply` takes."""
        body = self._shared.take(asked["memory"], body)
        args = self._unpacked(asked["args"], body)
        call = partial(self._functions[asked["function"]], *args)
        if asked["op"] == "record":
            return partial(recording.told, call, self._shared)
        return lambda: (None, call())

    def reply(self, made: tuple[Any, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """What was recorded, if anything was, and what was returned."""
        entries, value = made
        packer = wire.Packer(self._functions, self._shared.refer, self._handles)
        told: dict[str, Any] = {"op": "returned", "value": packer.pack(value)}
        return (told if entries is None else told | {"op": "recorded", "entries": entries}), packer.bodies

    def lent(self, error: BaseException) -> int:
        """Which of the errors that the grader has raised here it is, as an object; -1 for one of the answer's own."""
        return next((at for at, one in enumerate(self._raised) if one is error), -1)

    def news(self) -> tuple[list[list[int]], list[bytes]]:
        """What has changed in memory, to go ahead of all else."""
        bodies: list[bytes] = []
        return self._shared.news(bodies), bodies

    def _unpacked(self, value: Any, body: bytes) -> Any:
        return wire.Unpacker(body, function=self._stand_in, other=self._other).unpack(value)

    def _stand_in(self, number: int) -> Callable[..., Any]:
        """A function that forwards its calls to the grader."""

        def lent(*args: Any, **kwargs: Any) -> Any:
            recorded = recording.note_lent(number)
            if recorded and (args or kwargs):
                raise ValueError("what a recorded step calls takes no arguments")
            packer = wire.Packer(self._functions, self._shared.refer, self._handles)
            given = {"args": packer.pack(list(args)), "kwargs": packer.pack(kwargs), "recording": recorded}
            news, bodies = ([], []) if recorded else self.news()  # a step that is recorded changes nothing
            header, body = self._ask({"function": number, "memory": news, **given}, [*bodies, *packer.bodies])
            body = self._shared.take(header["memory"], body)
            if header["op"] == "raised":
                self._raised.append(CROSSING.get(header["kind"], ValueError)(header["message"]))
                raise self._raised[-1]
            return self._unpacked(header["value"], body)

        return lent

    def _other(self, kind: str, inside: Any) -> Any:
        if kind == "M":
            return self._shared.tensor(inside)
        if kind == "h":
            self._handles += [object() for _ in range(len(self._handles), inside + 1)]
            return self._handles[inside]
        calls, values = ({name: self._stand_in(number) for name, number in part} for part in inside)
        space = {name: staticmethod(f) for name, f in calls.items()}
        return type("Lent", (), space | {name: property(lambda _, f=f: f()) for name, f in values.items()})()  # type: ignore[misc]
