"""`/metrics` for Prometheus: what became of all requests, how long tokens took, and the engine's own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nanoinfer.engine.stats import Gauges, Stats
from nanoinfer.serve.service import OUTCOMES, Service, Ticket

SECONDS = tuple(step * 10**power for power in range(-4, 3) for step in (1, 2.5, 5))  # upper ends of buckets


class Metrics(Collector):
    """Counts each request of a service when it is closed; `collect` reads the rest when it is asked for."""

    def __init__(self, service: Service) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._service, self._registry = service, (registry := CollectorRegistry())
        self._ended = Counter("nanoinfer_requests", "Requests, by what became of them", ["outcome"], registry=registry)
        for outcome in OUTCOMES:
            self._ended.labels(outcome)  # 0 from the start
        self._prompt = Counter("nanoinfer_prompt_tokens", "Prompt tokens of ended requests", registry=registry)
        self._new = Counter("nanoinfer_new_tokens", "New tokens of ended requests", registry=registry)
        ttft, itl = "Seconds to the first token, of ended rows", "Seconds from a token to the next, of ended rows"
        self._ttft = Histogram("nanoinfer_ttft_seconds", ttft, buckets=SECONDS, registry=registry)
        self._itl = Histogram("nanoinfer_itl_seconds", itl, buckets=SECONDS, registry=registry)
        registry.register(self)
        service.on_close = self.count

    def page(self) -> bytes:
        """The text of /metrics."""
        return generate_latest(self._registry)

    def count(self, ticket: Ticket) -> None:
        """Count a request that is over. Times are the engine's, so the size of a stream's events plays no part."""
        self._ended.labels(ticket.outcome).inc()
        self._prompt.inc(ticket.prompt_tokens)
        self._new.inc(ticket.new_tokens)
        for row in ticket.sequences:
            for first in row.times[:1]:
                self._ttft.observe(first - row.asked)
            for before, after in pairwise(row.times):
                self._itl.observe(after - before)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are read. The engine's are 0 before it is loaded."""
        service = self._service
        gauges, stats = (service.llm.gauges, service.llm.stats) if service.llm else (Gauges(), Stats())
        for name, value, told in (
            ("ready", service.phase == "ready", "Whether a request sent now would be answered"),
            ("ready_seconds", service.ready_s, "Seconds from the start until ready"),
            ("requests_live", len(service.tickets), "Requests being read, run or answered"),
            ("rows_running", gauges.running, "Rows in the batch"),
            ("rows_waiting", gauges.waiting, "Rows waiting for a place in the batch"),
            ("blocks", gauges.blocks, "Blocks of the KV cache; 0 for a cache without blocks"),
            ("blocks_used", gauges.blocks_used, "Blocks that rows own"),
            ("blocks_cached", gauges.blocks_cached, "Blocks kept for prompts with the same beginning"),
        ):
            yield GaugeMetricFamily(f"nanoinfer_{name}", told, float(value))
        counters = [("requests_submitted", service.submitted, "Requests for completions")]
        if gauges.blocks:  # without blocks there is neither prefix sharing nor preemption
            counters += [
                ("prefix_queries_tokens", stats.prompt_tokens, "Prompt tokens of rows that have begun"),
                ("prefix_hits_tokens", stats.cached_tokens, "Prompt tokens found in the prefix cache"),
                ("preemptions", stats.preemptions, "Rows that had to give their blocks back"),
                ("recomputed_tokens", stats.recomputed_tokens, "Tokens computed again after a preemption"),
            ]
        for name, count, told in counters:
            yield CounterMetricFamily(f"nanoinfer_{name}", told, count)
