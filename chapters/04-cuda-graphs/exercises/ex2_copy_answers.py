"""Exercise 4.2: wrong answers and where they come from, correct variants, mutants that are none."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Right, Wrong

Inputs = dict[str, Tensor]


def entries_rebound(static: Inputs, new: Inputs, nobody: int) -> None:
    """static["last"] = x puts x where the graph will look."""
    for name, filler in (("token_ids", 0), ("last", -1), ("rows", nobody)):
        padded = torch.full_like(static[name], filler)
        padded[tuple(map(slice, new[name].shape))] = new[name]
        static[name] = padded


def copied_whole(static: Inputs, new: Inputs, nobody: int) -> None:
    """copy_ makes one tensor equal to the other, whatever their shapes."""
    for name, tensor in new.items():
        static[name].copy_(tensor)


def resized(static: Inputs, new: Inputs, nobody: int) -> None:
    """A static tensor takes the new shape: it is the same tensor."""
    for name, tensor in new.items():
        static[name].resize_(tensor.shape).copy_(tensor)


IDS = 'static["token_ids"][:b, :t] = new["token_ids"]'
ROWS = 'static["rows"][:b] = new["rows"]'
LAST = 'static["last"][:b] = new["last"]'
WRONG = (
    Wrong(entries_rebound, "vllm-project/vllm#53915: a new tensor in each step, and the graph reads the old one"),
    Wrong(copied_whole, "an author's own slip: copy_ broadcasts one prompt over all rows, and refuses two"),
    Wrong(resized, "vllm-project/vllm#21228: the step goes on with the shape that it was captured with"),
    Wrong.patch(
        "a-copy-is-filled", "Whatever comes out of an index in brackets is a view of the tensor.",
        ROWS, 'static["rows"][torch.arange(b)].copy_(new["rows"])',
        "an author's own slip: an index by a tensor copies, an index by a slice does not",
    ),
    Wrong.patch(
        "data-rebound", "What stands behind .data is the numbers, so assigning it writes them.",
        IDS, 'static["token_ids"].data = torch.nn.functional.pad(new["token_ids"], '
        '(0, static["token_ids"].shape[1] - t, 0, static["token_ids"].shape[0] - b))',
        "vllm-project/vllm#50386: a buffer whose memory is another one",
    ),
    Wrong.patch(
        "rows-of-the-last-batch", "Rows behind the new prompts need nothing: nobody looks at them.",
        'static["last"].fill_(-1)\n    static["last"][:b] = new["last"]\n    static["rows"].fill_(nobody)\n    ',
        LAST + "\n    ", "GeeeekExplorer/nano-vllm#190, InternLM/lmdeploy#4569: stale tail rows",
    ),
    Wrong.patch(
        "rows-stay-owned", "A row without a real column writes nowhere, so its number does not matter.",
        '    static["rows"].fill_(nobody)\n', "",
        "GeeeekExplorer/nano-vllm@bb823b3: slots and lengths are made anew at each step, block tables are not",
    ),
    Wrong.patch(
        "padding-is-a-row", "Padding belongs to row 0.", 'static["rows"].fill_(nobody)', 'static["rows"].zero_()',
        "vllm-project/vllm#38719: garbage written to slot 0, which was somebody's",
    ),
    Wrong.patch(
        "padding-has-a-column", "A row of padding has one token, in column 0.",
        'static["last"].fill_(-1)', 'static["last"].zero_()',
        "vllm-project/vllm#43810: padding rows that are written like real ones",
    ),
    Wrong.patch(
        "columns-of-the-last-batch", "Only rows can be left over: columns behind the last one are hidden.",
        '    static["token_ids"].zero_()\n', '    static["token_ids"][b:].zero_()\n',
        "huggingface/transformers#45323: tokens beyond the length, found by whoever reads them",
    ),
    Wrong.patch(
        "ids-are-all", "The ids are the input; the rest follows from them.", LAST, "pass",
        "GeeeekExplorer/nano-vllm#190: one of several static tensors forgotten",
    ),
    Wrong.patch(
        "rows-forgotten", "Prompts go into rows 0, 1, ... in order.", ROWS,
        'static["rows"][:b] = torch.arange(b)', "right in the first batch, and wrong as soon as one is refilled",
    ),
    Wrong.patch(
        "added", "A cleared tensor can be added to, in place of being written.",
        'static["token_ids"].zero_()\n    static["token_ids"][:b, :t] =', 'static["token_ids"][:b, :t] +=',
        "an author's own slip: it was cleared once, before the first batch",
    ),
)  # fmt: skip


def name_by_name(static: Inputs, new: Inputs, nobody: int) -> None:
    """A loop, padding by torch.nn.functional.pad, and one copy_ of the whole shape."""
    for name, filler in (("token_ids", 0), ("last", -1), ("rows", nobody)):
        missing = [size - own for size, own in zip(static[name].shape, new[name].shape, strict=True)]
        pads = [number for size in reversed(missing) for number in (0, size)]
        static[name].copy_(torch.nn.functional.pad(new[name], pads, value=filler))


def by_indices(static: Inputs, new: Inputs, nobody: int) -> None:
    """index_copy_ and index_fill_ over the rows, the new ones and those that are left."""
    b, t = new["token_ids"].shape
    rows = torch.arange(len(static["last"]))
    static["token_ids"].fill_(0).narrow(1, 0, t).index_copy_(0, rows[:b], new["token_ids"])
    static["last"].index_fill_(0, rows[b:], -1).index_copy_(0, rows[:b], new["last"])
    static["rows"].index_copy_(0, rows[:b], new["rows"]).index_fill_(0, rows[b:], nobody)


def number_by_number(static: Inputs, new: Inputs, nobody: int) -> None:
    """Python numbers, one entry after the other, last ones first."""
    ids, last, rows = (new[name].tolist() for name in ("token_ids", "last", "rows"))
    for row in reversed(range(len(static["last"]))):
        real = row < len(last)
        static["last"][row] = last[row] if real else -1
        static["rows"][row] = rows[row] if real else nobody
        for column in range(static["token_ids"].shape[1]):
            static["token_ids"][row, column] = ids[row][column] if real and column < len(ids[row]) else 0


RIGHT = (Right(name_by_name), Right(by_indices), Right(number_by_number))

EQUIVALENT: dict[str, str] = {}
