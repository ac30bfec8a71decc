"""Exercise 2.4: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

COUNTED = "before[:, None] + counted - 1"
NEXT = "before + counted[:, -1]"
ZERO = ".masked_fill(~real, 0)"
COLUMNS = "torch.arange(real.shape[1], device=real.device).expand(real.shape)"
WRONG = (
    Wrong.patch(
        "padded-length", "Decode goes on behind the step: at its number of columns.", NEXT, "before + real.shape[1]",
        "Comfy-Org/ComfyUI#15698: decode positions from the padded width of the batch",
    ),
    Wrong.patch(
        "columns-are-positions", "Column n holds position n, also with padding on the left.", COUNTED,
        f"before[:, None] + {COLUMNS}", "huggingface/transformers#3021, unslothai/unsloth#3803",
    ),
    Wrong.patch(
        "positions-restart", "A step's positions begin at 0.", COUNTED, "counted - 1",
        "huggingface/transformers#43082: a chunk's positions do not count what came before",
    ),
    Wrong.patch(
        "next-without-before", "The next position is the number of tokens in this step.", NEXT, "counted[:, -1]",
        "vllm-project/vllm-metal#144: an offset that is 0 again",
    ),
    Wrong.patch(
        "offset-counted-twice", "The offset advances by the step's tokens, and then by where they stand.", NEXT,
        f"before + {NEXT}", "skyzh/tiny-llm#46",
    ),
    Wrong.patch(
        "counted-from-one", "The first token of a text stands at position 1.", COUNTED, "before[:, None] + counted",
        "an author's own slip: a running total counts the token itself",
    ),
    Wrong.patch(
        "next-on-the-last", "The next token stands where the last one of this step stood.", NEXT, f"{NEXT} - 1",
        "the same slip, one line further down: the last token's key is written over",
    ),
    Wrong.patch(
        "one-slot-left-out", "The new token stands one behind the next.", NEXT, f"{NEXT} + 1",
        "pytorch/executorch#2689: which token is number 128?",
    ),
    Wrong.patch(
        "longest-row", "All rows go on where the longest goes on.", NEXT, f"({NEXT}).max().expand(len(real))",
        "rasbt/reasoning-from-scratch#33: one position for the whole batch",
    ),
    Wrong.patch(
        "first-rows-cache", "All rows have as much in the cache as the first.", COUNTED,
        "before[:1, None] + counted - 1",
        "rasbt/reasoning-from-scratch#33, unslothai/unsloth#3699",
    ),
    Wrong.patch(
        "behind-the-last-column", "The next position is the last column's, plus one.", NEXT, "positions[:, -1] + 1",
        "right with padding on the left, as transformers has it; and wrong on the right",
    ),
    Wrong.patch(
        "padding-not-cleared", "What is computed for a padded column is of no interest.", ZERO, "",
        "an author's own slip: padding on the left stands at -1, which indexes the end of a table",
    ),
    Wrong.patch(
        "left-or-right", "A row is padded on the left or on the right.",
        "    counted = real.cumsum(1)  # (B, T) tokens up to and with each column\n"
        "    positions = (before[:, None] + counted - 1).masked_fill(~real, 0)\n"
        "    return positions, before + counted[:, -1]\n",
        "    T = real.shape[1]\n"
        "    length = real.sum(1)\n"
        "    start = torch.where(real[:, 0], 0, T - length)\n"
        "    positions = (before[:, None] + torch.arange(T) - start[:, None]).masked_fill(~real, 0)\n"
        "    return positions, before + length\n",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "padded-rows-are-new", "A padded row has nothing in the cache yet.",
        "before + counted[:, -1]",
        "torch.where(real.all(1), before, 0) + counted[:, -1]",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "next-in-32-bits", "A whole number is a whole number.",
        '    return positions, before + counted[:, -1]',
        '    return positions, (before + counted[:, -1]).int()',
        "a try of somebody who saw stub and text alone, which passed",
    ),
)  # fmt: skip


def token_by_token(real: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Loops, counting as one reads."""
    positions, after = [], []
    for row, start in zip(real.tolist(), before.tolist(), strict=True):
        found, count = [], start
        for is_real in row:
            found.append(count if is_real else 0)
            count += is_real
        positions.append(found)
        after.append(count)
    return torch.tensor(positions, device=real.device), torch.tensor(after, device=real.device)


def by_masks(real: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """For each column a sum over the columns before it; int32 on the way, in place."""
    T = real.shape[1]
    earlier = torch.ones(T, T, device=real.device).triu(1)
    positions = (real.float() @ earlier).int().add_(before.int()[:, None]).mul_(real)
    return positions.long(), (before.int() + real.sum(1, dtype=torch.int32)).long()


def from_the_first_token(real: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Columns less the first real one: a row's real tokens stand side by side."""
    columns = torch.arange(real.shape[1], device=real.device)
    first = real.int().argmax(1)  # (B,) of equal values the first
    positions = torch.where(real, columns - first[:, None] + before[:, None], 0)
    return positions, before + real.count_nonzero(1)


RIGHT = (Right(token_by_token), Right(by_masks), Right(from_the_first_token))

EQUIVALENT: dict[str, str] = {}


def places(real: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """The position of every column, (T, B) int64, and of each row's next token, (B,) int64.

    real (T, B) bool: which columns of which row hold a token; the others are padding, on the left, on the right, or on
    both sides. before (B,) int64: how many tokens of each row are in the cache already. Padded columns get position 0.
    """
    counted = real.cumsum(0)
    return (before + counted - 1).masked_fill(~real, 0), before + counted[-1]


def _turned(real: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    return real.T, before


EDITIONS = (
    Edition(
        "time-first", "columns stand before rows: `real` is (T, B)", places, args=_turned, back=_turned,
        result=lambda found, *args: (found[0].T, found[1]),
        axes=("of positions, next: number", "column", "row"),
    ),
)  # fmt: skip
