"""Exercise 5.6: correct variants, mutants that are none, two editions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate

from nanocourse.exercises.exercise import edition

Log = list[tuple[int, int, float, float, bool]]
Answer = tuple[list[float], list[float]]


def by_counting(due: list[float], log: Log, percents: list[int]) -> Answer:
    """No rank: the smallest latency that enough requests do not exceed, as the definition says."""
    waited = [
        min((end - at for who, _, _, end, ok in log if ok and who == one), default=math.inf)
        for one, at in enumerate(due)
    ]
    told = []
    for percent in percents:
        enough = [time for time in waited if 100 * sum(other <= time for other in waited) >= percent * len(waited)]
        told.append(min(enough))
    return waited, told


def by_inserting(due: list[float], log: Log, percents: list[int]) -> Answer:
    """Lines grouped by request; a list of a hundred times as many latencies, in which percents are places."""
    lines: list[list[float]] = [[] for _ in due]
    for request, _client, _sent, end, ok in log:
        lines[request] += [end] * bool(ok)
    waited = [sorted(lines[at] + [math.inf])[0] - due[at] for at in range(len(due))]
    spread = [time for time in sorted(waited) for _ in range(100)]
    return waited, [spread[percent * len(due) - 1] for percent in percents]


def _gaps(due: list[float], log: Log, percents: list[int]) -> tuple[object, ...]:
    gaps = [after - before for before, after in zip([0.0, *due], due, strict=False)]
    count = max((line[1] for line in log), default=0) + 1
    clients: list[list[tuple[int, float, float, str]]] = [[] for _ in range(count)]
    for request, client, sent, end, ok in log:
        clients[client].append((request, sent, end, "ok" if ok else ("refused", "failed")[request % 2]))
    return gaps, clients, percents


def _due(
    gaps: list[float], clients: Iterable[Iterable[tuple[int, float, float, str]]], percents: list[int]
) -> tuple[object, ...]:
    log = [(who, at, sent, end, said == "ok") for at, own in enumerate(clients) for who, sent, end, said in own]
    return list(accumulate(gaps)), log, percents


@edition(
    "from-gaps",
    "the schedule is told by its gaps, each client has a log of its own, and the answer is a dict",
    args=_gaps,
    back=_due,
    result=lambda result, *_: {"latency": result[0], "percentiles": result[1]},
    axes=("number",),
)
def from_gaps(
    gaps: list[float], clients: list[list[tuple[int, float, float, str]]], percents: list[int]
) -> dict[str, list[float]]:
    """ "latency": of each request, in order of arrival; "percentiles": of them all, for each of `percents`.

    gaps: the seconds from each request's arrival to that of the one before, of the first one from the start of the run:
    a schedule that was made before the run. clients: what each client wrote down: (request, sent, ended, outcome) of
    each of its sends. request: the place in the schedule. outcome: "ok" for a good answer; "refused" or "failed" if
    not. Each client sends one request after the other, so that it may be late. A request that failed may have been
    sent again, by the same client or another one, and one that was never sent is in no list.
    A user waits from when the request arrives to the end of its first good answer, the one that ended first; if
    there is none, for ever: math.inf. The percentile of p percent (1 to 100) is the smallest of all latencies that at
    least p percent of the requests do not exceed: the nearest rank, with nothing between two ranks.
    """
    arrivals = list(accumulate(gaps))
    lines = [line for own in clients for line in own]
    waited = [
        min((end for who, _, end, said in lines if who == one and said == "ok"), default=math.inf) - at
        for one, at in enumerate(arrivals)
    ]
    ranks = [(percent * len(waited) + 99) // 100 for percent in percents]
    return {"latency": waited, "percentiles": [sorted(waited)[rank - 1] for rank in ranks]}
