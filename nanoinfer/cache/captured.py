"""The caches of chapters 2 and 3 for steps that are recorded: what padding writes is lost, and sequences can move.

A recorded step reads and writes the same addresses for ever, for as many rows as it was recorded with. Rows beyond the
live ones are padding: they write to a dummy row, and read what harms nobody. What the host decides, and what the
device is told of it, are apart here, since a step is launched long after it was decided.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nanoinfer.cache.blocks import BlockManager
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.paged import PagedCache, PagedPlan
from nanoinfer.engine.state import upload
from nanoinfer.engine.step import Layout, Rows
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig

if TYPE_CHECKING:
    from nanoinfer.engine.engine import Work

NULL = 0  # the block that no row owns: padding writes there, and unused table entries name it


class CapturedDense(DenseCache):
    """A `DenseCache` with one row more, the dummy. A decode step reads its first rows as they lie."""

    read_multiple = 128  # positions that a decode step reads are a multiple of this: few shapes to record

    def __init__(self, config: ModelConfig, max_batch: int, max_len: int, *kind: Any) -> None:
        super().__init__(config, max_batch + 1, max_len, *kind)

    def release(self, row: int) -> None:
        """A row is zeroed when a sequence begins in it, on the device's side."""

    def rename(self, sources: list[int], targets: list[int]) -> None:
        """Sequences are to be known by other rows: the host keeps nothing by row."""

    def news(self, work: list[Work]) -> list[tuple[int, int, int]]:
        """There are no block tables."""
        return []

    def begin(self, rows: Tensor) -> None:
        """Zero the rows (n,) of new sequences."""
        self.k.index_fill_(1, rows, 0)
        self.v.index_fill_(1, rows, 0)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy keys and values of rows (n,) into others, one by one: all at once would be in memory twice."""
        for source, target in zip(torch.split(sources, 1), torch.split(targets, 1), strict=True):
            for tensor in (self.k, self.v):
                tensor.index_copy_(1, target, tensor.index_select(1, source))

    def vacate(self, rows: slice) -> None:
        """Padding writes to the dummy row, and what it reads harms nobody."""

    def plan(self, batch: Batch) -> Any:
        plan = super().plan(batch)
        return plan._replace(rows=slice(batch.rows)) if isinstance(batch, Rows) else plan

    def bucket(self, context: int) -> int:
        """Return how many positions a decode step reads where the longest sequence has `context` tokens."""
        return min(self.max_len, -(-context // self.read_multiple) * self.read_multiple)

    def tensors(self) -> tuple[Tensor, ...]:
        """What a recorded step knows by address."""
        return self.k, self.v

    def shapes(self, rows: int, tokens: int) -> list[tuple[int, int]]:
        """Rows and columns of the prefills that are recorded, smallest first: powers of two, of up to `tokens`."""
        widths = [1 << n for n in range(4, 32) if 1 << n < 2 * self.max_len]
        shapes = [(1 << n, width) for n in range((rows - 1).bit_length() + 1) for width in widths]
        return sorted([each for each in shapes if prod(each) <= tokens], key=prod)

    def wanted(self, layout: Layout) -> tuple[int, int]:
        """Rows and columns that a recorded prefill must have to hold that."""
        return layout.rows, layout.longest

    def layout(self, rows: int, columns: int) -> Layout:
        """How a recorded prefill of that shape is packed: a rectangle."""
        return Layout(rows, rows * columns, columns)


class NullBlocks(BlockManager):
    """A `BlockManager` whose block 0 nobody ever owns."""

    def __init__(self, blocks: int, block_size: int, max_batch: int) -> None:
        super().__init__(blocks + 1, block_size, max_batch)
        self.blocks = blocks
        self.free.remove(NULL)

    def rename(self, source: int, target: int) -> None:
        """Row `source` is to be known as `target`, which is free."""
        self.owned[target], self.owned[source] = self.owned[source], []
        self.reserved[target], self.reserved[source] = self.reserved[source], 0


class CapturedPaged(PagedCache):
    """A `PagedCache` with a dummy row, whose table names the null block, as does all that is not in use."""

    blocks: NullBlocks

    def __init__(self, config: ModelConfig, max_batch: int, max_len: int, blocks: int, *kind: Any) -> None:
        super().__init__(config, max_batch + 1, max_len, blocks + 1, *kind)
        self.blocks = NullBlocks(blocks, self.block_size, max_batch)
        self.k[:, NULL], self.v[:, NULL] = 0, 0

    def news(self, work: list[Work]) -> list[tuple[int, int, int]]:
        """Take the blocks that this work needs; return what the tables must be told: row, column, block."""
        news: list[tuple[int, int, int]] = []
        for s, start, count in work:
            if count > 1 or start % self.block_size == 0:
                new = self.blocks.grow(s.row, start + count)
                first = len(self.blocks.owned[s.row]) - len(new)
                news += [(s.row, column, block) for column, block in enumerate(new, first)]
        return news

    def rename(self, sources: list[int], targets: list[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self.blocks.rename(source, target)

    def begin(self, rows: Tensor) -> None:
        """The tables of new sequences name no block yet."""
        self.tables.index_fill_(0, rows, NULL)  # an assignment of a number would wait for the GPU

    def update(self, news: list[tuple[int, int, int]]) -> None:
        """Write new blocks into the tables."""
        width = self.tables.shape[1]
        entries = [[row * width + column for row, column, _ in news], [block for _, _, block in news]]
        at, blocks = upload(entries, torch.int64, self.tables.device)
        self.tables.view(-1).index_copy_(0, at, blocks.int())

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy the tables of rows (n,) to others: no key or value moves."""
        self.tables.index_copy_(0, targets, self.tables.index_select(0, sources))

    def vacate(self, rows: slice) -> None:
        """These rows are padding from now on: they read the null block."""
        self.tables[rows] = NULL

    def plan(self, batch: Batch) -> Any:
        if not isinstance(batch, Rows):
            return super().plan(batch)
        tables = self.tables[: batch.rows, : self.blocks.blocks_of(batch.past + 1)]
        return PagedPlan(batch, self.places(batch), tables, batch.positions + 1)

    def bucket(self, context: int) -> int:
        """The kernel finds each sequence's length itself, so one size serves all."""
        return self.max_len

    def tensors(self) -> tuple[Tensor, ...]:
        """What a recorded step knows by address."""
        return self.k, self.v, self.tables, self.splits_done

    shapes, wanted, layout = CapturedDense.shapes, CapturedDense.wanted, CapturedDense.layout
