"""Exercise 8.4: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed
from nanoinfer.engine.sampling import gumbel

Program = Generator[Any, Any, Any]
Rows = dict[str, Tensor]


def scores_then_ids(rank: int, logits: Tensor, first: int, vocab: int, rows: Rows) -> Program:
    """Two gathers: the scores; then, of those who hold the highest, their ids."""
    exist = max(0, min(logits.shape[1], vocab - first))
    B = len(logits)
    mine = torch.full((B,), -torch.inf)
    id = torch.full((B,), 2**62)
    for row in range(B):
        if exist:
            score = logits[row, :exist].clone()
            if float(rows["temperature"][row]) > 0:
                score = score / rows["temperature"][row]
                score = (
                    score + gumbel(rows["seed"][row : row + 1], rows["step"][row : row + 1], vocab)[0, first:][:exist]
                )
            mine[row], at = score.max(0)
            id[row] = first + (score == score.max()).nonzero()[0, 0]
            del at
    every = yield mine
    highest = torch.stack(every).max(0).values
    id[mine != highest] = 2**62
    every = yield id
    return torch.stack(every).min(0).values


def by_sorting(rank: int, logits: Tensor, first: int, vocab: int, rows: Rows) -> Program:
    """Pairs are sorted in Python, by score down and id up."""
    V = first + logits.size(1)
    own = torch.full((logits.size(0), V), -torch.inf)
    own[:, first:] = logits
    hot = rows["temperature"] > 0
    own[hot] = own[hot] / rows["temperature"][hot, None] + gumbel(rows["seed"][hot], rows["step"][hot], V)
    own[:, vocab:] = -torch.inf
    own[:, :first] = -torch.inf
    best = [max(range(first, V), key=lambda at, row=row: (row[at], -at)) for row in own.tolist()]
    given = torch.tensor([[float(own[row, at]), at] for row, at in enumerate(best)], dtype=torch.float64)
    tables = yield given
    chosen = []
    for row in range(len(best)):
        chosen.append(sorted((-table[row, 0].item(), int(table[row, 1])) for table in tables)[0][1])
    return torch.tensor(chosen)


EQUIVALENT: dict[str, str] = {}


def _columns(rank: int, logits: Tensor, first: int, vocab: int, rows: Rows) -> tuple[Any, ...]:
    each = [{name: own[at : at + 1] for name, own in rows.items()} for at in range(len(logits))]
    return rank + 1, logits.mT, [first, first + logits.shape[1]], vocab, each


def _played(answer: Function) -> Function:
    return Formed(answer, _columns, lambda program, *args: program)


@edition("by-columns", "logits stand in columns, rows come one by one, and ranks are counted from 1", played=_played)
def choose_by_columns(number: int, columns: Tensor, ids: list[int], vocab: int, rows: list[Rows]) -> Program:
    """A rank's program for a head that is cut by vocabulary: it returns the next tokens, (B,) int64, on every rank.

    number: the rank's, from 1. columns: (width, B) float32: logits of the ids from ids[0] to ids[1] - 1, each of B
    rows; at least one row and one id. Each rank has its own width, and a run of ids of its own; runs do not overlap,
    and stand in any order: rank 1 need not have the lowest ids. Ids from 0 to vocab - 1 exist, each on one rank. Ids
    from `vocab` on do not: their logits are anything at all, and they are never chosen; a rank may have no others. Of
    ids that exist logits are finite, or -inf where an id is forbidden; each row has a finite one.
    rows: of each row a dict with "temperature", float32, "seed" and "step", int64, each (1,); the same on all ranks.
    A row's token is the id that exists with the highest score, among equal ones the lowest id. Where the temperature is
    0 the score is the logit. Elsewhere it is the logit over the temperature, and on it the noise of the row's seed,
    its step and the id: gumbel(seed, step, V) gives it for tensors (B,) and ids 0 to V - 1, (B, V). All in float32.
    A rank is a generator. each = yield tensor is an all-gather: it takes a tensor from every rank, all of the same
    shape and dtype, and gives each of them the list of all, in the order of ranks. Of each row a rank may give away two
    numbers in all, in one tensor or two. What a rank is given stays as it is, also what is gathered.
    """
    first, end = ids
    pairs = []
    for at, row in enumerate(rows):
        scores = columns[:, at]
        if float(row["temperature"]) > 0:
            scores = scores / row["temperature"] + gumbel(row["seed"], row["step"], end)[0, first:]
        scores = scores.masked_fill(torch.arange(first, end) >= vocab, -torch.inf)
        best = scores.argmax()
        pairs.append(torch.stack([scores[best].double(), first + best.double()]))
    every = torch.stack((yield torch.stack(pairs)))
    top = every[..., 0].amax(0)
    return every[..., 1].masked_fill(every[..., 0] < top, torch.inf).amin(0).long()
