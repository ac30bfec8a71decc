"""Exercise 8.2: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]
Part = dict[str, Tensor]


def bias_before_the_sum(rank: int, x: Tensor, heads: int, part: Part) -> Program:
    """Rank 0 adds residual and bias to its own term, before the sum."""

    def norm(of: Tensor, name: str) -> Tensor:
        mean, deviation = of.mean(-1, keepdim=True), of.var(-1, keepdim=True, correction=0).add(1e-5).sqrt()
        return (of - mean) / deviation * part[f"{name}.weight"] + part[f"{name}.bias"]

    fused = torch.addmm(part["attn.c_attn.bias"], norm(x, "ln_1"), part["attn.c_attn.weight"])
    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(0, 1) for one in fused.chunk(3, -1))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    term = mixed.transpose(0, 1).reshape(len(x), -1) @ part["attn.c_proj.weight"]
    h = yield term + x + part["attn.c_proj.bias"] if rank == 0 else term
    inner = F.gelu(norm(h, "ln_2") @ part["mlp.c_fc.weight"] + part["mlp.c_fc.bias"], approximate="tanh")
    term = inner @ part["mlp.c_proj.weight"]
    if rank == 0:
        term = term + h + part["mlp.c_proj.bias"]
    return (yield term)


def halves_of_one_kind(rank: int, x: Tensor, heads: int, part: Part) -> Program:
    """Both halves in one loop: norm, map in, something in between, map out, sum."""
    stream = x
    for norm, into, out in (("ln_1", "attn.c_attn", "attn.c_proj"), ("ln_2", "mlp.c_fc", "mlp.c_proj")):
        normed = F.layer_norm(stream, stream.shape[-1:], part[norm + ".weight"], part[norm + ".bias"])
        made = F.linear(normed, part[into + ".weight"].T, part[into + ".bias"])
        if into == "attn.c_attn":
            q, k, v = made.view(len(x), 3, heads, -1).movedim(0, 2)
            made = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
            made = made.movedim(0, 1).reshape(len(x), -1)
        else:
            made = F.gelu(made, approximate="tanh")
        stream = stream + (yield F.linear(made, part[out + ".weight"].T)) + part[out + ".bias"]
    return stream


def _pairs(rank: int, x: Tensor, heads: int, part: Part) -> tuple[Any, ...]:
    maps = dict.fromkeys(name.rpartition(".")[0] for name in part)
    pairs = {name: [part[f"{name}.weight"], part[f"{name}.bias"]] for name in maps}
    turned = {name: [weight.mT if weight.dim() == 2 else weight, bias] for name, (weight, bias) in pairs.items()}
    return rank + 1, x, heads, turned


def _played(answer: Function) -> Function:
    return Formed(answer, _pairs, lambda program, *args: program)


@edition("of-pairs", "parameters come in pairs, matrices are (out, in), and ranks are counted from 1", played=_played)
def layer_of_pairs(number: int, x: Tensor, heads: int, part: dict[str, list[Tensor]]) -> Program:
    """A rank's program for one block of GPT-2: a generator that returns the block's output (T, C), on every rank.

    number: the rank's, from 1. x: (T, C), the block's input, of all T tokens of one row, the same on all ranks. heads:
    how many this rank has, at least 1; other ranks may have other numbers. part: this rank's parameters: by the name of
    each map, in any order, [weight, bias]. Matrices are (out, in), as PyTorch's Linear has them. "ln_1", "ln_2": (C,)
    both, whole. "attn.c_attn" gives the queries of its heads, behind them their keys, and then their values.
    "attn.c_proj" takes its heads. "mlp.c_fc" gives its inner columns of the MLP, and "mlp.c_proj" takes them. The
    biases of the two "c_proj" are (C,), whole on every rank.
    The block, of a model that is whole: h = x + proj(attention(norm_1(x))), and then y = h + mlp(norm_2(h)). Norms are
    LayerNorms with epsilon 1e-5. Attention is causal, with scores over the square root of the head size. GELU stands
    between the two matrices of the MLP, in its approximation by tanh. All in x's dtype, float32 or float64.
    A rank sees its own part alone. total = yield term is an all-reduce: it takes a term (T, C) in x's dtype from every
    rank, and gives each of them the sum. There are exactly two in a block. What it is given stays as it is, sums too.
    """
    fused = F.linear(F.layer_norm(x, x.shape[-1:], *part["ln_1"]), *part["attn.c_attn"])
    q, k, v = fused.unflatten(-1, (3, heads, -1)).permute(1, 2, 0, 3)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)
    weight, bias = part["attn.c_proj"]
    h = x + (yield mixed @ weight.T) + bias
    inner = F.gelu(F.linear(F.layer_norm(h, h.shape[-1:], *part["ln_2"]), *part["mlp.c_fc"]), approximate="tanh")
    weight, bias = part["mlp.c_proj"]
    return h + (yield inner @ weight.T) + bias
