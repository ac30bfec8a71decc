"""Exercise 4.6: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Step = Callable[[], object]
Warm = Callable[[Step], None]
Record = Callable[[Step], Any]


def only_live(step: Step, state: Tensor, warm: Warm, record: Record) -> Any:
    """Only `live` is cleared, which makes a row padding; everything is put back, row by row."""
    before = [row.clone() for row in state]
    state[2] = 0
    try:
        warm(step)
        graph = record(step)
    finally:
        for row, old in zip(state, before, strict=True):
            row[:] = old
    return graph


def by_multiplying(step: Step, state: Tensor, warm: Warm, record: Record) -> Any:
    """Cleared by multiplying with 0; added back at the end, between the warm-up and the recording as well."""
    before = state + 0
    try:
        state.mul_(0)
        warm(step)
        state.mul_(0).add_(before)
        state.mul_(0)
        return record(step)
    finally:
        state.mul_(0).add_(before)


EQUIVALENT: dict[str, str] = {}


def _apart(step: Step, state: Tensor, warm: Warm, record: Record) -> tuple[Any, ...]:
    return step, *state, warm, record


def _recording(found: tuple[list[int], Any], step: Step, state: Tensor, *args: object) -> Any:
    rows, graph = found
    if rows != state[2].nonzero().flatten().tolist():
        raise TypeError(f"the live rows are others than {rows!r:.60}")
    return graph


def _of_three(answer: Function) -> Function:
    return Formed(answer, _apart, _recording)


@edition(
    "three-tensors",
    "token, position and live are three tensors, and the numbers of the live rows come before the recording",
    played=_of_three,
)
def capture_rows(
    step: Step, token: Tensor, position: Tensor, live: Tensor, warm: Warm, record: Record
) -> tuple[list[int], Any]:
    """The numbers of the live rows, and a recording of `step`, made in the middle of their generation; none notices.

    step: one decode step, no arguments. It reads token, position, live and the cache, and writes into all but live.
    token, position, live (N,) int64: of each row; a row whose live is 0 is padding: it writes its key and value where
    nobody looks. warm(step): runs it a few times, so that kernels are compiled and workspaces are there. record(step):
    gives the recording, an object of any kind, and executes nothing; it fails where the step was not warmed. Whatever
    either raises, of any class, goes on to the caller, itself and no copy; then, too, the three tensors and the cache
    are as they were found, in the memory where they were found.
    """
    saved = [(tensor, tensor.clone()) for tensor in (token, position, live)]
    rows = [row for row, lives in enumerate(live.tolist()) if lives]
    live.fill_(0)
    try:
        warm(step)
        return rows, record(step)
    finally:
        for tensor, found in saved:
            tensor.copy_(found)
