"""`/metrics` for Prometheus: what became of all requests, how long tokens took, and the engine's own numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import sub
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from nanoinfer.engine.stats import Gauges, Stats
from nanoinfer.serve.service import OUTCOMES, Service, Ticket

SECONDS = tuple(step * 10**power for power in range(-4, 3) for step in (1, 2.5, 5))  # upper ends of buckets
ENDS = [*(f"{end:g}" for end in SECONDS), "+Inf"]


class Times:
    """A histogram of seconds. prometheus-client's own takes them one by one, at 2 microseconds each."""

    def __init__(self) -> None:
        self._counts, self._sum = Counter[int](), 0.0

    def add(self, seconds: Sequence[float]) -> None:
        self._counts.update(map(partial(bisect_left, SECONDS), seconds))
        self._sum += sum(seconds)

    def family(self, name: str, told: str) -> Metric:
        """Return it as Prometheus reads it."""
        counts = accumulate(self._counts[bucket] for bucket in range(len(ENDS)))
        return HistogramMetricFamily(name, told, buckets=list(zip(ENDS, counts, strict=True)), sum_value=self._sum)


class Metrics(Collector):
    """Counts each request of a service when it is closed; `collect` reads the rest when it is asked for."""

    def __init__(self, service: Service) -> None:
        self._service, self._registry = service, CollectorRegistry()
        self._ended: Counter[str] = Counter()  # requests, by what became of them
        self._tokens: Counter[str] = Counter()  # their usage
        self._ttft, self._itl = Times(), Times()
        self._registry.register(self)
        service.on_close = self.count

    async def page(self, request: Request) -> Response:
        """The text of /metrics."""
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    def count(self, ticket: Ticket) -> None:
        """Count a request that is over. Times are the engine's, so the size of a stream's events plays no part."""
        self._ended[ticket.outcome] += 1
        self._tokens.update(ticket.usage)
        for row in ticket.sequences:
            self._ttft.add([first - row.asked for first in row.times[:1]])
            self._itl.add([*map(sub, row.times[1:], row.times)])

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. The engine's are 0 before it is loaded."""
        service = self._service
        gauges, stats = (service.llm.gauges, service.llm.stats) if service.llm else (Gauges(), Stats())
        now, sums = GaugeMetricFamily, CounterMetricFamily
        metrics: list[tuple[type[Any], str, float, str]] = [
            (now, "ready", service.phase == "ready", "Whether a request sent now would be answered"),
            (now, "ready_seconds", service.ready_s, "Seconds from the start until ready"),
            (now, "requests_live", len(service.tickets), "Requests being read, run or answered"),
            (now, "rows_running", gauges.running, "Rows in the batch"),
            (now, "rows_waiting", gauges.waiting, "Rows waiting for a place in the batch"),
            (now, "blocks", gauges.blocks, "Blocks of the KV cache; 0 for a cache without blocks"),
            (now, "blocks_used", gauges.blocks_used, "Blocks that rows own"),
            (now, "blocks_cached", gauges.blocks_cached, "Blocks kept for prompts with the same beginning"),
            (sums, "requests_submitted", service.submitted, "Requests for completions"),
            (sums, "prompt_tokens", self._tokens["prompt_tokens"], "Prompt tokens of ended requests"),
            (sums, "new_tokens", self._tokens["completion_tokens"], "New tokens of ended requests"),
        ]
        if gauges.blocks:  # without blocks there is neither prefix sharing nor preemption
            metrics += [
                (sums, "prefix_queries_tokens", stats.prompt_tokens, "Prompt tokens of rows that have begun"),
                (sums, "prefix_hits_tokens", stats.cached_tokens, "Prompt tokens found in the prefix cache"),
                (sums, "preemptions", stats.preemptions, "Rows that had to give their blocks back"),
                (sums, "recomputed_tokens", stats.recomputed_tokens, "Tokens computed again after a preemption"),
            ]
        for kind, name, value, told in metrics:
            yield kind(f"nanoinfer_{name}", told, value=float(value))
        ended = CounterMetricFamily("nanoinfer_requests", "Requests, by what became of them", labels=["outcome"])
        for outcome in OUTCOMES:
            ended.add_metric([outcome], self._ended[outcome])
        yield ended
        yield self._ttft.family("nanoinfer_ttft_seconds", "Seconds to the first token, of ended rows")
        yield self._itl.family("nanoinfer_itl_seconds", "Seconds from a token to the next, of ended rows")
