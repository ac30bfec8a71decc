"""Drafts of which a known share is right, against plain decoding: what a step of several tokens brings.

Rows of equal length begin together. The drafts of a row are its own next tokens, known from a plain run, or a wrong one
where the coin says so. In bfloat16 a verify step rounds differently from a plain one, and a row that chose another
token at a near-tie would leave its known text. So the embedding is scaled until the next token is clear, which changes
no time; `same_share` says whether that was enough.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Literal, NamedTuple, cast

import torch
import typer

from nanobench.core.machine import place, stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.core.timing import by_turns
from nanobench.micro.queue_load import ids, made
from nanobench.options import Device, Models, NewTokens, Out, Repeats, Rows
from nanoinfer import LLM, SamplingParams
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model
from nanoinfer.speculate.coin import CoinDrafter
from nanoinfer.speculate.engine import DraftEngine
from nanoinfer.speculate.pays import Pays

PROMPT = 128
CLEAR = 64  # times the random embedding: then a token's own logit is far above all others
SEED = 7


class Forced(Record):
    """One case: a whole `generate()` with drafts, and one without, by turns."""

    SHOWN = ("gain", "formula", "step_cost")

    model: str
    rows: int
    alpha: float  # of the coin
    draft_tokens: int  # of a row in a step at most
    adaptive: bool  # whether rows bring fewer, or none, where that is faster
    plain: Spread  # tokens a second
    drafted: Spread
    accepted_share: float  # of the drafts that were brought
    tokens_a_step: float  # of a row, behind its prompt: steps with drafts and without
    same_share: float  # of the tokens, that are those of the plain run

    @property
    def gain(self) -> float:
        """Speed over plain, medians."""
        return self.drafted.median / self.plain.median

    @property
    def formula(self) -> float:
        """Tokens a step if alpha holds and all drafts are brought: 1 + alpha + ... + alpha ** k."""
        return sum(self.alpha**n for n in range(self.draft_tokens + 1))

    @property
    def step_cost(self) -> float:
        """Time of a step over that of a plain one."""
        return self.tokens_a_step / self.gain


class SpeculationReport(ResultsFile):
    """One run of `python -m bench speculation`."""

    kind: Literal["speculation"] = "speculation"
    dtype: str
    prompt_tokens: int = PROMPT
    new_tokens: int
    cases: tuple[Forced, ...] = ()


class Ran(NamedTuple):
    """One `generate()`."""

    tokens_per_s: float
    texts: list[tuple[int, ...]]
    accepted_share: float
    tokens_a_step: float


def measure(
    device: Device = None,
    out: Out = Path("my-bench/speculation.json"),
    model: Models = ["random:gpt2"],  # noqa: B006
    rows: Rows = [1, 4, 16, 64],  # noqa: B006
    alpha: Annotated[list[float], typer.Option(min=0, max=1, help="Chance of a right draft; repeatable.")] = [  # noqa: B006
        0.6, 0.8, 0.9,
    ],
    drafts: Annotated[list[int], typer.Option(min=1, max=64, help="Of a row in a step; repeatable.")] = [2, 4, 8],  # noqa: B006
    new_tokens: NewTokens = 256,
    repeats: Repeats = 3,
) -> None:  # fmt: skip
    """Measure every case, and the adaptive choice among the largest number of drafts; write after each model."""
    where, dtype = place(device)
    report = SpeculationReport(new_tokens=new_tokens, **stamp(where, dtype))
    for name in model:
        weights = load_model(name, where, dtype, seed=0)
        with torch.inference_mode():
            weights.wte.weight.mul_(CLEAR)
        report = report.fill(out, cases=_cases(name, weights, sorted(rows), alpha, drafts, new_tokens, repeats))


def _cases(
    name: str, model: GPT2, rows: Sequence[int], alphas: Sequence[float], drafts: Sequence[int], new: int, repeats: int
) -> Iterator[Forced]:
    blocks = 1 + rows[-1] * -(-(PROMPT + new + max(drafts) + 1) // 16)
    warm = partial(made, model, rows[-1], kv_blocks=blocks, prefix_caching=False)
    with warm()[0] as plain:
        for adaptive, most in [*((False, most) for most in drafts), (True, max(drafts))]:
            with warm(speculate="lookup", draft_tokens=most, adaptive_drafts=adaptive)[0] as drafted:
                core = cast(DraftEngine, drafted.core)
                core.begin_with(CoinDrafter(drafted.max_batch, drafted.max_len, most, model.device))
                drafted.warm_up()
                for count in rows:
                    yield from _arms(name, plain, drafted, count, alphas, new, repeats)


def _arms(
    name: str, plain: LLM, drafted: LLM, rows: int, alphas: Sequence[float], new: int, repeats: int
) -> Iterator[Forced]:
    """Of one engine with drafts and one number of rows: plain, each alpha, and again. The first turn is not timed."""
    draws, core, config = random.Random(SEED), cast(DraftEngine, drafted.core), drafted.config
    prompts = [ids(draws, PROMPT, plain.model.config.vocab_size) for _ in range(rows)]
    params = [SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, seed=row) for row in range(rows)]
    texts = run(plain, prompts, params).texts

    def forced(alpha: float) -> Iterator[Ran]:
        for turn in itertools.count():
            cast(CoinDrafter, core.drafter).begin(dict(enumerate(texts)), alpha, turn)
            core.adaptive = Pays() if config.adaptive_drafts else None  # another alpha's is wrong here
            yield run(drafted, prompts, params)

    arms: dict[float | None, Callable[[], Ran]] = {None: partial(run, plain, prompts, params)}
    rates = by_turns(arms | {alpha: partial(next, forced(alpha)) for alpha in alphas}, repeats)
    for alpha in alphas:
        runs = rates[alpha]
        yield Forced(
            model=name, rows=rows, alpha=alpha, draft_tokens=config.draft_tokens, adaptive=config.adaptive_drafts,
            plain=Spread.of([ran.tokens_per_s for ran in rates[None]]),
            drafted=Spread.of([ran.tokens_per_s for ran in runs]),
            accepted_share=median(ran.accepted_share for ran in runs),
            tokens_a_step=median(ran.tokens_a_step for ran in runs),
            same_share=median(share_of_same(ran.texts, texts) for ran in runs),
        )  # fmt: skip


def run(llm: LLM, prompts: Sequence[Sequence[int]], params: list[SamplingParams]) -> Ran:
    """All prompts in one call."""
    names = ("accepted_tokens", "draft_tokens", "decode_steps")
    before = [getattr(llm.stats, name) for name in names]
    started = time.perf_counter()
    done = llm.generate(prompts, params)
    seconds = time.perf_counter() - started
    accepted, brought, steps = (getattr(llm.stats, name) - old for name, old in zip(names, before, strict=True))
    tokens = sum(len(one.token_ids) for one in done)
    return Ran(
        tokens / seconds, [one.token_ids for one in done], accepted / brought if brought else 0.0,
        (tokens / len(done) - 1) / steps,  # the first token is the prompt's
    )  # fmt: skip


def share_of_same(texts: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> float:
    """Share of the tokens that are the same in the same place of both."""
    pairs = [pair for text, other in zip(texts, others, strict=True) for pair in zip(text, other, strict=True)]
    return sum(one == other for one, other in pairs) / len(pairs)
