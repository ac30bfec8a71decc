"""The runs of `bench load`: every target meets the same requests, at once, at rates, by a trace or in a closed loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from nanobench.load.drive import Ask
from nanobench.load.records import Limits, LoadRun, Plan, counted
from nanobench.load.requests import Source, poisson
from nanobench.load.targets import Target


class Rate(NamedTuple):
    """Requests a second, or a share of what the first target answers when all are sent at once."""

    value: float
    is_share: bool = False

    @classmethod
    def of(cls, text: str) -> Rate:
        """Of `12.5` or `80%`. ValueError for another."""
        try:
            rate = cls(float(text.removesuffix("%")) / (100 if text.endswith("%") else 1), text.endswith("%"))
        except ValueError:
            rate = cls(0)
        if not 0 < rate.value < float("inf"):
            raise ValueError(f"rates must be like 12.5 or 80%, with commas between, not {text!r}")
        return rate


@dataclass(frozen=True)
class Schedule:
    """Which runs there are, against each target. None of the three: as the trace says, or all at once.

    rates: of Poisson arrivals, `group` at a time; where one is a share, all at once come first. seconds: that each of
    them lasts; None for as many requests as at once. concurrency: of closed loops. repeats: of runs of all at once.
    """

    rates: tuple[Rate, ...] = ()
    concurrency: tuple[int, ...] = ()
    group: int = 1
    seconds: float | None = None
    repeats: int = 1

    def plans(self, source: Source, capacity: Callable[[], float]) -> Iterator[Plan]:
        """One after the other. capacity: requests a second, once the runs of all at once are over."""
        requests = source.mix.requests
        due = [line.arrival_s for line in source.trace if line.arrival_s is not None]
        if any(rate.is_share for rate in self.rates) or not (self.rates or self.concurrency or due):
            yield from [Plan(how="at once", requests=requests)] * self.repeats
        elif due and not (self.rates or self.concurrency):
            yield Plan(how="trace", requests=requests)
        for rate in self.rates:
            per_second = rate.value * capacity() if rate.is_share else rate.value
            many = requests if self.seconds is None else max(2, round(per_second * self.seconds))
            yield Plan(how="arrivals", requests=many, per_second=per_second, group=self.group)
        for concurrency in self.concurrency:
            yield Plan(how="closed loop", requests=requests, concurrency=concurrency)


def table(plan: Plan, source: Source) -> list[float]:
    """When each request of a run is due, in seconds after its start."""
    if plan.how == "arrivals":
        assert plan.per_second is not None
        return poisson(plan.per_second, plan.requests, source.mix.seed, plan.group)
    if plan.how == "trace":
        return [line.arrival_s or 0.0 for line in source.trace]
    return [0.0] * plan.requests


Opened = Callable[[], AbstractContextManager[Target]]


def runs(
    targets: Sequence[Opened], source: Source, schedule: Schedule, limits: Limits, say: Callable[[str], object]
) -> Iterator[LoadRun]:
    """Every run, printed as it ends. After one that was interrupted there are no more. ValueError: no answer at all.

    A target is sent one request ahead of its runs, which is not counted.
    """
    done: list[LoadRun] = []

    def capacity() -> float:
        first = [run.requests_per_s for run in done if run.target == done[0].target and run.plan.how == "at once"]
        if not (found := median(first)):
            raise ValueError(f"{done[0].target} has answered no request: there is no capacity to take a share of")
        return found

    for opened in targets:
        with opened() as target:
            first = source.asks([0.0] * source.mix.requests, -1)[0]
            target.run([Ask(0, 0.0, first.prompt, min(4, first.max_tokens))], None)
            for turn, plan in enumerate(schedule.plans(source, capacity)):
                asks = source.asks(table(plan, source), turn)
                run = counted(target.name, plan, asks, target.run(asks, plan.concurrency), limits)
                say(str(run))
                done.append(run)
                yield run
                if run.interrupted:
                    return


def summary(found: Sequence[LoadRun]) -> Iterator[str]:
    """A line for each run. Where the first target has a run of the same plan, with the share of its tokens/s."""
    base = {str(run.plan): run for run in reversed(found) if run.target == found[0].target}
    for run in found:
        share = base[str(run.plan)].tokens_per_s if str(run.plan) in base else 0.0
        beside = (
            f" ({run.tokens_per_s / share:.0%} of {found[0].target})" if share and run.target != found[0].target else ""
        )
        times = "; ".join(
            f"{name} {1e3 * latency.p50:.2f} / {1e3 * latency.p99:.2f}"
            for name, latency in (("TTFT", run.ttft), ("ITL", run.itl))
            if latency
        )
        yield (
            f"{run.target}, {run.plan}: {run.tokens_per_s:,.0f} tok/s{beside}, {run.ok} of {run.attempted} ok,"
            f" goodput {run.goodput_per_s:.2f}/s; p50 / p99 in ms: {times or '–'}{' (OFF)' if run.off else ''}"
        )
