"""Little's law from a recording's own numbers: `python chapters/05-queue/littles_law.py watch.html`.

L = lambda * W: the requests that are in the system on average are those that arrive in a second, times the seconds that
each one stays. The left side is counted step by step, the right one request by request. J. D. C. Little 1961, "A Proof
for the Queuing Formula: L = lambda W".
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]


class Little(NamedTuple):
    """requests in `seconds`. in_system: L, waiting or running. per_second: lambda. stay_s: W."""

    requests: int
    seconds: float
    in_system: float
    per_second: float
    stay_s: float


def events_of(path: Path) -> list[Event]:
    """The events in a file of `nanoinfer watch`. ValueError where there are none."""
    found = re.search(r'<script type="application/json" id="recording">(.*?)</script>', path.read_text("utf-8"), re.S)
    if not found:
        raise ValueError(f"{path} is no recording of `nanoinfer watch`")
    events: list[Event] = json.loads(found[1])["events"]
    return events


def littles_law(events: Sequence[Event]) -> Little:
    """L, lambda and W of a run of at most 64 rows. Who is still there at the end is taken to leave then.

    L: requests that wait or run during each step, weighted with the time it took. W: from when each was asked for, its
    first token's time less its TTFT, to when it ended. ValueError where no request came.
    """
    running: set[int] = set()
    asked: dict[int, float] = {}
    ended: dict[int, float] = {}
    waiting, area = {"count": 0, "ids": []}, 0.0
    for event in events:
        now, took = event["time"], event.get("took", 0.0)
        waiting = event.get("waiting", waiting)
        running |= {row["id"] for row in event.get("begun", event.get("rows", []))}
        running -= set(event.get("preempted", []))
        for id in (*waiting["ids"], *running):
            asked.setdefault(id, now - took)
        area += took * (waiting["count"] + len(running))
        asked |= {id: now - ttft for id, ttft in event.get("ttft", [])}
        ended |= {id: now for id, _ in event.get("ended", [])}
        running -= set(ended)
    if not asked:
        raise ValueError("no request came, so there is nothing to count")
    end = events[-1]["time"]
    seconds = end - events[0]["time"]
    stay = sum(ended.get(id, end) - since for id, since in asked.items())
    return Little(len(asked), seconds, area / seconds, len(asked) / seconds, stay / len(asked))


def main(paths: Sequence[str]) -> int:
    """Print the law for each file."""
    for path in paths:
        law = littles_law(events_of(Path(path)))
        print(f"{path}: {law.requests} requests in {law.seconds:.2f} s")
        print(f"  L, in the system on average      {law.in_system:.3f}")
        print(f"  lambda, arrivals a second        {law.per_second:.3f}")
        print(f"  W, seconds that each one stayed  {law.stay_s:.3f}")
        print(f"  lambda * W                       {law.per_second * law.stay_s:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
