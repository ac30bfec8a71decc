"""Exercise 1.4: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong


def p_before_k(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The order of the filters does not matter, so top_p counts over the whole vocabulary."""
    V = scores.shape[-1]
    descending = scores.sort(-1, descending=True).values
    k = torch.where(top_k > 0, top_k, V).clamp(max=V)[:, None].long()
    kth = descending.gather(-1, k - 1)
    probs = descending.softmax(-1)
    kept = (probs.cumsum(-1) - probs < top_p[:, None]).sum(-1, keepdim=True)
    by_p = descending.gather(-1, kept.clamp(min=1) - 1)
    return torch.maximum(kth, torch.where(top_p[:, None] < 1, by_p, -torch.inf))


def min_p(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """top_p is a floor for each id's own probability, relative to the best: an id needs at least 1 - top_p of it."""
    V = scores.shape[-1]
    descending = scores.sort(-1, descending=True).values
    k = torch.where(top_k > 0, top_k, V).clamp(max=V)[:, None].long()
    kth = descending.gather(-1, k - 1)
    probs = descending.masked_fill(descending < kth, -torch.inf).softmax(-1)
    kept = (probs >= (1 - top_p[:, None]) * probs[:, :1]).sum(-1, keepdim=True)
    by_p = descending.gather(-1, kept.clamp(min=1) - 1)
    return torch.maximum(kth, torch.where(top_p[:, None] < 1, by_p, -torch.inf))


def ties_dropped(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Exactly k ids pass top_k, so ids that tie with the k-th do not count for top_p."""
    V = scores.shape[-1]
    descending = scores.sort(-1, descending=True).values
    k = torch.where(top_k > 0, top_k, V).clamp(max=V)[:, None].long()
    kth = descending.gather(-1, k - 1)
    probs = descending.masked_fill(torch.arange(V, device=k.device) >= k, -torch.inf).softmax(-1)
    kept = (probs.cumsum(-1) - probs < top_p[:, None]).sum(-1, keepdim=True)
    by_p = descending.gather(-1, kept.clamp(min=1) - 1)
    return torch.maximum(kth, torch.where(top_p[:, None] < 1, by_p, -torch.inf))


def one_maximum(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """One number taken off all scores keeps exp from overflowing."""
    V = scores.shape[1]
    ranked = scores.sort(dim=1, descending=True).values
    k = torch.where(top_k > 0, top_k.clamp(max=V), V).long()[:, None]
    kth = ranked.gather(1, k - 1)
    weight = (ranked - ranked.max()).exp() * (ranked >= kth)
    p = weight / weight.sum(dim=1, keepdim=True).clamp(min=1e-30)
    keep = (p.cumsum(dim=1) - p < top_p[:, None]) & (ranked >= kth)
    keep[:, 0] = True
    nucleus = ranked.masked_fill(~keep, torch.inf).amin(dim=1, keepdim=True)
    return torch.where(top_p[:, None] >= 1, kth, nucleus)


WRONG = (
    Wrong.patch(
        "crossing-dropped", "top_p keeps ids as long as the running total, the id itself included, is within top_p.",
        "before = probs.cumsum(-1) - probs", "before = probs.cumsum(-1)",
        "thu-nics/C2C#21, Biohub/esm#360, rasbt/reasoning-from-scratch#164",
    ),
    Wrong(p_before_k, "EleutherAI/gpt-neox#1250, microsoft/onnxruntime-genai#1371"),
    Wrong(ties_dropped, "vllm-project/vllm#50979, sgl-project/sglang#33539"),
    Wrong(min_p, "rusiaaman/XLnet-gen#2"),
    Wrong.patch(
        "first-rows-parameters", "The batch has one top_k and one top_p, those of its first row.",
        "V = scores.shape[-1]\n", "V = scores.shape[-1]\n    top_k, top_p = top_k[:1], top_p[:1]\n",
        "EvolvingLMMs-Lab/lmms-eval#1423, Blaizzy/mlx-vlm#1647",
    ),
    Wrong.patch(
        "zero-keeps-one", "top_k 0 is the smallest filter, so it keeps a single id.",
        "torch.where(top_k > 0, top_k, V).clamp(max=V)", "top_k.clamp(1, V)",
        "vllm-project/vllm#14301: rows with and without top_k in one batch",
    ),
    Wrong.patch(
        "one-filters", "top_p 1 needs no case of its own: the running total never reaches 1 before the last id.",
        "torch.where(top_p[:, None] < 1, by_p, -torch.inf)", "by_p",
        "BlinkDL/ChatRWKV#170",
    ),
    Wrong.patch(
        "complement", "top_p is the probability that is removed.",
        "(before < top_p[:, None])", "(before < 1 - top_p[:, None])",
        "lucidrains/x-transformers#184",
    ),
    Wrong.patch(
        "scores-summed",
        "top_p never cuts: it is left out, or the running total is that of log-probabilities, which are negative.",
        "before = probs.cumsum(-1) - probs",
        "before = descending.log_softmax(-1).cumsum(-1) - descending.log_softmax(-1)",
        "skyzh/tiny-llm#32",
    ),
    Wrong.patch(
        "unsorted", "The running total can be taken in the order of the ids.",
        "descending = scores.sort(-1, descending=True).values", "descending = scores",
        "ggml-org/llama.cpp#1977: a filter that needed sorted candidates ran before the one that sorts",
    ),
    Wrong.patch(
        "one-too-many", "top_k counts from zero, so k + 1 ids pass.",
        "kth = descending.gather(-1, k - 1)", "kth = descending.gather(-1, k.clamp(max=V - 1))",
        "kingoflolz/mesh-transformer-jax#164",
    ),
    Wrong.patch(
        "one-filters-in-a-mixed-batch", "Where some row has a top_p below 1, every row is filtered by it.",
        "by_p = torch.where(top_p[:, None] < 1, by_p, -torch.inf)",
        "by_p = by_p if bool((top_p < 1).any()) else torch.full_like(by_p, -torch.inf)",
        "a try of somebody who saw stub and text alone, which passed", unnamed="one-filters",
    ),
    Wrong.patch(
        "kth-distinct", "The k-th highest score is the k-th of the different ones.",
        "kth = descending.gather(-1, k - 1)",
        "kth = torch.stack([row.unique().flip(0)[min(int(n), len(row.unique())) - 1] for row, n in "
        "zip(scores, k, strict=True)])[:, None]",
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "best-fifty", "Nobody chooses beyond the fifty best ids.",
        "descending = scores.sort(-1, descending=True).values",
        "descending = scores.topk(min(50, V)).values",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "best-thousand", "A nucleus is small: the best 1,024 ids are enough to look for its end.",
        "before = probs.cumsum(-1) - probs",
        "before = (probs.cumsum(-1) - probs)[:, :1024]",
        "a reader who saw stub and text alone", unnamed="best-fifty",
    ),
    Wrong(one_maximum, "a try of somebody who saw stub and text alone, which passed"),
    Wrong.patch(
        "p-alone", "An id that top_k has dropped has no probability, so top_p cannot keep it.",
        "return torch.maximum(kth, by_p)", "return torch.where(top_p[:, None] < 1, by_p, kth)",
        "a try of somebody who saw stub and text alone, which passed", unnamed="one-filters",
    ),
    Wrong.patch(
        "nearly-one", "A top_p of 0.999 keeps everything.",
        'top_p[:, None] < 1, by_p',
        'top_p[:, None] < 0.999, by_p',
        "written to pass all checks that there were, and it did", unnamed="one-filters",
    ),
    Wrong.patch(
        "logarithm-of-the-sum", "A softmax is exp(score - the logarithm of the sum).",
        'probs = descending.masked_fill(descending < kth, -torch.inf).softmax(-1)',
        'kept = descending.masked_fill(descending < kth, -torch.inf)\n'
        '    probs = (kept - kept.logsumexp(-1, keepdim=True)).exp()',
        "written to pass all checks that there were, and it did", unnamed="one-filters",
    ),
)  # fmt: skip


def row_by_row(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Python loops over rows and ids in place of tensor operations; float64."""
    found = []
    for row, k, p in zip(scores.tolist(), top_k.tolist(), top_p.tolist(), strict=True):
        ordered = sorted(row, reverse=True)
        lowest = ordered[min(k or len(row), len(row)) - 1]
        left = torch.tensor([s for s in ordered if s >= lowest], dtype=torch.float64).softmax(-1).tolist()
        total, count = 0.0, 0
        while count < len(left) and (p == 1 or count == 0 or total < p):
            total += left[count]
            count += 1
        found.append([ordered[count - 1]])
    return torch.tensor(found, dtype=torch.float64)


def ascending(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Sorted from low to high; what is removed is counted, not what is kept."""
    V = scores.shape[-1]
    rising = scores.sort(-1).values
    k = torch.where(top_k > 0, top_k, V).clamp(max=V)[:, None].long()
    kth = rising.gather(-1, V - k)
    probs = rising.masked_fill(rising < kth, -torch.inf).double().softmax(-1)
    ahead = probs.flip(-1).cumsum(-1).flip(-1) - probs
    removed = (ahead >= top_p[:, None].double()).sum(-1, keepdim=True).clamp(max=V - 1)
    by_p = torch.where(top_p[:, None] == 1, kth, rising.gather(-1, removed))
    return torch.where(by_p > kth, by_p, kth)


def in_place(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """A copy of the scores is overwritten."""
    V = scores.shape[-1]
    scores = scores.clone()
    scores.copy_(scores.sort(-1, descending=True).values)
    k = top_k.clone()
    k[k == 0] = V
    kth = torch.stack([row[min(int(n), V) - 1] for row, n in zip(scores, k, strict=True)])[:, None]
    probs = scores.masked_fill(scores < kth, -torch.inf).softmax(-1)
    ahead = torch.zeros_like(probs)
    ahead[:, 1:] = probs.cumsum(-1)[:, :-1]
    ahead[top_p == 1] = 0
    ahead[:, 0] = -1
    scores.masked_fill_((ahead >= top_p[:, None]) | (scores < kth), torch.inf)
    return scores.amin(-1, keepdim=True)


RIGHT = (Right(row_by_row), Right(ascending), Right(in_place))

EQUIVALENT = {
    "by_p = descending.gather(-1, kept.clamp(min=0) - 1)": (
        "nothing is ahead of the first id, and 0 is below any top_p above 0: `kept` is at least 1 without the clamp"
    ),
    "kept = (before < top_p[:, None]).sum(-1, keepdim=True)".replace("<", "<="): (
        "it differs only where the running total equals top_p to the last bit, and that is decided by rounding"
    ),
    "return torch.maximum(by_p, kth)": "the higher of two is the same in either order",
}


def kept_ids(scores: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Which ids may be chosen, (B, V) bool, by each row's top_k (B,), then top_p (B,); scores (B, V).

    Both filters keep the ids whose score is at least that of the last one kept, ties included. top_p counts the
    probability *before* an id: the one that crosses top_p is kept. Nucleus sampling: Holtzman et al. 2020, section 3.1.
    """
    V = scores.shape[-1]
    ordered = scores.sort(-1, descending=True).values
    k = torch.where(top_k > 0, top_k, V).clamp(max=V)[:, None].long()
    passed = ordered >= ordered.gather(-1, k - 1)
    probs = ordered.masked_fill(~passed, -torch.inf).softmax(-1)
    ahead = probs.cumsum(-1) - probs
    within = (ahead < top_p[:, None]) | (top_p[:, None] == 1)
    within[:, 0] = True
    last = (within & passed).sum(-1, keepdim=True) - 1
    return scores >= ordered.gather(-1, last)


EDITIONS = (
    Edition(
        "kept-ids", "the answer is a mask of the ids that are kept, not a threshold", kept_ids,
        args=lambda scores, top_k, top_p: (scores, top_k, top_p),
        back=lambda scores, top_k, top_p: (scores, top_k, top_p),
        result=lambda lowest, scores, top_k, top_p: scores >= lowest,
        axes=("row", "id"),
    ),
)  # fmt: skip
