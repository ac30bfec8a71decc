"""What a worker process does: load a learner's file, call its function with what the parent sends, reply.

Each call is traced: which of the learner's lines ran, which functions of the package they called, and whether the
function that the exercise asks for was called.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from nanocourse.checks import wire
from nanocourse.exercises import kernels
from nanocourse.exercises.cases import strided
from nanocourse.exercises.chapters import run_file
from nanocourse.exercises.kernel_source import kernel_source
from nanocourse.exercises.outcomes import HANDED, Before, NotAsItWas

if TYPE_CHECKING:
    from nanocourse.checks.answering import Answering


class Forbidden(BaseException):
    """Raised in a solution that calls the function it was asked to write; `except Exception` does not catch it."""


class Watch:
    """A trace function: lines of the learner's folder, calls from there into the package, and refused functions."""

    def __init__(self, file: str, package: str, refuse: list[list[Any]], answers: list[str]) -> None:
        self.file, self.folder, self.package = file, os.path.dirname(file) + os.sep, package
        self.refuse = {(name, line): told for name, line, told in refuse}
        self.answers = tuple(answers)
        self.lines: set[int] = set()
        self.parts: set[str] = set()
        self.refused: str | None = None
        self._others: dict[int, CodeType] = {}  # code of other libraries, by id: most calls of an interpreted kernel

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if id(code) in self._others:
            return None
        told = self.refuse.get((code.co_filename, code.co_firstlineno))
        if told is None and code.co_filename.startswith(self.answers):
            told = f"{code.co_name} in the chapter's own answers"
        if told is not None:
            self.refused = told
            raise Forbidden(told)
        if code.co_filename == self.file and code.co_name != "<module>":
            return self._line
        caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        ours = code.co_filename.startswith(self.package) and not code.co_name.startswith("<")
        if ours and caller.startswith(self.folder):
            self.parts.add(f"{frame.f_globals.get('__name__', '?')}.{code.co_name}")
        if not ours and code.co_filename != self.file:
            self._others[id(code)] = code
        return None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines.add(frame.f_lineno)
        return self._line


class Tensors:
    """Arguments come in the tensors and dicts of earlier calls: what is remembered by object is stale.

    A tensor has the shape of the one before, a dict the same keys.
    """

    MOST = 4096  # numbers of one that is kept

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], Tensor] = {}
        self._dicts: dict[tuple[Any, ...], dict[Any, Any]] = {}

    def placed(self, args: list[Any], strided: Sequence[int]) -> list[Any]:
        """The same numbers. strided: of which arguments they do not lie end to end in memory."""
        placed = []
        for number, argument in enumerate(args):
            leaves, form = tree_flatten(argument)
            for at, leaf in enumerate(leaves):
                if isinstance(leaf, Tensor) and leaf.dim():
                    leaves[at] = self._placed((number in strided, number, at, leaf.shape, leaf.dtype), leaf)
            placed.append(tree_unflatten(leaves, form))
        for at, argument in enumerate(placed):
            if type(argument) is dict:
                placed[at] = self._dicts.setdefault((at, *argument), {})
                placed[at].clear()
                placed[at].update(argument)
        return placed

    def _placed(self, key: tuple[Any, ...], tensor: Tensor) -> Tensor:
        kept = self._kept.get(key)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:  # the answer may have changed it
            kept = strided(tensor) if key[0] else tensor
            if tensor.numel() <= self.MOST:
                self._kept[key] = kept
        return kept.copy_(tensor)


