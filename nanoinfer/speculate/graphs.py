"""Verify steps recorded and replayed, by rows and by drafts. Chapter 7.

Rows with fewer drafts are padded, to the next of few widths. What is not captured, prompts beside drafts and penalties,
runs operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.graphs import GraphRunner, Key, pick
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.sampling import Sampler
from nanoinfer.speculate.step import NONE, verify_rows


class VerifyKey(NamedTuple):
    """All that is baked into a captured verify step. The last field tells it from a `Key`, which is a tuple as well."""

    rows: int
    columns: int  # the newest token and drafts, padding included
    longest: int  # the cache's bucket
    sampler: Sampler
    drafts: bool = True

    def __str__(self) -> str:
        return f"verification of {self.rows} rows of {self.columns - 1} drafts"


class VerifyGraphRunner(GraphRunner):
    """A `GraphRunner` that captures verify steps, too. draft_tokens: of a row at most."""

    def __init__(self, *args: Any, draft_tokens: int, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.widths = [*(1 << n for n in range(draft_tokens.bit_length()) if 1 << n < draft_tokens), draft_tokens]

    def verify(
        self, drafts: Sequence[Sequence[int]], longest: int, sampler: Sampler, why_not: str | None = None
    ) -> Tensor | None:
        """As `verify_rows`, of rows 0..B-1 and their drafts; None where there is no such graph, which is counted.

        why_not: why there can be none.
        """
        rows, width = pick(self.rows, len(drafts)), pick(self.widths, max(map(len, drafts))) or 0
        key: Any = VerifyKey(rows or len(drafts), 1 + width, self.cache.bucket(longest), sampler)
        captured = self._captured(key, why_not or ("more rows than the largest graph has" if rows is None else None))
        if captured is None:
            return None
        padded = [[*each, *[NONE] * (width - len(each))] for each in drafts] + [[NONE] * width] * (
            key.rows - len(drafts)
        )
        host = torch.tensor(padded)
        captured.packed.copy_(host.pin_memory() if captured.packed.is_cuda else host, non_blocking=True)
        captured.graph.replay()
        self.stats.replayed_steps += 1
        self.stats.replayed_rows += key.rows
        self.stats.padding_rows += key.rows - len(drafts)
        return captured.tokens[: len(drafts)]

    def _ladders(self, samplers: Sequence[Sampler], reads: Sequence[int]) -> list[Key]:
        sizes = [(rows, 1 + width, read) for rows in self.rows for width in self.widths for read in reads]
        verified: list[Any] = [VerifyKey(*size, sampler) for sampler in samplers for size in sizes]
        return super()._ladders(samplers, reads) + [
            key for key in verified if not isinstance(key.sampler, PenaltySampler)
        ]

    def _step(self, key: Key) -> tuple[Callable[[], object], Tensor, Tensor]:
        if not isinstance(key, VerifyKey):
            return super()._step(key)
        device = self.state.token.device
        drafts = torch.full((key.rows, key.columns - 1), NONE, device=device)
        left = torch.zeros(key.rows, key.columns + 1, dtype=torch.int64, device=device)
        step = partial(verify_rows, self.model, self.cache, self.state, drafts, key.longest, key.sampler)
        return lambda: left.copy_(step()), drafts, left
