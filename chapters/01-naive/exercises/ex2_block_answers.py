"""Exercise 1.2: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def heads_before_qkv(x: Tensor, weights: dict[str, Tensor], n_head: int, attend: Attend) -> Tensor:
    """c_attn's numbers are head after head, each with its query, its key and its value."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    N, C = x.shape
    q, k, v = linear(norm(x, "ln_1"), "attn.c_attn").view(N, n_head, 3, C // n_head).unbind(2)
    x = x + linear(attend(q, k, v).reshape(N, C), "attn.c_proj")
    return x + linear(F.gelu(linear(norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh"), "mlp.c_proj")


WRONG = (
    Wrong.patch(
        "stream-normalised", "The residual stream itself is normalised before each half.",
        'x = x + linear(heads.reshape(N, C), "attn.c_proj")\n'
        '    inner = F.gelu(linear(norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh")  # (N, 4 * C)\n'
        '    return x + linear(inner, "mlp.c_proj")',
        'x = norm(x, "ln_1") + linear(heads.reshape(N, C), "attn.c_proj")\n'
        '    x = norm(x, "ln_2")\n'
        '    inner = F.gelu(linear(x, "mlp.c_fc"), approximate="tanh")\n'
        '    return x + linear(inner, "mlp.c_proj")',
        "Howuhh/faster-trajectory-transformer#3",
    ),
    Wrong.patch(
        "norm-after", "LayerNorm comes after each addition, as in the first transformer.",
        'qkv = linear(norm(x, "ln_1"), "attn.c_attn").view(N, 3, n_head, C // n_head)\n'
        "    q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]  # (N, H, D) each\n"
        "    heads = attend(q, k, v)\n"
        '    x = x + linear(heads.reshape(N, C), "attn.c_proj")\n'
        '    inner = F.gelu(linear(norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh")  # (N, 4 * C)\n'
        '    return x + linear(inner, "mlp.c_proj")',
        'q, k, v = linear(x, "attn.c_attn").view(N, 3, n_head, C // n_head).unbind(1)\n'
        '    x = norm(x + linear(attend(q, k, v).reshape(N, C), "attn.c_proj"), "ln_1")\n'
        '    inner = F.gelu(linear(x, "mlp.c_fc"), approximate="tanh")\n'
        '    return norm(x + linear(inner, "mlp.c_proj"), "ln_2")',
        "keras-team/keras-io#2144, minimaxir/gpt-2-simple#266",
    ),
    Wrong.patch(
        "exact-gelu", "GELU is GELU: the exact form and the tanh form are the same.", ', approximate="tanh"', "",
        "nntile/nntile#370, OpenNMT/CTranslate2#1658",
    ),
    Wrong(heads_before_qkv, "NVIDIA/apex#1131, sgl-project/sglang#34529: the same numbers in the other order"),
    Wrong.patch(
        "one-norm", "Both halves share one LayerNorm.", 'norm(x, "ln_2")', 'norm(x, "ln_1")',
        "right in GPT-J, which has one LayerNorm for both halves",
    ),
    Wrong.patch(
        "side-by-side", "Both halves read the stream as it came into the block.",
        'x = x + linear(heads.reshape(N, C), "attn.c_proj")\n'
        '    inner = F.gelu(linear(norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh")  # (N, 4 * C)\n'
        "    return x + ",
        'update = linear(heads.reshape(N, C), "attn.c_proj")\n'
        '    inner = F.gelu(linear(norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh")\n'
        "    return x + update + ",
        "right in GPT-J and PaLM (Chowdhery et al. 2022, section 2), wrong in GPT-2",
    ),
    Wrong.patch(
        "update-alone", "A block returns its last result, the MLP's.", "return x + ", "return ", "kyegomez/BitNet#32",
    ),
    Wrong.patch(
        "first-input-added", "What comes into the block is added at its end.",
        'x = x + linear(heads.reshape(N, C), "attn.c_proj")\n'
        '    inner = F.gelu(linear(norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh")',
        'y = x + linear(heads.reshape(N, C), "attn.c_proj")\n'
        '    inner = F.gelu(linear(norm(y, "ln_2"), "mlp.c_fc"), approximate="tanh")',
        "strutive07/transformer-tensorflow2.0#14",
    ),
    Wrong.patch(
        "square-transposed", "The square matrix of attention's projection is (out, in), as nn.Linear keeps it.",
        'linear(heads.reshape(N, C), "attn.c_proj")',
        'F.linear(heads.reshape(N, C), weights["attn.c_proj.weight"], weights["attn.c_proj.bias"])',
        "huggingface/transformers#311: GPT-2's Conv1D against Linear",
    ),
    Wrong.patch(
        "other-epsilon", "LayerNorm's epsilon is a detail: 1e-6 will do.", "1e-5)", "1e-6)",
        "mosaicml/llm-foundry#1399, huggingface/candle#271",
    ),
    Wrong.patch(
        "squares-less-the-mean", "A variance is the mean of squares less the square of the mean.",
        'return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)',
        'mean, square = x.mean(-1, keepdim=True), (x * x).mean(-1, keepdim=True)\n'
        '        scale = ((square - mean * mean).clamp(min=0) + 1e-5).rsqrt()\n'
        '        return (x - mean) * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]',
        "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "other-epsilon-in-ln-2", "Each LayerNorm has the epsilon that its library has.",
        '.bias"], 1e-5)', '.bias"], 1e-5 if name == "ln_1" else 1e-6)',
        "a reader who saw stub and text alone", unnamed="other-epsilon",
    ),
    Wrong.patch(
        "gelu-late", "GELU comes after the second matrix.",
        'F.gelu(linear(norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh")  # (N, 4 * C)\n'
        '    return x + linear(inner, "mlp.c_proj")',
        'linear(norm(x, "ln_2"), "mlp.c_fc")\n    return x + F.gelu(linear(inner, "mlp.c_proj"), approximate="tanh")',
        "goruck/nilm#1, dhlee347/pytorchic-bert#27",
    ),
    Wrong.patch(
        "attend-token-by-token", "Attention may be asked for one token after the other, with those before it.",
        "heads = attend(q, k, v)",
        "heads = torch.cat([attend(q[:n], k[:n], v[:n])[-1:] for n in range(1, N + 1)])",
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "attend-twice", "Calling `attend` once more does no harm.",
        "heads = attend(q, k, v)",
        "attend(q[:1], k[:1], v[:1])\n"
        "    heads = attend(q, k, v)",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "keys-without-bias", "A bias of the keys moves all scores of a query alike, so it may go.",
        'qkv[:, 0], qkv[:, 1], qkv[:, 2]',
        'qkv[:, 0], qkv[:, 1] - weights["attn.c_attn.bias"][C : 2 * C].view(n_head, -1), qkv[:, 2]',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "weights-counted-through", "The weights come in the order in which their names are told.",
        '    N, C = x.shape',
        '    weights = dict(zip(sorted(weights), [weights[name] for name in weights]))\n    N, C = x.shape',
        "written to pass all checks that there were, and it did", unnamed="one-norm",
    ),
    Wrong.patch(
        "stream-in-place", "The stream may be added to where it lies.",
        '    x = x + linear(heads',
        '    x += linear(heads',
        "written to pass all checks that there were, and it did", unnamed="one-norm",
    ),
)  # fmt: skip


def by_hand(x: Tensor, weights: dict[str, Tensor], n_head: int, attend: Attend) -> Tensor:
    """LayerNorm and GELU from their formulas; a Python loop over the tokens."""

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        spread = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    rows = [norm(token, "ln_1") @ weights["attn.c_attn.weight"] + weights["attn.c_attn.bias"] for token in x]
    parts = torch.stack(rows).chunk(3, dim=-1)
    mixed = attend(*(part.unflatten(-1, (n_head, -1)) for part in parts)).flatten(1)
    out = []
    for token, y in zip(x, mixed, strict=True):
        stream = token + y @ weights["attn.c_proj.weight"] + weights["attn.c_proj.bias"]
        h = norm(stream, "ln_2") @ weights["mlp.c_fc.weight"] + weights["mlp.c_fc.bias"]
        h = 0.5 * h * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)))
        out.append(stream + h @ weights["mlp.c_proj.weight"] + weights["mlp.c_proj.bias"])
    return torch.stack(out)


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


RIGHT = (Right(by_hand), Right(by_addmm), Right(in_place))

EQUIVALENT: dict[str, str] = {}


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


def _transposed(x: Tensor, weights: dict[str, Tensor], *rest: object) -> tuple[object, ...]:
    return (x, {name: value.T.contiguous() if value.dim() == 2 else value for name, value in weights.items()}, *rest)


EDITIONS = (
    Edition(
        "out-by-in", "the matrices are stored as (out, in)", block, args=_transposed, back=_transposed,
        result=lambda out, *args: out,
    ),
)  # fmt: skip
