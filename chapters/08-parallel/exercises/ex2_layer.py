"""Exercise 8.2: one rank's program for a transformer block, with two all-reduces."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Function, Spec, beside, call

RANKS = beside(__file__, "ranks.py")
Part = dict[str, Tensor]


def layer(rank: int, x: Tensor, heads: int, part: dict[str, Tensor]) -> Generator[Tensor, Tensor, Tensor]:
    """A rank's program for one block of GPT-2: a generator that returns the block's output (T, C), on every rank.

    rank: its number, from 0. x: (T, C), the block's input, of all T tokens of one row, the same on all ranks. heads:
    how many this rank has, at least 1; another rank may have more, or fewer. part: this rank's parameters, by these
    names and in any order. Matrices are (in, out). "ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias": (C,), whole.
    "attn.c_attn.weight", "attn.c_attn.bias": they give the queries of its heads, then their keys, and then their
    values. "attn.c_proj.weight" takes its heads. "mlp.c_fc.weight", "mlp.c_fc.bias" give its inner columns of the MLP,
    and "mlp.c_proj.weight" takes them. "attn.c_proj.bias", "mlp.c_proj.bias": (C,), whole on every rank, unlike in 8.1.
    The block, of a model that is whole: h = x + proj(attention(norm_1(x))), and then y = h + mlp(norm_2(h)). Norms are
    LayerNorms with epsilon 1e-5. Attention is causal, with scores over the square root of the head size. GELU stands
    between the two matrices of the MLP, in its approximation by tanh. All in x's dtype, float32 or float64.
    A rank sees its own part alone. total = yield term is an all-reduce: it takes a term (T, C) in x's dtype from every
    rank, and gives each of them the sum. There are exactly two in a block. What it is given stays as it is, sums too.
    """
    q, k, v = (
        (F.layer_norm(x, x.shape[-1:], part["ln_1.weight"], part["ln_1.bias"]) @ part["attn.c_attn.weight"])
        .add(part["attn.c_attn.bias"]).unflatten(-1, (3, heads, -1)).permute(1, 2, 0, 3)
    )  # fmt: skip
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)  # (T, its heads' width)
    total = yield mixed @ part["attn.c_proj.weight"]
    h = x + total + part["attn.c_proj.bias"]
    normed = F.layer_norm(h, h.shape[-1:], part["ln_2.weight"], part["ln_2.bias"])
    inner = F.gelu(normed @ part["mlp.c_fc.weight"] + part["mlp.c_fc.bias"], approximate="tanh")
    total = yield inner @ part["mlp.c_proj.weight"]
    return h + total + part["mlp.c_proj.bias"]


def played(answer: Function, x: Tensor, heads: list[int], parts: list[Part]) -> Any:
    """Play one rank for each number of heads: what each of them returns."""
    shapes: list[tuple[int, ...]] = []

    def add(terms: list[Any]) -> list[Tensor]:
        for rank, term in enumerate(terms):
            if not isinstance(term, Tensor) or term.shape != x.shape or term.dtype != x.dtype:
                told = f"{term.dtype} of shape {tuple(term.shape)}" if isinstance(term, Tensor) else type(term).__name__
                raise RANKS.LostError(
                    f"rank {rank} brings {told} to an all-reduce, and not {x.dtype} of {tuple(x.shape)}"
                )
        shapes.append(tuple(x.shape))
        return [torch.stack(terms).sum(0) for _ in terms]

    try:
        ranks = RANKS.launch(answer, [(n, x, heads[n], part) for n, part in enumerate(parts)])
        RANKS.together(ranks, add)
    except RANKS.LostError as error:
        return str(error)
    return {"ranks": [rank.returned for rank in ranks], "all-reduces": len(shapes)}


NAMES = (
    "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
    "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias",
)  # fmt: skip
ONCE = ("ln_1.weight", "ln_1.bias", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_proj.bias")


def _made(
    case: Case, tokens: int, heads: list[int], inner: list[int], head: int = 2, *, scale: float = 0.5,
    bias: float = 1.0, plain_norms: bool = False, dtype: torch.dtype = torch.float32, order: tuple[str, ...] = NAMES,
) -> Call:  # fmt: skip
    """A block whose ranks have so many heads and columns each."""
    width = sum(heads) * head
    whole = {}
    for name in NAMES:
        if name.startswith("ln"):
            one = torch.ones(width) if name.endswith("weight") else torch.zeros(width)
            whole[name] = one if plain_norms else one + case.floats(name, width, scale=0.3)
        elif name in ONCE:
            whole[name] = case.floats(name, width, scale=bias)
    parts = []
    for rank, (own, columns) in enumerate(zip(heads, inner, strict=True)):
        shapes = {
            "attn.c_attn.weight": (width, 3 * own * head), "attn.c_attn.bias": (3 * own * head,),
            "attn.c_proj.weight": (own * head, width), "mlp.c_fc.weight": (width, columns),
            "mlp.c_fc.bias": (columns,), "mlp.c_proj.weight": (columns, width),
        }  # fmt: skip
        made = {
            name: case.floats(f"{name} {rank}", *shape, scale=bias if name.endswith("bias") else scale)
            for name, shape in shapes.items()
        }
        parts.append({name: (whole | made)[name].to(dtype) for name in order})
    return call(case.floats("x", tokens, width).to(dtype), heads, parts)


EXERCISE = Spec(
    reference=layer,
    lines=12,
    example=lambda: _made(Case("example", simple=True), 1, [1, 1], [1, 1], head=1, plain_norms=True, scale=1.0),
    section="A head stays whole",
    axes=("rank", "token", "column"),
    typed=True,
    scene=played,
)  # fmt: skip


def two_ranks(case: Case) -> Call:
    """Each rank returns the whole block's output: the residual comes in once, and every sum is over all ranks."""
    return _made(case, case.size("tokens", 1, 3), [1, 1], [2, 2], bias=0.0)


