"""What `bench load` writes down of each run, and how it is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

from nanobench.core.records import Record, ResultsFile
from nanobench.load.clients import Done
from nanobench.load.drive import OUTCOMES, Answer, Ask, Outcome
from nanobench.load.requests import Mix
from nanobench.micro.queue_load import Latency

TOLERANCE = 0.01  # of the rate, and of the length of a run

How = Literal["at once", "arrivals", "trace", "closed loop"]


class Limits(Record):
    """What makes an answer a good one: both, where there is more than one token."""

    ttft_s: float = 1.0  # at most, from when the request is due
    itl_s: float = 0.05  # at most, for the mean of the request's gaps: its last token less its first, over the gaps

    def met(self, answer: Answer) -> bool:
        return answer.reply.outcome == "ok" and answer.ttft_s <= self.ttft_s and answer.mean_gap_s <= self.itl_s


class Plan(Record):
    """When the requests of a run are due."""

    how: How
    requests: int
    per_second: float | None = None  # asked for; None at once and in a closed loop
    group: int = 1  # requests that arrive together
    concurrency: int | None = None  # of a closed loop

    def __str__(self) -> str:
        if self.how == "closed loop":
            return f"closed loop of {self.concurrency}"
        if self.how == "at once":
            return f"{self.requests} at once"
        groups = f" by {self.group}" if self.group > 1 else ""
        return self.how + (f"{groups} at {self.per_second:.4g}/s" if self.per_second else "")


class LoadRun(Record):
    """One run against one target. Latencies are of the requests that are ok, and of those alone."""

    SHOWN = ("tokens_per_s", "requests_per_s", "goodput_per_s", "off")

    target: str
    plan: Plan
    interrupted: bool = False
    seconds: float  # from the start to the last end
    attempted: int
    ok: int
    refused: int  # the server said no: HTTP 4xx or 503, or a prompt that the engine does not take
    failed: int  # cut, garbage, an error event, no end in time, no connection
    cancelled: int  # by an interruption of the run
    reasons: dict[str, int]  # of all that is not ok, the most frequent
    prompt_tokens: int  # of the requests that are ok, and so are the next six
    new_tokens: int
    pieces: int  # that brought tokens
    counted_by: dict[str, int]  # answers whose tokens are counted by ids, by the server's usage, or by pieces
    short: int  # answers of fewer tokens than asked for
    good: int  # answers within the limits
    ttft: Latency | None  # from when a request was due; in a closed loop, from when it was sent
    itl: Latency | None  # one gap fewer than tokens: of k tokens that come together, k - 1 come after a gap of 0
    mean_itl: Latency | None  # of each request of more than one token: first token to last, over the gaps
    asked_per_s: float | None  # of the plan; of a trace, over the time from its first arrival to the last
    sent_per_s: float | None  # the same, as they were sent
    late: Latency | None  # from when a request was due to when the client began with it
    client_cpu: tuple[float, ...]  # of one core, by client process

    @property
    def tokens_per_s(self) -> float:
        return self.new_tokens / self.seconds if self.seconds else 0.0

    @property
    def requests_per_s(self) -> float:
        """That are ok."""
        return self.ok / self.seconds if self.seconds else 0.0

    @property
    def goodput_per_s(self) -> float:
        """Requests that are ok and within the limits."""
        return self.good / self.seconds if self.seconds else 0.0

    @property
    def off(self) -> bool:
        """Whether requests were sent at another rate than asked, or late by more than 1% of the run's length."""
        if self.asked_per_s is None or self.sent_per_s is None or self.late is None:
            return False
        planned = self.attempted / self.asked_per_s
        return abs(self.sent_per_s / self.asked_per_s - 1) > TOLERANCE or self.late.longest > TOLERANCE * planned


class LoadReport(ResultsFile):
    """One run of `python -m bench load`."""

    JSON: ClassVar = {"indent": None}  # a curve is a hundred numbers

    kind: Literal["load"] = "load"
    model: str
    dtype: str | None  # None where nothing of ours was measured
    targets: dict[str, str]  # what each is, by its name
    mix: Mix
    limits: Limits
    clients: int  # processes that send HTTP
    runs: tuple[LoadRun, ...]


def counted(target: str, plan: Plan, asks: Sequence[Ask], done: Sequence[Done], limits: Limits) -> LoadRun:
    """A run, of what its clients brought back."""
    answers = [answer for each in done for answer in each.answers]
    ok = [answer for answer in answers if answer.reply.outcome == "ok"]
    of = {ask.number: ask for ask in asks}
    reasons = Counter(f"{a.reply.outcome}: {a.reply.reason}" for a in answers if a.reply.outcome != "ok")
    outcomes: Counter[Outcome] = Counter(a.reply.outcome for a in answers)
    is_open = plan.concurrency is None
    asked, sent = _rates(plan, answers) if is_open else (None, None)
    ends = [answer.end for answer in answers]
    return LoadRun(
        target=target, plan=plan, interrupted=any(each.interrupted for each in done), seconds=max(ends, default=0.0),
        attempted=len(answers), **{name: outcomes[name] for name in OUTCOMES}, reasons=dict(reasons.most_common(8)),
        prompt_tokens=sum(len(of[a.number].prompt) for a in ok), new_tokens=sum(a.reply.tokens for a in ok),
        pieces=sum(len(a.reply.times) for a in ok), counted_by=dict(Counter(a.reply.by for a in ok)),
        short=sum(a.reply.tokens < of[a.number].max_tokens for a in ok), good=sum(map(limits.met, ok)),
        ttft=_latency([a.ttft_s for a in ok]), itl=_latency([gap for a in ok for gap in a.gaps_s]),
        mean_itl=_latency([a.mean_gap_s for a in ok if a.reply.tokens > 1]),
        asked_per_s=asked, sent_per_s=sent, late=_latency([a.sent - a.due for a in answers]) if is_open else None,
        client_cpu=tuple(round(each.cpu_share, 4) for each in done),
    )  # fmt: skip


def _latency(times: Sequence[float]) -> Latency | None:
    return Latency.of(times) if times else None


def _rates(plan: Plan, answers: Sequence[Answer]) -> tuple[float | None, float | None]:
    """Asked for, and sent: as much less as the sends took longer than the table. None where all are due at once."""
    due, sent = ([getattr(answer, when) for answer in answers] for when in ("due", "sent"))
    span = max(due, default=0.0) - min(due, default=0.0)
    if not span:
        return None, None
    asked = plan.per_second or (len(due) - 1) / span
    return asked, asked * span / max(max(sent) - min(sent), 1e-9)
