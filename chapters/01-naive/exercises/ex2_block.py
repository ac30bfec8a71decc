"""Exercise 1.2: one transformer block. The engine has it inline, in GPT2.hidden; here it is a function of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises import MANY, Call, Case, Check, Function, Places, Spec, call


def block(
    x: Tensor, weights: dict[str, Tensor], n_head: int, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """One block of GPT-2: the residual stream x (N, C) of a step's tokens -> (N, C).

    weights, by the names of the published files: "ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias",
    "attn.c_proj.bias", "mlp.c_proj.bias" (C,); "attn.c_attn.bias" (3 * C,); "mlp.c_fc.bias" (4 * C,); and as (in, out)
    "attn.c_attn.weight" (C, 3 * C), "attn.c_proj.weight" (C, C), "mlp.c_fc.weight" (C, 4 * C), "mlp.c_proj.weight"
    (4 * C, C). c_attn gives the queries of all heads, then all keys, then all values.
    attend: q, k, v (N, H, D) -> (N, H, D). GELU in its tanh form; LayerNorm with an epsilon of 1e-5.
    """

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    N, C = x.shape
    qkv = linear(norm(x, "ln_1"), "attn.c_attn").view(N, 3, n_head, C // n_head)
    q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]  # (N, H, D) each
    heads = attend(q, k, v)
    x = x + linear(heads.reshape(N, C), "attn.c_proj")
    inner = F.gelu(linear(norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh")  # (N, 4 * C)
    return x + linear(inner, "mlp.c_proj")


def swap(mine: Function) -> Places:
    """GPT2.hidden runs this block in every layer."""

    def hidden(self: Any, batch: Any, attend: Any) -> Tensor:
        x = F.embedding(batch.token_ids, self.wte.weight) + F.embedding(batch.positions, self.wpe.weight)  # (N, C)
        for layer, part in enumerate(self.h):
            out = mine(x, dict(part.named_parameters()), self.config.n_head, partial(attend, layer))
            x = out.to(x.dtype)  # it may compute in a wider type
        return F.layer_norm(x, x.shape[-1:], self.ln_f.weight, self.ln_f.bias, self.config.layer_norm_epsilon)

    return {"nanoinfer.model.gpt2:GPT2.hidden": hidden}


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The attention that the checks lend, for tokens of one row."""
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)


SHAPES = {
    "ln_1.weight": (1,), "ln_1.bias": (1,), "attn.c_attn.weight": (1, 3), "attn.c_attn.bias": (3,),
    "attn.c_proj.weight": (1, 1), "attn.c_proj.bias": (1,), "ln_2.weight": (1,), "ln_2.bias": (1,),
    "mlp.c_fc.weight": (1, 4), "mlp.c_fc.bias": (4,), "mlp.c_proj.weight": (4, 1), "mlp.c_proj.bias": (1,),
}  # fmt: skip  # in multiples of C


def _example() -> Call:
    weights = {name: torch.zeros([n * 2 for n in shape]) for name, shape in SHAPES.items()}
    weights |= {"ln_2.weight": torch.ones(2), "mlp.c_proj.bias": torch.tensor([0.25, 0.5])}
    return call(torch.tensor([[1.0, 3.0]]), weights, 1, causal)


EXERCISE = Spec(
    reference=block,
    lines=9,
    example=_example,
    section="One block",
    axes=("token", "channel"),
    tolerance=3e-4,
    refuse=(
        "nanoinfer.model.gpt2:GPT2.hidden",
        "nanoinfer.model.gpt2:GPT2.forward",
        "nanoinfer.cache.none:forward_logits",
    ),
    swap=swap,
)


def _weights(case: Case, width: int, zero: tuple[str, ...] = ()) -> dict[str, Tensor]:
    found = {}
    for name, shape in SHAPES.items():
        size = [n * width for n in shape]
        found[name] = torch.zeros(size) if name.startswith(zero or "-") else case.floats(name, *size) * 0.5
    found["ln_1.weight"] += 1.5
    found["ln_2.weight"] += 1.5
    order = list(found) if case.turn((True, False)) else case.sample("order of the names", list(found), len(found))
    return {name: found[name] for name in order}


def _call(case: Case, heads: int, size: int, tokens: int, scale: float, zero: tuple[str, ...] = ()) -> Call:
    """A call with a lent attention; with how many tokens it is called is observed."""
    x, asked = case.floats("x", tokens, heads * size) * scale, list[int]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        asked.append(len(q))
        return causal(q, k, v) + 0.25 * k  # a softmax would hide what moves all scores of a query alike

    weights, x = _weights(case, heads * size, zero), x + torch.arange(heads * size) * 0.1 * scale
    return call(x, weights, heads, attend, observe=lambda: {"tokens of each call of attend": asked})