def in_order(case: Case) -> Call:
    """Queries, keys and values of several heads, each head with its own, and each token with those up to itself."""
    heads = case.size("heads", 2, 4)
    return _made(case, case.size("tokens", 3, 5), [heads], [2], case.size("head", 2, 4), bias=0.0, scale=0.7)


def uneven(case: Case) -> Call:
    """Ranks with other numbers of heads and columns than their neighbours: nothing is derived from the whole width."""
    heads = case.turn(([2, 1], [3, 2, 2], [1, 2], [4, 1, 1]))
    inner = [case.choice(f"inner {rank}", (1, 3, 5)) for rank in range(len(heads))]
    return _made(case, 1, heads, inner, case.size("head", 2, 3), bias=0.0)


def weights_of_zero(case: Case) -> Call:
    """With matrices of zeros the output is the input and the two biases, exactly, on any number of ranks."""
    ranks = case.turn((1, 2, 3, 5))
    return _made(case, case.size("tokens", 1, 2), [1] * ranks, [1] * ranks, scale=0.0, bias=3.0)


KINDS = ("one", "alone", "double", "many", "names", "large", "small", "long", "equal", "zeros", "bends", "tiny")


def any_block(case: Case) -> Call:  # noqa: PLR0911  one for each kind
    """One rank, seven, one token, many, both dtypes; large numbers and small ones; names in any order."""
    kind = case.turn(KINDS)
    if kind == "one":
        return _made(case, 1, [1], [1], 1)
    if kind == "alone":
        return _made(case, 4, [3], [7], 2)
    if kind == "double":
        return _made(case, 3, [2, 1], [3, 2], 3, dtype=torch.float64)
    if kind == "many":
        return _made(case, 2, [1, 2, 1, 1, 1, 1, 1], [2, 1, 1, 3, 1, 1, 2], 1)
    if kind == "names":
        return _made(case, 3, [1, 2], [3, 1], 2, order=NAMES[::-1])
    if kind == "large":
        asked = _made(case, 3, [1, 1], [2, 2], 3, scale=3.0)
        return call(asked.args[0] * 500 + 700.0, *asked.args[1:])
    if kind == "small":
        asked = _made(case, 3, [1, 1], [2, 2], 3, bias=0.0)
        return call(asked.args[0] * 0.003, *asked.args[1:])
    if kind == "long":
        return _made(case, 70, [1, 1], [2, 1], 2)
    if kind == "equal":
        x, heads, parts = _made(case, 3, [1, 1], [2, 2], 2).args
        return call(x[:1].repeat(3, 1), heads, [parts[0], {name: tensor.clone() for name, tensor in parts[0].items()}])
    if kind == "bends":
        return _made(case, 4, [2, 2], [40, 40], 8, scale=0.3)
    if kind == "tiny":  # deviations as small as epsilon, in the second norm, too
        x, heads, parts = _made(case, 3, [1, 1], [2, 2], 3, bias=0.0).args
        still = [part | {"attn.c_proj.weight": part["attn.c_proj.weight"] * 0} for part in parts]
        return call(x * 0.003, heads, still)
    x, heads, parts = _made(case, 3, [2, 1], [2, 2], 2).args
    return call(torch.zeros_like(x), heads, parts)


CHECKS = (
    Check(any_block, len(KINDS), wide=True), Check(two_ranks, 3), Check(in_order, 3), Check(uneven, 4),
    Check(weights_of_zero, 4),
)  # fmt: skip
