"""Exercise 4.2: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

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
    Wrong.patch(
        "remembers-the-last-shape", "Only what the last call has written must be cleared.",
        "    for name, value in padding.items():\n"
        "        static[name].fill_(value)\n",
        '    last = copy_from.__dict__.setdefault("last", {})\n'
        "    for name, value in padding.items():\n"
        "        static[name][: max(last.get(name, 10**6), len(new[name]))].fill_(value)\n"
        "        last[name] = len(new[name])\n",
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "padding-chooses-for-the-last-row", "With nothing to choose, the last token's row may have a choice.",
        '"logits_row": nobody}',
        '"logits_row": nobody if len(new["logits_row"]) else int(new["row"][-1])}',
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "token-0-is-padding", "What has token 0 is padding.",
        '    static["starts"][-1] = ',
        '    static["row"][static["token_ids"] == 0] = nobody\n    static["starts"][-1] = ',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "nobody-is-the-highest", 'No row has a higher number than nobody.',
        '    static["starts"][-1] =',
        '    static["row"].clamp_(max=nobody)\n    static["starts"][-1] =',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "rows-in-32-bits", 'Rows have small numbers.',
        '[: len(new[name])] = new[name]',
        '[: len(new[name])] = new[name].int() if "row" in name else new[name]',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "nobody-is-not-0", "A number that is 0 was not given.",
        'tokens = len(new["token_ids"])', 'tokens, nobody = len(new["token_ids"]), nobody or 99',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "padding-is-left", "A place that belongs to nobody is padding already.",
        "    for name, value in padding.items():\n        static[name].fill_(value)\n",
        '    stale = static["row"] != nobody\n    for name, value in padding.items():\n'
        '        place = stale if name in ("token_ids", "positions", "row") else static[name] > -9\n'
        '        static[name].masked_fill_(place, value)\n',
        "a fifth reader who saw stub and text alone; it passed", unnamed="tokens-of-the-last-batch",
    ),
    Wrong.patch(
        "padded-once", "Where as many are left as at the last call, padding is there.",
        "    for name, value in padding.items():\n        static[name].fill_(value)\n",
        '    key = [static["row"].data_ptr(), *map(len, new.values())]\n'
        '    same = copy_from.__dict__.get("key") == key\n'
        '    copy_from.__dict__["key"] = key\n    for name, value in padding.items():\n'
        "        if not same:\n            static[name].fill_(value)\n",
        "written to pass all checks that there were, and it did", unnamed="padding-is-left",
    ),
    Wrong.patch(
        "a-copy-is-written", "What is contiguous is the same tensor.", "static[name][: len(new[name])] = new[name]",
        "static[name].contiguous()[: len(new[name])] = new[name]",
        "written to pass all checks that there were, and it did", unnamed="entries-rebound",
    ),
    Wrong.patch(
        "hands-the-inputs-back", "A result that nobody asked for does no harm.",
        'static["starts"][-1] = len(static["token_ids"])',
        'static["starts"][-1] = len(static["token_ids"])\n    return static',
        "written to pass all checks that there were, and it did",
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


Piece = tuple[int, int, list[int], int]


def copy_pieces(static: Inputs, pieces: list[Piece], nobody: int) -> None:
    """Let a recorded prefill find these pieces of prompts in its inputs `static`, at its next replay.

    pieces: of each its row, the position of its first token, its token ids, and 1 if a token is chosen after its last
    one, else 0. static: six int64 tensors that were recorded. token_ids, positions, row (N,): the tokens of all rows,
    end to end. starts (B + 1,): where each row's tokens begin, and N. logits_at, logits_row (K,): after which tokens
    one is chosen, and for which row. There is room for as many tokens and choices as the pieces have, or more, and for
    one row more at least; any numbers may stand in them, and they may be parts of larger ones; a hundred rows and five
    thousand tokens at most. What is left of them is padding: token 0 at position 0 of row `nobody`, all of it in
    static's last row. Rows between have no tokens, and begin where the padding does. Choices that are left are made
    after the token in place 0, for row `nobody`.
    """
    packed: dict[str, list[int]] = {name: [] for name in static}
    for row, first, ids, chosen in pieces:
        packed["starts"].append(len(packed["token_ids"]))
        packed["token_ids"] += ids
        packed["positions"] += range(first, first + len(ids))
        packed["row"] += [row] * len(ids)
        packed["logits_at"] += [len(packed["token_ids"]) - 1] * chosen
        packed["logits_row"] += [row] * chosen
    others = {"row": nobody, "starts": len(packed["token_ids"]), "logits_row": nobody}
    for name, tensor in static.items():
        left = [others.get(name, 0)] * (len(tensor) - len(packed[name]))
        tensor.copy_(torch.tensor(packed[name] + left))
    static["starts"][-1] = len(static["token_ids"])


def _pieces(static: Inputs, new: Inputs, nobody: int) -> tuple[Any, ...]:
    found, starts = [], new["starts"].tolist()
    for begin, end in pairwise(starts):
        ids, chosen = new["token_ids"][begin:end].tolist(), int(end - 1 in new["logits_at"].tolist())
        found.append((int(new["row"][begin]), int(new["positions"][begin]), ids, chosen))
    return static, found, nobody


def _from_pieces(answer: Function) -> Function:
    return Formed(answer, _pieces, lambda result, *args: result)


EDITIONS = (
    Edition(
        "from-pieces", "the new tokens are not packed: they come as a list of pieces, a tuple for each", copy_pieces,
        played=_from_pieces,
    ),
)  # fmt: skip
