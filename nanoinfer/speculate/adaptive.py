"""How many drafts pay: of a row, by how many were accepted; of all rows, by the clock. Chapter 7.

Neither rule changes a token, so both may go by what differs from run to run. Where drafts do not pay, as with many
rows, whose steps have no arithmetic to spare, plain steps run. Their tokens say what drafts would have brought: where
that is enough for what a step with drafts costs, a few of these are tried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import inf, log
from statistics import fmean, median

from nanoinfer.engine.scheduler import Row
from nanoinfer.speculate.drafts import Drafter

PRICE = 0.2  # of a token: what a draft costs. It is brought where it and all before it are accepted as often as that
FIRST = 0.6  # acceptance of a row of which nothing is known: it is soon known if it brings too few
RATE = 0.15  # how fast that follows what happens
AGAIN = 16  # steps after which a row that brings no drafts brings one
WITH, WITHOUT = 16, 8  # steps of a trial, with drafts and without: with them, how many tokens one brings varies
HOPELESS = {4: 0.75, 8: 0.9}  # of plain speed, after so many steps with drafts: no need to wait for the others
LATELY = 32  # steps whose times and tokens count
LEAST = 1.1  # times plain speed: below it drafts end, since rows that gain nothing by them wait for the others
SOONEST, LATEST = 32, 4096  # plain steps ahead of a trial, twice as many each time that it finds the same
FORGOTTEN = 8  # such pauses, after which it is no longer known what drafts cost: another program may have run then
EVERY = 4  # plain steps from one that is timed and looked at to the next: that takes the host as long as several rows
SELDOM = 8  # and so many where the last look found no right draft
DOUBT, LOOKS = 4, 16  # looks as which "no draft is right" counts at first; of how many the mean is
PROMISING, BY_CHANCE = 1.2, 0.3  # times what a step with drafts costs: tokens that it must be expected to give; and
# so much more, divided by the rows: one text may repeat a phrase, and nothing else
COST, COST_A_ROW = 1.25, 0.01  # of a step with drafts, in plain ones, where none of so many rows was timed
ALIKE = 0.5  # looks as which the mean of all rows counts in a row's own
FEWEST = 8  # rows to look at, or all, ahead of a trial where the slowest one counts
ANEW = 1024  # steps with drafts after which plain ones are timed again: texts have grown


@dataclass
class Acceptance:
    """How often a row's drafts are right, and how many are worth bringing."""

    share: float = FIRST
    since: int = 0  # steps without a draft
    best: int = int(log(PRICE, FIRST))  # drafts, if there is room for as many

    def worth(self, most: int) -> int:
        """How many drafts, of `most`: the n-th is used if all n are right, which is as probable as share ** n."""
        if not self.best:
            self.since += 1
            return min(most, int(self.since >= AGAIN))
        return min(most, self.best)

    def note(self, drafts: int, accepted: int) -> None:
        """Of so many drafts the first ones were accepted; the one after them was wrong, and of the rest who knows."""
        wrong = (1 - self.share) * (1 - RATE) ** accepted
        self.share = (1 - wrong) * (1 - RATE) if accepted < drafts else 1 - wrong
        self.since, self.best = 0, int(log(PRICE, min(max(self.share, 0.01), 0.999)))


class Trial:
    """Which of two ways gives more tokens a second, by what steps of each took lately, and gave.

    Steps with drafts are judged one by one, so that drafts that no longer pay end at once.
    """

    def __init__(self) -> None:
        self.drafts = False  # whether the next step is to have them
        self.cost: float | None = None  # of a step with drafts, in plain ones, when they were tried last
        self._left, self._patience = WITHOUT, SOONEST  # steps of this way: plain ones at least, with drafts at most
        self._seconds: dict[bool, deque[float]] = {way: deque(maxlen=LATELY) for way in (True, False)}
        self._tokens: deque[float] = deque(maxlen=LATELY)

    @property
    def settled(self) -> bool:
        """Whether steps are plain, enough of them were timed, and the next few begin no trial by their number."""
        timed = not self.drafts and len(self._seconds[False]) >= WITHOUT
        return timed and not 0 < self._left <= SELDOM

    def note(self, seconds: float, tokens: float, promise: float = inf, slowest: float = inf, steps: int = 1) -> None:
        """A step, the last of so many, took so long, and gave each row so many tokens.

        promise: from 1 on, a trial is worth its price. slowest: tokens that a step with drafts gives the slowest row,
        where the batch waits for that.
        """
        self._seconds[self.drafts].append(seconds)
        self._left -= steps
        if not self.drafts:
            if self._left <= 0 and promise >= 1:
                self._seconds[True].clear()
                self._tokens.clear()
                self.drafts, self._left = True, ANEW
            elif self._left <= -FORGOTTEN * self._patience:
                self.cost = None
            return
        self._tokens.append(tokens)
        self.cost = median(self._seconds[True]) / median(self._seconds[False])  # a step may wait for a compiler
        tried, speed = len(self._tokens), min(fmean(self._tokens), slowest) / self.cost
        if speed < (LEAST if tried >= WITH else HOPELESS.get(tried, 0)):
            self.drafts, self._left = False, self._patience
            self._patience = min(LATEST, 2 * self._patience)
        elif tried == WITH:
            self._patience = SOONEST
        if not self._left:
            self._seconds[False].clear()
            self.drafts, self._left = False, WITHOUT

    def rest(self) -> None:
        """Others come: what drafts cost and brought is known, but not whether they bring it again."""
        if self.drafts:
            self.drafts, self._left = False, WITHOUT

    def for_another_size(self) -> Trial:
        """One for half or twice as many rows: it goes on as this does, and is soon held against plain steps of its own.

        While a batch comes to its end its size changes every few steps, and to begin anew each time would cost more.
        """
        other = deepcopy(self)
        if other.drafts:
            other._left = min(other._left, WITH)
        return other


