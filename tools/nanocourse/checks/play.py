"""The grader's side of a scene: what it lends an answer in a worker, and what it asks that answer for.

The scene, its objects and its memory stay in this process. The worker gets numbers of functions, and copies of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from nanocourse.checks import recording, wire
from nanocourse.checks.memory import Shared
from nanocourse.exercises.outcomes import Outcome, Raised, Returned
from nanocourse.exercises.scene import CROSSING, Remote, RemoteError
from nanoinfer.engine import fake_graph

DEPTH = 6  # calls within calls, to and fro
CAUGHT: tuple[type[BaseException], ...] = (Exception, *CROSSING.values())

Reply = tuple[dict[str, Any], bytes]


class Ended(BaseException):
    """The answer gave no result, with the outcome that there is instead. A scene cannot catch it by accident."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class Asking(Protocol):
    """How a worker is asked for something within a scene."""

    def __call__(self, header: dict[str, Any], bodies: list[bytes]) -> Reply | Outcome: ...


class Play:
    """One scene with an answer. ask: sends a request, and gives the reply. says: an exception's text for the answer."""

    def __init__(self, ask: Asking, kept: dict[str, Any], says: Callable[[BaseException], str] = str) -> None:
        self._ask, self._says = ask, says
        self._shared, self._lent, self._recordings = Shared(1), list[Callable[..., Any]](), list[Any]()
        self._in_recording: list[list[Callable[[], object]]] = []  # what the recording that is running has called
        self._raised: list[BaseException] = []
        self._depth = 0
        self.answer = Other(self, 0)
        self.answer.kept = kept

    def run(self, scene: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
        """The outcome of a scene."""
        try:
            with torch.no_grad():
                return Returned(scene(self.answer, *args))
        except Ended as ended:
            return ended.outcome
        except Exception as error:  # the answer's own, or the scene stumbles over what the answer gave it
            return Raised(type(error).__name__, wire.plain(str(error), 600), getattr(error, "where", ""))

    def ask(self, op: str, number: int, args: tuple[Any, ...]) -> Any:
        """What a function of the answer's returns. op: "call" or "record"."""
        if self._depth >= DEPTH:
            raise wire.WireError("it calls back too deeply")
        packer = wire.Packer(self._lent, partial(self._shared.refer, writable=True), self._recordings)
        header = {"op": op, "function": number, "args": packer.pack(list(args))}
        header, bodies = self._with_news(header, packer.bodies)
        self._depth += 1
        if op == "record":
            self._in_recording.append([])
        try:
            reply = self._ask(header, bodies)
            if not isinstance(reply, tuple):
                raise Ended(reply)
            return self._result(*reply)
        finally:
            self._depth -= 1
            if op == "record":
                self._in_recording.pop()

    def _result(self, header: dict[str, Any], body: bytes) -> Any:
        body = self._shared.take(header["memory"], body)
        if header["op"] == "raised":
            kind, message, where = (str(header[name]) for name in ("kind", "message", "where"))
            error = RemoteError.of(wire.plain(kind, 200), wire.plain(message, 600), wire.plain(where, 400))
            if type(at := header.get("lent")) is int and 0 <= at < len(self._raised):
                error.lent = self._raised[at]
            raise error
        value = self._unpacker(body).unpack(header["value"])
        if header["op"] != "recorded":
            return value
        made = recording.Recording(header["entries"], self._shared, self._in_recording[-1])
        self._recordings.append(made)
        return made, value

    def lend(self, asked: dict[str, Any], body: bytes, most: int) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a call of a lent function. WireError for one that was not lent. most: values among the arguments."""
        number, recorded = asked["function"], bool(asked["recording"])
        if type(number) is not int or not 0 <= number < len(self._lent):
            raise wire.WireError("it asked for a function that it was not lent")
        function = self._lent[number]
        if not recorded:
            body = self._shared.take(asked["memory"], body)
        args, kwargs = self._unpacker(body, most).unpack([asked["args"], asked["kwargs"]])
        try:
            if recorded:
                self._record(function, args, kwargs)
                return {"op": "value", "value": None, "memory": []}, []
            value = function(*args, **kwargs)
        except CAUGHT as error:
            if not isinstance(error, Exception) and not error.args:
                raise  # somebody at this machine
            kind = type(error).__name__ if type(error).__name__ in CROSSING else "ValueError"
            self._raised.append(getattr(error, "lent", None) or error)
            header = {"op": "raised", "kind": kind, "message": wire.plain(self._says(error), 600)}
            return self._with_news(header, [])
        packer = wire.Packer(self._lent, self._shared.refer, self._recordings)
        return self._with_news({"op": "value", "value": packer.pack(value)}, packer.bodies)

    def _record(self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        """A lent function that a recorded step calls is recorded itself. It takes nothing and gives nothing."""
        if args or kwargs or not self._in_recording:
            raise ValueError("what a recorded step calls takes no arguments")
        graph, _ = fake_graph.record(function)
        self._in_recording[-1].append(graph.replay)

    def _with_news(self, header: dict[str, Any], bodies: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """With what has changed in memory, ahead of all other bytes."""
        changed: list[bytes] = []
        news = self._shared.news(changed)
        return header | {"memory": news}, [*changed, *bodies]

    def _unpacker(self, body: bytes, most: int = wire.MAX_VALUES) -> wire.Unpacker:
        return wire.Unpacker(body, function=self._function, most=most, other=self._other)

    def _function(self, number: int) -> Remote:
        if number < 0:
            raise wire.WireError("it named a function that is none")
        return Other(self, number)

    def _other(self, kind: str, inside: Any) -> Any:
        if kind == "M":
            return self._shared.tensor(inside)
        if kind == "h" and type(inside) is int and 0 <= inside < len(self._recordings):
            return self._recordings[inside]
        raise wire.WireError("a value in a message is of an unknown kind")


class Other(Remote):
    """A function in the worker."""

    def __init__(self, play: Play, number: int) -> None:
        self._play, self._number = play, number
        self.kept: dict[str, Any] = {}

    def __call__(self, *args: Any) -> Any:
        return self._play.ask("call", self._number, args)

    def record(self, *args: Any) -> tuple[Any, Any]:
        return self._play.ask("record", self._number, args)  # type: ignore[no-any-return]
