"""How many threads a step gets on a CPU: tried, not guessed.

An operation of a small model takes microseconds, and its threads wait for the slowest of them. Where other programs
keep the cores busy, two threads can be ten times as slow as one. So the steps themselves are tried: the first ones, and
later now and then, and where they have become slow, a few run with each number.
"""

from __future__ import annotations

import time
from typing import Any

import torch

TRIES = 2  # steps of a trial, with each number of threads
SOONEST, LATEST = 32, 512  # steps from one trial to the next: sooner where steps are slow, later while none changes it
SLOW = 1.5  # a step is slow that takes so many times as long as the fastest since the last trial


class Threads:
    """Chooses among 1, 2, 4, ... and as many threads as torch would take. fixed: that many, and no trial."""

    def __init__(self, fixed: int | None = None) -> None:
        most = torch.get_num_threads()
        self.counts = sorted({most, *(1 << n for n in range(most.bit_length()))}) if fixed is None else [fixed]
        self.count = self.counts[-1]
        self._trial: list[tuple[float, int]] | None = None  # seconds and threads of each step, while one goes on
        self._rows = 0
        self._fastest, self._since, self._patience = float("inf"), SOONEST, SOONEST  # the first steps are a trial

    def step(self, core: Any) -> None:
        """Let an engine take a step. Steps that decode are compared, as long as they have the same number of rows."""
        trial = self._trial
        count = self.count if trial is None else self.counts[len(trial) % len(self.counts)]
        before = torch.get_num_threads()
        if count != before:
            torch.set_num_threads(count)
        try:
            start = time.perf_counter()
            core.step()
            seconds = time.perf_counter() - start
        finally:
            if count != before:
                torch.set_num_threads(before)
        if len(self.counts) > 1 and core.decoded == len(core.fed) > 0:
            self._note(count, seconds, core.decoded)

    def _note(self, count: int, seconds: float, rows: int) -> None:
        """A step took so long: begin a trial, go on with one, or end it."""
        if rows != self._rows:
            self._rows, self._trial, self._fastest = rows, None, float("inf")
        if self._trial is None:
            slow = seconds > SLOW * self._fastest
            self._fastest, self._since = min(self._fastest, seconds), self._since + 1
            if self._since >= (SOONEST if slow else self._patience):
                self._trial = []
            return
        self._trial.append((seconds, count))
        if len(self._trial) == TRIES * len(self.counts):
            self._fastest, best = min(self._trial)
            self._patience = min(2 * self._patience, LATEST) if best == self.count else SOONEST
            self.count, self._trial, self._since = best, None, 0
