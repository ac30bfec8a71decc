"""Exercise 5.6: wrong answers and where they come from, correct variants, mutants that are none, two editions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate

from nanocourse.exercises.exercise import Edition, Right, Wrong

Log = list[tuple[int, int, float, float, bool]]
Answer = tuple[list[float], list[float]]


def from_the_send(due: list[float], log: Log, percents: list[int]) -> Answer:
    """A request's clock starts when it is sent."""
    waited = [math.inf] * len(due)
    for request, _, sent, end, ok in log:
        if ok:
            waited[request] = min(waited[request], end - sent)
    ranked = sorted(waited)
    return waited, [ranked[-(-percent * len(due) // 100) - 1] for percent in percents]


def from_the_first_send(due: list[float], log: Log, percents: list[int]) -> Answer:
    """A request's clock starts when it is sent for the first time."""
    first, ended = [math.inf] * len(due), [math.inf] * len(due)
    for request, _, sent, end, ok in log:
        first[request] = min(first[request], sent)
        ended[request] = min(ended[request], end if ok else math.inf)
    waited = [math.inf if end == math.inf else end - at for end, at in zip(ended, first, strict=True)]
    ranked = sorted(waited)
    return waited, [ranked[-(-percent * len(due) // 100) - 1] for percent in percents]


def percentile_of_means(due: list[float], log: Log, percents: list[int]) -> Answer:
    """Each client has its mean latency, and the percentile is that of the clients."""
    ended, by = [math.inf] * len(due), [-1] * len(due)
    for request, client, _, end, ok in log:
        if ok and end < ended[request]:
            ended[request], by[request] = end, client
    waited = [end - at for end, at in zip(ended, due, strict=True)]
    own = [[waited[at] for at in range(len(due)) if by[at] == client] for client in sorted(set(by))]
    means = sorted(sum(times) / len(times) for times in own)
    return waited, [means[-(-percent * len(means) // 100) - 1] for percent in percents]


def mean_of_percentiles(due: list[float], log: Log, percents: list[int]) -> Answer:
    """Each client has its percentile, and the result is their mean."""
    ended, by = [math.inf] * len(due), [-1] * len(due)
    for request, client, _, end, ok in log:
        if ok and end < ended[request]:
            ended[request], by[request] = end, client
    waited = [end - at for end, at in zip(ended, due, strict=True)]
    own = [sorted(waited[at] for at in range(len(due)) if by[at] == client) for client in sorted(set(by))]
    told = [[times[-(-percent * len(times) // 100) - 1] for times in own] for percent in percents]
    return waited, [sum(times) / len(times) for times in told]


def each_try(due: list[float], log: Log, percents: list[int]) -> Answer:
    """Each line of the log is a request."""
    ended = [math.inf] * len(due)
    for request, _, _, end, ok in log:
        if ok:
            ended[request] = min(ended[request], end)
    tries = [end - due[request] if ok else math.inf for request, _, _, end, ok in log]
    ranked = sorted(tries) or [math.inf]
    waited = [end - at for end, at in zip(ended, due, strict=True)]
    return waited, [ranked[-(-percent * len(ranked) // 100) - 1] for percent in percents]


RANKED = "ranked = sorted(waited)"
RANK = "ranked[-(-percent * len(due) // 100) - 1]"
IF_OK = "        if ok:\n            ended[request] = min(ended[request], end)"
WAITED = "[end - at for end, at in zip(ended, due, strict=True)]"
WRONG = (
    Wrong(from_the_send, "vllm-project/vllm#54101: a mean of 506 ms where the schedule said 1,932 ms"),
    Wrong(from_the_first_send, "a generator that counts its retries, and not the wait for its own permit"),
    Wrong.patch(
        "from-the-start-of-the-run", "All clocks start with the run.", "end - at for", "end - due[0] for",
        "an author's own slip: a duration of the run, told for each request",
    ),
    Wrong.patch(
        "failed-left-out", "Percentiles are those of the answers that there were.",
        f"    {RANKED}\n    return waited, [{RANK} for percent in percents]",
        "    ranked = sorted(time for time in waited if time < math.inf) or [math.inf]\n"
        "    return waited, [ranked[-(-percent * len(ranked) // 100) - 1] for percent in percents]",
        "ai-dynamo/aiperf#688: 250 of 256 failed, and the p95 was that of six; SemiAnalysisAI/InferenceX#357",
    ),
    Wrong.patch(
        "failed-is-answered", "A refusal is an answer, too.", IF_OK,
        "        ended[request] = min(ended[request], end)",
        "gpustack/gpustack#1677: failures that were counted as successes",
    ),
    Wrong.patch(
        "failed-is-nothing", "A request without an answer took no time.", WAITED,
        "[end - at if end < math.inf else 0.0 for end, at in zip(ended, due, strict=True)]",
        "vllm-project/vllm-omni#7058: a run whose engine had died, with all requests complete at 0 ms",
    ),
    Wrong.patch(
        "the-last-try", "What the log says last of a request is what became of it.", IF_OK,
        "        ended[request] = end if ok else math.inf",
        "an author's own slip: a dict by request, filled line by line",
    ),
    Wrong.patch(
        "the-latest-answer", "A request has ended when its last answer has.",
        "ended[request] = min(ended[request], end)",
        "ended[request] = end if ended[request] == math.inf else max(ended[request], end)",
        "an author's own slip: hedged requests, of which the slower answer is thrown away",
    ),
    Wrong(each_try, "an author's own slip: wc -l of the log; retries make the good percentiles better"),
    Wrong(percentile_of_means, "dashboards that keep means: a client that stalls is one of three, whatever it sent"),
    Wrong(mean_of_percentiles, "brianfrankcooper/YCSB#1512 warns of it; transithq/tropel#64"),
    Wrong.patch(
        "mean-instead", "What is typical is the mean.", f"[{RANK} for percent in percents]",
        "[sum(waited) / len(waited) for percent in percents]",
        "bojand/ghz#248 asks for it; a mean of 1 s may be a second for all, or a minute for one in sixty",
    ),
    Wrong.patch(
        "between-two-ranks", "A percentile lies between two latencies, as far as the percent says.", RANK,
        "(lambda x: ranked[int(x)] if x == int(x) else ranked[int(x)] + (x - int(x)) * (ranked[int(x) + 1] - "
        "ranked[int(x)]))((len(due) - 1) * percent / 100)",
        "numpy's default; fine for many requests, and with five a p99 that nobody waited",
    ),
    Wrong.patch(
        "rank-rounded-down", "The rank is p percent of n, without what is behind the point.", RANK,
        "ranked[max(1, percent * len(due) // 100) - 1]", "an author's own slip: the 99th percentile of ten is the 9th",
    ),
    Wrong.patch(
        "rank-of-none", "The rank is p percent of n, rounded down; rank 0 is what is then at its place, the last one.",
        RANK, "ranked[percent * len(due) // 100 - 1]",
        "somebody who saw only stub and text: floor for ceil, and an index of -1",
    ),
    Wrong.patch(
        "one-rank-further", "The latency at index p * n / 100.", RANK,
        "ranked[min(percent * len(due) // 100, len(due) - 1)]", "an author's own slip: ranks counted from 0",
    ),
    Wrong.patch(
        "not-sorted", "The latencies are in order.", RANKED, "ranked = waited",
        "an author's own slip: arrivals are in order, and ends are not",
    ),
    Wrong.patch(
        "order-of-the-log", "Latencies come in the order in which they were written down.", "return waited, [",
        "return [waited[at] for at in dict.fromkeys(line[0] for line in log)], [",
        "an author's own slip: who was never sent is then missing, too",
    ),
    Wrong.patch(
        "rank-by-floats", "The rank is math.ceil of percent / 100 * n.", RANK,
        "ranked[math.ceil(percent / 100 * len(due)) - 1]",
        "an author's own slip: 55 / 100 * 100 is 55.00000000000001, whose ceil is 56", unnamed="one-rank-further",
    ),
)  # fmt: skip


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


def line_by_line(due: list[float], log: Log, percents: list[int]) -> Answer:
    """A dict of the good answers, by the order of their ends; ranks by ceil of a fraction without rounding error."""
    first: dict[int, float] = {}
    for request, _, _, end, ok in sorted(log, key=lambda line: line[3]):
        if ok and request not in first:
            first[request] = end
    waited = tuple(first[at] - due[at] if at in first else float("inf") for at in range(len(due)))
    ranked = sorted(waited, reverse=True)
    return list(waited), [ranked[len(due) - math.ceil(percent * len(due) / 100)] for percent in percents]


def by_inserting(due: list[float], log: Log, percents: list[int]) -> Answer:
    """Lines grouped by request; a list of a hundred times as many latencies, in which percents are places."""
    lines: list[list[float]] = [[] for _ in due]
    for request, _client, _sent, end, ok in log:
        lines[request] += [end] * bool(ok)
    waited = [sorted(lines[at] + [math.inf])[0] - due[at] for at in range(len(due))]
    spread = [time for time in sorted(waited) for _ in range(100)]
    return waited, [spread[percent * len(due) - 1] for percent in percents]


RIGHT = (Right(by_counting), Right(line_by_line), Right(by_inserting))
EQUIVALENT = {
    "ended[request] = min(end, ended[request])": "the smaller of two is the same in either order",
    "waited = [end - at for end, at in zip(ended, due, strict=False)]": "there is one end for each request",
}


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


EDITIONS = (
    Edition(
        "from-gaps", "the schedule is told by its gaps, each client has a log of its own, and the answer is a dict",
        from_gaps, args=_gaps, back=_due,
        result=lambda result, *_: {"latency": result[0], "percentiles": result[1]}, axes=("number",),
    ),
)  # fmt: skip
