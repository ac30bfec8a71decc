"""Captured steps that may be computed in several ways, of which the fastest is kept. Chapter 6.

Which way that is depends on the model, the GPU and the rows, and is found out by replaying all of them. What none of
the forwards serves is computed operation by operation, as in chapter 4, and counted with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from nanoinfer.engine.choice_stats import ChoiceStats as ChoiceStats  # noqa: PLC0414
from nanoinfer.engine.forward import Forward
from nanoinfer.engine.graphs import CapturedStep, GraphEngine, Key, OnCapture, Replayable, _free_bytes, in_a_line
from nanoinfer.engine.state import BatchState
from nanoinfer.model.gpt2 import GPT2

OP_BY_OP = "op by op"
NULL = 0  # the block that no row owns, as in cache/captured.py
ROUNDS, REPLAYS = 5, 8  # in which the ways take turns
Forwards = Callable[[GPT2, Any, BatchState], Sequence[Forward]]


class ChoosingEngine(GraphEngine):
    """A `GraphEngine` that computes a decode step in whichever way is fastest.

    forwards: what makes the ways besides `decode_step`, over model, cache and state, the preferred one first. pinned:
    the first that serves is taken, and none is timed.
    """

    def __init__(self, *args: Any, forwards: Forwards | None = None, pinned: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.forwards = forwards(self.model, self.cache, self.state) if forwards else []
        self.pinned = pinned
        self.names: dict[Key, str] = {}  # of the ways that were chosen, with the reason where it is not the first

    def _captured(self, key: Key, why_not: str | None, all_layers: bool = False) -> CapturedStep | None:
        captured = super()._captured(key, why_not, all_layers)
        if captured and key.columns == 1 and self.forwards:
            self.stats.computed_by[self.names.get(key, OP_BY_OP)] += 1  # without a name if Ctrl-C came ahead of it
        return captured

    def _drop(self) -> None:
        super()._drop()
        for forward in self.forwards:
            forward.refresh()

    @torch.inference_mode()
    def _capture(self, keys: Sequence[Key], on_capture: OnCapture = lambda done, of: None) -> None:
        """Operation by operation first, then by each forward that serves."""
        if not self.forwards:
            super()._capture(keys, on_capture)
            return
        count = len(keys)
        super()._capture(keys, lambda done, of: on_capture(done, 2 * of))
        began, free = time.perf_counter(), _free_bytes(self.state.token.device)
        with self.all_padding():
            for done, key in enumerate(keys, start=1):
                if key.columns == 1 and key in self.graphs:
                    self._choose(key)
                on_capture(count + done, 2 * count)
        self.stats.capture_s += time.perf_counter() - began
        self.stats.graph_bytes += max(0, free - _free_bytes(self.state.token.device))

    def _choose(self, key: Key) -> None:
        """Record the step in all ways that serve it, and keep one of them."""
        assert self.recorder is not None
        made: dict[str, Replayable] = {}
        reason = None  # why it is not the first
        for forward in self.forwards:
            cause = forward.why_not(key.rows, key.sampler)
            if cause is None:
                step = partial(forward.decode, key.rows, key.longest, key.sampler)
                try:
                    self.recorder.warm(step)
                    made[forward.name] = self.recorder.record(step)
                except Exception as error:  # costs this way its place, and no row its graph
                    cause = in_a_line(error)
            reason = reason if forward is not self.forwards[0] else cause
            if made and self.pinned:
                break
        if not (made and self.pinned):
            made[OP_BY_OP] = self.graphs[key].graph
        name = self._fastest(key, made) if len(made) > 1 else next(iter(made))
        self.graphs[key] = self.graphs[key]._replace(graph=made[name])
        first_name = self.forwards[0].name
        self.names[key] = name if name == first_name else f"{name}: {reason or f'faster than {first_name}'}"

    def _fastest(self, key: Key, made: dict[str, Replayable]) -> str:
        """The name of the graph whose replays take least, of texts half as long as they may become."""
        position, best = self.cache.max_len // 2, dict.fromkeys(made, float("inf"))
        self.state.position[: key.rows] = position
        self.state.row[: key.rows] = torch.arange(key.rows, device=self.state.row.device)
        with scattered(self.cache, key.rows, position):
            for _ in range(ROUNDS):
                best = {name: min(best[name], self._seconds(graph)) for name, graph in made.items()}
        self.state.free(slice(0, key.rows))
        sampler = getattr(key.sampler, "__name__", type(key.sampler).__name__)
        self.stats.timed[f"{key}, {sampler}"] = best
        return min(best, key=best.__getitem__)

    def _seconds(self, graph: Replayable) -> float:
        """Of one replay, of several in a row."""
        self.state.token[0].item()  # waits for the device
        began = time.perf_counter()
        for _ in range(REPLAYS):
            graph.replay()
        self.state.token[0].item()
        return (time.perf_counter() - began) / REPLAYS


@contextmanager
def scattered(cache: Any, rows: int, position: int) -> Iterator[None]:
    """For timing: rows 0..rows-1 read blocks all over the pool, as texts do, and write into the null block."""
    saved, (_, width) = cache.tables.clone(), cache.tables.shape
    each = torch.arange(rows * width, device=cache.tables.device, dtype=torch.int32).view(rows, width)
    cache.tables[:rows] = 1 + each % (cache.k.shape[1] - 1)
    cache.tables[:rows, position // cache.block_size] = NULL
    try:
        yield
    finally:
        cache.tables.copy_(saved)
        cache.k[:, NULL], cache.v[:, NULL] = 0, 0  # what was read may have been anything
