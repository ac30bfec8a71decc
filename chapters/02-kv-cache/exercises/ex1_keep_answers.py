"""Exercise 2.1: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong


def everything_changes(reads: Tensor, new: int) -> Tensor:
    """A new token changes the context, so that everything must be computed again."""
    return torch.zeros(reads.shape[0], 3, reads.shape[1], dtype=torch.bool, device=reads.device)


def direct_readers_only(reads: Tensor, new: int) -> Tensor:
    """Only who reads a new token directly is changed by it."""
    L, T = reads.shape[:2]
    fresh = torch.arange(T, device=reads.device) >= T - new
    changed = fresh
    kept = torch.zeros(L, 3, T, dtype=torch.bool, device=reads.device)
    for layer in range(L):
        after = changed | (reads[layer] & fresh).any(1)
        kept[layer, 0] = after & ~changed
        kept[layer, 1:] = (reads[layer] & after[:, None]).any(0) & ~changed
        changed = after
    return kept


AFTER = "after = changed | (reads[layer] & changed).any(1)"
KEYS = "kept[layer, 1:] = (reads[layer] & after[:, None]).any(0) & ~changed"


def changes_counted_in_a_byte(reads: Tensor, new: int) -> Tensor:
    """A matrix product of zeros and ones in 8 bits says who reads what has changed."""
    T, kept = reads.shape[1], []
    changed = torch.arange(T, device=reads.device) >= T - new
    for layer in reads:
        renewed = changed | (layer.byte() @ changed.byte() > 0)
        pairs = ~changed & layer[renewed].any(0)
        kept.append(torch.stack((~changed & renewed, pairs, pairs)))
        changed = renewed
    return torch.stack(kept)


WRONG = (
    Wrong(everything_changes, "the naive loop of nanoGPT, model.py, generate: the whole text again for each token"),
    Wrong.patch(
        "queries-too", "Queries need caching as keys and values do.", "kept[layer, 0] = after & ~changed",
        "kept[layer, 0] = (reads[layer] & after[:, None]).any(0) & ~changed",
        "a question of every course: why a KV cache, and not a QKV cache",
    ),
    Wrong.patch(
        "queries-never", "A query is used once, whatever the mask: none is ever worth keeping.",
        "kept[layer, 0] = after & ~changed", "pass", "the rule of causal models, taken for a rule of attention",
    ),
    Wrong.patch(
        "nothing-changes", "Old tokens keep their keys and values, whoever reads whom.", "changed = after", "pass",
        "true of causal models, and taken for true of attention: an encoder cannot be continued like that",
    ),
    Wrong(direct_readers_only, "an author's own slip: right for one layer"),
    Wrong.patch(
        "state-after-the-layer", "A layer's keys and values are made from what the layer gives.", KEYS,
        KEYS.replace("~changed", "~after"), "an author's own slip: off by one layer",
    ),
    Wrong.patch(
        "keys-by-queries", "The first token of a pair is the one that is read.", "L, T = reads.shape[:2]",
        "L, T = reads.shape[:2]\n    reads = reads.transpose(1, 2)",
        "labmlai/annotated_deep_learning_paper_implementations#282: the two dimensions of the scores exchanged",
    ),
    Wrong.patch(
        "first-layers-mask", "Who reads whom is the same in every layer.", "L, T = reads.shape[:2]",
        "L, T = reads.shape[:2]\n    reads = reads[:1].expand(L, T, T)",
        "huggingface/transformers#35168: one mask is prepared for all layers",
    ),
    Wrong.patch(
        "change-passes", "A token is changed in a layer if it reads a changed one there, and only then.", AFTER,
        "after = (reads[layer] & changed).any(1)", "an author's own slip: the residual stream forgotten",
    ),
    Wrong.patch(
        "read-or-not", "What is still right is kept, whether anybody reads it or not.", KEYS,
        "kept[layer, 1:] = ~changed", "right where every query reads all that is before it",
    ),
    Wrong.patch(
        "new-readers-only", "Only the new tokens' queries read old keys.", KEYS,
        "kept[layer, 1:] = reads[layer, T - new :].any(0) & ~changed",
        "right in causal models; elsewhere old tokens must read again, too",
    ),
    Wrong.patch(
        "values-alone", "Attention hands values over, so it is the values that are kept.", "kept[layer, 1:]",
        "kept[layer, 2:]", "an author's own slip: scores need the keys again, too",
    ),
    Wrong.patch(
        "last-layer-alone", "The cache holds what the last layer knows of each token.", KEYS,
        KEYS + "\n        kept[:layer] = False", "recurrent networks, which hand one state on",
    ),
    Wrong.patch(
        "one-new-token", "One token comes at a time.", ">= T - new", ">= T - 1",
        "huggingface/candle#3743: what holds for one token a step, used for a chunk",
    ),
    Wrong.patch(
        "itself-is-not-read", "That a token reads itself needs no key of it.",
        "L, T = reads.shape[:2]",
        "L, T = reads.shape[:2]\n"
        "    reads = reads & ~torch.eye(T, dtype=torch.bool)",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "counted-in-a-byte", "How many tokens read a key fits in a byte.",
        "(reads[layer] & after[:, None]).any(0)", "((reads[layer] & after[:, None]).sum(0).to(torch.int8) > 0)",
        "a reader who saw stub and text alone", unnamed="tokens-of-a-byte",
    ),
    Wrong.patch(
        "tokens-of-a-byte", "A token's number fits in a byte.",
        "changed = torch.arange(T, device=reads.device) >= T - new",
        "changed = torch.arange(T).to(torch.uint8) >= T - new",
        "written to pass all checks that there were, and it did",
    ),
    Wrong(
        changes_counted_in_a_byte, "a third reader who saw stub and text alone; it passed", unnamed="nothing-changes"
    ),
    Wrong.patch(
        "twelve-layers", "A model has at most 48 layers.",
        'for layer in range(L):',
        'for layer in range(min(L, 48)):',
        "written to pass all checks that there were, and it did", unnamed="everything-changes",
    ),
)  # fmt: skip


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


def by_products(reads: Tensor, new: int) -> Tensor:
    """Matrix products of zeros and ones; all changes first, then what is kept, for all layers at once."""
    L, T = reads.shape[:2]
    table = reads.float()
    states = [torch.cat([torch.zeros(T - new), torch.ones(new)]).to(table)]
    for layer in range(L):
        states.append((states[-1] + table[layer] @ states[-1]).clamp(max=1))
    before, behind = torch.stack(states[:-1]), torch.stack(states[1:])  # (L, T) each
    read = (behind[:, None] @ table)[:, 0]
    return torch.stack([behind, read, read], 1).gt(0) & before.eq(0)[:, None]


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


RIGHT = (Right(token_by_token), Right(by_products), Right(by_reach))

EQUIVALENT: dict[str, str] = {}


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


def _turned(reads: Tensor, new: int) -> tuple[Tensor, int]:
    return reads.permute(2, 1, 0), new


EDITIONS = (
    Edition(
        "read-by", "the table says by whom each key is read, and the layers stand last", keep, args=_turned,
        back=_turned, result=lambda kept, *args: kept.permute(2, 1, 0),
        axes=("token", "of queries, keys, values: number", "layer"),
    ),
)  # fmt: skip
