"""Hidden inputs of one submission, the order in which they are asked, and how answers that do no work are found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from nanocourse.checks.check import status_of
from nanocourse.checks.known_mistakes import Solve
from nanocourse.checks.results import Status
from nanocourse.exercises.cases import Call, Case
from nanocourse.exercises.exercise import Check, Exercise, Function
from nanocourse.exercises.outcomes import Outcome, local
from nanocourse.grade.assignment import inputs_seed


@dataclass(frozen=True)
class Question:
    """One input of one check."""

    check: Check
    seed: str

    def call(self, exercise: Exercise) -> Call:
        """The call, made anew each time, since its functions remember what they were asked."""
        return exercise.call(self.check, Case(self.seed))


def questions(exercise: Exercise, secret: str, submission_id: str, seeds: int) -> list[Question]:
    """All inputs, in an order that only the secret determines, then one input of each check a second time.

    Without the secret order, counting calls would be enough where results are yes or no. The repetition catches answers
    that depend on earlier calls.
    """
    every: list[Question] = []
    again: list[Question] = []
    for check in exercise.checks:
        own = [
            Question(check, f"{inputs_seed(secret, submission_id, exercise.id, k)}/{check.name}/{at}")
            for k in range(1 if exercise.spec.fixed else seeds)
            for at in range(check.cases)
        ]
        every += own
        again.append(own[0])
    order = random.Random(inputs_seed(secret, submission_id, f"{exercise.id}/order", 0))
    order.shuffle(every)
    order.shuffle(again)
    kernel = exercise.spec.kernel is not None
    return [*every, *(one for one in again if not (kernel and one.call(exercise).compiles))]


def judged(exercise: Exercise, question: Question, got: Outcome) -> Status:
    """The status of an outcome."""
    return status_of(exercise, question.check, exercise.expected(question.call(exercise)), got)


def worthless(exercise: Exercise, passed: set[str], asked: Sequence[Question]) -> bool:
    """Whether some answer that does no work passes all these checks too."""
    if not passed or exercise.spec.kernel is not None:
        return False
    mine = [question for question in asked if question.check.name in passed]
    return any(agrees(exercise, mine, partial(local, exercise.staged(answer))) for answer in idle_answers())


def agrees(exercise: Exercise, asked: Sequence[Question], solve: Solve) -> bool:
    """Whether an answer is right on all these inputs."""
    return all(judged(exercise, question, solve(question.call(exercise))) == "passed" for question in asked)


def idle_answers() -> Iterator[Function]:
    """Answers that do no work: a constant, an error, an argument returned, a tensor filled or reduced."""
    constants: tuple[Any, ...] = (None, True, False, 0, 1, -1, 0.0, 1.0, "", (), [], {})
    for value in constants:
        yield lambda *args, value=value: value
    for error in (AssertionError, ValueError, RuntimeError, TypeError, IndexError, KeyError):
        yield partial(_raises, error)
    for at in range(6):
        for made in (lambda given: given, *FILLS):
            yield lambda *args, at=at, made=made: made(args[at])


def _raises(error: type[Exception], *args: Any) -> Any:
    raise error("an answer that does no work")


def _filled(value: float, part: Any, given: Tensor) -> Tensor:
    return given[part].new_full(given[part].shape, value)


FILLS: tuple[Callable[[Any], Any], ...] = (
    *(partial(_filled, value, ...) for value in (0.0, 1.0, float("-inf"), float("inf"))),
    *(partial(_filled, value, (..., slice(1))) for value in (0.0, float("-inf"), float("inf"))),
    lambda given: given.amin(-1, keepdim=True), lambda given: given.amax(-1, keepdim=True),
    lambda given: given.argmax(-1), lambda given: given[:, -1], len, list, sum,
)  # fmt: skip
