"""Exercise 4.7: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

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


def buffers_of_the_last_call(
    replay: Callable[[], None],
    tokens: Tensor,
    count: int,
    own: dict[Any, list[Tensor]] = {},  # noqa: B006
) -> list[Tensor]:
    """Buffers of the right size are made once, and serve every call."""
    buffers = own.setdefault((count, tokens.shape), [torch.empty_like(tokens) for _ in range(count)])
    for buffer in buffers:
        replay()
        buffer.copy_(tokens)
    return list(buffers)


def buffers_in_turns(
    replay: Callable[[], None],
    tokens: Tensor,
    count: int,
    own: list[list[Tensor]] = [],  # noqa: B006
) -> list[Tensor]:
    """Buffers of the last call but one are free again."""
    fits = [one for one in own[:-1] if len(one) == count and all(each.shape == tokens.shape for each in one)]
    buffers = fits[0] if fits else [torch.empty_like(tokens) for _ in range(count)]
    own[:] = [*[one for one in own if one is not buffers], buffers]
    for buffer in buffers:
        replay()
        buffer.copy_(tokens)
    return list(buffers)


WRONG = (
    Wrong.patch(
        "in-32-bits", "Tokens are small numbers.", COPY, "kept.append(tokens.int())",
        "written to pass all checks that there were, and it did",
    ),
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
    Wrong.patch(
        "lists", "A list of numbers is as good as a tensor.",
        "tokens.clone()",
        "tokens.tolist()",
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "ring-of-eight", "Eight buffers are enough for any host.",
        "    kept = []\n"
        "    for _ in range(count):\n"
        "        replay()\n"
        "        kept.append(tokens.clone())\n"
        "    return kept\n",
        "    ring = [torch.empty_like(tokens) for _ in range(8)]\n"
        "    kept = []\n"
        "    for n in range(count):\n"
        "        replay()\n"
        "        ring[n % 8].copy_(tokens)\n"
        "        kept.append(ring[n % 8])\n"
        "    return kept\n",
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "kept-as-floats", "Tokens may be kept as floats.",
        'tokens.clone()',
        'tokens.float()',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong(buffers_of_the_last_call, "a try of somebody who saw stub and text alone, which passed", unnamed="one-copy"),
    Wrong.patch(
        "ring-of-256", 'No host is hundreds of steps behind.',
        "    kept = []\n"
        "    for _ in range(count):\n"
        "        replay()\n"
        "        kept.append(tokens.clone())\n"
        "    return kept\n",
        "    ring = [torch.empty_like(tokens) for _ in range(min(count, 256))]\n"
        "    kept = []\n"
        "    for n in range(count):\n"
        "        replay()\n"
        "        kept.append(ring[n % 256].copy_(tokens))\n"
        "    return kept\n",
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "stacked", 'One tensor is as good as a list of tensors.',
        'return kept',
        'return torch.stack(kept) if kept else []',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong(buffers_in_turns, "written to pass all checks that there were, and it did", unnamed="one-copy"),
    Wrong.patch(
        "unsigned", "A token is no number below 0.", "tokens.clone()", "tokens.abs()",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "equal-steps-once", "Tokens that are those of the step before are kept already.", COPY,
        "kept += [tokens.clone()] if not kept or not kept[-1].equal(tokens) else []",
        "written to pass all checks that there were, and it did",
    ),
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


def _oldest_first(kept: Tensor, *args: object) -> list[Tensor]:
    if not isinstance(kept, Tensor) or kept.dim() != 2:
        raise TypeError(f"the result is one tensor (count, B), and no {type(kept).__name__}")
    return list(kept.flip(0))


def _of_one_tensor(answer: Function) -> Function:
    return Formed(answer, lambda *args: args, _oldest_first)


EDITIONS = (
    Edition(
        "newest-first", "the result is one tensor (count, B), the newest step first", keep_newest_first,
        played=_of_one_tensor,
    ),
)  # fmt: skip
