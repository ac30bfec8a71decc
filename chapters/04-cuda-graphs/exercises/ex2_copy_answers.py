"""Exercise 4.2: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Inputs = dict[str, Tensor]


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


EQUIVALENT: dict[str, str] = {}


Piece = tuple[int, int, list[int], int]


def _pieces(static: Inputs, new: Inputs, nobody: int) -> tuple[Any, ...]:
    found, starts = [], new["starts"].tolist()
    for begin, end in pairwise(starts):
        ids, chosen = new["token_ids"][begin:end].tolist(), int(end - 1 in new["logits_at"].tolist())
        found.append((int(new["row"][begin]), int(new["positions"][begin]), ids, chosen))
    return static, found, nobody


def _from_pieces(answer: Function) -> Function:
    return Formed(answer, _pieces, lambda result, *args: result)


@edition(
    "from-pieces", "the new tokens are not packed: they come as a list of pieces, a tuple for each", played=_from_pieces
)
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
