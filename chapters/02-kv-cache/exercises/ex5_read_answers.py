"""Exercise 2.5: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong


def mask_added(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Minus infinity is added to the scores of hidden slots, and that hides them."""
    q, keys, values = q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
    hidden = torch.arange(keys.shape[2], device=q.device) > positions[:, None, :, None]
    added = torch.zeros(hidden.shape, device=q.device).masked_fill(hidden, -torch.inf)
    products = (q @ keys.transpose(2, 3) / q.shape[-1] ** 0.5 + added).softmax(-1)[..., None] * values[:, :, None]
    return products.masked_fill(hidden[..., None], 0.0).sum(3).transpose(1, 2)


def whatever_is_not_zero(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """A slot that holds something has been written, and may be read."""
    q, keys, values = q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
    hidden = (values == 0).all(-1)[:, :, None].expand(-1, -1, q.shape[2], -1)
    scores = (q @ keys.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    products = scores.softmax(-1)[..., None] * values[:, :, None]
    return products.masked_fill(hidden[..., None], 0.0).sum(3).transpose(1, 2)


def cleared_without_a_mask(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """A slot that is set to zero has no weight."""
    q, keys, values = q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
    hidden = (torch.arange(keys.shape[2], device=q.device) > positions[:, None, :, None])[..., None]
    keys, values = keys[:, :, None].masked_fill(hidden, 0.0), values[:, :, None].masked_fill(hidden, 0.0)
    scores = (q[:, :, :, None] * keys).sum(-1) / q.shape[-1] ** 0.5
    return (scores.softmax(-1)[..., None] * values).sum(3).transpose(1, 2)


def cut_at_the_longest(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Nothing behind the longest row is read, so nothing that was never written can come in."""
    end = int(positions.max()) + 1
    q, keys, values = q.transpose(1, 2), keys[:, :end].transpose(1, 2), values[:, :end].transpose(1, 2)
    hidden = torch.arange(end, device=q.device) > positions[:, None, :, None]
    scores = (q @ keys.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ values).transpose(1, 2)


HIDDEN = "> positions[:, None, :, None]"
PRODUCTS = "products.masked_fill(hidden[..., None], 0.0).sum(3)"
VALUES = "* values[:, :, None]"
SUMMED = f"products = scores.softmax(-1)[..., None] {VALUES}  # (B, H, T, S, D)\n    return {PRODUCTS}"
WRONG = (
    Wrong.patch(
        "weight-zero", "A value of weight 0 adds nothing.", SUMMED,
        "products = scores.softmax(-1).masked_fill(hidden, 0.0)[..., None] * values[:, :, None]\n"
        "    return products.sum(3)",
        "pytorch/pytorch#101967; Dao-AILab/flash-attention#2374: 0 * NaN",
    ),
    Wrong(mask_added, "deepbeepmeep/Wan2GP#1628: NaN + (-inf) is NaN"),
    Wrong.patch(
        "nan-to-zero-at-the-end", "NaN in the result is set to 0.", PRODUCTS,
        "products.sum(3).nan_to_num(0.0, 0.0, 0.0)",
        "explosion/curated-transformers#360 clears outputs; right for rows that read nothing, and for no others",
    ),
    Wrong.patch(
        "nan-to-zero-at-the-beginning", "Whatever is NaN in the cache is not meant to be there, and is set to 0.",
        VALUES, "* values.nan_to_num(0.0, 0.0, 0.0)[:, :, None]",
        "torch.nan_to_num as a cure: it cures what should be seen, too",
    ),
    Wrong.patch(
        "nothing-to-read", "Every query reads at least itself.", ".masked_fill(hidden[..., None], 0.0)",
        ".masked_fill(hidden[..., None] & (positions >= 0)[:, None, :, None, None], 0.0)",
        "pytorch/pytorch#103749: a softmax over nothing",
    ),
    Wrong.patch(
        "keys-cleared-too", "Hidden keys must be cleared as well, or their scores are NaN.", "keys.transpose(2, 3)",
        "keys.masked_fill(hidden.all(2)[..., None], 0.0).transpose(2, 3)", "sgl-project/sglang#32477: both are skipped",
        lesson="masked_fill puts minus infinity in the place of a score, whatever it was, NaN too",
    ),
    Wrong(whatever_is_not_zero, "ollama/ollama#6831, rasbt/LLMs-from-scratch#925: what an old text has left is read"),
    Wrong(cleared_without_a_mask, "huggingface/transformers#30414: zeros that are not masked take part in the softmax"),
    Wrong(cut_at_the_longest, "Dao-AILab/flash-attention#1745: lengths 1 and 3 in one batch"),
    Wrong.patch(
        "longest-row", "All rows are read as far as the longest.", HIDDEN, "> positions.amax(0)[None, None, :, None]",
        "flashinfer-ai/flashinfer#3716",
    ),
    Wrong.patch(
        "first-query-for-all", "All queries of a step read the same slots.", HIDDEN, "> positions[:, None, :1, None]",
        "pytorch/executorch#21857: the cache's part of the mask, the same for every query",
    ),
    Wrong.patch(
        "last-query-for-all", "What is written may be read.", HIDDEN, "> positions[:, None, -1:, None]",
        "tenstorrent/tt-metal#48899",
    ),
    Wrong.patch(
        "cache-without-itself", "The cache is what was before: a query reads the slots before its own.", HIDDEN,
        ">= positions[:, None, :, None]", "pytorch/executorch#2689",
    ),
    Wrong.patch(
        "top-left", "Causal attention of T queries reads the first T slots.", HIDDEN,
        "> torch.arange(q.shape[2], device=q.device)[None, None, :, None]",
        "time-series-foundation-models/lag-llama#81, pytorch/pytorch#103082",
    ),
    Wrong.patch(
        "nan-scores-to-zero", "A score that is NaN counts as 0.",
        "/ q.shape[-1] ** 0.5)",
        "/ q.shape[-1] ** 0.5).nan_to_num(0.0)",
        "written to pass all checks that there were, and it did", unnamed="nan-to-zero-at-the-beginning",
    ),
    Wrong.patch(
        "billion-below", "-10^9 is as good as minus infinity.",
        "masked_fill(hidden, -torch.inf)", "masked_fill(hidden, -1e9)", "a reader who saw stub and text alone",
        unnamed="cleared-without-a-mask",
    ),
    Wrong.patch(
        "weight-0-is-unread", "A slot whose weight is 0 was not read.",
        "return products.masked_fill(hidden[..., None], 0.0)",
        "return products.masked_fill(hidden[..., None] | (scores.softmax(-1) == 0)[..., None], 0.0)",
        "a reader who saw stub and text alone", unnamed="nan-to-zero-at-the-beginning",
    ),
    Wrong.patch(
        "no-maximum", "The exponentials over their sum are a softmax.",
        "products = scores.softmax(-1)[..., None]",
        "weights = scores.exp()\n"
        "    weights = weights / weights.sum(-1, keepdim=True)\n"
        "    products = weights[..., None]",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "a-range-from-the-first", "Positions count on from a row's first.",
        "hidden = torch.arange",
        "positions = torch.where(positions < 0, -1, positions[:, :1] + torch.arange(positions.shape[1]))\n"
        "    hidden = torch.arange",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "scores-within-a-million", "No score is beyond a million.",
        '.masked_fill(hidden, -torch.inf)',
        '.clamp(-1e6, 1e6).masked_fill(hidden, -torch.inf)',
        "written to pass all checks that there were, and it did", unnamed="cleared-without-a-mask",
    ),
    Wrong.patch(
        "old-slots-cleared", "What is old may be erased where it lies.",
        "    hidden = torch",
        "    unread = torch.arange(keys.shape[2], device=q.device) > positions.amax(1)[:, None]\n"
        "    values.masked_fill_(unread[:, None, :, None], 0.0)\n    hidden = torch",
        "written to pass all checks that there were, and it did", unnamed="weight-zero",
    ),
    Wrong.patch(
        "logarithm-of-the-sum", "A softmax is exp(score - the logarithm of the sum).",
        'products = scores.softmax(-1)[..., None]',
        'products = (scores - scores.logsumexp(-1, keepdim=True)).exp()[..., None]',
        "written to pass all checks that there were, and it did", unnamed="weight-zero",
    ),
)  # fmt: skip


def row_by_row(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Loops; each query is handed the slots that it reads, and no others."""
    out = torch.zeros_like(q)
    for b, t, h in ((b, t, h) for b in range(len(q)) for t in range(q.shape[1]) for h in range(q.shape[2])):
        end = int(positions[b, t]) + 1
        if end:
            weights = (keys[b, :end, h] @ q[b, t, h] / q.shape[-1] ** 0.5).softmax(0)
            out[b, t, h] = weights @ values[b, :end, h]
    return out


def by_sdpa(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """PyTorch's own attention, a query at a time, over a cut that has no mask at all."""
    parts = []
    for b in range(len(q)):
        for t, end in enumerate((positions[b] + 1).tolist()):
            heads = (x.transpose(0, 1) for x in (q[b, t : t + 1], keys[b, :end], values[b, :end]))
            parts.append(F.scaled_dot_product_attention(*heads)[:, 0] if end else torch.zeros_like(q[b, t]))
    return torch.stack(parts).view(q.shape)


def replaced_first(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """einsum, float64; hidden keys and values are zeroed for each query before anything is computed."""
    hidden = torch.arange(keys.shape[1], device=q.device) > positions[:, :, None]  # (B, T, S)
    own_keys = keys.double()[:, None].masked_fill(hidden[..., None, None], 0.0)  # (B, T, S, H, D)
    own_values = values.double()[:, None].masked_fill(hidden[..., None, None], 0.0)
    scores = torch.einsum("bthd,btshd->bths", q.double(), own_keys) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(hidden[:, :, None], -torch.inf).softmax(-1)
    weights = weights.masked_fill(hidden[:, :, None], 0.0)
    return torch.einsum("bths,btshd->bthd", weights, own_values)


RIGHT = (Right(row_by_row), Right(by_sdpa), Right(replaced_first))

_SWAPPED = "transpose takes its two dimensions in either order"
EQUIVALENT = {
    "q, keys, values = (q.transpose(1, 2), keys.transpose(1, 2), values.transpose(2, 1))": _SWAPPED,
    "q, keys, values = (q.transpose(1, 2), keys.transpose(2, 1), values.transpose(1, 2))": _SWAPPED,
    "q, keys, values = (q.transpose(2, 1), keys.transpose(1, 2), values.transpose(1, 2))": _SWAPPED,
    "return products.masked_fill(hidden[..., None], 0.0).sum(3).transpose(2, 1)": _SWAPPED,
    "scores = (q @ keys.transpose(3, 2) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)": _SWAPPED,
}


def read(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    """Attention of a step's queries over their rows of the cache: q (B, H, T, D) -> (B, H, T, D), of any floating type.

    keys, values (B, H, S, D): all slots of each row; what this step brings is written already.
    lengths (B, T) int64: a query reads its row's first so many slots, and nothing else. With 0 it is padding: it reads
    no slot, and its result is zero. Slots that it does not read may hold anything: an old text, infinity, NaN.
    What is NaN in a query comes out of it, and of no other.
    """
    hidden = torch.arange(keys.shape[2], device=q.device) >= lengths[:, None, :, None]  # (B, 1, T, S)
    scores = (q @ keys.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    products = scores.softmax(-1)[..., None] * values[:, :, None]
    return products.masked_fill(hidden[..., None], 0.0).sum(3)


def _there(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
    return q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), positions + 1


def _back(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    return q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), lengths - 1


EDITIONS = (
    Edition(
        "heads-first", "heads stand before tokens and slots, and lengths are given in place of positions", read,
        args=_there, back=_back, result=lambda out, *args: out.transpose(1, 2),
        axes=("row", "head", "column", "channel"),
    ),
)  # fmt: skip
