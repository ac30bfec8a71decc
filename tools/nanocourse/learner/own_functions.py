"""A learner's functions in the engine: exactly those that pass their checks, each swapped in by itself.

The checks run in workers, as always. Only then is the learner's code loaded into this process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nanocourse.checks.runner import Workers
from nanocourse.exercises import kernels
from nanocourse.exercises.chapters import chapters, run_file
from nanocourse.exercises.exercise import Exercise, Function
from nanocourse.exercises.stubs import untouched
from nanocourse.exercises.swap import has_place, replaced, swapped
from nanocourse.learner.check_folder import run_check
from nanocourse.learner.folder import Folder
from nanoinfer.engine.stats import Stats
from nanoinfer.kernels import paged_attention_torch


@dataclass(eq=False)
class Own:
    """One of the learner's exercises.

    function: theirs, if it passed and has a place in the engine. steps: in which the engine called it, by their numbers
    and how many of them decoded.
    """

    exercise: Exercise
    engine: str  # its chapter's
    status: str
    function: Function | None = None
    steps: set[tuple[int, int]] = field(default_factory=set)

    def note(self, stats: Stats) -> None:
        """The engine called it, in the step that its counters are at."""
        self.steps.add((stats.steps, stats.decode_steps))

    def ran(self, steps: int, decode_steps: int, now: Stats) -> str:
        """In how many steps it was called since there were as many as these."""
        ours = [decoded for number, decoded in self.steps if number > steps]
        alone = ": prefill alone" if ours and max(ours) == decode_steps < now.decode_steps else ""
        return f"your {self.exercise.id} ran in {len(ours)} of {now.steps - steps} steps{alone}"


def own_functions(
    path: Path, say: Callable[[Own], None] = lambda own: None, going_on: Callable[[str], None] = lambda text: None
) -> list[Own]:
    """All exercises that the folder has files of, with the functions that pass their checks and run in the engine.

    What has passed and is as it was is not checked again. ValueError if the folder has no exercise's file. say: is told
    of each as soon as its status is known. going_on: of what is done meanwhile.
    """
    folder, found, files, interpreted = Folder(path), list[Own](), dict[str, Path](), False
    for chapter in chapters():
        for exercise in folder.exercises(chapter):
            file = folder.file(chapter, exercise)
            if file.is_file():
                status = "not begun" if untouched(exercise, file) else ""
                if exercise.spec.kernel is not None and not status and not kernels.why_not(exercise):
                    interpreted |= kernels.interpret()  # now: a later chapter's exercises import Triton
                files[exercise.id] = file
                found.append(Own(exercise, chapter.engine, status))
    if not found:
        raise ValueError(f"{path} has no exercise's file: `nanoinfer course start 1` makes them")
    begun = [own for own in found if not own.status and has_place(own.exercise)]
    holds = [folder.load().of(own.exercise.id).holds(files[own.exercise.id]) for own in begun]
    known = [own for own, held in zip(begun, holds, strict=True) if held and not kernels.why_not(own.exercise)]
    with Workers("cpu", len(begun) - len(known)) as workers:
        for own in found:
            if own in known:
                own.status = "passed"
            elif own in begun:
                file = files[own.exercise.id]
                own.status = run_check(folder, file, own.exercise, workers, True, False, going_on).status
            own.status = own.status or "it has no place in the engine"
            say(own)
    for own in begun:
        if own.status == "passed":
            own.function = _load(own.exercise, files[own.exercise.id])
    if interpreted and not any(own.function is not None and own.exercise.spec.kernel for own in found):
        del os.environ[kernels.INTERPRET]  # the engine's own kernels have references in PyTorch, which are faster
    return found


@contextmanager
def in_the_engine(own: Sequence[Own], stats: Stats) -> Iterator[None]:
    """The engine runs the learner's functions until the block ends. stats: its counters."""
    with ExitStack() as stack:
        for one in own:
            if one.function is not None:
                stack.enter_context(swapped(one.exercise, one.function, partial(one.note, stats)))
        yield


def interpreted() -> bool:
    """Whether the engine's kernels run in Triton's interpreter."""
    return os.environ.get(kernels.INTERPRET) == "1"


def quick_reference() -> AbstractContextManager[None]:
    """Until the block ends, decode attention is PyTorch's where it would be interpreted, ten seconds a token."""
    if not interpreted():
        return nullcontext()
    return replaced({"nanoinfer.kernels.paged_attention:attend_pages": paged_attention_torch.attend_pages})


def why_not_called(own: Own, used: Sequence[Own]) -> str:
    """Another of the learner's functions took its place, if that is known; otherwise nothing needed it."""
    displaced = own.exercise.spec.displaced
    told = (displaced[one.exercise.id] for one in used if one.steps and one.exercise.id in displaced)
    return next(told, "nothing in this run needed it")


def _load(exercise: Exercise, file: Path) -> Function:
    """The learner's function, in this process; it can import files beside its own."""
    if exercise.spec.kernel is not None:
        return kernels.in_engine(exercise, lambda: _found(exercise, file))
    return _found(exercise, file)


def _found(exercise: Exercise, file: Path) -> Function:
    sys.path.append(str(file.parent))
    try:
        function: Function = getattr(run_file(file, f"mine_{exercise.mark.replace('.', '_')}"), exercise.name)
    finally:
        sys.path.remove(str(file.parent))
    return function
