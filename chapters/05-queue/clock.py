"""The engine's own scheduler on a clock by rule, without a model: what the examples of chapter 5 measure waiting with.

A step takes a millisecond, and ten microseconds for each of its tokens. So every machine prints the same times, and one
sees what the plan alone does. How long steps really take is measured elsewhere.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nanoinfer import SamplingParams
from nanoinfer.cache.blocks import BlockManager
from nanoinfer.engine.scheduler import Row, Scheduler, Step
from nanoinfer.requests import Request

STEP_S, TOKEN_S = 1e-3, 1e-5


@dataclass
class Ask:
    """A request: when it arrives, in seconds, and its tokens."""

    arrives: float
    prompt: int
    new: int


@dataclass
class Run:
    """What came of the requests, and which tokens each step fed."""

    rows: list[Row]
    steps: list[tuple[float, float, dict[int, int]]] = field(default_factory=list)  # start, end, tokens by request

    @property
    def seconds(self) -> float:
        return self.steps[-1][1]

    @property
    def busy(self) -> float:
        """Share of the time in which a step ran."""
        return sum(end - start for start, end, _ in self.steps) / self.seconds

    @property
    def waits(self) -> list[float]:
        """Seconds from each arrival to the first token."""
        return [row.times[0] - row.asked for row in self.rows]

    @property
    def stays(self) -> list[float]:
        """Seconds from each arrival to the last token."""
        return [row.times[-1] - row.asked for row in self.rows]

    def gaps(self, number: int) -> list[float]:
        """Seconds between one row's tokens."""
        return [after - before for before, after in pairwise(self.rows[number].times)]

    def idle(self, rows: int) -> float:
        """Share of row-steps in which no request had the row."""
        return 1 - sum(len(tokens) for *_, tokens in self.steps) / (rows * len(self.steps))


def row_of(number: int, ask: Ask) -> Row:
    """A row of the scheduler for it; its tokens are numbers that nobody looks at."""
    params = SamplingParams(max_tokens=ask.new, temperature=0, ignore_eos=True)
    return Row(Request(number, (number,) * ask.prompt, params, 0, ask.new, frozenset()), ask.arrives)


def run(
    asks: Sequence[Ask],
    scheduler: Scheduler,
    static: bool = False,
    cost: Callable[[int], float] = lambda tokens: STEP_S + TOKEN_S * tokens,
) -> Run:
    """Let the requests arrive, and run every step. static: a batch is let in when the last one has left."""
    made = Run([row_of(number, ask) for number, ask in enumerate(asks)])
    coming, now = deque(made.rows), 0.0
    while coming or scheduler.busy:
        if not scheduler.busy:
            now = max(now, coming[0].asked)
        if not (static and scheduler.busy):
            for _ in range(scheduler.max_batch if static else len(coming)):
                if coming and coming[0].asked <= now:
                    scheduler.submit(coming.popleft())
        step = scheduler.schedule()
        tokens = fed(step)
        start, now = now, now + cost(sum(tokens.values()))
        made.steps.append((start, now, tokens))
        for row in scheduler.launch(step):
            row.token_ids.append(row.request.index)
            row.times.append(now)
            if len(row.token_ids) == row.limit:
                scheduler.drop(row)
    return made


def fed(step: Step) -> dict[int, int]:
    """Tokens of a step, by request."""
    tokens = {row.request.index: 1 for row in step.going}
    return tokens | {work.row.request.index: work.tokens for work in step.pieces}


def engine(
    rows: int = 4,
    budget: int = 256,
    blocks: BlockManager | None = None,
    kind: type[Scheduler] = Scheduler,
    mixed: bool = True,
) -> Scheduler:
    """A scheduler, by default as the engine on a GPU has it."""
    return kind(blocks, rows, budget, None, mixed)


def poisson(
    per_second: float, count: int, sizes: Callable[[random.Random], tuple[int, int]], seed: int = 7
) -> list[Ask]:
    """Requests whose gaps are drawn one by one, so that nobody knows when the next one comes."""
    draws, now, asks = random.Random(seed), 0.0, []
    for _ in range(count):
        now += draws.expovariate(per_second)
        asks.append(Ask(now, *sizes(draws)))
    return asks


def quantile(values: Iterable[float], share: float) -> float:
    """The value that this share of them is not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * round(1000 * share) // 1000) - 1))]


class PromptsFirst(Scheduler):
    """As the engine's, but that decode has no turn while a prompt can be fed."""

    def schedule(self) -> Step:
        self._decode_next = False
        return super().schedule()


class FirstThatFits(Scheduler):
    """As the engine's, but that whoever has room goes ahead of those that wait for it."""

    def schedule(self) -> Step:
        def fits(row: Row) -> bool:
            assert isinstance(self.blocks, BlockManager)
            return self.blocks.blocks_of(len(row.prompt) + row.limit) <= self.blocks.available

        self.waiting = deque(sorted(self.waiting, key=lambda row: not fits(row)))
        return super().schedule()


def lanes(run: Run) -> Iterator[tuple[int, int, float, float]]:
    """Each request's number, the lowest row that is free for it, and when it runs: for a picture."""
    times = {
        n: (min(s for s, _, fed in run.steps if n in fed), max(e for _, e, fed in run.steps if n in fed))
        for n in range(len(run.rows))
    }
    ends: list[float] = []
    for number, (start, end) in sorted(times.items(), key=lambda item: (item[1], item[0])):
        lane = next((lane for lane, free in enumerate(ends) if free <= start + 1e-9), len(ends))
        ends[lane : lane + 1] = [end]
        yield number, lane, start, end
