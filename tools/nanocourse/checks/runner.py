"""A learner's file in workers: loaded, called, loaded again if a worker has died; and what it must not call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nanocourse.checks.known_mistakes import Solve, Solver, here
from nanocourse.checks.worker import Kept, Loaded, Refuse, Worker
from nanocourse.exercises.cases import Call
from nanocourse.exercises.chapters import resolve
from nanocourse.exercises.exercise import Exercise, Right, Wrong
from nanocourse.exercises.outcomes import Crashed, Hung, Outcome, told
from nanocourse.exercises.sources import answer_source


class Workers:
    """Workers for one device. The next one starts while the current one is busy, since importing torch takes seconds.

    wanted: an estimate of how many will be needed; no more than that are started ahead.
    """

    def __init__(self, device: str, wanted: int = 1) -> None:
        self.device, self._wanted = device, wanted
        self._spare: Worker | None = None

    def take(self) -> Worker:
        """A worker, which the caller must close."""
        taken = self._spare or Worker(self.device)
        self._wanted -= 1
        self._spare = Worker(self.device) if self._wanted > 0 else None
        return taken

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._spare is not None:
            self._spare.close()


@dataclass
class Runner:
    """A learner's file of one exercise, loaded into a worker that is replaced when it dies.

    compiler: makes the worker that compiles kernels, started when a call needs it. traced: whether the lines of a
    kernel that ran are recorded. say: is told what is going on. printed: its first lines, or those of the one call that
    is shown, if it has any.
    """

    exercise: Exercise
    path: Path
    start: Callable[[], Worker]
    limit_s: float
    problem: str = ""
    files: tuple[str, ...] = ()
    lines: frozenset[int] = frozenset()
    executed: set[int] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    printed: str = ""
    on_input: bool = False  # whether `printed` is of the shown call alone
    kept: dict[str, Any] = field(default_factory=dict)  # by scenes, of this answer
    compiler: Callable[[], Worker] = lambda: Worker(compiling=True)
    traced: bool = True
    say: Callable[[str], None] = lambda text: None
    hung: Hung | None = None  # the first call that did; later ones are not waited for
    _worker: Worker | None = None
    _compiling: Worker | None = None
    _shown: bool = False
    _doing: str = ""

    def tell(self, doing: str) -> None:
        """Say what is done from now on."""
        self._doing = doing
        self.say(doing)

    def load(self) -> bool:
        """Whether the file runs and has the function; if not, `problem` says why."""
        self._worker = self._worker if self._worker is not None and self._worker.alive else self.start()
        found = self._load_into(self._worker)
        if isinstance(found, Loaded):
            self.files, self.lines = found.files, frozenset(found.lines)
            return True
        if found is None:
            self.problem = f"{self.path.name} has no function {self.exercise.name}"
        else:
            self.problem = f"{self.path.name} cannot be run: {told(found)}"
        self.printed = self._worker.printed()
        return False

    def _load_into(self, worker: Worker) -> Loaded | Outcome | None:
        launcher = self.exercise.spec.kernel.launcher if self.exercise.spec.kernel else None
        return worker.load(self.path, self.exercise.name, refused(self.exercise), launcher, self.traced)

    def _compile(self, asked: Call) -> Outcome:
        """Compile in a worker of its own."""
        if self._compiling is None or not self._compiling.alive:
            self._compiling = self.compiler()
            found = self._load_into(self._compiling)
            if not isinstance(found, Loaded):
                return found or Crashed(f"{self.path.name} has no function {self.exercise.name}")
        return self._compiling.call(asked, self.limit_s)

    def call(self, asked: Call, shown: bool = False) -> Outcome:
        """The outcome of one call; loads the file again if the worker has died. shown: what it prints comes first."""
        if self.hung:
            return self.hung
        if asked.compiles:
            return self._compile(asked)
        if (self._worker is None or not self._worker.alive) and not self.load():
            return Crashed(self.problem)
        assert self._worker is not None
        scene, limit = self.exercise.spec.scene, self.limit_s
        worker = self._worker
        worker.waiting = lambda: self.say(f"{self._doing}: waiting for your code, at most {limit:g} s of its time")
        before = worker.forget() if shown else ""
        outcome = worker.play(scene, asked, limit, self.kept) if scene else worker.call(asked, limit)
        self.hung = outcome if isinstance(outcome, Hung) else None
        self.executed |= self._worker.seen.lines
        lent = [name for name, value in self.exercise.named(asked).items() if callable(value)]
        self.parts |= self._worker.seen.parts | {f"{lent[at]} (lent)" for at in self._worker.asked if at < len(lent)}
        if not self._shown:
            printed = self._worker.printed()
            self.printed, self.on_input, self._shown = printed or before, shown and bool(printed), shown
        return outcome

    def close(self) -> None:
        """End the workers."""
        for worker in (self._worker, self._compiling):
            if worker is not None:
                worker.close()


def refused(exercise: Exercise) -> Refuse:
    """What a solution must not call: the reference, its equivalents, and all the chapter's known answers."""
    named = {name.replace(":", "."): resolve(name) for name in exercise.spec.refuse}
    reference = exercise.spec.reference
    told_name = reference.replace(":", ".") if isinstance(reference, str) else exercise.name
    named[told_name] = resolve(reference)
    if exercise.edition:
        named[exercise.name] = exercise.function
    codes = {name: function.__code__ for name, function in named.items() if hasattr(function, "__code__")}
    functions = tuple((code.co_filename, code.co_firstlineno, name) for name, code in codes.items())
    return Refuse(functions, (f"{exercise.path.parent}{os.sep}", f"<{exercise.id} "))


@contextmanager
def solver_of(exercise: Exercise, start: Callable[[], Worker] = Worker) -> Iterator[Solver]:
    """How known answers are called: in this process, or kernels each from a file of its own, all in two workers."""
    if exercise.spec.kernel is None:
        yield partial(here, exercise)
        return
    limit = exercise.spec.limit_s
    with (
        closing(Kept(start)) as running,
        closing(Kept(partial(Worker, compiling=True))) as compiling,
        TemporaryDirectory() as folder,
    ):

        def solver(answer: Wrong | Right) -> Solve:
            path = Path(folder).resolve() / answer.name / exercise.file
            path.parent.mkdir(exist_ok=True)
            path.write_text(answer_source(exercise, answer), encoding="utf-8")
            return lambda asked: Runner(exercise, path, running, limit, compiler=compiling, traced=False).call(asked)

        yield solver
