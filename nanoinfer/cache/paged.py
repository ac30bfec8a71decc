"""The KV cache in blocks: memory grows with the tokens that exist. Chapter 3.

Chapter 2 keeps room for the longest text that any row may reach. Here keys and values lie in blocks of a few tokens, a
row takes a block when it needs one, and a *block table* says which blocks hold its text. Idea and name: Kwon et al.
2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.
Text: chapters/03-paged-attention.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.cache.blocks import NULL, BlockAllocator
from nanoinfer.cache.naive import FullContext
from nanoinfer.engine.state import upload
from nanoinfer.kernels import paged_attention_torch
from nanoinfer.kernels.paged_attention_torch import gather_pages
from nanoinfer.model.batch import Step
from nanoinfer.model.config import ModelConfig

SPLIT_TOKENS = 64  # of a context at least in each part of a split
MAX_SPLITS = 16
PROGRAMS = 1024  # about as many as run on a large GPU at once


class PagedCache:
    """Keys and values of `max_batch` rows in `blocks` blocks of `block_size` tokens, the null block included.

    When a row is admitted, the blocks of its longest text are reserved, by counter. It takes them as it grows, so
    growth never fails and no row is ever evicted. The tables are a tensor of fixed shape on the device, updated once a
    step for all layers, and only where a row has begun a block.

    owned: each row's blocks, in order. reservation: blocks that each row may come to own. reserved: of these, how many
    are not taken yet. slots, lengths: where the step of the last `begin` writes, and how many tokens each row reads.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_batch: int,
        max_len: int,
        blocks: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.max_len, self.block_size = max_len, block_size
        shape = (2, config.n_layer, blocks, config.n_head, block_size, config.head_size)
        self.k, self.v = torch.zeros(shape, dtype=dtype, device=device)  # (L, blocks, H, block_size, D) each
        # A row of its own for padding rows of a prefill; like all that is not in use, it names the null block.
        self.tables = torch.full((max_batch + 1, self._blocks_of(max_len)), NULL, dtype=torch.int32, device=device)
        self.splits_done = torch.zeros(max_batch * config.n_head, dtype=torch.int32, device=device)
        self._column = torch.arange(max_len, device=device)
        self.allocator = BlockAllocator(blocks)
        self.owned: list[list[int]] = [[] for _ in range(max_batch)]
        self.reservation = [0] * max_batch
        self.reserved = 0
        self._kernels = kernels_for(device)

    @staticmethod
    def bytes(config: ModelConfig, blocks: int, block_size: int, dtype: torch.dtype) -> int:
        """What the pool takes: a key and a value of width C, for every layer and slot."""
        return blocks * block_size * config.kv_numbers * dtype.itemsize

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def can_admit(self, tokens: int) -> bool:
        """Whether the blocks of a row of up to `tokens` tokens are free and not reserved for another row."""
        return self._blocks_of(tokens) <= self.allocator.free_blocks - self.reserved

    def admit(self, row: int, tokens: int) -> None:
        """Reserve the blocks of `tokens` tokens for `row`, which is free."""
        self.reservation[row] = self._blocks_of(tokens)
        self.reserved += self.reservation[row]

    def grow(self, lengths: Sequence[int]) -> None:
        """Give rows 0, 1, ... the blocks for texts of these lengths. Called before each step."""
        begun = []
        for row, length in enumerate(lengths):
            owned = self.owned[row]
            while len(owned) * self.block_size < length:
                begun.append((row, len(owned), self.allocator.allocate()))
                owned.append(begun[-1][2])
        if begun:
            self.reserved -= len(begun)
            rows, columns, blocks = upload(list(zip(*begun, strict=True)), torch.int64, self.tables.device)
            self.tables[rows, columns] = blocks.int()

    def release(self, rows: Sequence[int]) -> None:
        """Take back the rows' blocks and reservations."""
        for row in rows:
            for block in self.owned[row]:
                self.allocator.free(block)
            self.reserved -= self.reservation[row] - len(self.owned[row])
            self.owned[row], self.reservation[row] = [], 0
        self.tables.index_fill_(0, upload(rows, torch.int64, self.tables.device), NULL)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Rows `sources` are to be known as `targets`, which are free: tables are copied, and no key or value."""
        for source, target in zip(sources, targets, strict=True):
            self.owned[target], self.owned[source] = self.owned[source], []
            self.reservation[target], self.reservation[source] = self.reservation[source], 0
        source_rows, target_rows = upload([sources, targets], torch.int64, self.tables.device)
        self.tables[target_rows] = self.tables[source_rows]
        self.tables.index_fill_(0, source_rows, NULL)

    def bucket(self, longest: int) -> int:
        """How much of a context a step is made for: the kernel finds each row's length itself, so one size is all."""
        return self.max_len

    def tensors(self) -> tuple[Tensor, ...]:
        """What a captured step knows by address."""
        return self.k, self.v, self.tables, self.splits_done

    def begin(self, step: Step) -> Step:
        """Say once for all layers where this step writes and what it reads. The model sees the new tokens alone."""
        self._step, self._tables = step, self.tables[step.rows]  # (B, width); a view in decode
        real = self._column[: step.positions.shape[1]] <= step.last[:, None]  # (B, T) columns that are no padding
        block = self._tables.gather(1, step.positions // self.block_size)  # (B, T)
        slots = torch.add(step.positions % self.block_size, block, alpha=self.block_size)
        self.slots = torch.where(real, slots, NULL).view(-1)  # (B * T,) padding goes to the null block
        # A padding row has no real column; it reads one slot of the null block, through its empty table.
        self.lengths = step.positions.gather(1, step.last.clamp(min=0)[:, None]).squeeze(1) + 1  # (B,)
        return step

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this layer's new keys and values, then attend: q, k, v (B, T, H, D) -> (B, T, H, D)."""
        B, T, H, _ = q.shape
        pools = self.k[layer], self.v[layer]
        self._kernels.write_pages(k.flatten(0, 1), v.flatten(0, 1), *pools, self.slots)
        if self._step.fresh:  # all that a query may see came with this step
            return FullContext().attend(layer, q, k, v)
        if T > 1:
            return self._attend_chunk(q, *pools)
        splits = choose_splits(B, H, self.max_len)
        out: Tensor = self._kernels.attend_pages(
            q.squeeze(1), *pools, self._tables, self.lengths, self.splits_done, splits
        )
        return out.unsqueeze(1)

    def _attend_chunk(self, q: Tensor, k_pool: Tensor, v_pool: Tensor) -> Tensor:
        """Queries (B, T, H, D) that continue a context: its pages are gathered, and attended to under a mask."""
        tables = self._tables[:, : self._blocks_of(self._step.longest)]
        keys, values = gather_pages(k_pool, tables), gather_pages(v_pool, tables)  # (B, H, S, D)
        slot = torch.arange(keys.shape[2], device=q.device)  # (S,)
        unwritten = (slot >= self.lengths[:, None])[:, None, :, None]  # (B, 1, S, 1) may hold anything, NaN too
        keys, values = keys.masked_fill(unwritten, 0.0), values.masked_fill(unwritten, 0.0)
        visible = slot <= self._step.positions[:, None, :, None]  # (B, 1, T, S)
        return F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=visible).transpose(1, 2)


def kernels_for(device: torch.device) -> Any:
    """The Triton kernels on a GPU and under Triton's interpreter; elsewhere the same functions in plain PyTorch."""
    if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        from nanoinfer.kernels import paged_attention as paged_kernels

        return paged_kernels
    return paged_attention_torch


def choose_splits(batch: int, heads: int, longest: int) -> int:
    """Into how many parts each context is cut: a power of two, from numbers that stay the same in a captured graph.

    More parts than programs that a GPU can run at once only make partial results to join, and so do parts of less than
    one tile of a text of `longest` tokens.
    """
    tiles = -(-longest // SPLIT_TOKENS)
    wanted = min(MAX_SPLITS, PROGRAMS // (batch * heads), tiles)
    return 1 << max(0, wanted.bit_length() - 1)