class Adaptive:
    """How many drafts rows may bring to the next step, as far as it is known what they bring in."""

    def __init__(self) -> None:
        self._rows: dict[Row, Acceptance] = {}
        self._trials: dict[int, Trial] = {}  # by about how many rows go on
        self._newest = Trial()
        self._steps, self._due = 0, EVERY  # plain ones; how many there are at the next look
        self._looks, self._again = 0, False  # at one row after the other; whether the last one was at the slowest
        self._foreseen = inf  # tokens that each would have given a row with drafts, a mean
        self._means: dict[Row, tuple[float, int]] = {}  # the same of each row alone, and of how many looks at it
        self._marks: dict[Row, int] = {}  # tokens that each row had a few steps with drafts ago
        self._slowest: Row | None = None  # by these means
        self._alone = False  # whether all wait for that one, as far as is known
        self._since = 0  # steps with drafts
        self._unseen, self._stride = 0, 1  # plain steps that go by; how many the next one to be noted stands for

    def pays(self, rows: int) -> bool:
        """Whether a step of so many rows is to have drafts at all."""
        return self._trial(rows).drafts

    def most(self, row: Row, limit: int) -> int:
        """How many drafts the row is to bring, of `limit`."""
        if (known := self._rows.get(row)) is None:
            self._rows = {row: known for row, known in self._rows.items() if not row.ended}
            known = self._rows[row] = Acceptance()
        return known.worth(limit)

    def note_row(self, row: Row, drafts: int, accepted: int) -> None:
        """What became of a row's drafts."""
        self._rows[row].note(drafts, accepted)

    def begin(self) -> None:
        """No row ran: those that come now begin without drafts, and what others would have had says nothing of them."""
        self._means, self._slowest, self._unseen, self._stride = {}, None, 0, 1
        self._looks, self._foreseen = 0, 1.0 if self._foreseen < inf else inf
        for trial in self._trials.values():
            trial.rest()

    def rests(self) -> bool:
        """Whether the next step is plain, as the last one was, and nothing is to be learned from it."""
        resting = self._unseen > 0
        self._unseen -= resting
        self._steps += resting
        return resting

    def note_step(self, rows: int, seconds: float, tokens: int, alone: Sequence[Row] = ()) -> None:
        """A step of so many rows that went on, and of nothing else, took so long and gave so many tokens.

        alone: these rows, if nobody waits for a place. Then it is over when the slowest row is, and that one counts.
        """
        trial = self._trial(rows)
        cost, drafted = trial.cost or COST + COST_A_ROW * rows, trial.drafts
        if drafted:
            self._count(alone)
        else:
            self._marks = {}
        self._alone, slowest = bool(alone), self._means[self._slowest][0] if alone and self._slowest else inf
        early = alone and self._foreseen < inf and not self._enough(rows)
        foreseen = 0 if early else min(self._foreseen, slowest)
        trial.note(seconds, tokens / rows, foreseen / (PROMISING + BY_CHANCE / rows) / cost, slowest, self._stride)
        self._stride = max(1, self._due - self._steps) if trial.settled and not drafted else 1
        self._unseen = self._stride - 1

    def _count(self, rows: Sequence[Row]) -> None:
        """A step had drafts: now and then, what each of these rows got by the last ones."""
        self._since += 1
        if self._since % EVERY:
            return
        self._learn({row: (len(row.token_ids) - self._marks[row]) / EVERY for row in rows if row in self._marks})
        self._marks = {row: len(row.token_ids) for row in rows}

    def _learn(self, tokens: Mapping[Row, float]) -> None:
        """A step with drafts gives each of these rows so many tokens, or would have."""
        for row, seen in tokens.items():
            mean, looks = self._means.get(row, (seen if self._foreseen == inf else self._foreseen, 0))
            looks = min(LOOKS, looks + 1)
            self._means[row] = mean + (seen - mean) / (looks + ALIKE), looks
        self._means = {row: each for row, each in self._means.items() if not row.ended}
        self._slowest = min(self._means, key=lambda row: self._means[row][0], default=None)

    def look(self, drafter: Drafter, rows: Sequence[Row], most: int) -> None:
        """A step ran without drafts. Now and then: what would the drafter have guessed of a row's newest tokens?

        One look may err. Where all wait for the row that seems the slowest, every second look is at that one again.
        """
        self._steps += 1
        if self._steps < self._due:
            return
        self._due = self._steps + EVERY
        foreseen = getattr(drafter, "foreseen", None)  # a `Foreseeing`'s; isinstance would take longer than the look
        if foreseen is None:
            return
        self._again = again = self._alone and self._enough(len(rows)) and not self._again
        self._looks += not again
        row = self._slowest if again and self._slowest else rows[self._looks % len(rows)]
        if self._foreseen == inf:
            self._foreseen = 1.0
        if len(row.token_ids) > most:
            looks, seen = min(LOOKS, DOUBT + self._looks), 1 + foreseen(row, most)
            self._due = self._steps + (EVERY if seen > 1 else SELDOM)
            if not again:
                self._foreseen += (seen - self._foreseen) / looks
            self._learn({row: seen})

    def _enough(self, rows: int) -> bool:
        """Whether the slowest of those that were looked at may stand for all."""
        return len(self._means) >= min(rows, FEWEST)

    def _trial(self, rows: int) -> Trial:
        size = rows.bit_length()
        if size not in self._trials:
            self._trials[size] = self._newest.for_another_size()
        self._newest = self._trials[size]
        return self._newest
