"""What "tokens equal" means in this book, in one function. Chapter 1.

Batches of different sizes run different matrix kernels, so logits differ in their last bits and two engines may part
where two tokens all but tie; from there on their texts differ, and comparing them says nothing. So each token is held
against the oracle on the row's *own* text: it must be the oracle's choice, or a near-tie with it. Tests, benchmark and
course use this and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from nanoinfer.engine.samplers import filters
from nanoinfer.engine.sampling import Choices, noisy, scaled, threshold
from nanoinfer.requests import Completion, Logprobs, SamplingParams

Oracle = Callable[[Tensor], Tensor]  # token ids (1, T) -> logits (1, T, V), float32

TOLERANCE = 1e-4  # of max(1, the row's largest |logit|), for float32
NEAR_TIES_ALLOWED = 0.001  # of all tokens


@dataclass(frozen=True)
class Proof:
    """What was compared: every token was the oracle's own choice but for `near_ties` of them."""

    tokens: int
    near_ties: int
    smallest_gap: float  # between the best score and the next, over all tokens: how sharp the proof was
    logprobs: int = 0  # how many tokens' logprobs were compared as well

    def __str__(self) -> str:
        return f"{self.tokens} tokens equal, {self.near_ties} near-ties, closest call {self.smallest_gap:.2g}"


def verify_tokens(
    oracle: Oracle,
    completions: Sequence[Completion],
    params: SamplingParams | Sequence[SamplingParams],
    tolerance: float = TOLERANCE,
) -> Proof:
    """Hold every token of every completion against `oracle`, which sees the whole text at once.

    params: what the completions were asked with, one for all or one a completion. For sampled rows the oracle's choice
    is that of the book's sampling rule on the oracle's logits, with the seed that the completion records. Logprobs that
    were asked for must be the oracle's, too, within the same tolerance.
    Raises AssertionError with the first row and token that differ, or where near-ties are too many.
    """
    listed = [params] * len(completions) if isinstance(params, SamplingParams) else list(params)
    tokens = near_ties = logprobs = 0
    smallest_gap = float("inf")
    for completion, asked in zip(completions, listed, strict=True):
        prompt, new = len(completion.prompt_token_ids), len(completion.token_ids)
        text = [*completion.prompt_token_ids, *completion.token_ids[:-1]]
        every = oracle(torch.tensor([text]))[0]  # (T, V) after every token but the last, of the row's own text
        logprobs += _compare_logprobs(every, completion, asked, tolerance)
        if not new:
            continue
        logits = every[prompt - 1 : prompt - 1 + new]  # (n, V)
        allowed = tolerance * logits.abs().amax(-1).clamp(min=1)  # (n,)
        scores, margin = _scores(_penalised(logits, completion, asked), asked, completion.seed)  # (n, V) each
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
    return Proof(tokens, near_ties, smallest_gap, logprobs)


def _penalised(logits: Tensor, completion: Completion, params: SamplingParams) -> Tensor:
    """Logits (n, V) less the penalties of what the row had generated before each token; the prompt counts for none."""
    if not params.penalises:
        return logits
    counts = torch.zeros_like(logits)
    newest = torch.tensor(completion.token_ids[:-1], dtype=torch.int64, device=logits.device)
    counts[1:].scatter_(1, newest[:, None], 1.0).cumsum_(0)
    return logits - params.presence_penalty * (counts > 0) - params.frequency_penalty * counts


def _compare_logprobs(logits: Tensor, completion: Completion, params: SamplingParams, tolerance: float) -> int:
    """Hold the completion's logprobs against log_softmax of the oracle's logits (T, V); how many there were."""
    ids = completion.prompt_token_ids + completion.token_ids
    prompt, name, count = len(completion.prompt_token_ids), f"prompt {completion.index}", 0
    for kind, got, asked, begin, end in (
        ("prompt_logprobs", completion.prompt_logprobs, params.prompt_logprobs, 0, prompt),
        ("logprobs", completion.logprobs, params.logprobs, prompt, len(ids)),
    ):
        if asked is None and got is None:
            continue
        if asked is None or got is None or len(got) != end - begin:
            found = "none" if got is None else f"{len(got)}"
            raise AssertionError(f"{name} has {found} {kind} of {end - begin} tokens, asked for as {asked}")
        for at, record in enumerate(got, begin):
            if wrong := _wrong_logprobs(record, logits[at - 1] if at else None, ids[at], asked, tolerance):
                raise AssertionError(f"{name}, {kind} of token {at - begin}: {wrong}")
            count += record is not None
    return count


def _wrong_logprobs(
    record: Logprobs | None, logits: Tensor | None, token_id: int, top: int, tolerance: float
) -> str | None:
    """What is wrong with the record of a token that stands after these logits (V,); None where nothing is."""
    if record is None or logits is None:
        right = record is None and logits is None
        return None if right else "the first token of a text has none, and every other has one"
    every, allowed = logits.log_softmax(-1), tolerance * max(1.0, float(logits.abs().max()))
    best = every.topk(min(top, len(every)))
    ids = [record.token_id, *(i for i, _ in record.top)]
    if record.token_id == token_id and len(ids) - 1 == len(set(ids[1:])) == len(best.values):
        got = torch.tensor([record.logprob, *(value for _, value in record.top)], device=every.device)
        own = every[ids]
        # Ids that tie may stand in for each other: each has its own value, and the values are the highest.
        if bool(((got - own).abs() <= allowed).all() and ((got[1:] - best.values).abs() <= allowed).all()):
            return None
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return f"{record}, but the oracle has {Logprobs(token_id, float(every[token_id]), tuple(pairs))}"


def _scores(logits: Tensor, params: SamplingParams, seed: int) -> tuple[Tensor, Tensor]:
    """By the sampling rule, what each id scores, (n, V), and by how much it passes the filters, (n, V)."""
    everywhere = torch.full_like(logits, torch.inf)
    if params.greedy:
        return logits, everywhere
    each = partial(torch.full, (len(logits),), device=logits.device)
    steps = torch.arange(len(logits), device=logits.device)  # step i of this row stands as row i of a batch
    rows = Choices(each(float(params.temperature)), each(float(params.top_p)), each(params.top_k), each(seed), steps)
    scores = scaled(logits, rows.temperature)
    margin = scores - threshold(scores, rows.top_k, rows.top_p) if filters(params) else everywhere
    return noisy(scores, rows), margin
