"""Exercise 2.1: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition


def token_by_token(reads: Tensor, new: int) -> Tensor:
    """Loops and Python sets."""
    L, T = reads.shape[:2]
    table, differs = reads.tolist(), set(range(T - new, T))
    kept = torch.zeros(L, 3, T, dtype=torch.bool, device=reads.device)
    for layer in range(L):
        behind = differs | {q for q in range(T) if any(table[layer][q][k] for k in differs)}
        for token in set(range(T)) - differs:
            kept[layer, 0, token] = token in behind
            kept[layer, 1, token] = kept[layer, 2, token] = any(table[layer][q][token] for q in behind)
        differs = behind
    return kept


def by_reach(reads: Tensor, new: int) -> Tensor:
    """Whom a change can have come from, as a table over pairs that grows from layer to layer."""
    L, T = reads.shape[:2]
    reach = torch.eye(T, dtype=torch.bool, device=reads.device)  # (T, T) whether a token's stream holds another's
    parts = []
    for layer in range(L):
        before = reach[:, T - new :].any(1)
        reach = reach | (reads[layer, :, :, None] & reach[None]).any(1)
        behind = reach[:, T - new :].any(1)
        used = reads[layer][behind].any(0)
        parts.append(torch.stack([behind, used, used]) & ~before)
    return torch.stack(parts)


EQUIVALENT: dict[str, str] = {}


def _turned(reads: Tensor, new: int) -> tuple[Tensor, int]:
    return reads.permute(2, 1, 0), new


@edition(
    "read-by",
    "the table says by whom each key is read, and the layers stand last",
    args=_turned,
    back=_turned,
    result=lambda kept, *args: kept.permute(2, 1, 0),
    axes=("token", "of queries, keys, values: number", "layer"),
)
def keep(read_by: Tensor, new: int) -> Tensor:
    """What is worth keeping of the tokens before: (T, 3, L) bool, of each layer's queries, keys and values.

    read_by (T, T, L) bool: whether the key and the value of one token (first dimension) are read in a layer by the
    query of another (second dimension). new: the last so many tokens, from 1 to T - 1, are new; they must be computed.
    True stands where a tensor of an old token is the same numbers as before the new tokens came, *and* something that
    must be computed (again, or for the first time) needs it: a query for its own token's attention, a key and a value
    for the attention of a token that reads them.
    """
    T, L = read_by.shape[1:]
    changed = torch.arange(T, device=read_by.device) >= T - new
    kept = torch.zeros(T, 3, L, dtype=torch.bool, device=read_by.device)
    for layer in range(L):
        after = changed | (read_by[:, :, layer] & changed[:, None]).any(0)
        kept[:, 0, layer] = after & ~changed
        kept[:, 1:, layer] = ((read_by[:, :, layer] & after).any(1) & ~changed)[:, None]
        changed = after
    return kept