class Server:
    """Answers the parent's requests, one after the other, until it closes the pipe."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO, device: str) -> None:
        self.requests, self.replies, self.device = requests, replies, device
        self.function: Any = None
        self.kernel, self.traced, self.watched = False, True, True
        self.folder, self.turn = "", ""
        self.watch = Watch("", "", [], [])
        self._tensors = Tensors()
        self._strided: Sequence[int] = ()  # where arguments are, what a call is lent gives, too
        self._stand_in = cache(self._make_stand_in)  # the same ones for all calls, as tensors are
        self._scene: Answering | None = None
        self._scenes: Callable[..., Answering] | None = None

    def serve(self) -> None:
        """Serve until the requests end."""
        wire.send(self.replies, {"op": "ready"}, [])
        while (frame := wire.receive(self.requests)) is not None:
            self._answer(*frame)
            flush()

    def _answer(self, header: dict[str, Any], body: bytes) -> None:
        """Answer one request. The reply repeats the request's turn, so that no reply can be prepared in advance."""
        before, self.turn = self.turn, header.get("turn", "")  # a request may come while another one is answered
        if header["op"] == "load":
            self._reply(self._load(header))
        else:
            self._call(header, body)
        self.turn = before

    def _chapter_file(self, path: str, name: str) -> ModuleType:
        """A file of the chapter that runs between the checks and the learner's function: a launcher."""
        return run_file(Path(path), name)

    def _reply(self, header: dict[str, Any], bodies: list[bytes] | None = None) -> None:
        flush()  # what the code printed is with the parent before the reply is
        wire.send(self.replies, header | {"turn": self.turn}, bodies or [])

    def _load(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Run the learner's file from its source, never from a cached compilation, and find the function in it."""
        path, self.function, self._scene = asked["path"], None, None
        self.watch = Watch(path, asked["package"], asked["refuse"], asked["answers"])
        linecache.checkcache(path)
        folder = os.path.dirname(path)
        for name in [name for name, module in sys.modules.items() if within(module, folder)]:
            del sys.modules[name]
        sys.path[:] = [entry for entry in sys.path if entry != self.folder] + [folder]  # last: it shadows nothing
        self.folder = folder
        try:
            source: bytes | str = Path(path).read_bytes()
            if asked["launcher"]:  # nothing but its kernels is run, and compiled is what is run
                source = kernel_source(source, asked["function"])
                linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
            code = compile(source, path, "exec", dont_inherit=True)
            module = ModuleType("mine")
            module.__file__ = path
            sys.modules["mine"] = module
            exec(code, module.__dict__)
        except BaseException as error:
            return {"op": "raised", **described(error, path)}
        found = getattr(module, asked["function"], None)
        if not callable(found):
            return {"op": "missing"}
        self.function, self.kernel, self.traced = found, bool(asked["launcher"]), asked["traced"]
        if self.kernel:
            launcher = self._chapter_file(asked["launcher"], "nanoinfer_launcher")
            self.function = kernels.in_worker(found, launcher, asked["compiling"])
            if self.device != "cpu":
                self.watch.lines |= executable_lines(code)  # a compiled kernel cannot be traced: it counts as a whole
        files = sorted({m.__file__ for m in list(sys.modules.values()) if within(m, folder) and m.__file__})
        return {"op": "loaded", "lines": sorted(executable_lines(code)), "files": files}

    def _call(self, asked: dict[str, Any], body: bytes) -> None:
        """Call the function and reply with the outcome.

        A kernel has to compile, so it cannot call anything forbidden. It is traced only until its lines are known,
        because tracing makes Triton's interpreter three times as slow.
        """
        scene = self._in_scene(asked.get("play"), bool(asked.get("kept")))
        call: Callable[[], Any]
        kept: Before | None = None
        if scene is None:
            args = wire.Unpacker(body, self.device, self._stand_in).unpack(asked["args"])
            self._strided = asked["strided"]
            args = self._tensors.placed(args, self._strided)
            call, kept = partial(self.function, *args), Before(args, asked["kept"]) if asked.get("kept") else None
        else:
            call = scene.read(asked, body)
        unseen = not self.watched or (self.kernel and (self.watch.lines or not self.traced))
        watch = None if unseen else self.watch
        before, self.watch.refused = set(self.watch.lines if watch else ()), None
        reply, bodies = self._done(call, watch, scene)
        if self.watch.refused is not None:
            reply, bodies = {"op": "refused", "name": self.watch.refused}, []
        elif kept and reply["op"] == "returned":
            try:
                changed = kept.changed()
            except Exception:
                changed = "torch itself"
            reply, bodies = ({"op": "changed", "what": changed}, []) if changed else (reply, bodies)
        news, memory = scene.news() if scene is not None else ([], [])
        reply |= {"lines": sorted(self.watch.lines - before), "parts": sorted(self.watch.parts), "memory": news}
        try:
            self._reply(reply, [*memory, *bodies])
        except (wire.WireError, TypeError, ValueError, RecursionError) as error:
            note = {"op": "raised", "kind": "WireError", "message": _text(error), "where": ""}
            self._reply(note | {"lines": [], "parts": [], "memory": []})

    def _done(
        self, call: Callable[[], Any], watch: Watch | None, scene: Answering | None
    ) -> tuple[dict[str, Any], list[bytes]]:
        """The reply after a call, under a watch."""
        outer, in_threads = sys.gettrace(), threading.gettrace()
        try:
            with torch.no_grad():
                threading.settrace(watch)  # type: ignore[arg-type]
                sys.settrace(watch)
                try:
                    value = call()
                finally:
                    sys.settrace(outer)
                    threading.settrace(in_threads)  # type: ignore[arg-type]
            if scene is not None:
                return scene.reply(value)
            packer = wire.Packer()
            return {"op": "returned", "value": packer.pack(value)}, packer.bodies
        except NotAsItWas:
            return {"op": "changed", "what": HANDED}, []
        except BaseException as error:
            told = {"op": "raised", **described(error, self.watch.file)}
            return (told if scene is None else told | {"lent": scene.lent(error)}), []

    def _in_scene(self, number: int | None, kept: bool) -> Answering | None:
        """The scene of that number, which begins where it is a new one; None outside of any."""
        if number is None:
            return None
        self.prepare_scenes()
        if self._scenes is not None and (self._scene is None or self._scene.number != number):
            self._scene = self._scenes(number, self.function, self._ask, kept)
        return self._scene

    def prepare_scenes(self) -> None:
        """Import what a scene needs, which takes a while."""
        if self._scenes is None:
            from nanocourse.checks.answering import Answering

            self._scenes = Answering

    def _ask(self, header: dict[str, Any], bodies: list[bytes]) -> tuple[dict[str, Any], bytes]:
        """The grader's reply to a request; meanwhile it may have requests of its own."""
        wire.send(self.replies, {"op": "ask", **header}, bodies)
        while (frame := wire.receive(self.requests)) is not None:
            if frame[0]["op"] in ("value", "raised"):
                return frame
            self._answer(*frame)
        raise SystemExit

    def _make_stand_in(self, number: int) -> Any:
        """A function that forwards its calls to the parent."""

        def ask(*args: Any) -> Any:
            packer = wire.Packer()
            header, body = self._ask({"function": number, "args": packer.pack(list(args))}, packer.bodies)
            if header["op"] == "raised":
                raise ValueError(header["message"])
            given = wire.Unpacker(body, self.device).unpack(header["value"])
            return tree_map_only(Tensor, strided, given) if self._strided else given

        return ask


def within(module: Any, folder: str) -> bool:
    """Whether a module was loaded from this folder."""
    return os.path.dirname(getattr(module, "__file__", None) or "") == folder


def executable_lines(code: CodeType) -> set[int]:
    """The lines that can run, of all functions in a compiled file."""
    lines: set[int] = set()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            own = {line for _, _, line in inner.co_lines() if line} - {inner.co_firstlineno}
            lines |= own | executable_lines(inner)
    return lines


def described(error: BaseException, path: str) -> dict[str, str]:
    """Kind and message of an exception, and the line of the learner's file that raised it."""
    line = 0
    if type(error).__name__ == "InterpreterError" and error.__cause__ is not None:  # Triton's, around the real one
        error = error.__cause__
    if isinstance(error, SyntaxError) and error.filename == path:
        line = error.lineno or 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    source = linecache.getline(path, line).strip() if line else ""
    message = error.msg if isinstance(error, SyntaxError) and type(error.msg) is str else _text(error)
    return {"kind": type(error).__name__, "message": message[:600], "where": f"line {line}: {source}" if line else ""}


def _text(error: BaseException) -> str:
    """An exception's message; whatever its class makes of `str`."""
    try:
        return str.__str__(str(error))
    except BaseException:
        return "its message cannot be shown"


def flush() -> None:
    """Flush what the learner's code printed."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
