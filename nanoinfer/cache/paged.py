"""The KV cache in blocks: memory grows with the tokens that exist. Chapter 3.

Chapter 2 keeps room for the longest text that any row may reach. Here keys and values lie in blocks of a few tokens, a
row takes a block when it needs one, and a *block table* says which blocks hold its text. Idea and name: Kwon et al.
2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.
Text: chapters/03-paged-attention.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanoinfer.cache.blocks import NULL, BlockManager
from nanoinfer.cache.naive import Plan
from nanoinfer.engine.state import upload
from nanoinfer.kernels import paged_attention_torch
from nanoinfer.model.batch import Batch, Chunk, Layout
from nanoinfer.model.config import ModelConfig

SPLIT_TOKENS = 64  # of a context at least in each part of a split
MAX_SPLITS = 16
PROGRAMS = 1024  # about as many as run on a large GPU at once
ONE_BY_ONE = 32  # tokens of a verify step: for more, the ragged kernel is as fast, which reads a context once a row


@dataclass(frozen=True)
class PagedPlan(Plan):
    """Where a batch writes, and which pages it reads."""

    slots: Tensor  # (N,) int64 of each new token, in a layer's blocks end to end
    tables: Tensor  # (rows, width) int32
    lengths: Tensor | None = None  # (N,) tokens that each row reads, in a decode step
    work: Any = None  # of the ragged kernel's `work_list`, in any other


class PagedCache:
    """Keys and values of `max_batch` rows in `blocks` blocks of `block_size` tokens, the null block included.

    `blocks` is the host's part: which row owns which. The tables are a tensor of fixed shape on the device, updated
    once a step for all layers, and only where a row has begun a block.
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
        self.blocks = BlockManager(blocks, block_size, max_batch)
        shape = (2, config.n_layer, blocks, config.n_head, block_size, config.head_size)
        self.k, self.v = torch.empty(shape, dtype=dtype, device=device)  # (L, blocks, H, block_size, D) each
        self.k[:, NULL], self.v[:, NULL] = 0, 0
        # The last row is the dummy row's, for padding; like all that is not in use, it names the null block.
        self.tables = torch.full(
            (max_batch + 1, self.blocks.blocks_of(max_len)), NULL, dtype=torch.int32, device=device
        )
        self._kernels, self._ragged = kernels_for(device)
        self.one_by_one = 0 if self._kernels is paged_attention_torch else ONE_BY_ONE
        most = max(max_batch, self.one_by_one)
        self.splits_done = torch.zeros(most * config.n_head, dtype=torch.int32, device=device)

    @staticmethod
    def bytes(config: ModelConfig, blocks: int, block_size: int, dtype: torch.dtype) -> int:
        """What the pool takes: a key and a value of width C, for every layer and slot."""
        return blocks * block_size * config.kv_numbers * dtype.itemsize

    def clear(self, rows: Tensor) -> None:
        """These rows (n,) begin new texts: their tables name no block yet."""
        self.tables.index_fill_(0, rows, NULL)  # an assignment of a number would wait for the GPU

    def free(self, rows: slice) -> None:
        """These rows are padding from now on: they read the null block."""
        self.tables[rows] = NULL

    def update(self) -> None:
        """Tell the tables which blocks rows have begun. Called before each step."""
        if self.blocks.begun:
            rows, columns, blocks = upload(list(zip(*self.blocks.begun, strict=True)), torch.int64, self.tables.device)
            self.tables[rows, columns] = blocks.int()
            self.blocks.begun.clear()

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Rows `sources` (n,) are to be known as `targets`, which are free: tables are copied, and no key or value."""
        self.tables.index_copy_(0, targets, self.tables.index_select(0, sources))

    def plan(self, batch: Batch) -> PagedPlan:
        """Where this batch writes and what it reads. The model runs the new tokens alone."""
        block = self.tables[batch.row, batch.positions // self.block_size]  # (N,); the null block for padding
        slots = torch.add(batch.positions % self.block_size, block, alpha=self.block_size)
        tables = self.tables[:, : self.blocks.blocks_of(batch.max_context)]
        if batch.starts is None:  # a padding row reads one slot of the null block
            tables = tables[: batch.rows] if batch.max_new == 1 else tables[batch.row]  # token n is row n's in decode
            return PagedPlan(batch, slots, tables, lengths=batch.positions + 1)
        return PagedPlan(batch, slots, tables, work=self._ragged.work_list(batch))

    def attend(self, plan: PagedPlan, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this layer's new keys and values, then attend: q, k, v (N, H, D) -> (N, H, D)."""
        pools = self.k[layer], self.v[layer]
        self._kernels.write_pages(k, v, *pools, plan.slots)
        out: Tensor
        if plan.lengths is None:
            out = self._ragged.attend_ragged(q, *pools, plan.tables, plan.batch, plan.work)
        else:
            splits = self.splits(len(q))
            out = self._kernels.attend_pages(q, *pools, plan.tables, plan.lengths, self.splits_done, splits)
        return out

    def splits(self, rows: int) -> int:
        """Into how many parts attention of so many rows cuts each context."""
        return choose_splits(rows, self.k.shape[2], self.max_len)

    def bucket(self, longest: int) -> int:
        """How much of a context a step is made for: the kernel finds each row's length itself, so one size is all."""
        return self.max_len

    def tensors(self) -> tuple[Tensor, ...]:
        """What a captured step knows by address."""
        return self.k, self.v, self.tables, self.splits_done

    @contextmanager
    def scattered(self, rows: int, position: int) -> Iterator[None]:
        """For timing: rows 0..rows-1 read blocks all over the pool, as texts do, and write into the null block."""
        saved, (_, width) = self.tables.clone(), self.tables.shape
        each = torch.arange(rows * width, device=self.tables.device, dtype=torch.int32).view(rows, width)
        self.tables[:rows] = 1 + each % (self.k.shape[1] - 1)
        self.tables[:rows, position // self.block_size] = NULL
        try:
            yield
        finally:
            self.tables.copy_(saved)
            self.k[:, NULL], self.v[:, NULL] = 0, 0  # what was read may have been anything

    def shapes(self, rows: int, tokens: int) -> list[tuple[int, int]]:
        """Rows and tokens of the prefills that are captured, smallest first. Padding rows cost less than tokens do."""
        totals = [16, 32, 64, *range(128, tokens + 1, 128)]
        totals = [total for total in totals if total < 2 * len(self.tables) * self.max_len]
        return [(most, total) for total in totals for most in sorted({min(n, rows, total) for n in (1, 8, 64, rows)})]

    def captured(self, going: Sequence[int], chunks: Sequence[Chunk]) -> tuple[int, int] | None:
        """Rows, and tokens of all of them, of a captured step that they fit into."""
        return len(going) + len(chunks), len(going) + sum(len(chunk.token_ids) for chunk in chunks)

    def layout(self, rows: int, tokens: int) -> Layout:
        """How a captured step of up to so many rows and tokens is packed: end to end, and a last row of padding."""
        return Layout(rows + 1, tokens, rows, tokens, self.max_len)


def kernels_for(device: torch.device) -> tuple[Any, Any]:
    """Kernels for decode steps and ragged ones: Triton's on a GPU and under its interpreter, else plain PyTorch."""
    if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        from nanoinfer.kernels import paged_attention, ragged_attention

        return paged_attention, ragged_attention
    return paged_attention_torch, paged_attention_torch


def choose_splits(batch: int, heads: int, longest: int) -> int:
    """Into how many parts each context is cut: a power of two, from numbers that stay the same in a captured graph.

    More parts than programs that a GPU can run at once only make partial results to join, and so do parts of less than
    one tile of a text of `longest` tokens.
    """
    tiles = -(-longest // SPLIT_TOKENS)
    wanted = min(MAX_SPLITS, PROGRAMS // (batch * heads), tiles)
    return 1 << max(0, wanted.bit_length() - 1)
