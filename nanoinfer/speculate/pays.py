"""How many drafts pay: of a sequence, by how many were accepted; of a step, by the clock. Chapter 7.

A step with drafts costs more than a plain one and gives more tokens. With acceptance a, a draft of k tokens gives
1 + a + ... + a^k of them. Drafts are brought where that, over the cost in plain steps, is more than plain decoding
gives. None of this changes a token, so it may go by what differs from run to run.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoinfer.speculate.engine import Drafting

PRICE = 0.2  # of a token: a draft is brought where it and all before it are accepted as often as that
FIRST = 0.6  # acceptance of a sequence of which nothing is known
RATE = 0.15  # how fast it follows what happens
GAIN = 1.1  # times plain speed that drafts must promise
COST = 1.25  # of a step with drafts, in plain ones, before one has been timed
TIMED = 8  # steps of each kind whose median counts
TRIAL = 4  # steps with drafts of a trial, at least
SOONEST = 64  # plain steps ahead of a trial, at least
LOSS = 0.02  # of these plain steps, no more than so many may a trial cost that finds nothing: its steps give a token
LOOK = 4  # plain steps from one look at what would have been drafted to the next


@dataclass
class Times:
    """Seconds of steps of about so many sequences, plain and with drafts."""

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=TIMED))
    drafted: deque[float] = field(default_factory=lambda: deque(maxlen=TIMED))
    rested: int = 0  # plain steps since drafts ended

    @property
    def cost(self) -> float:
        """A step with drafts, in plain ones."""
        return middle(self.drafted) / middle(self.plain) if self.drafted and self.plain else COST


def middle(seconds: deque[float]) -> float:
    """Their median: sorted, since `statistics.median` takes as long as a tenth of a step."""
    return sorted(seconds)[len(seconds) // 2]


def worth(share: float) -> int:
    """How many drafts are worth their price: the n-th is used if all n are right, which is as probable as share^n."""
    return int(log(PRICE, min(max(share, 0.01), 0.999)))


@cache
def tokens(limit: int) -> list[float]:
    """How many tokens a step with drafts gives a sequence, by its acceptance in hundredths."""
    shares = [hundredth / 100 for hundredth in range(101)]
    return [sum(share**n for n in range(min(limit, worth(share)) + 1)) for share in shares]


class Pays:
    """Decides, before each step, whether to bring drafts, and how many of each sequence."""

    def __init__(self) -> None:
        self.times: defaultdict[int, Times] = defaultdict(Times)  # by about how many sequences decode
        self.noted: deque[float] = deque()  # where the last step was noted
        self.left = 0  # steps of a trial that are still to come
        self.looks = 0  # plain steps after which a look might have been taken

    def most(self, s: Drafting, limit: int) -> int:
        """How many drafts a sequence is to bring."""
        return min(limit, max(worth(s.share), self.left > 0))

    def draft(self, sequences: Sequence[Drafting], limit: int, alone: bool) -> bool:
        """Whether the next step is to bring drafts.

        alone: whether nobody waits. Then it is over when the slowest sequence is, and that one counts.
        """
        times = self.times[len(sequences).bit_length()]
        if len(times.plain) < TIMED:
            return False
        if self.left:
            return True
        times.rested += 1
        if times.rested > 1 and self.looks % LOOK:  # nothing has been learned since the last plain step
            return False
        by_share, cost = tokens(limit), times.cost
        expected = [by_share[int(100 * s.share)] for s in sequences]
        pays = (min(expected) if alone else fmean(expected)) > GAIN * cost
        if not pays and times.rested >= max(SOONEST, TRIAL * (cost - 1) / LOSS):
            self.left = TRIAL
        if pays or self.left:
            times.rested = 0
        return pays or self.left > 0

    def note_step(self, rows: int, seconds: float, drafted: bool) -> None:
        """A step of so many decoding sequences took so long."""
        times = self.times[rows.bit_length()]
        self.noted = times.drafted if drafted else times.plain
        self.noted.append(seconds)
        self.left -= drafted and self.left > 0

    def note_wait(self, seconds: float) -> None:
        """The step that was noted last took so much longer."""
        if self.noted:
            self.noted[-1] += seconds

    def note(self, s: Drafting, drafts: int, accepted: int) -> None:
        """Of so many drafts the first ones were accepted; the one after them was wrong, and of the rest who knows."""
        wrong = (1 - s.share) * (1 - RATE) ** accepted
        s.share = (1 - wrong) * (1 - RATE) if accepted < drafts else 1 - wrong

    def look(self, drafter: Any, sequences: Sequence[Drafting], most: int) -> None:
        """After a plain step, now and then ask what the drafter would have guessed of a sequence's last tokens."""
        self.looks += 1
        if self.looks % LOOK == 0 and (foreseen := getattr(drafter, "foreseen", None)):
            s = sequences[self.looks // LOOK % len(sequences)]
            if s.generated > most:
                self.note(s, most, foreseen(s, most))
