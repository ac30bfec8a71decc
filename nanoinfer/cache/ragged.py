"""Any number of new tokens a sequence, over its pages: what chunks and mixed steps need of a cache. Chapter 5."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.cache.captured import CapturedPaged, NullBlocks
from nanoinfer.cache.paged import PagedCache
from nanoinfer.cache.sharing import SharedBlocks, SharedRoom
from nanoinfer.engine.step import Layout
from nanoinfer.kernels import paged_attention_torch, ragged_attention_torch
from nanoinfer.kernels.available import kernels_for
from nanoinfer.model.batch import Batch


class RaggedPlan(NamedTuple):
    """Where a batch writes, and what the ragged kernel reads."""

    batch: Batch
    places: Tensor  # (N,) int64, as in `PagedPlan`
    tables: Tensor  # (rows, width) int32
    work: Any  # of the kernel's `work_list`


class RaggedPaged(SharedRoom, PagedCache):
    """A paged cache that sequences come to in chunks, and that they share.

    preemption, identity: as for `SharedRoom` and `SharedBlocks`.
    """

    def __init__(self, *args: Any, preemption: bool, identity: bytes | None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.preemption = preemption
        self.blocks = self.manager(self.blocks.blocks, self.block_size, len(self.blocks.owned), identity)
        self.ragged = ragged_kernels_for(self.k.device)

    manager: Any = SharedBlocks

    def plan(self, batch: Batch) -> Any:
        if batch.longest == 1 or not batch.past:
            return super().plan(batch)
        tables = self.tables[:, : self.blocks.blocks_of(batch.past + batch.longest)]
        return RaggedPlan(batch, self.places(batch), tables, self.ragged.work_list(batch))

    def attend(self, plan: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not isinstance(plan, RaggedPlan):
            return super().attend(plan, layer, q, k, v)
        pools = self.k[layer], self.v[layer]
        self.kernels.write_pages(k, v, *pools, plan.places)
        out: Tensor = self.ragged.attend_ragged(q, *pools, plan.tables, plan.batch, plan.work)
        return out


def ragged_kernels_for(device: torch.device) -> Any:
    """As `kernels_for`, for sequences that bring several tokens."""
    if kernels_for(device) is paged_attention_torch:
        return ragged_attention_torch
    from nanoinfer.kernels import ragged_attention

    return ragged_attention


class SharedNullBlocks(SharedBlocks, NullBlocks):
    """`SharedBlocks` with a null block."""


class EndToEnd(Layout):
    """Rows end to end, and behind them one more, of padding, after which no token is chosen."""

    rectangle = False

    @property
    def sizes(self) -> list[int]:
        return [self.tokens] * 3 + [self.rows + 2] + [self.rows] * 2


class CapturedRagged(RaggedPaged, CapturedPaged):
    """The same for steps that are recorded: prompts lie end to end, behind them a last row of padding."""

    manager = SharedNullBlocks

    def shapes(self, rows: int, tokens: int) -> list[tuple[int, int]]:
        """Rows and tokens of the prefills that are recorded, smallest first. Padding rows cost less than tokens do."""
        totals = [16, 32, 64, *range(128, tokens + 1, 128)]
        totals = [total for total in totals if total < 2 * len(self.tables) * self.max_len]
        return [(most, total) for total in totals for most in sorted({min(n, rows, total) for n in (1, 8, 64, rows)})]

    def wanted(self, layout: Layout) -> tuple[int, int]:
        return layout.rows, layout.tokens

    def layout(self, rows: int, columns: int) -> Layout:
        return EndToEnd(rows, columns, columns, self.max_len)
