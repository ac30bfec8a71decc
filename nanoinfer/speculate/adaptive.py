"""How many drafts pay: of a row, by how many were accepted; of all rows, by the clock. Chapter 7.

Neither rule changes a token, so both may go by what differs from run to run. Where drafts do not pay, as with many
rows, whose steps have no arithmetic to spare, plain steps run; now and then a few with drafts see if that still holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median
from weakref import WeakKeyDictionary

from nanoinfer.engine.scheduler import Row

PRICE = 0.2  # of a token: what a draft costs. It is brought where it and all before it are accepted as often as that
FIRST = 0.8  # acceptance of a row of which nothing is known
RATE = 0.15  # how fast that follows what happens
AGAIN = 16  # steps after which a row that brings no drafts brings one
WITH, WITHOUT = 16, 8  # steps of a trial, with drafts and without: with them, how many tokens one brings varies
SOONEST, LATEST = 256, 4096  # steps from one trial to the next, twice as many each time that nothing has changed


@dataclass
class Acceptance:
    """How often a row's drafts are right, and how many are worth bringing."""

    share: float = FIRST
    since: int = 0  # steps without a draft

    def worth(self, most: int) -> int:
        """How many drafts, of `most`: the n-th is used if all n are right, which is as probable as share ** n."""
        if self.share < PRICE:
            self.since += 1
            return min(most, int(self.since >= AGAIN))
        count, chance = 0, self.share
        while count < most and chance >= PRICE:
            count, chance = count + 1, chance * self.share
        return count

    def note(self, drafts: int, accepted: int) -> None:
        """Of so many drafts the first ones were accepted; the one behind them was wrong, and of the rest who knows."""
        for right in [1.0] * accepted + [0.0] * (accepted < drafts):
            self.share += RATE * (right - self.share)
        self.since = 0


class Trial:
    """Which of two ways gives more tokens a second: each for a few steps, then the better one for many, and again."""

    def __init__(self) -> None:
        self.better, self._patience, self._left = True, SOONEST // 2, 0
        self._times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}

    @property
    def drafts(self) -> bool:
        """Whether the next step is to have drafts."""
        return self.better if self._left else len(self._times[True]) < WITH

    def note(self, seconds: float, tokens: float) -> None:
        """The step took so long, and gave each row so many tokens."""
        if self._left:
            self._left -= 1
            return
        self._times[self.drafts].append((seconds, tokens))
        if len(self._times[False]) < WITHOUT:
            return
        cost = {way: median(s for s, _ in times) / mean(t for _, t in times) for way, times in self._times.items()}
        better = cost[True] <= cost[False]  # seconds a token; medians, since a step may wait for a compiler
        self._patience = min(LATEST, 2 * self._patience) if better == self.better else SOONEST
        self.better, self._left, self._times = better, self._patience, {True: [], False: []}


class Adaptive:
    """How many drafts rows may bring to the next step, as far as it is known what they bring in."""

    def __init__(self) -> None:
        self._rows: WeakKeyDictionary[Row, Acceptance] = WeakKeyDictionary()
        self._trials: dict[int, Trial] = {}  # by about how many rows go on

    def pays(self, rows: int) -> bool:
        """Whether a step of so many rows is to have drafts at all."""
        return self._trial(rows).drafts

    def most(self, row: Row, limit: int) -> int:
        """How many drafts the row is to bring, of `limit`."""
        return self._rows.setdefault(row, Acceptance()).worth(limit)

    def note_row(self, row: Row, drafts: int, accepted: int) -> None:
        """What became of a row's drafts."""
        self._rows.setdefault(row, Acceptance()).note(drafts, accepted)

    def note_step(self, rows: int, seconds: float, tokens: int) -> None:
        """A step of so many rows that went on, and of nothing else, took so long and gave so many tokens."""
        self._trial(rows).note(seconds, tokens / rows)

    def _trial(self, rows: int) -> Trial:
        return self._trials.setdefault(rows.bit_length(), Trial())
