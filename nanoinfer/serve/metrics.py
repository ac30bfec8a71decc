"""`/metrics`: the books and the engine's counters, as Prometheus reads them. Each is read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from nanoinfer.engine.stats import Gauges, Stats
from nanoinfer.serve.books import SECONDS, Histogram
from nanoinfer.serve.service import Service


class Collector:
    """What Prometheus asks, in a registry of its own."""

    def __init__(self, service: Service) -> None:
        self._service, self._registry = service, CollectorRegistry()
        self._registry.register(self)  # type: ignore[arg-type]  # it asks for no more than `collect`

    def page(self) -> bytes:
        """The text of /metrics."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics. Gauges of the engine are 0 before it is loaded."""
        service, books = self._service, self._service.books
        gauges, stats = (service.llm.gauges, service.llm.stats) if service.llm else (Gauges(), Stats())
        for name, value, told in (
            ("ready", service.phase == "ready", "Whether a request that is sent now is answered"),
            ("ready_seconds", service.ready_s, "Seconds from the start until then"),
            ("requests_live", len(service.tickets), "Requests that are being read, run or answered"),
            ("rows_running", gauges.running, "Rows of the batch"),
            ("rows_waiting", gauges.waiting, "Rows that wait for a place in it"),
            ("blocks", gauges.blocks, "Blocks of the KV cache; 0 for a cache that has none"),
            ("blocks_used", gauges.blocks_used, "Blocks that rows own"),
            ("blocks_cached", gauges.blocks_cached, "Blocks kept for texts that begin as an earlier one"),
        ):
            yield GaugeMetricFamily(f"nanoinfer_{name}", told, float(value))
        counters = [
            ("requests_submitted", books.submitted, "Requests for completions that have come"),
            ("prompt_tokens", books.prompt_tokens, "Prompt tokens of requests that have ended"),
            ("new_tokens", books.new_tokens, "New tokens of requests that have ended"),
        ]
        if gauges.blocks:  # without them nothing is shared and nobody is preempted
            counters += [
                ("prefix_queries_tokens", stats.prompt_tokens, "Prompt tokens of rows that have begun"),
                ("prefix_hits_tokens", stats.cached_tokens, "Those of them that the prefix cache had"),
                ("preemptions", stats.preemptions, "Times that a row had to give its room back"),
                ("recomputed_tokens", stats.recomputed_tokens, "Tokens that were computed again for it"),
            ]
        for name, count, told in counters:
            yield CounterMetricFamily(f"nanoinfer_{name}", told, count)
        outcomes = CounterMetricFamily("nanoinfer_requests", "Requests by what became of them", labels=["outcome"])
        for outcome, ended in books.ended.items():
            outcomes.add_metric([outcome], ended)
        yield outcomes
        yield _histogram("ttft", "Seconds from a request to its first token, of rows that have ended", books.ttft)
        yield _histogram("itl", "Seconds from a token to the next, of rows that have ended", books.itl)


def _histogram(name: str, told: str, counted: Histogram) -> HistogramMetricFamily:
    ends = [*(f"{end:g}" for end in SECONDS), "+Inf"]
    buckets = list(zip(ends, accumulate(counted.counts), strict=True))
    return HistogramMetricFamily(f"nanoinfer_{name}_seconds", told, buckets=buckets, sum_value=counted.sum)
