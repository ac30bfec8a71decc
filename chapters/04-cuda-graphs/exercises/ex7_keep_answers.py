"""Exercise 4.7: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Replay = Callable[[], None]


def through_the_host(replay: Replay, tokens: Tensor, count: int) -> list[Tensor]:
    """Numbers on the host, made a tensor again: right, though the host waits in each step."""
    kept = []
    while len(kept) < count:
        replay()
        kept.append(torch.tensor(tokens.tolist()))
    return kept


def by_adding_nothing(replay: Replay, tokens: Tensor, count: int) -> list[Tensor]:
    """Any operation that computes makes a new tensor."""

    def one() -> Tensor:
        replay()
        return tokens + 0

    return [one() for _ in range(count)]


EQUIVALENT: dict[str, str] = {}


def _oldest_first(kept: Tensor, *args: object) -> list[Tensor]:
    if not isinstance(kept, Tensor) or kept.dim() != 2:
        raise TypeError(f"the result is one tensor (count, B), and no {type(kept).__name__}")
    return list(kept.flip(0))


def _of_one_tensor(answer: Function) -> Function:
    return Formed(answer, lambda *args: args, _oldest_first)


@edition("newest-first", "the result is one tensor (count, B), the newest step first", played=_of_one_tensor)
def keep_newest_first(replay: Replay, tokens: Tensor, count: int) -> Tensor:
    """The tokens of the next `count` steps, 512 at most: one (count, B), the newest first, to be read at any time.

    replay(): runs the recorded step once, and returns nothing. tokens (B,), whole numbers: what the step gave when it
    was recorded; at first nothing has run, and what it holds is undefined. The caller goes on replaying afterwards. No
    step may be run that was not asked for: each one advances the batch.
    """
    kept = tokens.new_empty(count, len(tokens))
    for line in reversed(range(count)):
        replay()
        kept[line] = tokens
    return kept
