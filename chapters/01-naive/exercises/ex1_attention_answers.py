"""Exercise 1.1: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

LATER = "positions[:, None, None, :] > positions[:, None, :, None]"


def mask_after_softmax(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """Weights of hidden keys are set to zero after the softmax, and the others need no change."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    weights = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).softmax(-1)
    later = positions[:, None, None, :] > positions[:, None, :, None]
    return (weights.masked_fill(later, 0.0) @ v).transpose(1, 2)


def heads_regrouped(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """Reshaping (B, T, H, D) to (B, H, T, D) brings the heads to the front."""
    B, T, H, D = q.shape
    q, k, v = q.reshape(B, H, T, D), k.reshape(B, H, T, D), v.reshape(B, H, T, D)
    scores = q @ k.transpose(2, 3) / D**0.5
    later = positions[:, None, None, :] > positions[:, None, :, None]
    return (scores.masked_fill(later, -torch.inf).softmax(-1) @ v).reshape(B, T, H, D)


def no_maximum(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """A softmax is the exponentials over their sum; subtracting the largest score first is only style."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    later = positions[:, None, None, :] > positions[:, None, :, None]
    weights = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).exp().masked_fill(later, 0.0)
    return (weights / weights.sum(-1, keepdim=True) @ v).transpose(1, 2)


def positions_as_rows(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """A position is the number of a line in a triangle of T lines."""
    T = q.shape[1]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    triangle = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    lines = positions.clamp(max=T - 1)
    seen = triangle[lines[:, :, None], lines[:, None, :]][:, None]
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v).transpose(1, 2)


WRONG = (
    Wrong.patch(
        "rows-not-positions", "The mask is a triangle of row numbers: a column reads the columns before it.",
        LATER, "torch.ones(q.shape[2], q.shape[2], device=q.device).triu(1).bool()",
        "trymirai/lalamo#200; pytorch/pytorch#108108: is_causal with a cache",
    ),
    Wrong.patch(
        "no-mask", "Attention needs no mask at inference: the future is not there yet.",
        "scores.masked_fill(later, -torch.inf)", "scores", "facebookresearch/xformers#103",
    ),
    Wrong.patch(
        "itself-hidden", "A query reads what stands before it, so its own key is hidden too.",
        LATER, LATER.replace(">", ">="), "pbloem/former#10",
    ),
    Wrong.patch(
        "mask-inverted", "The mask names what a query may read, and so does masked_fill.",
        LATER, LATER.replace(">", "<"), "karpathy/nanoGPT#170, harvard-edge/cs249r_book#1785",
    ),
    Wrong.patch(
        "readable-hidden", "The mask names what a query may read, itself too, as that of "
        "scaled_dot_product_attention does.", LATER, LATER.replace(">", "<="), "a learner's first try",
    ),
    Wrong.patch(
        "width-for-head-size", "Scores are divided by the square root of the width, not of the head's size.",
        "q.shape[-1] ** 0.5", "(q.shape[1] * q.shape[-1]) ** 0.5", "lucidrains/vit-pytorch#65",
    ),
    Wrong.patch(
        "no-scale", "The softmax makes the scale of the scores irrelevant.", " / q.shape[-1] ** 0.5", "",
        "delzac/cntkx#10",
    ),
    Wrong.patch(
        "softmax-over-queries", "The weights that all queries give to one key sum to 1.",
        ".softmax(-1)", ".softmax(-2)", "labmlai/annotated_deep_learning_paper_implementations#282",
    ),
    Wrong(mask_after_softmax, "huggingface/pytorch-image-models#2236"),
    Wrong(heads_regrouped, "reczoo/FuxiCTR#30, hyunwoongko/transformer#15"),
    Wrong.patch(
        "first-rows-positions", "One mask serves the batch: that of its first row.",
        LATER, LATER.replace("positions", "positions[:1]"), "meta-pytorch/attention-gym#98",
    ),
    Wrong.patch(
        "large-negative", "-10,000 is as good as minus infinity.", "-torch.inf", "-1e4",
        "TransformerLensOrg/TransformerLens#318",
    ),
    Wrong.patch(
        "smallest-finite", "Minus infinity makes NaN of a softmax, so a mask must use the smallest finite number.",
        "-torch.inf", "torch.finfo(scores.dtype).min", "lucidrains/reformer-pytorch#26",
        lesson="the same result as long as a query reads at least one key, and here it always reads its own",
    ),
    Wrong(no_maximum, "dwavesystems/dwave-optimization#555, blue-oil/blueoil#945"),
    Wrong(positions_as_rows, "huggingface/transformers#41757: positions beyond the table they index"),
    Wrong.patch(
        "in-order-as-row-0", "Whether columns stand in order is seen at the first row.",
        "weights = scores",
        "if positions[0].equal(torch.arange(q.shape[2])):\n"
        "        later = torch.ones(later.shape[2:], dtype=torch.bool).triu(1)\n"
        "    weights = scores",
        "written to pass all checks that there were, and it did", unnamed="rows-not-positions",
    ),
    Wrong.patch(
        "in-order-by-its-ends", "Where a row begins at 0 and ends at T - 1 it is in order.",
        "weights = scores",
        "if bool((positions[:, 0] == 0).all() and (positions[:, -1] == q.shape[2] - 1).all()):\n"
        "        later = torch.ones(later.shape[2:], dtype=torch.bool).triu(1)\n"
        "    weights = scores",
        "a reader who saw stub and text alone", unnamed="rows-not-positions",
    ),
    Wrong.patch(
        "positions-in-half", "Positions are small numbers, and fit in 16 bits.",
        "later = positions",
        "positions = positions.half()\n"
        "    later = positions",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "positions-in-16-bits", "A position fits in 16 bits.",
        'later = positions[:, None, None, :] > positions[:, None, :, None]',
        'positions = positions.to(torch.int16)\n    later = positions[:, None, None, :] > positions[:, None, :, None]',
        "written to pass all checks that there were, and it did", unnamed="positions-in-half",
    ),
    Wrong.patch(
        "the-newest-1024", "No text of a GPT-2 is longer than 1,024 tokens, so none is further away.",
        "scores.masked_fill(later,",
        "scores.masked_fill(later | (positions[:, None, None, :] <= positions[:, None, :, None] - 1024),",
        "a reader who saw stub and text alone; it passed", unnamed="positions-in-half",
    ),
    Wrong.patch(
        "zero-is-hidden", "What the mask has left at 0 is hidden.",
        "scores.masked_fill(later, -torch.inf)",
        "scores.masked_fill(later | ((scores == 0) & (positions[:, None, :, None] != positions[:, None, None])),"
        " -torch.inf)",
        "written to pass all checks that there were, and it did", unnamed="mask-inverted",
    ),
    Wrong.patch(
        "logarithm-of-the-sum", "A softmax is exp(score - the logarithm of the sum).",
        'weights = scores.masked_fill(later, -torch.inf).softmax(-1)',
        'scores = scores.masked_fill(later, -torch.inf)\n'
        '    weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()',
        "written to pass all checks that there were, and it did", unnamed="mask-inverted",
    ),
)  # fmt: skip


def query_by_query(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """Loops over rows, queries and heads; only the keys that are read are ever touched."""
    out = torch.zeros_like(v)
    for b, (T, H) in ((b, q.shape[1:3]) for b in range(len(q))):
        for t in range(T):
            read = positions[b] <= positions[b, t]
            for h in range(H):
                scores = (k[b, read, h] @ q[b, t, h]) * q.shape[-1] ** -0.5
                out[b, t, h] = scores.softmax(0) @ v[b, read, h]
    return out


def by_sdpa(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """PyTorch's own attention with a boolean mask of what is read."""
    read = (positions[:, :, None] >= positions[:, None, :])[:, None]
    heads = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads, attn_mask=read).transpose(1, 2)


def in_double(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """einsum, float64, and a mask that is added."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()).div_(q.shape[-1] ** 0.5)
    later = positions[:, None, None, :] > positions[:, None, :, None]
    scores += torch.zeros_like(scores).masked_fill(later, -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.double())


def sorted_first(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """The columns are put into the order of the text, then a triangle is right."""
    order = positions.argsort(1)
    back = order.argsort(1)
    rows = torch.arange(len(q), device=q.device)[:, None]
    q, k, v = (x[rows, order].transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)[rows, back]


RIGHT = (Right(query_by_query), Right(by_sdpa), Right(in_double), Right(sorted_first))

_SWAPPED = "transpose takes its two dimensions in either order"
EQUIVALENT = {
    "q, k, v = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(2, 1))": _SWAPPED,
    "q, k, v = (q.transpose(1, 2), k.transpose(2, 1), v.transpose(1, 2))": _SWAPPED,
    "q, k, v = (q.transpose(2, 1), k.transpose(1, 2), v.transpose(1, 2))": _SWAPPED,
    "return (weights @ v).transpose(2, 1)": _SWAPPED,
    "scores = q @ k.transpose(3, 2) / q.shape[-1] ** 0.5": _SWAPPED,
}


def attention(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """Causal attention: q, k, v (B, H, T, D) -> (B, H, T, D), of any floating type.

    positions (B, T) int64: where each column's token stands in its own text, no two of a row at the same place. A query
    reads the keys of its own row whose position is at most its own. Vaswani et al. 2017, section 3.2.1.
    """
    later = positions[:, None, None, :] > positions[:, None, :, None]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ v


def _heads_first(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), positions


EDITIONS = (
    Edition(
        "heads-first", "the heads stand before the tokens", attention, args=_heads_first, back=_heads_first,
        result=lambda out, *args: out.transpose(1, 2), axes=("row", "head", "column", "channel"),
    ),
)  # fmt: skip
