"""Exercise 2.1: which tensors of old tokens stay the same when tokens are added, and which are worth keeping."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises import MANY, Call, Case, Check, Spec, call


def keep(reads: Tensor, new: int) -> Tensor:
    """What is worth keeping of the tokens before: (L, 3, T) bool, of each layer's queries, keys and values.

    reads (L, T, T) bool: whether in a layer the query of one token (second dimension) reads the key and the value of
    another (third dimension). new: the last so many tokens, from 1 to T - 1, are new; they must be computed.
    True stands where a tensor of an old token is the same numbers as before the new tokens came, *and* something that
    must be computed (again, or for the first time) needs it: a query for its own token's attention, a key and a value
    for the attention of a token that reads them. An old token whose stream changes in a layer, even in the last one,
    must have its attention there computed again.
    """
    L, T = reads.shape[:2]
    changed = torch.arange(T, device=reads.device) >= T - new  # (T,) tokens whose stream is new, or no longer the same
    kept = torch.zeros(L, 3, T, dtype=torch.bool, device=reads.device)
    for layer in range(L):
        after = changed | (reads[layer] & changed).any(1)  # (T,) the same behind this layer
        kept[layer, 0] = after & ~changed
        kept[layer, 1:] = (reads[layer] & after[:, None]).any(0) & ~changed
        changed = after
    return kept


EXERCISE = Spec(
    reference=keep,
    lines=8,
    example=lambda: call(torch.ones(3, 3, dtype=torch.bool).tril()[None], 1),
    section="The past does not change",
    axes=("layer", "of queries, keys, values: number", "token"),
)


def causal(case: Case) -> Call:
    """In a causal model every old key and value is kept, in every layer, and no query."""
    layers, new = case.size("layers", 2, 3), case.size("new", 2, 3)
    T = new + case.size("old", 1, 4)
    return call(torch.ones(layers, T, T, dtype=torch.bool).tril(), new)


def both_ways(case: Case) -> Call:
    """Where every query reads every key, the first layer's are kept, queries too, and nothing of a later layer."""
    layers, new = case.size("layers", 2, 3), case.size("new", 2, 3)
    T = new + case.size("old", 1, 4)
    return call(torch.ones(layers, T, T, dtype=torch.bool), new)


def windows(case: Case) -> Call:
    """Where each token reads only the few before it, keys that nobody reads any more are not worth keeping."""
    window, new = case.size("window", 2, 3), 2
    T = window + case.size("more", 2, 4)
    return call(torch.ones(1, T, T, dtype=torch.bool).tril().triu(1 - window), new)


def layer_by_layer(case: Case) -> Call:
    """Layers may differ in who reads whom: a change goes from token to token, layer by layer, and never goes away."""
    T, layers = case.size("old", 3, 5) + 1, case.size("layers", 3, 4)
    reads = case.ints("reads", 0, 5, layers, T, T) == 0
    reads[0, case.choice("first reader", range(T - 1)), T - 1] = True
    return call(reads, 1)


def anybody(case: Case) -> Call:
    """Whoever reads whom: many layers, long texts, several new tokens that old ones read, one that reads itself."""
    twice = ("itself", "new ones", "many layers", "long", "one old") * 2
    kind = case.turn((*twice, "many new", "256 new", "far", "deep", "late", "1,024 new", "nobody", *["few"] * 9))
    depth = case.turn((9,) * 5 + (10,) * 21)
    if kind == "few":
        layers, old, new = case.small("layers old new")
        return call(case.ints("reads", 0, 1, layers, old + new, old + new) == 0, new)
    sizes = {"many layers": (depth, depth + 3, 1), "long": (2, 300, 3), "many new": (1, 300, 150),
             "256 new": (2, 260, 256), "one old": (3, 2, 1), "far": (2, MANY, 2), "deep": (70, 75, 1),
             "late": (MANY, 4, 1), "1,024 new": (1, MANY, 1024)}  # fmt: skip
    layers, T, new = sizes.get(kind, (3, 6, 3))
    if kind == "itself":  # token 0 reads a new one and itself, and nobody else reads token 0
        reads = torch.eye(T, dtype=torch.bool).expand(layers, T, T).clone()
        reads[case.choice("layer", (0, 1)), 0, T - 1] = True
    elif kind in ("many layers", "deep"):  # a change goes from the new token to the one before it, layer by layer
        reads = torch.eye(T, dtype=torch.bool).roll(1, 1).expand(layers, T, T).clone()
    elif kind == "far":  # the first tokens alone and the last old one read a new one
        reads = torch.eye(T, dtype=torch.bool).repeat(2, 1, 1)
        reads[0, [0, 1, T - 3], T - 1] = reads[1, 5, 0] = True
    elif kind == "nobody":  # in the first layer and the last one
        reads = torch.ones(layers, T, T, dtype=torch.bool)
        reads[[0, -1]] = False
    elif kind == "many new":  # 150 tokens read each old one: in 8 bits that is less than none
        reads = torch.ones(layers, T, T, dtype=torch.bool).tril()
    elif (
        kind == "late"
    ):  # a token reads the new one in the last layer but one, and then comes one that reads that token
        reads = torch.eye(T, dtype=torch.bool).repeat(layers, 1, 1)
        reads[-2, 1, 3] = reads[-1, 0, 1] = True
    elif kind in (
        "256 new",
        "1,024 new",
    ):  # an old token reads itself and 256 that have changed: in 8 bits that is none
        reads = torch.eye(T, dtype=torch.bool).expand(layers, T, T).clone()
        reads[:, :, T - new :] = True
    else:
        reads = case.ints("reads", 0, 200 if kind == "long" else 4, layers, T, T) == 0
        reads[0, 0, T - new] = kind != "long" or reads[0, 0, T - new]
    return call(reads, new)


CHECKS = (Check(causal), Check(both_ways), Check(windows), Check(layer_by_layer, 8), Check(anybody, 26, wide=True))
