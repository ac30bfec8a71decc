"""`bench queue --part arrivals`: what rows that run notice of long prompts that arrive, and how soon these begin.

Arrivals are open: when each is due stands in a table that is made before the run, another thread submits it then, and
its clock starts when it is due, however late it is submitted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from nanobench.core.records import Record
from nanobench.micro.queue_load import SEED, Counted, Latency, Load, WarmUp, greedy, ids, made
from nanoinfer import LLM
from nanoinfer.engine.queue import Queued
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Metrics, Request

BINS = 100  # of the time of a run
TOLERANCE = 0.01  # of the rate of arrivals


class Gaps(Record):
    """Times between the tokens of the rows that run all the time."""

    itl: Latency
    p999_s: float
    bin_s: float
    longest_s: tuple[float, ...]  # in each bin of the run; 0 where no token came
    counted: Counted


class ArrivalRuns(Record):
    """Rows that run, alone and then beside prompts that arrive."""

    SHOWN = ("ratio", "off")

    max_batched_tokens: int
    warm_up: WarmUp
    alone: Gaps
    beside: Gaps
    ttft_s: tuple[float, ...]  # of each prompt that arrives, from when it is due
    ttft: Latency
    asked_per_s: float
    achieved_per_s: float
    latest_s: float  # that a prompt was submitted after it was due

    @property
    def ratio(self) -> float:
        """p99 of ITL beside arrivals over p99 alone."""
        return self.beside.itl.p99 / self.alone.itl.p99

    @property
    def off(self) -> bool:
        """Whether the rate of arrivals was another than asked: then the run says little."""
        return abs(self.achieved_per_s / self.asked_per_s - 1) > TOLERANCE


def arrivals(model: GPT2, load: Load) -> Iterator[ArrivalRuns]:
    """Each of the budgets `load.chunks`."""
    draws, vocab = random.Random(SEED), model.config.vocab_size
    due = sorted(draws.uniform(0, load.seconds) for _ in range(round(load.per_second * load.seconds)))
    opening = [ids(draws, load.opening, vocab) for _ in range(load.running)]
    prompts = [ids(draws, load.arriving, vocab) for _ in due]
    for budget in load.chunks:
        llm, warm_up = made(model, load.running + load.spare, max_batched_tokens=budget)
        with llm:
            running = llm.requests(opening, greedy(load.running_new))
            newcomers = llm.requests(prompts, greedy(load.arriving_new))
            OpenRun(llm, running, [], [], 0)  # one generation that is not counted
            alone = OpenRun(llm, running, [], [], load.seconds)
            beside = OpenRun(llm, running, newcomers, due, load.seconds)
            ttft = [Metrics.of(row).ttft_s for row in beside.newcomers]
            asked, achieved = (  # arrivals, over the time from the first to the last
                (len(due) - 1) / (times[-1] - times[0]) for times in (due, beside.submitted)
            )
            yield ArrivalRuns(
                max_batched_tokens=llm.max_batched_tokens, warm_up=warm_up, alone=alone.gaps(), beside=beside.gaps(),
                ttft_s=tuple(round(t, 6) for t in ttft), ttft=Latency.of(ttft), asked_per_s=asked,
                achieved_per_s=achieved,
                latest_s=max(now - then for now, then in zip(beside.submitted, due, strict=True)),
            )  # fmt: skip


class OpenRun:
    """Generations of `running`, all begun together again and again, for so many seconds and at least once.

    due: seconds after the start at which each of `newcomers` is submitted. The run lasts until all of them have ended.
    """

    def __init__(
        self, llm: LLM, running: Sequence[Request], newcomers: Sequence[Request], due: Sequence[float], seconds: float
    ) -> None:
        core, before = llm.core, Counted.so_far(llm)
        self.generations: list[list[Queued]] = []
        self.newcomers: list[Queued] = []
        self.submitted: list[float] = []  # when each was, after the start
        self.start = time.perf_counter()

        def arrive() -> None:
            for request, then in zip(newcomers, due, strict=True):
                time.sleep(max(0.0, self.start + then - time.perf_counter()))
                self.submitted.append(time.perf_counter() - self.start)
                self.newcomers.append(core.submit(request, asked=self.start + then))

        with ThreadPoolExecutor(1) as outside:
            arriving = outside.submit(arrive)
            generation: list[Queued] = []
            while True:
                if all(row.ended for row in generation):
                    over = generation and time.perf_counter() - self.start >= seconds
                    if over and arriving.done() and all(row.ended for row in self.newcomers):
                        break
                    generation = [core.submit(request) for request in running]
                    self.generations.append(generation)
                core.step()
            arriving.result()  # raises what it raised
        self.end = time.perf_counter()
        while core.busy:
            core.step()
        self.counted = Counted.so_far(llm).since(before)

    def gaps(self) -> Gaps:
        """Between two tokens of a row, once all rows of its generation have begun: no row's own prompt is in them."""
        size = (self.end - self.start) / BINS
        gaps: list[float] = []
        longest = [0.0] * BINS
        for generation in self.generations:
            begun = max(row.times[0] for row in generation)
            for row in generation:
                for before, after in pairwise(row.times):
                    if before >= begun:
                        gaps.append(after - before)
                        at = min(int((after - self.start) / size), BINS - 1)
                        longest[at] = max(longest[at], after - before)
        return Gaps(
            itl=Latency.of(gaps), p999_s=float(np.quantile(gaps, 0.999)), bin_s=size,
            longest_s=tuple(round(gap, 6) for gap in longest), counted=self.counted,
        )  # fmt: skip
