"""Exercise 4.2: wrong answers and where they come from, correct variants, mutants that are none."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Right, Wrong

Inputs = dict[str, Tensor]


def entries_rebound(static: Inputs, new: Inputs, nobody: int) -> None:
    """static["row"] = x puts x where the graph will look."""
    room, tokens = len(static["token_ids"]), len(new["token_ids"])
    fillers = {"row": nobody, "starts": tokens, "logits_row": nobody}
    for name, tensor in new.items():
        padded = torch.full_like(static[name], fillers.get(name, 0))
        padded[: len(tensor)] = tensor
        static[name] = padded
    static["starts"][-1] = room


def copied_whole(static: Inputs, new: Inputs, nobody: int) -> None:
    """copy_ makes one tensor equal to the other, whatever their shapes."""
    for name, tensor in new.items():
        static[name].copy_(tensor)


def resized(static: Inputs, new: Inputs, nobody: int) -> None:
    """A static tensor takes the new shape: it is the same tensor."""
    for name, tensor in new.items():
        static[name].resize_(tensor.shape).copy_(tensor)


def rows_forgotten(static: Inputs, new: Inputs, nobody: int) -> None:
    """Pieces go into rows 0, 1, ... in order."""
    tokens, rows = len(new["token_ids"]), len(new["starts"]) - 1
    fillers = {"row": nobody, "starts": tokens, "logits_row": nobody}
    for name, tensor in new.items():
        static[name].fill_(fillers.get(name, 0))
        static[name][: len(tensor)] = tensor
    static["row"][:tokens] = torch.arange(rows).repeat_interleave(new["starts"].diff())
    static["starts"][-1] = len(static["token_ids"])


FILL = "static[name].fill_(value)"
WRITE = "static[name][: len(new[name])] = new[name]"
LAST = '    static["starts"][-1] = len(static["token_ids"])\n'
WRONG = (
    Wrong(entries_rebound, "vllm-project/vllm#53915: a new tensor in each step, and the graph reads the old one"),
    Wrong(copied_whole, "an author's own slip: copy_ broadcasts one token over all places, and refuses two"),
    Wrong(resized, "vllm-project/vllm#21228: the step goes on with the shape that it was captured with"),
    Wrong.patch(
        "a-copy-is-filled", "Whatever comes out of an index in brackets is a view of the tensor.",
        WRITE, "static[name][torch.arange(len(new[name]))].copy_(new[name])",
        "an author's own slip: an index by a tensor copies, an index by a slice does not",
    ),
    Wrong.patch(
        "data-rebound", "What stands behind .data is the numbers, so assigning it writes them.",
        f"{FILL}\n        {WRITE}", 'if name == "token_ids":\n            static[name].data = torch.cat([new[name], '
        f"static[name][tokens:] * 0])\n        else:\n            {FILL}\n            {WRITE}",
        "vllm-project/vllm#50386: a buffer whose memory is another one",
    ),
    Wrong.patch(
        "rows-of-the-last-batch", "Rows behind the new ones need nothing: nobody looks at them.",
        f"        {FILL}\n", f'        if name != "starts":\n            {FILL}\n',
        "GeeeekExplorer/nano-vllm#190, InternLM/lmdeploy#4569: stale tail rows",
    ),
    Wrong.patch(
        "rows-stay-owned", "A token behind the last row's end writes nowhere, so its row does not matter.",
        f"        {FILL}\n", f'        if name != "row":\n            {FILL}\n',
        "GeeeekExplorer/nano-vllm@bb823b3: slots and lengths are made anew at each step, block tables are not",
    ),
    Wrong.patch(
        "choices-of-the-last-batch", "Where nothing is to be chosen, the row that it was for does not matter.",
        f"        {FILL}\n", f'        if name != "logits_row":\n            {FILL}\n',
        "InternLM/lmdeploy#4569 once more: a row whose prompt goes on gets a token, out of padding",
    ),
    Wrong.patch(
        "padding-is-a-row", "Padding belongs to row 0.", '"row": nobody', '"row": 0',
        "vllm-project/vllm#38719: garbage written to slot 0, which was somebody's",
    ),
    Wrong.patch(
        "padding-chooses-for-row-0", "A choice that nobody waits for goes to row 0.",
        '"logits_row": nobody', '"logits_row": 0', "vllm-project/vllm#43810: padding that is written like real rows",
    ),
    Wrong.patch(
        "padding-has-no-row", "The rows end where the new tokens end.", LAST, "",
        "vllm-project/vllm#21228: a mapping shorter than the padded batch; a kernel leaves such places as they were",
    ),
    Wrong.patch(
        "empty-rows-begin-at-0", "A row without tokens may begin anywhere.", '"starts": tokens', '"starts": 0',
        "flashinfer-ai/flashinfer#4002: programs over entries that nobody had made",
    ),
    Wrong.patch(
        "tokens-of-the-last-batch", "Only rows can be left over: tokens behind the last one are hidden.",
        f"        {FILL}\n", f'        if name not in ("token_ids", "positions"):\n            {FILL}\n',
        "huggingface/transformers#45323: tokens beyond the length, found by whoever reads them",
    ),
    Wrong.patch(
        "ids-are-all", "The ids are the input: where they stand, and whose they are, follows from them.",
        WRITE, f'if name not in ("positions", "row"):\n            {WRITE}',
        "GeeeekExplorer/nano-vllm#190: some of several static tensors forgotten",
    ),
    Wrong(rows_forgotten, "right in the first batch, and wrong as soon as one is refilled"),
    Wrong.patch(
        "added", "A cleared tensor can be added to, in place of being written.",
        f"{FILL}\n        {WRITE}", "static[name][: len(new[name])] += new[name] - value",
        "an author's own slip: it was cleared once, before the first batch",
    ),
)  # fmt: skip


def name_by_name(static: Inputs, new: Inputs, nobody: int) -> None:
    """Each by itself, padded by torch.nn.functional.pad, and one copy_ of the whole."""
    zeros, tokens = ("token_ids", "positions", "logits_at"), len(new["token_ids"])
    for name in reversed(new):
        filler = 0 if name in zeros else tokens if name == "starts" else nobody
        missing = len(static[name]) - len(new[name])
        static[name].copy_(torch.nn.functional.pad(new[name], (0, missing), value=filler))
    static["starts"][-1:].fill_(len(static["row"]))


def by_indices(static: Inputs, new: Inputs, nobody: int) -> None:
    """index_copy_ and index_fill_, the new numbers first and then what is left."""
    fillers = {"starts": new["starts"][-1].item(), "row": nobody, "logits_row": nobody}
    for name, tensor in static.items():
        at, n = torch.arange(len(tensor)), len(new[name])
        tensor.index_copy_(0, at[:n], new[name]).index_fill_(0, at[n:], fillers.get(name, 0))
    static["starts"].index_fill_(0, torch.tensor([len(static["starts"]) - 1]), len(static["positions"]))


def number_by_number(static: Inputs, new: Inputs, nobody: int) -> None:
    """Python numbers, one entry after the other, last ones first."""
    numbers = {name: tensor.tolist() for name, tensor in new.items()}
    for name, tensor in static.items():
        for at in reversed(range(len(tensor))):
            if at < len(numbers[name]):
                tensor[at] = numbers[name][at]
            elif name == "starts":
                last = at == len(tensor) - 1
                tensor[at] = len(static["token_ids"]) if last else len(numbers["token_ids"])
            else:
                tensor[at] = nobody if name in ("row", "logits_row") else 0


RIGHT = (Right(name_by_name), Right(by_indices), Right(number_by_number))

EQUIVALENT: dict[str, str] = {}
