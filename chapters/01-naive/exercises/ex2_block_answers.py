"""Exercise 1.2: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises.exercise import edition

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_addmm(x: Tensor, weights: dict[str, Tensor], n_head: int, attend: Attend) -> Tensor:
    """addmm and views, as the engine does it."""
    N, C = x.shape
    w = weights
    h = F.layer_norm(x, (C,), w["ln_1.weight"], w["ln_1.bias"])
    h = torch.addmm(w["attn.c_attn.bias"], h, w["attn.c_attn.weight"])
    q, k, v = h.view(N, 3, n_head, C // n_head).unbind(1)
    x = x + torch.addmm(w["attn.c_proj.bias"], attend(q, k, v).reshape(N, C), w["attn.c_proj.weight"])
    h = F.layer_norm(x, (C,), w["ln_2.weight"], w["ln_2.bias"])
    h = F.gelu(torch.addmm(w["mlp.c_fc.bias"], h, w["mlp.c_fc.weight"]), approximate="tanh")
    return torch.addmm(w["mlp.c_proj.bias"], h, w["mlp.c_proj.weight"]).add(x)


def in_place(x: Tensor, weights: dict[str, Tensor], n_head: int, attend: Attend) -> Tensor:
    """The stream is updated where it is; float64 but for attention."""
    C = x.shape[-1]
    w = {name: value.double() for name, value in weights.items()}
    stream = x.double()
    h = F.layer_norm(stream, (C,), w["ln_1.weight"], w["ln_1.bias"]) @ w["attn.c_attn.weight"] + w["attn.c_attn.bias"]
    q, k, v = (h[..., i * C : (i + 1) * C].unflatten(-1, (n_head, C // n_head)).float() for i in range(3))
    stream += attend(q, k, v).flatten(1).double() @ w["attn.c_proj.weight"]
    stream += w["attn.c_proj.bias"]
    h = F.layer_norm(stream, (C,), w["ln_2.weight"], w["ln_2.bias"]) @ w["mlp.c_fc.weight"]
    h += w["mlp.c_fc.bias"]
    return stream.add_(F.gelu(h, approximate="tanh") @ w["mlp.c_proj.weight"]).add_(w["mlp.c_proj.bias"])


EQUIVALENT: dict[str, str] = {}


def _transposed(x: Tensor, weights: dict[str, Tensor], *rest: object) -> tuple[object, ...]:
    return (x, {name: value.T.contiguous() if value.dim() == 2 else value for name, value in weights.items()}, *rest)


@edition("out-by-in", "the matrices are stored as (out, in)", args=_transposed, back=_transposed)
def block(
    x: Tensor, weights: dict[str, Tensor], n_head: int, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """One block of GPT-2: the residual stream x (N, C) -> (N, C).

    weights: "ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias", "attn.c_proj.bias", "mlp.c_proj.bias" (C,);
    "attn.c_attn.bias" (3 * C,); "mlp.c_fc.bias" (4 * C,); and as (out, in), which is how torch.nn.Linear keeps them and
    not how the published files do: "attn.c_attn.weight" (3 * C, C), "attn.c_proj.weight" (C, C), "mlp.c_fc.weight"
    (4 * C, C), "mlp.c_proj.weight" (C, 4 * C). c_attn gives the queries of all heads, then all keys, then all values.
    attend: q, k, v (N, H, D) -> (N, H, D). GELU in its tanh form; LayerNorm with an epsilon of 1e-5.
    """

    def part(stream: Tensor, norm: str, wide: str) -> Tensor:
        copy = F.layer_norm(stream, stream.shape[-1:], weights[f"{norm}.weight"], weights[f"{norm}.bias"], 1e-5)
        return F.linear(copy, weights[f"{wide}.weight"], weights[f"{wide}.bias"])

    q, k, v = (y.unflatten(-1, (n_head, -1)) for y in part(x, "ln_1", "attn.c_attn").chunk(3, -1))  # (N, H, D) each
    x = x + F.linear(attend(q, k, v).flatten(1), weights["attn.c_proj.weight"], weights["attn.c_proj.bias"])
    inner = F.gelu(part(x, "ln_2", "mlp.c_fc"), approximate="tanh")
    return x + F.linear(inner, weights["mlp.c_proj.weight"], weights["mlp.c_proj.bias"])
