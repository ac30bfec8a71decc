"""One model on one GPU and on several: whole texts and single steps over rows, and the weights a rank holds."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch

from nanobench.core.machine import stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.micro.queue_load import greedy, ids, say
from nanobench.micro.ranks_reduce import Reduced, measure_reduces
from nanoinfer import LLM
from nanoinfer.devices import choose_device
from nanoinfer.model.weights import model_config
from nanoinfer.requests import Completion

SEED = 7


class Ranked(Record):
    """One engine with so many rows at once."""

    model: str
    ranks: int
    rows: int
    tokens_per_s: Spread  # of a whole `generate()`
    step_s: Spread  # median gap between two tokens of a row, in each run


class Held(Record):
    """What the first rank's device holds."""

    model: str
    ranks: int
    weights_bytes: int
    warm_up_s: float


class RanksReport(ResultsFile):
    """One run of `python -m bench ranks`."""

    kind: Literal["ranks"] = "ranks"
    dtype: str
    prompt_tokens: int
    new_tokens: int
    reduces: tuple[Reduced, ...] = ()
    held: tuple[Held, ...] = ()
    cases: tuple[Ranked, ...] = ()

    def gain(self, model: str, rows: int) -> float:
        """Tokens/s of the most ranks over one, medians."""
        rates = {
            case.ranks: case.tokens_per_s.median for case in self.cases if (case.model, case.rows) == (model, rows)
        }
        return rates[max(rates)] / rates[1]


def measure(
    device_name: str | None, path: Path, models: Sequence[str], ranks: int, rows: Sequence[int], prompt: int, new: int,
    repeats: int,
) -> RanksReport:  # fmt: skip
    """Measure every model with one rank and with `ranks`, by turns; write `path` after each model."""
    device, report, reduces = choose_device(device_name), None, list[Reduced]()
    if device.type == "cuda":
        reduces = measure_reduces(ranks, model_config(models[-1]).n_embd, rows, torch.bfloat16)
    for name in models:
        with ExitStack() as stack:
            held, arms = list[Held](), dict[int, LLM]()
            for count in (1, ranks):
                blocks = 1 + max(rows) * -(-(prompt + new) // 16)
                engine = "paged-graph" if device.type == "cuda" else "paged"
                settings: dict[str, Any] = {"max_batch": max(rows), "kv_blocks": blocks, "prefix_caching": False}
                llm = stack.enter_context(
                    LLM(name, engine=engine, device=device_name, tensor_parallel=count, **settings)
                )
                began = time.perf_counter()
                llm.warm_up()
                weights = sum(each.nbytes for each in llm.model.parameters())
                held.append(Held(model=name, ranks=count, weights_bytes=weights, warm_up_s=time.perf_counter() - began))
                say(f"{name}, {count} ranks: {weights / 1e6:,.0f} MB of weights, warm_up {held[-1].warm_up_s:.1f} s")
                arms[count] = llm
            dtype = str(arms[1].model.dtype).removeprefix("torch.")
            facts: dict[str, Any] = {"dtype": dtype, "prompt_tokens": prompt, "new_tokens": new, **stamp(device)}
            report = report or RanksReport(reduces=tuple(reduces), **facts)
            cases = [case for count in rows for case in _by_turns(name, arms, count, prompt, new, repeats)]
        report = report.model_copy(update={"held": (*report.held, *held), "cases": (*report.cases, *cases)})
        report.save(path)
    assert report
    return report


def _by_turns(name: str, arms: dict[int, LLM], rows: int, prompt: int, new: int, repeats: int) -> list[Ranked]:
    """The arms take turns; the first turn is not timed."""
    draws = random.Random(SEED)
    rates: dict[int, list[tuple[float, float]]] = {count: [] for count in arms}
    for turn in range(repeats + 1):
        prompts = [ids(draws, prompt, arms[1].model.config.vocab_size) for _ in range(rows)]
        for count, llm in arms.items():
            began = time.perf_counter()
            done = llm.generate(prompts, greedy(new))
            if turn:
                rates[count].append((rows * new / (time.perf_counter() - began), _step(done)))
    cases = [
        Ranked(model=name, ranks=count, rows=rows, tokens_per_s=Spread.of([rate for rate, _ in both]),
               step_s=Spread.of([step for _, step in both]))
        for count, both in rates.items()
    ]  # fmt: skip
    first = cases[0]
    for case in cases:
        gain = case.tokens_per_s.median / first.tokens_per_s.median
        say(
            f"{name} {rows:3} rows on {case.ranks}: {case.tokens_per_s.median:9,.0f} tok/s, {gain:.2f} times one;"
            f" a step {1e6 * case.step_s.median:,.0f} us ({first.step_s.median / case.step_s.median:.2f} times as fast)"
        )
    return cases


def _step(done: Sequence[Completion]) -> float:
    """Median gap between two tokens."""
    return float(torch.tensor([gap for one in done for gap in one.metrics.itl_s]).median())
