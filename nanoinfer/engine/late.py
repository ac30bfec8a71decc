"""Looking at tokens some steps late, so that the device never waits for the host. Chapter 4."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from nanoinfer.engine.device import DeviceEngine, Launch
from nanoinfer.engine.engine import Sequence, Work
from nanoinfer.engine.state import Fetch

LAG = 2  # steps that the host is behind


class InFlight(NamedTuple):
    """A step whose tokens are on their way. places: where each sequence's token stands among them."""

    work: list[Work]
    places: list[int]
    tokens: Fetch


class LateEngine(DeviceEngine):
    """A `DeviceEngine` that launches up to `lag` steps before it looks at the tokens of the first.

    A sequence that ends by its count never runs over: it leaves when its last step is launched. One that ends by a stop
    token runs over by at most `lag` steps, and those tokens are dropped.
    """

    def __init__(self, *args: Any, lag: int = LAG, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.lag = lag
        self.in_flight: deque[InFlight] = deque()

    def step(self) -> list[Sequence]:
        """Launch the next step if there is one, and settle the oldest if it is over or `lag` steps behind."""
        if work := self.schedule():
            step = self.pack(work)
            self.in_flight.append(InFlight(work, self.places(work, step), self.fetch(step)))
            for s in [s for s, _, _ in work if s.cached + 1 >= s.end]:  # whose last token is on its way
                self.leave(s)
        lag = self.lag if work and super().busy else 0  # nothing to launch meanwhile: wait for what is on its way
        if not self.in_flight or (len(self.in_flight) <= lag and not self.in_flight[0].tokens.arrived):
            return []
        work, places, tokens = self.in_flight.popleft()
        arrived = tokens.wait()
        return self.settle(work, [arrived[place] for place in places])

    def fetch(self, step: Launch) -> Fetch:
        """Launch a step, and start the copy of its tokens to the host."""
        return Fetch(self.launch(step))

    def pending(self, sequences: Iterable[Sequence]) -> list[Work]:
        """The whole of a new prompt, or the newest token, which may be on its way."""
        return [(s, s.cached, 1 if s.cached else len(s.tokens)) for s in sequences]

    def settle(self, work: list[Work], tokens: list[int]) -> list[Sequence]:
        """Drop the tokens of sequences that have ended meanwhile."""
        kept = [(w, token) for w, token in zip(work, tokens, strict=True) if not w[0].finish_reason]
        return super().settle([w for w, _ in kept], [token for _, token in kept])

    def leave(self, s: Sequence) -> None:
        if s.row >= 0:  # else it left when its last step was launched
            super().leave(s)

    def abandon(self) -> None:
        super().abandon()
        while self.in_flight:
            self.in_flight.popleft().tokens.wait()

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running or self.in_flight)