def attentions_half(case: Case) -> Call:
    """With the MLP's projection at zero, what is added is attention of the normalised stream, head by head."""
    heads, tokens = case.size("heads", 1, 3), case.size("tokens", *case.turn(((2, 4), (2, 4), (302, 304), (2, 4))), 2)
    return _call(case, heads, case.size("head size", 2, 5), tokens, 2.0, ("mlp.c_proj",))


def mlps_half(case: Case) -> Call:
    """With attention's projection at zero, what is added is the MLP of the normalised stream, with GELU's tanh form."""
    return _call(case, 1, case.size("width", 2, 6), case.size("tokens", 1, 2), 2.0, ("attn.c_proj",))


def both_halves(case: Case) -> Call:
    """The MLP reads the stream that attention has updated; what attention read stays what it was."""
    asked = _call(case, 1, case.size("width", 2, 4), case.size("tokens", 1, 2), 4.0)
    asked.args[1]["mlp.c_fc.bias"] += 40.0  # far in GELU's straight part: its form is another check's business
    return asked


def small_stream(case: Case) -> Call:
    """LayerNorm adds 1e-5 to the variance, under the root: it matters where the stream is small."""
    return _call(case, 1, case.size("width", 2, 4), case.size("tokens", 1, 2), 0.004, ("mlp.c_proj",))


def _far_or_wide(case: Case, kind: str) -> Call:
    """A stream beyond the range of 16 bits, exact, one of many heads or tokens, GELU far from 0, and few of each."""
    if kind == "small":
        return _call(case, *case.small("heads width tokens"), 2.0)
    if kind == "zero weights":  # and biases that are none
        return _call(case, 2, 2, 2, 2.0, ("attn.c_proj.weight", "mlp.c_proj.weight", "attn.c_attn.weight"))
    if kind in ("equal", "turned", "none"):
        return _of_two(case, kind)
    heads, size, tokens = {"heads": (132, 2, 2), "wide": (1, 264, 2), "tokens": (1, 2, MANY)}.get(kind, (1, 8, 2))
    asked = _call(case, heads, size, tokens, 1.0)
    x, weights, *others = asked.args
    weights |= {name: weight / 8 for name, weight in weights.items() if "c_" in name}
    x = 131_072 + case.ints("deviations", -9, 9, 2, 8) / 8 if kind == "far" else x
    if kind == "high":
        weights |= {"mlp.c_proj.weight": weights["mlp.c_proj.weight"].abs(), "mlp.c_fc.bias": torch.full((32,), 4e4)}
    if kind == "low":
        weights |= {"mlp.c_proj.weight": weights["mlp.c_proj.weight"] * 400}
        weights |= {"mlp.c_fc.bias": -torch.tensor([2.5, 3, 3.5, 4, 9, 99, 4e4, 1e9]).repeat(4)}
    return call(x, weights, *others, observe=asked.observe)


def _of_two(case: Case, kind: str) -> Call:
    """Two tokens that are equal; LayerNorms that turn signs, and biases that are 0; and NaN, which stays in a token."""
    asked = _call(case, 2, 3, 3, 2.0, ("attn.c_attn.bias", "ln_1.bias", "ln_2.bias") if kind == "turned" else ())
    x, weights, heads, attend = asked.args
    if kind == "equal":
        x[2] = x[0]
    if kind == "turned":
        signs = torch.tensor([1.0, -1.0, 0.0, 1.0, -1.0, 1.0])
        weights |= {name: weights[name] * signs for name in ("ln_1.weight", "ln_2.weight")}
    if kind == "none":
        x[1, 2] = torch.nan
        return call(x, weights, heads, lambda q, k, v: v - q + 0.25 * k)
    return call(x, weights, heads, attend, observe=asked.observe)


def any_stream(case: Case) -> Call:
    """A stream may vary little beside its mean, or little at all, or lie far from 0; heads and tokens may be many."""
    zero = case.turn(("mlp.c_proj", "attn.c_proj"))
    kinds = ("heads", "far", "tokens", "high", "low", "wide", "zero weights", "equal", "turned", "none")
    if kind := case.turn(("", "", "", "", *kinds, *["small"] * 9)):
        return _far_or_wide(case, kind)
    if case.turn((False, False, True, True)):
        return _call(case, 1, case.size("width", 2, 4), case.size("tokens", 1, 2), 0.004, (zero,))
    _, weights, heads, attend = (asked := _call(case, 1, 8, case.size("tokens", 1, 2), 1.0, (zero,))).args
    for name in ("attn.c_proj.weight", "mlp.c_proj.weight"):
        weights[name] *= 6.0
    x = 1024 + case.ints("deviations", -9, 9, len(asked.args[0]), 8) / 8  # exact, and its sum, too
    return call(x, weights, heads, attend, observe=asked.observe)


CHECKS = (
    Check(any_stream, 23, wide=True), Check(attentions_half, 4), Check(mlps_half, 3), Check(both_halves, 3),
    Check(small_stream, 3),
)  # fmt: skip
