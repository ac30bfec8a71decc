"""What to guess in chapter 7 before it is measured: in a few seconds, on a CPU or a GPU."""

from __future__ import annotations

import time
from typing import Any

import torch

from nanocourse.learner.predict import Prediction
from nanoinfer import LLM, SamplingParams
from nanoinfer.model.weights import load_model
from nanoinfer.speculate.coin import CoinDrafter

ALPHA, K, NEW, ROWS = 0.8, 4, 120, 8
PROMPT = "Once upon a time there was a little fox who lived in the forest. "


def run(device: torch.device, params: list[SamplingParams], alpha: float | None) -> tuple[float, float, float]:
    """Tokens a step of a row, seconds a step, and seconds in all, of rows whose drafts are right by a coin."""
    model = load_model("small", device, torch.float32)
    rows, config = len(params), {"engine": "dense", "max_batch": len(params), "max_len": 192}
    with LLM(model, **config) as plain:
        texts = {one.seed: one.token_ids for one in plain.generate([PROMPT] * rows, params)}
    coin = {} if alpha is None else {"speculate": "lookup", "draft_tokens": K, "adaptive_drafts": False}
    with LLM(model, **config, **coin) as llm:
        core: Any = llm.core
        if alpha is not None:
            drafter = CoinDrafter(rows, llm.max_len, K, device)
            drafter.begin(texts, alpha, seed=7)
            core.begin_with(drafter)
        llm.generate([PROMPT] * rows, params[:1] * rows)
        steps, start = llm.stats.decode_steps, time.perf_counter()
        llm.generate([PROMPT] * rows, params)
        seconds, steps = time.perf_counter() - start, llm.stats.decode_steps - steps
        return (params[0].max_tokens - 1) / steps, seconds / steps, seconds


def asked(rows: int, new: int) -> list[SamplingParams]:
    """Sampled rows of so many new tokens each."""
    return [SamplingParams(max_tokens=new, seed=1 + at, ignore_eos=True) for at in range(rows)]


def formula(device: torch.device) -> float:
    """One in any case, and one more for each draft, as often as it and all before it are right."""
    return sum(ALPHA**n for n in range(K + 1))


def tokens(device: torch.device) -> float:
    """Of one row."""
    return run(device, asked(1, NEW), ALPHA)[0]


def no_more(device: torch.device) -> float:
    """If a step takes as long as reading the weights, whatever it computes with them."""
    return 1.0


def all_arithmetic(device: torch.device) -> float:
    """If a step takes as long as its tokens are many."""
    return K + 1.0


def cost(rows: int, device: torch.device) -> float:
    """A step of rows with k drafts, all of them right, over a plain one."""
    return run(device, asked(rows, 26), 1.0)[1] / run(device, asked(rows, 26), None)[1]


def one_row(device: torch.device) -> float:
    """Latency: nobody else uses the machine."""
    return cost(1, device)


def many_rows(device: torch.device) -> float:
    """Rows that fill the machine themselves."""
    return cost(ROWS, device)


def all_right(device: torch.device) -> float:
    """Every draft, and the token after it."""
    return K + 1.0


def looked_up(device: torch.device) -> float:
    """Tokens a step of a greedy row that is asked for a text whose beginning stands in its prompt twice."""
    model, params = load_model("small", device, torch.float32), SamplingParams(max_tokens=60, temperature=0)
    with LLM(model, engine="dense", max_len=256) as plain:
        told = plain.generate(PROMPT, params)[0].text
    with LLM(model, engine="dense", max_len=256, speculate="lookup", draft_tokens=K, adaptive_drafts=False) as llm:
        done = llm.generate(PROMPT + told + "\n" + PROMPT, params)[0]
        return (len(done.token_ids) - 1) / llm.stats.decode_steps


def _tokens(bound: float, measured: float) -> str:
    return "the formula is a mean, and this was some thirty steps; the limit also cuts the last one"


def _one(bound: float, measured: float) -> str:
    if measured > 2:
        return "here arithmetic is not free even for one sequence: a CPU multiplies about as slowly as it reads"
    return "sampling at five positions, attention for five tokens, and drafting also take time"


def _many(bound: float, measured: float) -> str:
    if measured > K + 1:
        return "not only arithmetic grows: each position is sampled, and larger tensors leave the processor's caches"
    return "the fixed cost of a step is shared by five times as many tokens"


def _looked_up(bound: float, measured: float) -> str:
    return "a draft needs an n-gram that was there before and went on in the same way; in new text there is none"


PREDICTIONS = (
    Prediction(
        "tokens", f"One sequence, {K} drafts a step, each right with probability {ALPHA} if all before it are. How "
        "many tokens does a step give?", "tokens",
        formula, "1 + alpha + ... + alpha to the power of k", tokens, _tokens,
    ),
    Prediction(
        "one row", f"One sequence brings {K} drafts to each step. How many times as long as a plain step does it "
        "take?", "times", no_more, "reading the weights, and nothing else", one_row, _one,
    ),
    Prediction(
        "many rows", f"{ROWS} sequences bring {K} drafts each. How many times as long as a plain step does a step "
        "take?", "times", all_arithmetic, "five times the arithmetic, and nothing else", many_rows, _many,
    ),
    Prediction(
        "lookup", f"A greedy sequence whose prompt has its own first answer, and then the same question; {K} drafts by "
        "prompt lookup. How many tokens does a step give?", "tokens",
        all_right, "all drafts right, at every step", looked_up, _looked_up,
    ),
)  # fmt: skip
