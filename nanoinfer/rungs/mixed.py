"""Steps of chunks and of decoding sequences side by side, over the state that stays on the device. Chapter 5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.model.gpt2 import GPT2, Cache
from nanoinfer.rungs.engine import Work
from nanoinfer.rungs.late import LateEngine
from nanoinfer.rungs.queue import QueueEngine
from nanoinfer.rungs.step import Layout, Prompts, pack, prefill_step

if TYPE_CHECKING:
    from nanoinfer.rungs.engine import Sequence as Running

NEWEST = -1  # in place of a token id: the sequence's newest token, which only the device knows


class Piece(NamedTuple):
    """A `Chunk` that may end before its prompt does. complete: whether a token follows it."""

    slot: int
    start: int
    token_ids: Sequence[int]
    complete: bool


def pack_pieces(pieces: Sequence[Any], layout: Layout, dummy: int) -> Tensor:
    """As `pack`; after a piece that is not complete, the token goes to the dummy row."""
    host = pack(pieces, layout, dummy)
    for n, piece in enumerate(pieces):
        if not piece.complete:
            host[n - layout.rows] = dummy
    return host


@torch.inference_mode()
def mixed_step(model: GPT2, cache: Cache, state: BatchState, batch: Prompts, sampler: Sampler) -> Tensor:
    """As `prefill_step`, where some of the tokens are their rows' newest ones."""
    token_ids = torch.where(batch.token_ids == NEWEST, state.token[batch.slots], batch.token_ids)
    return prefill_step(model, cache, state, replace(batch, token_ids=token_ids), sampler)


class MixedEngine(QueueEngine, LateEngine):
    """A `QueueEngine` over the state on the device: a decoding sequence beside chunks is a chunk of one token."""

    prefill_step = staticmethod(mixed_step)

    def chunks(self, work: list[Work], begun: list[Running]) -> list[Any]:
        if self.decoded == len(work):
            return []
        return [
            Piece(s.slot, start, s.tokens[start : start + count] or (NEWEST,), s.decoding)  # type: ignore[attr-defined]
            for s, start, count in work
        ]

    def packed(self, chunks: list[Any], layout: Layout) -> Tensor:
        return pack_pieces(chunks, layout, self.state.dummy)
