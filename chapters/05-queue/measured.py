"""Chapter 5's numbers from results files: a pool too small, prompts beside rows that decode, rates of arrival.

The files come from `python -m bench queue` and `load`, with `--out bench/results/h200-NAME.json`; `python -m nanobook
prose` then fills the numbers into the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean, median

import torch

from nanobench.load.records import LoadReport, LoadRun
from nanobench.micro.queue import QueueReport
from nanobench.micro.queue_arrivals import ArrivalRuns, Gaps
from nanobench.micro.queue_load import Run
from nanobench.micro.queue_parts import PrefixRuns
from nanobench.report.values import factor, seconds, share
from nanobook.examples import only, results
from nanoinfer.capacity import batched_tokens
from nanoinfer.serve.completions import EVENTS_PER_S
from nanoinfer.serve.config import ServeConfig

LOADED = "load --engine --serve --rates 50%,80%,95%,130%,180% --repeats 2 --seconds 5"
queue = partial(results, QueueReport, "h200-queue", "queue")  # arrivals, shared prefixes, and a pool too small
load = partial(results, LoadReport, "h200-load", LOADED)  # open arrivals at the engine and at the server


def budget_of(tokens: int) -> ArrivalRuns:
    """Rows that run, beside long prompts that arrive, with this budget."""
    return only(queue().arrivals, max_batched_tokens=tokens)


def pool(preemption: bool) -> Sequence[Run]:
    """The runs of the pool that is too small."""
    found = queue().pool
    assert found
    return found.preemption if preemption else found.reservation


def prefix_of(model: str) -> PrefixRuns:
    """Prompts that begin alike."""
    return only(queue().prefix, model=model)


def rates(target: str) -> list[LoadRun]:
    """One target's runs with a rate, in their order."""
    return [run for run in load().runs if run.target == target and run.plan.how == "arrivals"]


def longest_gap(gaps: Gaps) -> float:
    """The longest gap in one of the run's hundred stretches, each about as long as from one prompt to the next."""
    return median(gaps.longest_s)


def feeding(gaps: Gaps) -> float:
    """Share of the steps that feed prompts."""
    return gaps.counted.prefill_steps / (gaps.counted.prefill_steps + gaps.counted.decode_steps)


def budgets() -> None:
    """What 64 rows that decode notice of prompts of 900 tokens, and how soon these begin."""
    print(f"{'':18}{'the longest gap of a stretch':>30}{'steps that':>22}{'first token':>17}")
    print(f"{'tokens of a step':18}{'alone':>15}{'beside prompts':>17}{'feed prompts':>20}{'p50':>11}{'p99':>10}")
    for one in sorted(queue().arrivals, key=lambda one: -one.max_batched_tokens):
        alone, beside = (f"{1e3 * longest_gap(gaps):.2f} ms" for gaps in (one.alone, one.beside))
        print(f"{one.max_batched_tokens:>10}{alone:>23}{beside:>17}{share(feeding(one.beside)):>20}"
              f"{seconds(one.ttft.p50):>11}{seconds(one.ttft.p99):>10}")  # fmt: skip


def too_small() -> None:
    """300 requests in a pool for a quarter of the longest texts of 256 rows; medians of the runs."""
    print(f"{'':12}{'tok/s':>9}{'first token, p50':>18}{'p99':>8}{'gap, p50':>11}{'longest':>10}{'preempted':>12}"
          f"{'fed again':>11}")  # fmt: skip
    for name, preemption in (("reservation", False), ("preemption", True)):
        runs = pool(preemption)
        again = runs[0].counted.recomputed_tokens / (runs[0].prompt_tokens + runs[0].new_tokens)
        p50, p99, gap, longest = (
            seconds(median(quantile(run) for run in runs))
            for quantile in (
                lambda run: run.ttft.p50, lambda run: run.ttft.p99, lambda run: run.itl.p50, lambda run: run.itl.longest
            )
        )  # fmt: skip
        rate_ = median(run.tokens_per_s for run in runs)
        print(f"{name:12}{rate_:>9,.0f}{p50:>18}{p99:>8}{gap:>11}{longest:>10}{runs[0].counted.preemptions:>12}"
              f"{share(again):>11}")  # fmt: skip


