"""Send requests when they are due, whatever becomes of those before them.

When each request is due stands in a table that is made before the run. The clock of a request starts then, however late
it is sent: a server that stalls delays the answers of all that are due meanwhile, and a generator that waits for it and
starts its clock at the send would not notice (coordinated omission).

Nothing here imports torch or pydantic: each client process does, and starts in a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, Literal, TypeVar

Outcome = Literal["ok", "refused", "failed", "cancelled"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "refused", "failed", "cancelled")
T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """A request: token ids and how many new tokens it asks for; due: in seconds after the start."""

    number: int
    due: float
    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class Reply:
    """What came of a request. times: of each token, or of each piece with tokens, by the event loop's clock.

    There are at most as many times as tokens.
    """

    outcome: Outcome
    reason: str = ""  # why it is not ok
    tokens: int = 0
    times: tuple[float, ...] = ()
    end: float | None = None  # None: when the sender returned
    by: Literal["ids", "usage", "pieces"] = "ids"  # how tokens are counted: pieces, where a server tells nothing else


@dataclass(frozen=True)
class Answer:
    """A request that was sent, and its reply; all times in seconds after the start of the run."""

    number: int
    due: float  # when its clock starts
    sent: float  # when the client began with it: to connect, or to submit
    end: float
    reply: Reply
    start: float  # of the run, by the clock of `reply.times`

    @property
    def ttft_s(self) -> float:
        """From when it was due to its first token."""
        return self.reply.times[0] - self.start - self.due

    @property
    def gaps_s(self) -> list[float]:
        """One fewer than there are tokens. Of k tokens that come together, k - 1 come after a gap of 0."""
        times = self.reply.times
        gaps = [after - before for before, after in pairwise(times)]
        return gaps + [0.0] * (self.reply.tokens - 1 - len(gaps))

    @property
    def mean_gap_s(self) -> float:
        """From the first to the last token, over the gaps between; 0 for a single token."""
        times = self.reply.times
        return (times[-1] - times[0]) / max(1, self.reply.tokens - 1)


@dataclass(frozen=True)
class Sent(Generic[T]):
    """A request that was sent, with whatever its sender returned; None where it was cancelled."""

    ask: Ask
    due: float
    sent: float
    end: float
    result: T | None

    def answer(self, reply: Reply, start: float) -> Answer:
        """With what the result says. start: of the run, by the event loop's clock."""
        end = self.end if reply.end is None else reply.end - start
        return Answer(self.ask.number, self.due, self.sent, end, reply, start)


CANCELLED = Reply("cancelled", "the run was interrupted")


async def drive(
    asks: Sequence[Ask],
    send: Callable[[Ask], Awaitable[T]],
    start: float,
    concurrency: int | None = None,
    stop: asyncio.Event | None = None,
) -> list[Sent[T]]:
    """Send each request when it is due, in the order of the table.

    start: by the event loop's clock. concurrency: so many at once, each of the next when one is answered, and the clock
    starts at the send: a closed loop. stop: once it is set, what runs is cancelled, and nothing further is sent.
    """
    clock = asyncio.get_running_loop().time
    done: list[Sent[T]] = []

    async def one(ask: Ask) -> None:
        sent = clock() - start
        due = ask.due if concurrency is None else sent
        result = None
        try:
            result = await send(ask)
        finally:  # what is cancelled is in the table, too
            done.append(Sent(ask, due, sent, clock() - start, result))

    async def open_loop() -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            for ask in sorted(asks, key=lambda ask: ask.due):
                if (wait := start + ask.due - clock()) > 0:
                    await asyncio.sleep(wait)
                tasks.append(asyncio.create_task(one(ask)))
            await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)

    async def one_after_the_other(asks: Iterator[Ask]) -> None:
        for ask in asks:
            await one(ask)

    async def everything() -> None:
        await asyncio.sleep(max(0.0, start - clock()))
        if concurrency is None:
            await open_loop()
        else:
            queue = iter(asks)  # one for all: whoever is free takes the next
            await asyncio.gather(*[one_after_the_other(queue) for _ in range(concurrency)])

    run = asyncio.create_task(everything())
    stopped = asyncio.create_task((stop or asyncio.Event()).wait())
    await asyncio.wait([run, stopped], return_when=asyncio.FIRST_COMPLETED)
    await _cancel([run, stopped])
    if not run.cancelled():
        run.result()  # raises what it raised
    return sorted(done, key=lambda sent: sent.ask.number)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what is left of the tasks, and wait until each has put itself down."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
