"""Exercise 2.3: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

POSITION = "<= positions[:, None, :, None]"
LINE = f"torch.arange(S, device=positions.device) {POSITION}"
HOW_FAR = "min(slots, -(-longest // multiple) * multiple)"
COLUMNS = "torch.arange(positions.shape[1], device=positions.device)[None, None, :, None]"
ALL_ROWS = ".expand(len(positions), 1, -1, -1)"
WRONG = (
    Wrong.patch(
        "triangle-at-the-top-left", "Causal means a triangle: query i reads slots 0 to i.", LINE,
        f"({LINE.replace(POSITION, f'<= {COLUMNS}')}){ALL_ROWS}",
        "pytorch/pytorch#108108, #103082: is_causal with a cache; onnx/onnx#8054",
    ),
    Wrong.patch(
        "triangle-at-the-bottom-right", "The triangle ends at the last slot that is needed, in every row.", LINE,
        f"({LINE.replace(POSITION, f'<= {COLUMNS} + longest - positions.shape[1]')}){ALL_ROWS}",
        "ml-explore/mlx#2836: the other alignment, right where all rows are of one length",
    ),
    Wrong.patch(
        "mask-inverted", "The mask names what is hidden.", POSITION, POSITION.replace("<=", ">"),
        "rasbt/LLMs-from-scratch#1061, huggingface/transformers#38094",
    ),
    Wrong.patch(
        "itself-hidden", "The cache holds what was before, so a query reads the slots before its own.", POSITION,
        POSITION.replace("<=", "<"), "pytorch/executorch#2689",
    ),
    Wrong.patch(
        "one-slot-too-many", "A query at position n reads n + 1 slots, so slot n + 1 is the last.", POSITION,
        "<= positions[:, None, :, None] + 1", "the same slip on the other side",
    ),
    Wrong.patch(
        "chunk-sees-itself-alone", "A chunk's queries read the chunk.", LINE,
        f"({LINE}) & (torch.arange(S, device=positions.device) >= positions[:, None, :1, None])",
        "huggingface/candle#3743: a mask of the new tokens by the new tokens; meta-llama/llama#899",
    ),
    Wrong.patch(
        "chunk-sees-its-end", "What a step brings may all be read by its queries: it is written already.", POSITION,
        "<= positions[:, None, -1:, None].expand(-1, -1, positions.shape[1], -1)",
        "tenstorrent/tt-metal#48899: a row that reads later tokens of its chunk",
    ),
    Wrong.patch(
        "padding-seen", "What the longest row may read, all rows may.", POSITION,
        "<= positions.amax(0)[None, None, :, None].expand(len(positions), 1, -1, -1)",
        "flashinfer-ai/flashinfer#3716, huggingface/transformers#30414: slots that hold nothing are read",
    ),
    Wrong.patch(
        "first-rows-mask", "One mask serves the batch.", POSITION,
        "<= positions[:1, None, :, None].expand(len(positions), 1, -1, -1)",
        "lablup/mlxcel#885: a mask made for the step, and not for the row",
    ),
    Wrong.patch(
        "no-mask-in-decode", "A single new token is the last one: there is nothing to hide.", LINE,
        f"({LINE}) | torch.tensor(positions.shape[1] == 1, device=positions.device)",
        "huggingface/transformers#30400: true only where the cache is exactly as long as the text",
    ),
    Wrong.patch(
        "reads-everything", "Slots under the mask cost nothing, so all are read.", HOW_FAR, "slots",
        "huggingface/transformers#30862: a static cache attends to its whole length",
    ),
    Wrong.patch(
        "reads-exactly", "As many slots are read as the longest row needs.", HOW_FAR, "longest",
        "huggingface/transformers#29165: a new shape at each step",
    ),
    Wrong.patch(
        "rounded-down", "Rounding to a multiple is a division without remainder.", HOW_FAR,
        "min(slots, max(1, longest // multiple) * multiple)", "an author's own slip: the newest tokens are cut off",
    ),
    Wrong.patch(
        "one-multiple-more", "Rounding up is rounding down, and one more.", HOW_FAR,
        "min(slots, (longest // multiple + 1) * multiple)", "an author's own slip: off by one at whole multiples",
    ),
    Wrong.patch(
        "beyond-the-cache", "Rounding up never leaves the cache.", HOW_FAR, "-(-longest // multiple) * multiple",
        "google/gemma.cpp#266: a buffer that is smaller than what is read",
    ),
    Wrong.patch(
        "a-range-from-the-first", "Positions count on from a row's first.",
        "<= positions[:, None, :, None]",
        "<= (positions[:, :1] + torch.arange(positions.shape[1]))[:, None, :, None]",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "prompts-by-their-first", "Rows that begin at position 0 are prompts in order.",
        "return torch.arange",
        "if positions.shape[1] > 1 and bool((positions[:, 0] == 0).all()):\n"
        "        positions = torch.arange(positions.shape[1]).expand_as(positions)\n"
        "    return torch.arange",
        "a reader who saw stub and text alone", unnamed="a-range-from-the-first",
    ),
    Wrong.patch(
        "positions-of-a-byte", "A position fits in a byte.",
        "<= positions[:, None, :, None]",
        "<= positions.to(torch.uint8)[:, None, :, None]",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "two-at-least", "Slots are read by twos at least.",
        '-(-longest // multiple) * multiple',
        '-(-longest // max(2, multiple)) * max(2, multiple)',
        "written to pass all checks that there were, and it did", unnamed="one-multiple-more",
    ),
)  # fmt: skip


def line_by_line(positions: Tensor, longest: int, multiple: int, slots: int) -> Tensor:
    """Loops; each line is filled from the left."""
    B, T = positions.shape
    S = multiple
    while longest > S:
        S += multiple
    mask = torch.zeros(B, 1, T, min(S, slots), dtype=torch.bool, device=positions.device)
    for b in range(B):
        for t in range(T):
            mask[b, 0, t, : int(positions[b, t]) + 1] = True
    return mask


def rows_of_a_triangle(positions: Tensor, longest: int, multiple: int, slots: int) -> Tensor:
    """A triangle of all slots by all slots, of which each query takes the line of its position."""
    S = min((longest + multiple - 1) // multiple * multiple, slots)
    triangle = torch.ones(S, S, device=positions.device).tril().bool()
    return triangle[positions].unsqueeze(1)


def by_counting(positions: Tensor, longest: int, multiple: int, slots: int) -> Tensor:
    """Zeros and ones, summed up from the right."""
    S = min(longest + -longest % multiple, slots)
    ends = torch.zeros(*positions.shape, S, dtype=torch.int32, device=positions.device)
    ends.scatter_(2, positions[:, :, None], 1)
    return ends.flip(2).cumsum(2).flip(2)[:, None] > 0


RIGHT = (Right(line_by_line), Right(rows_of_a_triangle), Right(by_counting))

EQUIVALENT = {"S = min(-(-longest // multiple) * multiple, slots)": "min takes its arguments in either order"}


def visible(positions: Tensor, longest: int, multiple: int, slots: int) -> Tensor:
    """What is added to the scores of the slots that are read: (B, T, S) float32, 0 or minus infinity.

    0 where a query may read a slot of its own row, minus infinity where it may not.
    positions (B, T) int64: where each query's token stands in its own text; it has been written to that slot already.
    longest: no position of this step is `longest` or higher. slots: of a row of the cache. S: how many slots are read,
    the lowest multiple of `multiple` that holds the first `longest` slots, but never more than there are.
    """
    S = min(slots, -(-longest // multiple) * multiple)
    later = torch.arange(S, device=positions.device) > positions[:, :, None]
    return torch.zeros(later.shape, device=positions.device).masked_fill(later, -torch.inf)


def _same(positions: Tensor, longest: int, multiple: int, slots: int) -> tuple[Tensor, int, int, int]:
    return positions, longest, multiple, slots


EDITIONS = (
    Edition(
        "as-numbers", "the mask is numbers that are added to the scores, in place of truths", visible,
        args=_same, back=_same,
        result=lambda mask, *args: torch.zeros(mask[:, 0].shape).masked_fill(~mask[:, 0], -torch.inf),
        axes=("row", "query", "slot"),
    ),
)  # fmt: skip
