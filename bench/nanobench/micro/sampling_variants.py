"""Ways to choose the next tokens from logits, under the same parameters: what the sampling benchmark compares.

The book's kernel, its rule in PyTorch with a sort, torch.topk, and sampling by rejection: draw from the softmax, and
where the filters would have dropped what came, draw again from what is more probable than that. FlashInfer,
"Sorting-Free GPU Kernels for LLM Sampling", 2025. To add one, write a sampler and name it in `sampling_variants`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from nanobench.core.case_runner import first_line
from nanobench.micro.rejection_sampling import rejection
from nanoinfer.engine import samplers, sampling
from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.kernels import sampling as sampling_kernels

TOP_K = 50


@dataclass(frozen=True)
class Setting:
    """Parameters of all rows."""

    name: str
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0

    def rows(self, batch: int, step: int, device: torch.device) -> BatchState:
        """`batch` rows at this step, each with a seed of its own."""
        rows = BatchState.empty(batch, device).at(slice(0, batch))
        rows.seed.copy_(torch.arange(batch) * 7919)
        rows.step.fill_(step)
        rows.temperature.fill_(self.temperature)
        rows.top_k.fill_(self.top_k)
        rows.top_p.fill_(self.top_p)
        return rows


BOTH, TOP_P = Setting("top-k 50, top-p 0.95", top_k=TOP_K, top_p=0.95), Setting("top-p 0.95", top_p=0.95)
UNFILTERED, GREEDY = Setting("no filter"), Setting("greedy", temperature=0.0)
SETTINGS = (BOTH, TOP_P, UNFILTERED, GREEDY)


def sampling_variants(setting: Setting, logits: Tensor, rows: BatchState, absent: dict[str, str]) -> dict[str, Sampler]:
    """Samplers for a setting, ours first, each checked on these logits. Why one cannot run goes to `absent`."""
    made: dict[str, Sampler] = {"ours": sampling_kernels.sample}
    if setting is GREEDY:
        made |= {"argmax": samplers.greedy}
    elif setting is UNFILTERED:
        made |= {"no sort": samplers.sample, "rejection": rejection}
    else:
        made |= {"sort": sampling.sample_filtered} | ({"topk": topk} if setting.top_k else {})
        made |= {"rejection": rejection, "flashinfer": flashinfer_by_both if setting.top_k else flashinfer_by_p}
    for name, sampler in list(made.items()):
        try:
            tokens = sampler(logits, rows)
        except Exception as error:
            if name != "flashinfer":
                raise
            del made[name]  # not installed, or its own compiler fails: the others go on
            absent[name] = first_line(error) or type(error).__name__
        else:
            if not allowed(logits, rows, tokens):
                raise ValueError(f"{name} chose a token that {setting.name} drops")
    return made


def allowed(logits: Tensor, rows: BatchState, tokens: Tensor) -> bool:
    """Whether the filters keep all these tokens: top_p of all probabilities, which keeps no fewer than of the top k."""
    if not rows.temperature.any():
        return torch.equal(tokens, samplers.greedy(logits, rows))
    scores = sampling.scaled(logits.float(), rows.temperature)
    by_k = sampling.threshold(scores, rows.top_k, torch.ones_like(rows.top_p))
    by_p = sampling.threshold(scores, torch.zeros_like(rows.top_k), rows.top_p * 1.001)
    return bool((scores.gather(1, tokens.long()[:, None]) >= torch.maximum(by_k, by_p)).all())


def topk(logits: Tensor, rows: BatchState) -> Tensor:
    """torch.topk, whose k is the same for all rows and known to the host; then top-p, and noise for k ids a row."""
    scores, ids = sampling.scaled(logits.float(), rows.temperature).topk(TOP_K)  # (B, k), highest first
    probs = scores.softmax(-1)
    before = probs.cumsum(-1) - probs
    bits = sampling.random_bits(rows.seed[:, None], rows.step[:, None], ids)
    noise = -torch.log(-torch.log1p(-((bits | 1).float() * 2.0**-32).clamp(max=1 - 2.0**-24)))
    best = (scores + noise).masked_fill(before >= rows.top_p[:, None], -torch.inf).argmax(-1)
    return ids.gather(1, best[:, None])[:, 0]


def flashinfer_by_p(logits: Tensor, rows: BatchState) -> Tensor:
    """FlashInfer's rejection kernel for top-p. ValueError where it is not installed."""
    probs, theirs = _flashinfer(logits, rows)
    tokens: Tensor = theirs.top_p_sampling_from_probs(probs, rows.top_p, seed=rows.seed, offset=rows.step)
    return tokens


def flashinfer_by_both(logits: Tensor, rows: BatchState) -> Tensor:
    """FlashInfer's rejection kernel for top-k and top-p at once, each of all probabilities."""
    probs, theirs = _flashinfer(logits, rows)
    tokens: Tensor = theirs.top_k_top_p_sampling_from_probs(
        probs, rows.top_k, rows.top_p, filter_apply_order="joint", seed=rows.seed, offset=rows.step
    )  # seed and offset as tensors: numbers would be frozen by a capture
    return tokens


def _flashinfer(logits: Tensor, rows: BatchState) -> tuple[Tensor, Any]:
    if find_spec("flashinfer") is None:
        raise ValueError("flashinfer is not installed: pip install 'nanoinfer[flashinfer]'")
    from flashinfer import sampling as theirs

    return theirs.softmax(logits.float(), temperature=rows.temperature), theirs
