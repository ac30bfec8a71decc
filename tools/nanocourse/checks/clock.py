"""How much of its limit a process has used: seconds of processor time and, apart from these, seconds asleep.

A busy machine lets a process wait, which is no fault of whoever wrote its code. So time passes only where the process
computes, or where it sleeps though it was asked something. Where the system does not tell (no /proc), all time counts.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path

PATIENCE = 30  # times the limit and a minute more by the clock on the wall: the end of anything else


class Clock:
    """One process's use of one limit, from now on. `look` brings it up to date."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self.limit_s, self._pid = limit_s, pid
        self._before = self._used = self._asleep = 0.0
        self.restart()

    @property
    def spent(self) -> float:
        """Seconds that were used."""
        self._used = max(used(self._pid)[0], self._used)
        return max(self._used - self._before, self._asleep)

    def restart(self) -> None:
        """Nothing is used yet."""
        self._begun = self._at = self._looked = time.monotonic()
        self._before = self._used = used(self._pid)[0]
        self._asleep = 0.0

    def resume(self) -> None:
        """Begin to wait for the process: what we did ourselves since the last look was not its sleep."""
        self._at = time.monotonic()

    def stale(self, seconds: float) -> bool:
        """Whether the last look was longer ago."""
        return time.monotonic() - self._looked > seconds

    def look(self, most_s: float = math.inf) -> bool:
        """Whether the limit is used up. most_s: of sleep that a look tells of; one that comes late was held up itself,
        and the process may have answered long before.
        """
        now, (total, asleep) = time.monotonic(), used(self._pid)
        self._looked = now
        passed, gained = now - self._at, total - self._used
        if asleep and gained <= 0.2 * passed:
            self._asleep += min(passed, most_s)
        self._at, self._used = now, max(total, self._used)
        return self.spent > self.limit_s or now - self._begun > PATIENCE * self.limit_s + 60


def used(pid: int) -> tuple[float, bool]:
    """Seconds of processor time of a process and its children so far, and whether all of them sleep."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        state, *numbers = text.rpartition(")")[2].split()
        seconds = sum(map(int, numbers[10:14])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0, True  # it has ended, or this is no Linux
    asleep = state in "STt"
    with contextlib.suppress(OSError, ValueError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
            more, sleeps = used(int(child))
            seconds, asleep = seconds + more, asleep and sleeps
    return seconds, asleep
