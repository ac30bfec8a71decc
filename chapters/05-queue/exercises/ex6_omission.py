"""Exercise 5.6: latencies as those who asked felt them, and their percentiles."""

from __future__ import annotations

import math

from nanocourse.exercises import Call, Case, Check, Spec, call

Log = list[tuple[int, int, float, float, bool]]


def latencies(
    due: list[float], log: list[tuple[int, int, float, float, bool]], percents: list[int]
) -> tuple[list[float], list[float]]:
    """The latency of each request, in the order of the schedule, and for each of `percents` the percentile of them all.

    due: when each request arrives, by a schedule that was made before the run, in seconds; at least one, rising. log:
    what the clients wrote down, in any order: (request, client, sent, ended, ok). request: its place in `due`. client:
    who sent it; each of them sends one request after the other, so that it may be late. ok: whether the answer was a
    good one; if not, the request was refused or failed. A request that failed may have been sent again, by the same
    client or another one, and one that was never sent is not in the log.
    A user waits from when the request is due to the end of its first good answer, the one that ended first; if
    there is none, for ever: math.inf. The percentile of p percent (1 to 100) is the smallest of all latencies that at
    least p percent of the requests do not exceed: the nearest rank, with nothing between two ranks.
    """
    ended = [math.inf] * len(due)
    for request, _, _, end, ok in log:
        if ok:
            ended[request] = min(ended[request], end)
    waited = [end - at for end, at in zip(ended, due, strict=True)]
    ranked = sorted(waited)
    return waited, [ranked[-(-percent * len(due) // 100) - 1] for percent in percents]


def _example() -> Call:
    due = [0.0, 1.0, 2.0, 3.0]
    log = [(0, 0, 0.0, 4.0, True), (3, 1, 3.0, 3.5, False), (3, 1, 3.5, 4.5, True), (1, 0, 4.0, 4.5, True)]
    return call(due, log, [50, 99])


EXERCISE = Spec(
    reference=latencies,
    lines=9,
    example=_example,
    section="Measure from when a request is due",
    axes=("list", "number"),
    tolerance=1e-9,
    imports=("import math",),
)


def _run(case: Case, requests: int, clients: int, slow: float, gap: float = 0.5) -> tuple[list[float], Log]:
    """A schedule, and what clients that wait for each answer wrote of it; times are eighths of a second."""
    due = [gap * at for at in range(requests)]
    free = [0.0] * clients
    log: Log = []
    for request, at in enumerate(due):
        client = request % clients if clients > 1 else 0
        sent = max(at, free[client])
        took = (
            slow
            if case.choice(f"slow {request}", (False, False, True))
            else case.choice(f"took {request}", range(1, 9)) / 8
        )
        free[client] = sent + took
        log.append((request, client, sent, free[client], True))
    return due, log


def _shuffled(case: Case, log: Log) -> Log:
    return [log[at] for at in case.permutation("log", len(log)).tolist()]


def from_the_schedule(case: Case) -> Call:
    """A latency counts from when the request was due, however late it was sent; the schedule says their order."""
    due, log = _run(case, case.size("requests", 2, 6), case.size("clients", 1, 2), 4.0, 0.25)
    shift = case.choice("start", (0.0, 2.0))
    log = [(request, client, sent + shift, end + shift, ok) for request, client, sent, end, ok in log]
    return call([at + shift for at in due], _shuffled(case, log), [100])


def never_answered(case: Case) -> Call:
    """A request that failed, or that nobody sent, has waited for ever, and is one of all the requests."""
    due, log = _run(case, case.size("requests", 3, 7), 2, 1.0)
    failed = case.choice("failed", range(len(due)))
    kind = case.turn(("failed", "unsent", "both"))
    if kind != "unsent":
        request, client, sent, end, _ = log[failed]
        log[failed] = (request, client, sent, end, False)
    if kind != "failed":
        del log[failed - 1]
    return call(due, log, [30, 100])


def sent_again(case: Case) -> Call:
    """A request counts once, from when it was due to its first good answer, whoever sent it how often."""
    due, log = _run(case, case.size("requests", 2, 5), 2, 1.0)
    again = case.choice("again", range(len(due)))
    request, client, sent, end, _ = log[again]
    late = end + case.size("later", 1, 4) / 2
    failed: Log = [(request, client, sent, end, False), (request, 1 - client, end, late, True)]
    hedged: Log = [(request, client, sent, end, True), (request, 1 - client, sent, late, True)]
    both: Log = [*failed, (request, client, late, late + 1.0, False)]
    return call(
        due, _shuffled(case, [*log[:again], *log[again + 1 :], *case.turn((failed, hedged, both, hedged))]), [100]
    )


def nearest_rank(case: Case) -> Call:
    """A percentile is the latency at its rank, rounded up: of all requests, each with the same weight."""
    requests = case.choice("requests", (1, 4, 5, 10, 20, 25))
    due, log = _run(case, requests, 1, 3.0, 4.0)
    ranks = [100 * rank // requests for rank in range(1, requests + 1)]
    near = [ranks[at] for at in case.ints("ranks", 0, requests - 1, 3).tolist()]
    return call(due, log, [*near, min(100, near[0] + 1), case.choice("low", (1, 2)), 50, 99])


def one_client_stalls(case: Case) -> Call:
    """The slow client's requests are few among all; neither its mean nor its percentile is that of all."""
    due, log = [0.5 * at for at in range(12)], list[tuple[int, int, float, float, bool]]()
    stall = 4.0 + case.size("stall", 0, 8)
    for request, at in enumerate(due):
        client = 1 if request % 4 == 3 else 0 if request % 2 else 2
        took = stall if client == 1 else case.choice(f"took {request}", (1, 2, 3)) / 8
        log.append((request, client, at, at + took, True))
    return call(due, log, case.turn(([50, 75], [25, 75, 100])))


def any_run(case: Case) -> Call:
    """One request, many, equal arrivals, none answered, a server that stalls, a log that is empty."""
    kind = case.turn(("many", "stall", "one", "none", "empty", "equal", "hundred", "many"))
    if kind == "one":
        return call([2.5], [(0, 3, 2.75, 4.0, True)], [1, 50, 100])
    if kind == "none":
        return call(
            [0.0, 0.0, 1.0], [(2, 0, 1.0, 1.5, False), (0, 0, 0.0, 0.5, False), (2, 0, 2.0, 2.5, False)], [1, 99]
        )
    if kind == "empty":
        return call([0.0, 0.5], [], [100])
    if kind == "equal":
        due, log = [1.0] * 6, [(at, 0, 1.0 + at, 2.0 + at, True) for at in range(6)]
        return call(due, _shuffled(case, log), [1, 16, 17, 34, 50, 100])
    if kind == "hundred":
        due = [float(at) for at in range(case.most("requests", 25, 100))]
        took = (case.permutation("took", len(due)) + 1).tolist()
        log = [(at, at % 7, float(at), at + took[at] / 8, True) for at in range(len(due))]
        return call(due, _shuffled(case, log), list(range(1, 101)))
    due, log = _run(case, case.most("requests", 6, 200 if kind == "many" else 30), 3, 1.5 if kind == "many" else 20.0)
    for at in case.ints("failed", 0, len(log) - 1, 6).tolist():
        request, client, sent, end, _ = log[at]
        log[at] = (request, client, sent, end, False)
        if case.choice(f"again {at}", (True, True, False)):
            log.append((request, client, end + 1.0, end + 2.0, True))
    log += [(who, client, sent, end + 1.0, True) for who, client, sent, end, ok in log[::9] if ok]
    del log[case.choice("unsent", range(1, 5))]
    return call(due, _shuffled(case, log), [50, 90, 95, 96, 97, 99])


CHECKS = (
    Check(any_run, 8, wide=True), Check(from_the_schedule, 4), Check(never_answered, 6), Check(sent_again, 4),
    Check(nearest_rank, 6), Check(one_client_stalls, 4),
)  # fmt: skip
