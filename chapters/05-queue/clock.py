"""Runs the engine's own plan on a simulated clock, without a model: chapter 5's examples measure waiting with it.

A step takes a millisecond, and ten microseconds for each of its tokens. So every machine prints the same times, and you
see what the plan alone does. How long steps really take is measured elsewhere.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nanoinfer import SamplingParams
from nanoinfer.cache.sharing import SharedBlocks, SharedRoom
from nanoinfer.engine.engine import Engine, Work
from nanoinfer.engine.queue import Queued, QueueEngine
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

    rows: list[Queued] = field(default_factory=list)
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


def request_of(number: int, ask: Ask) -> Request:
    """Return the request; no one looks at its tokens."""
    params = SamplingParams(max_tokens=ask.new, temperature=0, ignore_eos=True)
    return Request(number, (number,) * ask.prompt, params, 0, ask.new, frozenset())


class Room(SharedRoom):
    """The room of a batch, without a tensor. blocks: of 16 tokens each; None where each row has its own."""

    preemption = False

    def __init__(self, rows: int, blocks: int | None) -> None:
        self.blocks = None if blocks is None else SharedBlocks(blocks, 16, rows)

    def admit(self, slot: int, sequence: Queued) -> bool:
        return self.blocks is None or super().admit(slot, sequence)

    def release(self, slot: int) -> None:
        if self.blocks:
            self.blocks.release(slot)

    def keep(self, sequence: Queued, count: int) -> int:
        if self.blocks:
            self.blocks.grow(sequence.row, count)
        return count


class Timed(QueueEngine):
    """A `QueueEngine` that runs no model."""

    def run(self, work: list[Work]) -> list[int]:
        for s, start, count in work:
            s.cached = self.cache.keep(s, start + count)
        return [s.request.index for s, _, _ in work]

    def step_at(self, now: float, cost: Callable[[int], float]) -> tuple[float, float, dict[int, int]]:
        """Take a step that begins then: its start, its end, and how many tokens it fed of each request."""
        self.take_in()
        settled = Engine.step(self)
        tokens = {s.request.index: count for s, _, count in self.fed}
        end = now + cost(sum(tokens.values()))
        for s in settled:
            s.times[-1] = end
        return now, end, tokens


def run(
    asks: Sequence[Ask],
    engine: Timed,
    static: bool = False,
    cost: Callable[[int], float] = lambda tokens: STEP_S + TOKEN_S * tokens,
) -> Run:
    """Let the requests arrive, and run every step. static: a batch is let in when the last one has left."""
    made, coming, now = Run(), deque(asks), 0.0
    while coming or engine.busy:
        if not engine.busy:
            now = max(now, coming[0].arrives)
        if not (static and engine.busy):
            for _ in range(len(engine.free) if static else len(coming)):
                if coming and coming[0].arrives <= now:
                    ask = coming.popleft()
                    made.rows.append(engine.submit(request_of(len(made.rows), ask), asked=ask.arrives))
        made.steps.append(engine.step_at(now, cost))
        now = made.seconds
    return made


def engine(
    rows: int = 4, budget: int = 256, blocks: int | None = None, kind: type[Timed] = Timed, mixed: bool = True
) -> Timed:
    """An engine, by default with the plan that one on a GPU has. blocks: of 16 tokens, that the rows share."""
    return kind(None, Room(rows, blocks), rows, budget=budget, mixed=mixed)


def poisson(
    per_second: float, count: int, sizes: Callable[[random.Random], tuple[int, int]], seed: int = 7
) -> list[Ask]:
    """Return requests that arrive at random: each gap is drawn by itself."""
    draws, now, asks = random.Random(seed), 0.0, []
    for _ in range(count):
        now += draws.expovariate(per_second)
        asks.append(Ask(now, *sizes(draws)))
    return asks


def quantile(values: Iterable[float], share: float) -> float:
    """The value that this share of them is not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * round(1000 * share) // 1000) - 1))]


class PromptsFirst(Timed):
    """As the engine's, except that decode has no turn while a prompt can be fed."""

    def schedule(self) -> list[Work]:
        self.decodes_next = False
        return super().schedule()


class FirstThatFits(Timed):
    """As the engine's, except that a request that fits goes ahead of one that does not."""

    def schedule(self) -> list[Work]:
        self.waiting = deque(sorted(self.waiting, key=lambda s: self.blocks.blocks_of(s.end) > self.blocks.available))
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
