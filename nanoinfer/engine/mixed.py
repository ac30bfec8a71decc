"""Steps of chunks and of decoding sequences side by side, over the state that stays on the device. Chapter 5."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ints
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.device import DeviceEngine
from nanoinfer.engine.engine import Sequence, Work
from nanoinfer.engine.graphs import GraphEngine
from nanoinfer.engine.logprobs import following
from nanoinfer.engine.queue import QueueEngine
from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.stats import GraphStats
from nanoinfer.engine.step import Layout, Numbers, Prefill, Prompts, prefill_step
from nanoinfer.model.gpt2 import GPT2, Cache

NEWEST = -1  # in place of a token id: the sequence's newest token, which only the device knows


class Piece(NamedTuple):
    """A `Chunk` that may end before its prompt does. complete: whether a token follows it. wanted: of `following`."""

    row: int
    start: int
    token_ids: Ints[int]
    complete: bool
    wanted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mixed(Prefill):
    """Pieces of prompts, beside sequences that bring their newest tokens. starts: where these stand."""

    chunks: Ints[Any]
    going: list[int]  # rows
    starts: list[int]

    @cached_property
    def wanted(self) -> list[tuple[int, ...]]:
        """Of each sequence of the step, the tokens of its prompt whose logprobs are wanted."""
        return [()] * len(self.going) + [piece.wanted for piece in self.chunks]

    @cached_property
    def layout(self) -> Layout:
        layout, n = super().layout, len(self.going)
        return Layout(layout.rows + n, layout.tokens + n, layout.longest, max([layout.past, *self.starts]))

    def pack(self, layout: Layout, dummy: int) -> Tensor:
        """As the base's; after a piece that is not complete, the token goes to the dummy row."""
        numbers, n = Numbers(layout, dummy), len(self.going)
        numbers.ids, numbers.positions = array("q", [NEWEST]) * n, array("q", self.starts)
        numbers.row = array("q", self.going)
        numbers.rows_of = numbers.row[:]
        numbers.starts, numbers.last = numbers.counting[:n], numbers.counting[:n]
        for piece in self.chunks:
            numbers.add(piece, piece.row if piece.complete else dummy)
        return numbers.packed()


@torch.inference_mode()
def mixed_step(model: GPT2, cache: Cache, state: BatchState, batch: Prompts, sampler: Sampler) -> Tensor:
    """As `prefill_step`, where some of the tokens are their rows' newest ones."""
    token_ids = torch.where(batch.token_ids == NEWEST, state.token[batch.row], batch.token_ids)
    return prefill_step(model, cache, state, replace(batch, token_ids=token_ids), sampler)


class MixedEngine(QueueEngine, GraphEngine):
    """A `QueueEngine` over the state on the device: a decoding sequence beside chunks is a chunk of one token."""

    Stats: Any = GraphStats
    prefill_step = staticmethod(mixed_step)

    def prefill(self, prefill: Prefill, sampler: Sampler) -> Tensor:
        if prefill.layout.past and not self.blocks:
            self.eager("a piece of a prompt, where prompts are captured whole")
            return DeviceEngine.prefill(self, prefill, sampler)
        return super().prefill(prefill, sampler)

    def prefill_of(self, work: list[Work], begun: list[Sequence]) -> Prefill | None:
        going, chunks = work[: self.decoded], work[self.decoded :]
        if not chunks:
            return None
        return Mixed(list(map(self.piece, chunks)), [s.row for s, _, _ in going], [start for _, start, _ in going])

    def piece(self, work: Work) -> Any:
        """What the device is told of a piece of a prompt."""
        s, start, count = work
        return Piece(s.row, start, s.tokens[start : start + count], s.decoding, following(s, start, count))
