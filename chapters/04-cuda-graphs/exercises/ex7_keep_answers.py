"""Exercise 4.7: wrong answers and where they come from, correct variants, mutants that are none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Right, Wrong

Replay = Callable[[], None]


def one_copy(replay: Replay, tokens: Tensor, count: int) -> list[Tensor]:
    """One tensor of one's own is enough: each step's tokens are copied into it."""
    mine, kept = tokens.clone(), []
    for _ in range(count):
        replay()
        kept.append(mine.copy_(tokens))
    return kept


def first_as_recorded(replay: Replay, tokens: Tensor, count: int) -> list[Tensor]:
    """The recording has run the step once, so the first tokens are there already."""
    kept = [tokens.clone()] if count else []
    for _ in range(count - 1):
        replay()
        kept.append(tokens.clone())
    return kept


def warmed_up(replay: Replay, tokens: Tensor, count: int) -> list[Tensor]:
    """A first replay that does not count warms the graph up."""
    replay()
    kept = []
    for _ in range(count):
        replay()
        kept.append(tokens.clone())
    return kept


def storage_copied(replay: Replay, tokens: Tensor, count: int) -> list[Tensor]:
    """A tensor is its memory, so a copy of the memory is a copy of the tensor."""
    kept = []
    for _ in range(count):
        replay()
        mine = tokens.new_empty(0).set_(tokens.untyped_storage().clone())
        kept.append(mine[: len(tokens)])
    return kept


def two_buffers(replay: Replay, tokens: Tensor, count: int) -> list[Tensor]:
    """Two buffers, used in turn, are enough to be read while the next one is written."""
    pair, kept = (tokens.clone(), tokens.clone()), []
    for step in range(count):
        replay()
        kept.append(pair[step % 2].copy_(tokens))
    return kept


def last_is_a_view(replay: Replay, tokens: Tensor, count: int) -> list[Tensor]:
    """What no further step of one's own overwrites need not be copied."""
    kept: list[Tensor] = []
    for _ in range(count):
        kept = [one.clone() for one in kept]
        replay()
        kept.append(tokens)
    return kept


COPY = "kept.append(tokens.clone())"
WRONG = (
    Wrong.patch(
        "the-same-tensor", "A replay returns a fresh tensor, or detach makes one.",
        COPY, "kept.append(tokens.detach())",
        "pytorch/pytorch#104435: two replays, and both results are the second",
    ),
    Wrong.patch(
        "late-by-one", "The tokens of a step are there before it is replayed.",
        "replay()\n        kept.append(tokens.clone())", "kept.append(tokens.clone())\n        replay()",
        "an author's own slip: the first one is what was there, and the last one is missing",
    ),
    Wrong(one_copy, "pytorch/pytorch#170604: a buffer that is used twice"),
    Wrong(two_buffers, "double buffering, which holds for a host that is one step behind, and no more"),
    Wrong(last_is_a_view, "pytorch/pytorch#170604: the last result of a loop, and somebody else's next replay"),
    Wrong(first_as_recorded, "NVIDIA's notes on capture: it executes nothing, so there is no first result"),
    Wrong(warmed_up, "an author's own slip: what is a warm-up for a step is a token too many for a text"),
    Wrong(storage_copied, "an author's own slip: a view's storage is that of the whole tensor"),
)  # fmt: skip


def through_the_host(replay: Replay, tokens: Tensor, count: int) -> list[Tensor]:
    """Numbers on the host, made a tensor again: right, though the host waits in each step."""
    kept = []
    while len(kept) < count:
        replay()
        kept.append(torch.tensor(tokens.tolist()))
    return kept


def into_one_block(replay: Replay, tokens: Tensor, count: int) -> list[Tensor]:
    """One tensor with a line for every step, made before the first."""
    block = torch.empty(count, len(tokens), dtype=tokens.dtype, device=tokens.device)
    for line in block:
        replay()
        line.copy_(tokens)
    return list(block)


def by_adding_nothing(replay: Replay, tokens: Tensor, count: int) -> list[Tensor]:
    """Any operation that computes makes a new tensor."""

    def one() -> Tensor:
        replay()
        return tokens + 0

    return [one() for _ in range(count)]


RIGHT = (Right(through_the_host), Right(into_one_block), Right(by_adding_nothing))

EQUIVALENT: dict[str, str] = {}
