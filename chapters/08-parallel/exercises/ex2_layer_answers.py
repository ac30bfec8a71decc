"""Exercise 8.2: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]
Part = dict[str, Tensor]

HEADS = ".unflatten(-1, (3, heads, -1)).permute(1, 2, 0, 3)"
FIRST = 'total = yield mixed @ part["attn.c_proj.weight"]'
AFTER_FIRST = 'h = x + total + part["attn.c_proj.bias"]'
INNER = 'inner = F.gelu(normed @ part["mlp.c_fc.weight"] + part["mlp.c_fc.bias"], approximate="tanh")'
SECOND = 'total = yield inner @ part["mlp.c_proj.weight"]'
LAST = 'return h + total + part["mlp.c_proj.bias"]'
WRONG = (
    Wrong.patch(
        "bias-on-every-rank", "A matrix and its bias belong together.", FIRST, FIRST + ' + part["attn.c_proj.bias"]',
        "MinivLLM#80 and #81, PaddlePaddle/Paddle#35186: as many biases as there are ranks",
    ),
    Wrong.patch(
        "inner-bias-forgotten", "Biases of what is cut come behind the sum, too.", ' + part["mlp.c_fc.bias"]', "",
        "an author's own slip: taken out with the others, and never put back",
    ),
    Wrong.patch(
        "bias-of-rank-0", "The bias is there once: rank 0 adds it behind the sum.", LAST,
        'return h + total + part["mlp.c_proj.bias"] * (rank == 0)',
        "PaddlePaddle/FastDeploy#5247, gone wrong: on rank 0, but on the wrong side of the sum",
    ),
    Wrong.patch(
        "bias-nowhere", "Somebody else adds the bias.", AFTER_FIRST, "h = x + total",
        "huggingface/text-generation-inference#1036, whose cure would have been this: there rank 0 had added it",
    ),
    Wrong.patch(
        "residual-on-every-rank", "A rank adds its residual before the sum.", FIRST + "\n    " + AFTER_FIRST,
        FIRST.replace("mixed", "x + mixed") + '\n    h = total + part["attn.c_proj.bias"]',
        "an author's own slip: as many inputs in the sum as there are ranks",
    ),
    Wrong.patch(
        "residual-reduced-again", "What goes on is what was summed, and goes into the next sum.", SECOND,
        SECOND.replace("inner @", "h + inner @"),
        "an author's own slip: the stream is whole by now, and is counted by every rank once more",
    ),
    Wrong.patch(
        "attention-not-reduced", "One all-reduce at the end of a block is enough.", FIRST,
        'total = mixed @ part["attn.c_proj.weight"]',
        "an author's own slip: norm and GELU see a part of the sum on each rank",
    ),
    Wrong.patch(
        "mlp-not-reduced", "The MLP's columns are the rank's own, and so is what comes of them.", SECOND,
        'total = inner @ part["mlp.c_proj.weight"]',
        "an author's own slip: ranks go on with different streams, and each of them looks like text",
    ),
    Wrong.patch(
        "norm-of-a-part", "The norm can begin before the sum has come.",
        'normed = F.layer_norm(h, h.shape[-1:]',
        'mine = x + mixed @ part["attn.c_proj.weight"] + part["attn.c_proj.bias"]\n'
        '    normed = F.layer_norm(mine, h.shape[-1:]',
        "parallel blocks, as in GPT-J, need no second all-reduce: another model",
    ),
    Wrong.patch(
        "gelu-behind-the-sum", "What bends comes when the numbers are whole.", INNER + "\n    " + SECOND,
        'inner = normed @ part["mlp.c_fc.weight"] + part["mlp.c_fc.bias"]\n    '
        + SECOND + '\n    total = F.gelu(total, approximate="tanh")',
        "an author's own slip: right for a matrix that is cut by rows, and this one is cut by columns",
    ),
    Wrong.patch(
        "exact-gelu", "GELU is GELU.", ', approximate="tanh")', ")",
        "chapter 1: GPT-2 was trained with the approximation",
    ),
    Wrong.patch(
        "head-by-head", "A rank has its heads one by one, each with query, key and value.", HEADS,
        ".unflatten(-1, (heads, 3, -1)).permute(2, 1, 0, 3)",
        "ndif-team/nnsight#719: what comes of gathered parts is in another order than the whole",
    ),
    Wrong.patch(
        "width-of-the-model", "The head size is the width over the heads.", HEADS,
        ".unflatten(-1, (3, -1, max(1, x.shape[-1] // max(heads, 1) // 2)))"
        ".permute(1, 2, 0, 3)",
        "an author's own slip: right where two ranks have as many heads each",
    ),
    Wrong.patch(
        "all-heads-one", "All numbers of a rank's queries meet all of its keys.", HEADS,
        ".unflatten(-1, (3, 1, -1)).permute(1, 2, 0, 3)",
        "an author's own slip: right where a rank has one head",
    ),
    Wrong.patch(
        "tokens-and-heads", "Attention runs over what stands first.", HEADS,
        ".unflatten(-1, (3, heads, -1)).permute(1, 0, 2, 3)",
        "chapter 1: heads attend to each other, token by token",
    ),
    Wrong.patch(
        "mean-of-ranks", "An all-reduce gives the mean, as in training.", AFTER_FIRST,
        'h = x + total / 2 + part["attn.c_proj.bias"]',
        "gradients are averaged over ranks; terms of a product are not",
    ),
    Wrong.patch(
        "nobody-is-hidden", "Ranks are cut, and the mask is for training.", ", is_causal=True", "",
        "chapter 1: a token that reads what comes behind it",
    ),
    Wrong.patch(
        "once-more-at-the-end", "At the end ranks make sure that they agree.", LAST,
        LAST.replace("return", "out =") + "\n    total = yield out * (rank == 0)\n    return total",
        "a third all-reduce of nothing new; T07's cure, paid for in every layer",
    ),
    Wrong.patch(
        "residual-of-the-input", "A residual is what came in.", LAST, LAST.replace("h +", "x +"),
        "from the stub alone, by the author: two halves, one residual",
    ),
    Wrong.patch(
        "another-epsilon", "Epsilon is there against division by zero.", "normed = F.layer_norm(h, h.shape[-1:], "
        'part["ln_2.weight"], part["ln_2.bias"])',
        'normed = F.layer_norm(h, h.shape[-1:], part["ln_2.weight"], part["ln_2.bias"], 1e-12)',
        "from the stub alone, by the author: what BERT has",
    ),
    Wrong.patch(
        "sigmoid-gelu", "GELU is x times a sigmoid.", INNER,
        'inner = normed @ part["mlp.c_fc.weight"] + part["mlp.c_fc.bias"]\n'
        "    inner = inner * torch.sigmoid(1.702 * inner)",
        "from the stub alone, by the author: the other approximation of the same paper",
    ),
    Wrong.patch(
        "adds-in-place", "The stream is added to, in place.", AFTER_FIRST,
        'h = x.add_(total).add_(part["attn.c_proj.bias"])',
        "an author's own slip: the input belongs to the caller",
    ),
)  # fmt: skip


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


def head_after_head(rank: int, x: Tensor, heads: int, part: Part) -> Program:
    """Each head by itself, and each token; terms are added up one by one."""
    ones, zeros = part["ln_1.weight"], part["ln_1.bias"]
    fused = F.layer_norm(x, [x.size(-1)], ones, zeros).mm(part["attn.c_attn.weight"]) + part["attn.c_attn.bias"]
    D = fused.size(-1) // heads // 3
    term = torch.zeros_like(x)
    for head in range(heads):
        q, k, v = (fused[:, (third * heads + head) * D : (third * heads + head + 1) * D] for third in range(3))
        rows = []
        for at in range(x.size(0)):
            weights = torch.softmax(k[: at + 1] @ q[at] * D**-0.5, 0)
            rows.append(weights @ v[: at + 1])
        term += torch.stack(rows) @ part["attn.c_proj.weight"][head * D : (head + 1) * D]
    summed = (yield term) + x
    summed += part["attn.c_proj.bias"]
    kept = summed.clone()
    normed = F.layer_norm(summed, summed.shape[1:], part["ln_2.weight"], part["ln_2.bias"])
    a = normed @ part["mlp.c_fc.weight"] + part["mlp.c_fc.bias"]
    a = 0.5 * a * (1 + torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))
    term.copy_(a @ part["mlp.c_proj.weight"])
    out = yield term
    return kept.add_(out).add_(part["mlp.c_proj.bias"])


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


RIGHT = (Right(bias_before_the_sum), Right(head_after_head), Right(halves_of_one_kind))
EQUIVALENT = {
    "mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 0).flatten(1)": (
        "two dimensions change places, in any order"
    ),
}


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


def _pairs(rank: int, x: Tensor, heads: int, part: Part) -> tuple[Any, ...]:
    maps = dict.fromkeys(name.rpartition(".")[0] for name in part)
    pairs = {name: [part[f"{name}.weight"], part[f"{name}.bias"]] for name in maps}
    turned = {name: [weight.mT if weight.dim() == 2 else weight, bias] for name, (weight, bias) in pairs.items()}
    return rank + 1, x, heads, turned


def _played(answer: Function) -> Function:
    return Formed(answer, _pairs, lambda program, *args: program)


EDITIONS = (
    Edition(
        "of-pairs", "parameters come in pairs, matrices are (out, in), and ranks are counted from 1", layer_of_pairs,
        played=_played,
    ),
)  # fmt: skip
