"""Verify steps recorded and replayed, by rows and by drafts. Chapter 7.

Rows with fewer drafts are padded, to the next of few widths. What is not captured, prompts beside drafts and penalties,
runs operation by operation.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.choice import ChoosingRunner
from nanoinfer.engine.graphs import Key, pick
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.sampling import Sampler
from nanoinfer.speculate.drafts import DeviceDrafter
from nanoinfer.speculate.step import NONE, verify_rows


class VerifyKey(NamedTuple):
    """All that is baked into a captured verify step. The last field tells it from a `Key`, which is a tuple as well."""

    rows: int
    columns: int  # the newest token and drafts, padding included
    longest: int  # the cache's bucket
    sampler: Sampler
    drafter: DeviceDrafter | None  # who drafts within the step

    def __str__(self) -> str:
        return f"verification of {self.rows} rows of {self.columns - 1} drafts"


class VerifyGraphRunner(ChoosingRunner):
    """A `GraphRunner` that captures verify steps, too. draft_tokens: of a row at most."""

    drafter: DeviceDrafter | None = None  # within steps that are captured ahead

    def __init__(self, *args: Any, draft_tokens: int, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._padding = [NONE] * draft_tokens
        self.widths = [*(1 << n for n in range(draft_tokens.bit_length()) if 1 << n < draft_tokens), draft_tokens]

    def verify(
        self, drafts: Sequence[Sequence[int]], ends: Sequence[int], longest: int, sampler: Sampler,
        why_not: str | None = None,
    ) -> Tensor | None:  # fmt: skip
        """As `verify_rows`, of rows 0..B-1, their drafts and their ends; None where there is no such graph: counted.

        Where the drafter drafts within the step, a step that is not captured runs operation by operation. drafts: what
        these are is then of no account, only how many. why_not: why there can be no graph.
        """
        rows, width = pick(self.rows, len(drafts)), pick(self.widths, max(map(len, drafts))) or 0
        key: Any = VerifyKey(rows or len(drafts), 1 + width, self.cache.bucket(longest), sampler, self.drafter)
        captured = self._captured(key, why_not or ("more rows than the largest graph has" if rows is None else None))
        if captured is None and self.drafter is None:
            return None
        work = array("q")
        for end, each in zip(ends, drafts, strict=True):
            work.append(end)
            work.extend(each)
            work.extend(self._padding[len(each) : width])
        work.extend(repeat(NONE, (key.rows - len(drafts)) * key.columns))
        host = torch.frombuffer(work, dtype=torch.int64).view(key.rows, key.columns)
        if captured is None:
            run, packed, lines = self._step(key)
        else:
            packed, lines, run = captured.packed, captured.tokens, captured.graph.replay
            self.stats.replayed_steps += 1
            self.stats.replayed_rows += key.rows
            self.stats.padding_rows += key.rows - len(drafts)
        packed.copy_(host.pin_memory() if packed.is_cuda else host, non_blocking=True)
        run()
        return lines[: len(drafts)]

    def _ladders(self, samplers: Sequence[Sampler], reads: Sequence[int]) -> list[Key]:
        sizes = [(rows, 1 + width, read) for rows in self.rows for width in self.widths for read in reads]
        verified: list[Any] = [VerifyKey(*size, sampler, self.drafter) for sampler in samplers for size in sizes]
        return super()._ladders(samplers, reads) + [
            key for key in verified if not isinstance(key.sampler, PenaltySampler)
        ]

    def _step(self, key: Key) -> tuple[Callable[[], object], Tensor, Tensor]:
        if not isinstance(key, VerifyKey):
            return super()._step(key)
        device = self.state.token.device
        work = torch.full((key.rows, key.columns), NONE, device=device)
        left = torch.zeros(key.rows, key.columns + 2, dtype=torch.int64, device=device)
        arguments = self.model, self.cache, self.state, work, key.longest, key.sampler, key.drafter
        return lambda: left.copy_(verify_rows(*arguments)), work, left