def knee() -> None:
    """The server at rates up to and past what it can do."""
    print(f"{'asked':>8}{'done':>8}{'tok/s':>10}{'first token: p50':>19}{'p99':>10}{'within limits':>16}")
    for run in rates("serve"):
        assert run.ttft
        assert run.plan.per_second
        print(f"{run.plan.per_second:>6.0f}/s{run.requests_per_s:>6.0f}/s{run.tokens_per_s:>10,.0f}"
              f"{seconds(run.ttft.p50):>19}{seconds(run.ttft.p99):>10}{run.goodput_per_s:>14.0f}/s")  # fmt: skip


def _pool_gain() -> str:
    on, off = (median(run.tokens_per_s for run in pool(preemption)) for preemption in (True, False))
    return factor(on / off)


def _bursts() -> list[LoadRun]:
    """The engine's runs with all requests at once, whose mean rate is the 100 percent of the others."""
    return [run for run in load().runs if run.target == "engine" and run.plan.how == "at once"]


def _together(run: LoadRun) -> str:
    """Tokens that an event of a stream brings."""
    return f"{run.new_tokens / run.pieces:.0f}"


def _late(target: str) -> str:
    late = rates(target)[-1].late
    assert late
    return seconds(late.longest)


NUMBERS: dict[str, Callable[[], str]] = {
    "gap whole": lambda: f"{1e3 * longest_gap(budget_of(2048).beside):.2f} ms",
    "gap chunks": lambda: f"{1e3 * longest_gap(budget_of(256).beside):.2f} ms",
    "ttft whole": lambda: seconds(budget_of(2048).ttft.p50),
    "ttft chunks": lambda: seconds(budget_of(256).ttft.p50),
    "median step": lambda: seconds(budget_of(2048).alone.itl.p50),
    "budget gpu": lambda: f"{batched_tokens(torch.device('cuda')):,}",
    "budget cpu": lambda: f"{batched_tokens(torch.device('cpu')):,}",
    "prefix gain": lambda: factor(prefix_of("random:gpt2-xl").gain),
    "prefix gain small": lambda: factor(prefix_of("random:gpt2").gain),
    "prefix computed": lambda: share(prefix_of("random:gpt2-xl").computed_share),
    "prefix shared": lambda: share(prefix_of("random:gpt2-xl").shared_share),
    "pool gain": _pool_gain,
    "pool gap": lambda: seconds(median(run.itl.longest for run in pool(True))),
    "pool gap reserved": lambda: seconds(median(run.itl.longest for run in pool(False))),
    "pool gaps": lambda: f"{pool(True)[0].itl.count:,}",
    "pool rows": lambda: f"{queue().pool.rows}",  # type: ignore[union-attr]
    "pool prompt": lambda: f"{pool(True)[0].prompt_tokens / pool(True)[0].requests:.0f}",
    "pool blocks": lambda: f"{queue().pool.kv_blocks:,}",  # type: ignore[union-attr]
    "pool preempted": lambda: f"{pool(True)[0].counted.preemptions}",
    "pool again": lambda: f"{pool(True)[0].counted.recomputed_tokens:,}",
    "burst rate": lambda: f"{mean(run.requests_per_s for run in _bursts()):.0f}",
    "burst requests": lambda: f"{_bursts()[0].plan.requests:,}",
    "top done": lambda: f"{rates('serve')[-1].requests_per_s:,.0f}",
    "top itl p99": lambda: seconds(rates("serve")[-1].itl.p99),  # type: ignore[union-attr]
    "top mean itl": lambda: seconds(rates("serve")[-1].mean_itl.p50),  # type: ignore[union-attr]
    "top together": lambda: _together(rates("serve")[-1]),
    "low together": lambda: _together(rates("serve")[0]),
    "events": lambda: f"{EVENTS_PER_S:,}",
    "default queue": lambda: f"{ServeConfig().queue}",
    "engine late": lambda: _late("engine"),
    "top goodput": lambda: f"{rates('serve')[-1].goodput_per_s:.0f}",
    "best goodput": lambda: f"{max(run.goodput_per_s for run in rates('serve')):.0f}",
    "knee p99": lambda: seconds(rates("serve")[-2].ttft.p99),  # type: ignore[union-attr]
    "top p99": lambda: seconds(rates("serve")[-1].ttft.p99),  # type: ignore[union-attr]
}
