"""The parent's side of a worker process: start it, send it a file and inputs, enforce time limits, end it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import nanoinfer
from nanocourse.checks import wire, worker_main
from nanocourse.checks.clock import Clock
from nanocourse.checks.frames import Frames
from nanocourse.checks.play import Play
from nanocourse.checks.worker_main import import_path
from nanocourse.exercises.cases import Call
from nanocourse.exercises.outcomes import HANDED, Changed, Crashed, Hung, Outcome, Raised, Refused, Returned

START_LIMIT_S = 180.0  # importing torch from a cold disk
LOAD_LIMIT_S = 10.0  # running the learner's file, before any call
SLACK_S = 5.0  # beyond a call's limit, before a worker that does not read its input is ended
PIPE_BUF = getattr(select, "PIPE_BUF", 512)  # bytes that go into a pipe whole, if any go
GLANCE_S = 0.1  # how often a waiting parent looks at its worker
# The environment variables that a Python with torch needs; all others stay with the parent.
PASSED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TRITON_CACHE_DIR",
)  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    """The learner's file ran and has the function. lines: those that can run. files: all of theirs that it read."""

    lines: tuple[int, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class Refuse:
    """What a solution must not call. functions: file, line and name of each. files: prefixes of file names."""

    functions: tuple[tuple[str, int, str], ...] = ()
    files: tuple[str, ...] = ()


NOTHING = Refuse()
Lend = Callable[[dict[str, Any], bytes], tuple[dict[str, Any], list[bytes]]]


@dataclass
class Seen:
    """What the tracer saw of the learner's code since it was loaded."""

    lines: set[int] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)  # functions of the package that it called


