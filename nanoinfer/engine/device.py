"""Sequences whose state stays on the device: a decode step needs nothing from the host. Chapter 4.

Chapter 1 brings token ids, positions and sampling parameters to the device at every step. Here they lie there, in rows
0..n-1 of a `BatchState`; a decode step reads them and advances them by itself, so it can be recorded and replayed. What
the device must still be told is plain integers: which sequences begin, which move, and the tokens of prompts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.engine import Engine, Sequence, Work
from nanoinfer.engine.samplers import SAMPLERS, Sampler, cheapest
from nanoinfer.engine.state import BatchState, Begun, upload
from nanoinfer.engine.step import Chunk, Prefill, Prompts, decode_step, prefill_step
from nanoinfer.model.gpt2 import GPT2


class Launch(NamedTuple):
    """All that the device is told of a step."""

    sources: list[int]  # rows of sequences that move
    targets: list[int]  # where they move to
    live: int  # rows 0..live-1 hold sequences; the others are padding
    begun: list[Begun]
    news: list[tuple[int, int, int]]  # entries of block tables: row, column, block
    prefill: Prefill | None  # None: a decode step
    context: int  # of a decode step: tokens of the longest sequence, the newest included
    sampler: int  # the cheapest of `Samplers` that serves all


class DeviceEngine(Engine):
    """An `Engine` with its state on the device. Live sequences have rows 0..n-1, so a step runs the first n rows."""

    prefill_step = staticmethod(prefill_step)
    cache: Any  # of chapter 4's caches

    def __init__(self, model: GPT2, cache: Any, max_batch: int, *, samplers: Any = SAMPLERS) -> None:
        super().__init__(model, cache, max_batch)
        self.samplers, self.max_batch = samplers, max_batch
        with torch.inference_mode():
            self.state = BatchState.empty(max_batch, model.device)
        self.live = 0  # rows of the state that are no padding
        self.kinds: dict[Sequence, int] = {}  # of those that have a row, which of the samplers each needs
        self.free.sort(reverse=True)  # the lowest free row is given first

    def run(self, work: list[Work]) -> list[int]:
        step = self.pack(work)
        tokens = self.launch(step).tolist()
        return [tokens[place] for place in self.places(work, step)]

    def leave(self, s: Sequence) -> None:
        super().leave(s)
        self.kinds.pop(s, None)
        self.free.sort(reverse=True)

    @torch.inference_mode()
    def abandon(self) -> None:
        """Let go of every sequence; all rows are padding."""
        super().abandon()
        self.live = self.max_batch
        self.place(Launch([], [], 0, [], [], None, 0, 0))

    def pack(self, work: list[Work]) -> Launch:
        """Put a step into integers. The host's part of it is done here: rows, `cached`, the cache's own lists."""
        sources, targets = self.close_gaps()
        begun = self.running[len(self.kinds) :]
        for s in begun:
            self.kinds[s] = self.kind(s)
        for s, start, count in work:
            s.cached = start + count
        prefill = self.prefill_of(work, begun)
        return Launch(
            sources, targets, live=len(self.running), begun=[self.begun(s) for s in begun], news=self.cache.news(work),
            prefill=prefill, context=0 if prefill else 1 + max([start for _, start, _ in work]),
            sampler=max(self.kinds.values()),
        )  # fmt: skip

    def kind(self, s: Sequence) -> int:
        """The cheapest of `Samplers` that serves a sequence."""
        return cheapest(s.params)

    def begun(self, s: Sequence) -> Begun:
        """What the device is told of a sequence that gets a row."""
        return Begun(s.row, s.request.seed, s.generated, s.params)

    def prefill_of(self, work: list[Work], begun: list[Sequence]) -> Prefill | None:
        """The tokens that the host brings: those of sequences that begin."""
        chunks = [Chunk(s.row, start, s.tokens[start : start + count]) for s, start, count in work if begun]
        return Prefill(chunks) if chunks else None

    def close_gaps(self) -> tuple[list[int], list[int]]:
        """Move the last sequences into the rows that were left. Returns from where, and to where."""
        n = len(self.running)
        if len(self.free) == 0 or self.free[-1] >= n:
            return [], []
        gaps = [row for row in self.free if row < n][::-1]
        moved = [s for s in self.running if s.row >= n]
        sources = [s.row for s in moved]
        for s, row in zip(moved, gaps, strict=True):
            s.row = row
        self.free = list(range(n, self.max_batch))[::-1]
        self.cache.rename(sources, gaps)
        return sources, gaps

    def places(self, work: list[Work], step: Launch) -> list[int]:
        """Where the token of each sequence stands among those of a step."""
        return list(range(len(work))) if step.prefill else [s.row for s, _, _ in work]

    @torch.inference_mode()
    def launch(self, step: Launch) -> Tensor:
        """Run a step on the device; return its tokens there: of chunks in their order, or else of rows 0..live-1."""
        self.place(step)
        sampler = self.samplers[step.sampler]
        if step.prefill:
            return self.prefill(step.prefill, sampler)
        return self.decode(step.live, step.context, sampler)

    def place(self, step: Launch) -> None:
        """Move rows, begin rows, and make padding of those that are left over.

        Steps in flight may still write for a sequence that has left. They were launched before whatever its room is
        given to next, and a stream runs in order.
        """
        if step.sources:
            self.move(*upload([step.sources, step.targets], torch.int64, self.state.token.device))
        if step.live < self.live:
            self.state.free(slice(step.live, self.live))
            self.cache.vacate(slice(step.live, self.live))
        self.live = step.live
        if step.begun:
            self.cache.begin(self.state.admit(step.begun))
        if step.news:
            self.cache.update(step.news)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Move rows `sources` (n,) to `targets` (n,), which are free."""
        self.state.move(sources, targets)
        self.cache.move(sources, targets)

    def prefill(self, prefill: Prefill, sampler: Sampler) -> Tensor:
        """Feed prompts; return the token (B,) that follows each."""
        packed = upload(prefill.pack(prefill.layout, self.state.dummy), torch.int64, self.state.token.device)
        batch = Prompts.of_packed(packed, prefill.layout)
        return self.prefill_step(self.model, self.cache, self.state, batch, sampler)

    def decode(self, rows: int, context: int, sampler: Sampler) -> Tensor:
        """Feed the newest token of rows 0..rows-1; return the tokens (rows,) that follow."""
        return decode_step(self.model, self.cache, self.state, rows, context, sampler)
