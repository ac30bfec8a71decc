"""What "tokens equal" means in this book, in one function. Chapter 1.

Batches of different sizes run different matrix kernels, so logits differ in their last bits and two engines may part
where two tokens all but tie; from there on their texts differ, and comparing them says nothing. So each token is held
against the oracle on the row's *own* text: it must be the oracle's choice, or a near-tie with it. Tests, benchmark and
course use this and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanoinfer.engine.sampling import noisy, scaled, threshold
from nanoinfer.engine.state import BatchState
from nanoinfer.requests import Completion, SamplingParams

Oracle = Callable[[Tensor], Tensor]  # token ids (1, T) -> logits (1, T, V), float32

TOLERANCE = 1e-4  # of max(1, the row's largest |logit|), for float32
NEAR_TIES_ALLOWED = 0.001  # of all tokens


@dataclass(frozen=True)
class Proof:
    """What was compared: every token was the oracle's own choice but for `near_ties` of them."""

    tokens: int
    near_ties: int
    smallest_gap: float  # between the best score and the next, over all tokens: how sharp the proof was

    def __str__(self) -> str:
        return f"{self.tokens} tokens equal, {self.near_ties} near-ties, closest call {self.smallest_gap:.2g}"


def verify_tokens(
    oracle: Oracle,
    completions: Sequence[Completion],
    params: SamplingParams | Sequence[SamplingParams],
    tolerance: float = TOLERANCE,
) -> Proof:
    """Hold every token of every completion against `oracle`, which sees the whole text at once.

    params: what the completions were asked with. For sampled rows the oracle's choice is that of the book's sampling
    rule on the oracle's logits, with the seed that the completion records.
    Raises AssertionError with the first row and token that differ, or where near-ties are too many.
    """
    listed = [params] * len(completions) if isinstance(params, SamplingParams) else list(params)
    tokens = near_ties = 0
    smallest_gap = float("inf")
    for completion, asked in zip(completions, listed, strict=True):
        logits = _own_logits(oracle, completion)  # (n, V)
        allowed = tolerance * logits.abs().amax(-1).clamp(min=1)  # (n,)
        scores, margin = _scores(logits, asked, completion.seed)  # (n, V) each
        # An id about as far as rounding from the filters' threshold may be kept or not: it may be chosen, need not be.
        edge = allowed[:, None] / (asked.temperature or 1.0)
        best = scores.masked_fill(margin < 0, -torch.inf).topk(2, dim=-1)
        surely_best = scores.masked_fill(margin <= edge, -torch.inf).amax(-1)  # (n,)
        chosen = torch.tensor(completion.token_ids, device=scores.device)
        chosen_score = scores.masked_fill(margin < -edge, -torch.inf).gather(1, chosen[:, None])[:, 0]  # (n,)
        same = best.indices[:, 0] == chosen
        wrong = ~same & ~(surely_best - chosen_score <= allowed)
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            raise AssertionError(
                f"prompt {completion.index}, new token {at}: {int(chosen[at])} was chosen, but the oracle chooses "
                f"{int(best.indices[at, 0])}, ahead by {float(best.values[at, 0] - chosen_score[at]):.3g} where "
                f"{float(allowed[at]):.2g} is a near-tie"
            )
        tokens += len(chosen)
        near_ties += int((~same).sum())
        smallest_gap = min(smallest_gap, float((best.values[:, 0] - best.values[:, 1]).min()))
    if near_ties > NEAR_TIES_ALLOWED * tokens:
        raise AssertionError(f"{near_ties} of {tokens} tokens are near-ties, more than {NEAR_TIES_ALLOWED:.1%}")
    return Proof(tokens, near_ties, smallest_gap)


def _own_logits(oracle: Oracle, completion: Completion) -> Tensor:
    """The oracle's logits (n, V) before each of the n new tokens, on the text that the row itself produced."""
    text = torch.tensor([[*completion.prompt_token_ids, *completion.token_ids[:-1]]])
    return oracle(text)[0, len(completion.prompt_token_ids) - 1 :]


def _scores(logits: Tensor, params: SamplingParams, seed: int) -> tuple[Tensor, Tensor]:
    """By the sampling rule, what each id scores, (n, V), and by how much it passes the filters, (n, V)."""
    everywhere = torch.full_like(logits, torch.inf)
    if params.greedy:
        return logits, everywhere
    n, device = len(logits), logits.device

    rows = BatchState.empty(n, device).at(slice(0, n))  # step i of this row stands as row i of a batch
    rows.step.copy_(torch.arange(n))
    rows.seed.fill_(seed)
    rows.top_k.fill_(params.top_k)
    rows.temperature.fill_(params.temperature)
    rows.top_p.fill_(params.top_p)
    scores = scaled(logits, rows.temperature)
    margin = scores - threshold(scores, rows.top_k, rows.top_p) if params.filters else everywhere
    return noisy(scores, rows), margin