class Worker:
    """One worker process, started at once and waited for at the first request.

    device: where inputs are put. compiling: kernels are compiled and not run; otherwise, on a CPU, they are
    interpreted. prefix: a command that runs the process. A call that exceeds its limit, or ends the process, ends this
    worker: from then on `alive` is False.
    """

    graded = False  # see `grade.graded_worker`
    server = "nanocourse.checks.server:Server"
    bounds = wire.Bounds()
    lent_values = wire.MAX_VALUES  # numbers and lists that a lent function takes
    kept = 8000  # characters of what the learner's code prints

    def __init__(self, device: str = "cpu", compiling: bool = False, prefix: Sequence[str] = ()) -> None:
        self.compiling = compiling
        interpreted = {} if compiling or device != "cpu" else {"TRITON_INTERPRET": "1"}
        settings = {"path": import_path(), "device": device, "graded": self.graded, "server": self.server}
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-I", worker_main.__file__, json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=os.name == "posix",
            env=self._environment() | {"OMP_NUM_THREADS": "1"} | interpreted,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._frames = Frames(self._process.stdout, self.bounds)
        self._package = str(Path(nanoinfer.__file__).parent) + os.sep
        self._printed = ""
        self._ready, self._dead = False, False
        self.seen = Seen()
        self.spent = 0.0  # seconds of its limit that the last call took
        self._plays, self._deaf = 0, False
        self.waiting: Callable[[], None] = lambda: None  # called while a reply is waited for
        self.asked: set[int] = set()  # numbers of the functions passed to the last call that were used
        threading.Thread(target=self._drain, daemon=True).start()

    @property
    def alive(self) -> bool:
        return not self._dead

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(
        self,
        path: Path,
        function: str,
        refuse: Refuse = NOTHING,
        launcher: Path | None = None,
        traced: bool = True,
    ) -> Loaded | Outcome | None:
        """Run the learner's file; None if it does not have the function.

        launcher: the file that launches a kernel. traced: whether the lines of a kernel that ran are recorded.
        """
        self.seen, self._printed = Seen(), ""
        asked: dict[str, Any] = {"op": "load", "path": str(path), "function": function, "package": self._package}
        asked |= {"refuse": refuse.functions, "answers": refuse.files}
        asked |= {"launcher": str(launcher) if launcher else "", "compiling": self.compiling, "traced": traced}
        reply = self._ask(asked, [], Clock(self.pid, LOAD_LIMIT_S))
        if not isinstance(reply, tuple):
            return reply
        header = reply[0]
        try:
            if header["op"] == "loaded":
                return Loaded(tuple(map(int, header["lines"])), tuple(map(str, header["files"])))
            return None if header["op"] == "missing" else _raised(header)
        except wire.BROKEN as error:
            return self._unreadable(error)

    def call(self, asked: Call, limit_s: float) -> Outcome:
        """The outcome of one call of the loaded function. limit_s: of its processor time, and of its sleep."""
        packer, self.asked, clock = wire.Packer(), set(), Clock(self.pid, limit_s)
        header: dict[str, Any] = {"op": "call", "args": packer.pack(list(asked.args)), "strided": asked.strided}
        header["kept"] = asked.kept
        reply = self._ask(header, packer.bodies, clock, partial(self._lend, packer.functions))
        self.spent = clock.spent
        if not isinstance(reply, tuple):
            return reply
        try:
            return self._outcome(asked, *reply)
        except (wire.WireError, *wire.BROKEN) as error:
            return self._unreadable(error)

    def play(self, scene: Callable[..., Any], asked: Call, limit_s: float, kept: dict[str, Any]) -> Outcome:
        """The outcome of a scene with the loaded function. kept: what scenes remember of it, for other calls."""
        self.asked, clock = set(), Clock(self.pid, limit_s)
        self._plays += 1

        def ask(header: dict[str, Any], bodies: list[bytes]) -> tuple[dict[str, Any], bytes] | Outcome:
            lend = partial(play.lend, most=self.lent_values)
            reply = self._ask(header | {"play": self._plays, "kept": asked.kept}, bodies, clock, lend)
            if not isinstance(reply, tuple):
                return reply
            try:
                self._note(reply[0])
            except wire.BROKEN as error:
                return self._unreadable(error)
            if reply[0]["op"] == "changed":
                return Changed(HANDED)
            return Refused(wire.plain(str(reply[0]["name"]), 200)) if reply[0]["op"] == "refused" else reply

        play = Play(ask, kept, self._says)
        outcome = play.run(scene, asked.args)
        self.spent = clock.spent
        return outcome

    def _note(self, header: dict[str, Any]) -> None:
        """Note which lines ran, by what the worker says."""
        self.seen.lines |= {int(line) for line in header["lines"]}
        self.seen.parts |= {wire.plain(str(part), 200) for part in header["parts"]}

    def _outcome(self, asked: Call, header: dict[str, Any], body: bytes) -> Outcome:
        """What a reply says. Raises if it is malformed: a worker that has run a learner's code cannot be trusted."""
        self._note(header)
        if header["op"] == "refused":
            return Refused(wire.plain(str(header["name"]), 200))
        if header["op"] == "raised":
            return _raised(header)
        if header["op"] == "changed":
            return Changed(wire.plain(str(header["what"]), 200))
        value = wire.Unpacker(body).unpack(header["value"])
        return Returned(value, asked.observe() if asked.observe else None)

    def printed(self) -> str:
        """The beginning of what the learner's code has printed since it was loaded, or since `forget`."""
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            for _ in range(10):  # what came before the reply is about to be read
                if os.name != "posix" or not select.select([self._stderr()], [], [], 0)[0]:
                    break
                time.sleep(0.002)
        return self._printed

    def forget(self) -> str:
        """What was printed until now; from now on nothing is."""
        printed, self._printed = self.printed(), ""
        return printed

    def close(self) -> None:
        """End the process, and everything that it started."""
        self._end()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _end(self) -> None:
        self._dead = True
        self._frames.stop()
        self._kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._stdin().close()  # the others are closed by the threads that read them, when nobody holds them open

    def _kill(self) -> None:
        """Kill the process, and its group: the process may have left the group."""
        if os.name == "posix":
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def _ask(
        self, header: dict[str, Any], bodies: list[bytes], clock: Clock, lend: Lend | None = None
    ) -> tuple[dict[str, Any], bytes] | Outcome:
        """Send a request; answer the worker's own requests, by `lend`, until the reply comes."""
        if not self._ready:
            first = self._next(Clock(self.pid, START_LIMIT_S))
            if not isinstance(first, tuple):
                return first
            self._ready = True
            clock.restart()  # it has begun only now
        turn = secrets.token_hex(8)
        try:
            self._send(header | {"turn": turn}, bodies, clock)
            while True:
                frame = self._next(clock)
                if not isinstance(frame, tuple):
                    return frame
                if frame[0].get("op") != "ask" or lend is None:
                    if frame[0].get("turn") != turn:  # made before the question was known
                        raise wire.WireError("it answered what was not asked")
                    return frame
                self._send(*lend(frame[0], frame[1]), clock)
        except OSError:
            if self._deaf:
                self._end()
                return Hung(clock.limit_s)
            return self._crashed()
        except (wire.WireError, *wire.BROKEN) as error:
            return self._unreadable(error)

    def _send(self, header: dict[str, Any], bodies: list[bytes], clock: Clock) -> None:
        """Write a message. A write blocks if the worker does not read, which it has no other business than to do."""
        data, pipe = wire.frame(header, bodies), self._stdin()
        if len(data) <= PIPE_BUF and _has_space(pipe):  # no thread has to watch what cannot block
            pipe.write(data)
            pipe.flush()
            return

        def end() -> None:
            self._deaf = True
            self._kill()

        watchdog = threading.Timer(clock.limit_s + SLACK_S, end)
        watchdog.daemon = True
        watchdog.start()
        try:
            pipe.write(data)
            pipe.flush()
        finally:
            watchdog.cancel()

    def _unreadable(self, error: Exception) -> Crashed:
        self._end()
        return Crashed(f"it sent a message that cannot be read ({type(error).__name__}: {str(error)[:200]})")

    def _environment(self) -> dict[str, str]:
        """The environment variables that the process gets."""
        return {name: os.environ[name] for name in PASSED if name in os.environ}

    def _problem(self) -> str:
        """Why a worker must be ended while it is waited for; empty if it may go on. Asked every `GLANCE_S` seconds."""
        self.waiting()
        return ""

    def _stdin(self) -> Any:
        return self._process.stdin

    def _stderr(self) -> Any:
        return self._process.stderr

    def _says(self, error: BaseException) -> str:
        """What a learner is told of an exception of a lent function."""
        return str(error)

    def _lend(
        self, functions: Sequence[Callable[..., Any]], asked: dict[str, Any], body: bytes
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Call a function for the worker."""
        number, args = asked["function"], wire.Unpacker(body, most=self.lent_values).unpack(asked["args"])
        if type(number) is not int or not 0 <= number < len(functions) or not isinstance(args, list):
            raise wire.WireError("it asked for a function that it was not lent")
        try:
            self.asked.add(number)
            value = functions[number](*args)
        except Exception as error:
            return {"op": "raised", "message": wire.plain(self._says(error), 600)}, []
        packer = wire.Packer()
        return {"op": "value", "value": packer.pack(value)}, packer.bodies

    def _next(self, clock: Clock) -> tuple[dict[str, Any], bytes] | Outcome:
        clock.resume()
        frame, came = self._frames.wait(clock, GLANCE_S, self._problem)
        if not came:
            hung = Hung(clock.limit_s, "" if isinstance(frame, str) else self._interrupted())
            self._end()
            return Crashed(frame) if isinstance(frame, str) else hung
        if frame is None:
            return self._crashed()
        if isinstance(frame, str):
            self._end()
            return Crashed(frame)
        return frame

    def _interrupted(self) -> str:
        """The line that the learner's code is at: an interrupt is answered as any exception of it is."""
        if self.graded or os.name != "posix":
            return ""
        self._process.send_signal(signal.SIGINT)
        frame, _ = self._frames.wait(Clock(self.pid, SLACK_S), GLANCE_S, self._problem)
        return _raised(frame[0]).where if isinstance(frame, tuple) and frame[0].get("op") == "raised" else ""

    def _crashed(self) -> Crashed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        self._end()
        if code is not None:
            with contextlib.suppress(ValueError):  # what runs the process adds a signal's number to 128
                return Crashed(f"the process was ended by {signal.Signals(-code if code < 0 else code - 128).name}")
        return Crashed(f"the process ended with exit code {code}")

    def _drain(self) -> None:
        """Keep the beginning of what the learner's code prints, and read the rest, so that the pipe never fills up."""
        stream = self._stderr()
        with contextlib.suppress(OSError, ValueError), stream:
            while data := os.read(stream.fileno(), 65536):
                self._printed = (self._printed + data.decode("utf-8", "replace"))[: self.kept]


class Kept:
    """One worker, made when it is first asked for, and another when it has died."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make
        self._worker: Worker | None = None

    def __call__(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            self._worker = self._make()
        return self._worker

    def close(self) -> None:
        """End it."""
        if self._worker is not None:
            self._worker.close()


def _has_space(pipe: IO[bytes]) -> bool:
    """Whether PIPE_BUF bytes can be written at once."""
    if os.name != "posix":
        return False
    writable = select.poll()
    writable.register(pipe, select.POLLOUT)
    return bool(writable.poll(0))


def _raised(header: dict[str, Any]) -> Raised:
    kind, message, where = (str(header[name]) for name in ("kind", "message", "where"))
    return Raised(wire.plain(kind, 200), wire.plain(message, 600), wire.plain(where, 400))
