"""The KV cache in blocks: memory grows with the tokens that exist. Chapter 3.

Chapter 2 keeps room for the longest sequence in every row. Here keys and values lie in blocks of a few tokens, a
sequence takes a block when it needs one, and a *block table* names its blocks in order. Idea and name: Kwon et al.
2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.cache.blocks import BlockManager
from nanoinfer.cache.none import NoCache
from nanoinfer.kernels.available import kernels_for
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig

if TYPE_CHECKING:
    from nanoinfer.engine.engine import Sequence

SPLIT_TOKENS = 64  # of a context at least in each part of a split
MAX_SPLITS = 16
PROGRAMS = 1024  # about as many as run on a large GPU at once


class PagedPlan(NamedTuple):
    """Where a batch writes, and what a decode step reads."""

    batch: Batch
    places: Tensor  # (N,) int64 of each new token, in a layer's blocks end to end
    tables: Tensor  # (B, width) int32
    lengths: Tensor  # (B,) tokens that each sequence reads


class PagedCache(NoCache):
    """Keys and values of `max_batch` rows in a pool of `blocks` blocks."""

    def __init__(
        self, config: ModelConfig, max_batch: int, max_len: int, blocks: int, block_size: int, device: torch.device,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.max_len, self.block_size = max_len, block_size
        self.blocks = BlockManager(blocks, block_size, max_batch)
        shape = (2, config.n_layer, blocks, config.n_head, block_size, config.head_size)
        self.k, self.v = torch.empty(shape, dtype=dtype, device=device)  # (L, blocks, H, block_size, D) each
        self.tables = torch.zeros(max_batch, self.blocks.blocks_of(max_len), dtype=torch.int32, device=device)
        self.splits_done = torch.zeros(max_batch * config.n_head, dtype=torch.int32, device=device)  # of the kernel
        self.kernels = kernels_for(device)

    @staticmethod
    def bytes(config: ModelConfig, blocks: int, block_size: int, dtype: torch.dtype) -> int:
        """Return what the pool takes: a key and a value in every layer, block and place."""
        return blocks * block_size * config.kv_numbers * dtype.itemsize

    def admit(self, row: int, sequence: Sequence) -> bool:
        """Reserve the room of its longest text: once admitted, it can always go on."""
        if self.blocks.blocks_of(sequence.end) > self.blocks.blocks:
            raise ValueError(f"a text of {sequence.end} tokens never fits into {self.blocks}: lower its max_tokens")
        return self.blocks.reserve(row, sequence.end)

    def release(self, row: int) -> None:
        self.blocks.release(row)

    def keep(self, sequence: Sequence, count: int) -> int:
        """Take the blocks that the sequence's first `count` tokens need, and write them into its table."""
        row = sequence.row
        if new := self.blocks.grow(row, count):
            end = len(self.blocks.owned[row])
            self.tables[row, end - len(new) : end] = torch.tensor(new, dtype=torch.int32)
        return count

    def plan(self, batch: Batch) -> Any:
        """Find out once, for all layers, where the batch writes and what it reads."""
        rows, width = batch.last(batch.row), self.blocks.blocks_of(batch.past + 1)
        tables = self.tables[rows][:, :width]  # whose stride never changes: Triton compiles a kernel for some strides
        return PagedPlan(batch, self.places(batch), tables, batch.last(batch.positions) + 1)

    def places(self, batch: Batch) -> Tensor:
        """(N,) where each token's key and value go, in a layer's blocks end to end."""
        block = self.tables[batch.row, batch.positions // self.block_size]
        return torch.add(batch.positions % self.block_size, block, alpha=self.block_size)

    def attend(self, plan: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the new keys and values; then a prompt attends among its own tokens, and a decode step reads pages."""
        pools = self.k[layer], self.v[layer]
        self.kernels.write_pages(k, v, *pools, plan.places)
        if not plan.batch.past:
            return super().attend(plan.batch, layer, q, k, v)
        splits = self.splits(len(q))
        out: Tensor = self.kernels.attend_pages(q, *pools, plan.tables, plan.lengths, self.splits_done, splits)
        return out

    def splits(self, rows: int) -> int:
        """Return into how many parts the kernel cuts each context of a step of so many rows."""
        return choose_splits(rows, self.k.shape[2], self.max_len)


def choose_splits(rows: int, heads: int, max_len: int) -> int:
    """Return into how many parts the kernel cuts each context: a power of two.

    More parts than programs that a GPU can run at once only make partial results to join, and so do parts of less than
    one tile of a text of `max_len` tokens.
    """
    tiles = -(-max_len // SPLIT_TOKENS)
    wanted = min(MAX_SPLITS, PROGRAMS // (rows * heads), tiles)
    return 1 << max(0, wanted.bit_length() - 1)
