"""Memory in one tensor, hidden by a boolean mask: the preallocated KV cache. Chapter 2.

Chapter 1 computed the keys and values of old tokens again and again, and got the same numbers each time: the past of a
causal model does not change. Here they are kept, so a decode step feeds one new token a row. The price: room for the
longest text that any row may reach, read by every step up to a common length, under a mask. Text: chapters/02-kv-cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.cache.naive import FullContext, Plan
from nanoinfer.model.batch import Batch, Chunk, Layout
from nanoinfer.model.config import ModelConfig

READ_MULTIPLE = 128  # read lengths are multiples of this: few shapes, and aligned ones


@dataclass(frozen=True)
class DensePlan(Plan):
    """Where a batch writes, and what it reads under which mask; without context it reads its own tokens alone."""

    slots: Tensor  # (N,) int64 of each new token, in a layer's rows end to end
    rows: slice | Tensor | None = None  # that are read
    read: int = 0  # their first positions that are read
    visible: Tensor | None = None  # (B, 1, max_new, read) boolean: what each query sees
    mask: Tensor | None = None  # the same in numbers, 0 and -inf, to be added to scores


class DenseCache(FullContext):
    """Keys and values of `max_batch` rows of up to `max_len` tokens each, and of one dummy row.

    A step writes by a tensor of slots, and reads the first `read` positions of its rows under a mask made of the
    tokens' positions. Nothing that changes from step to step is a Python number but `read`, which takes few values.
    The dummy row takes what padding writes. A row begins as zeros, so that the slots that no token has been written to
    are finite, and hidden. (A masked value has weight 0, and 0 * NaN is NaN.)

    Prompts are padded on the right. On the left, a row's first token would not stand at position 0, and GPT-2's
    positions are learned, absolute ones; positions would have to be counted apart from slots, in every step.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_batch: int,
        max_len: int,
        device: torch.device,
        dtype: torch.dtype,
        read_multiple: int = READ_MULTIPLE,
    ) -> None:
        self.max_len, self.read_multiple = max_len, read_multiple
        shape = (2, config.n_layer, max_batch + 1, max_len, config.n_head, config.head_size)
        self.k, self.v = torch.empty(shape, dtype=dtype, device=device)  # (L, max_batch + 1, max_len, H, D) each
        self.position = torch.arange(max_len, device=device)

    @staticmethod
    def bytes(config: ModelConfig, max_batch: int, max_len: int, dtype: torch.dtype) -> int:
        """What the cache takes: a key and a value of width C, for every layer, row and slot."""
        return (max_batch + 1) * max_len * config.kv_numbers * dtype.itemsize

    def plan(self, batch: Batch) -> DensePlan:
        """Where this batch writes and what it reads. The model runs the new tokens alone."""
        slots = torch.add(batch.positions, batch.row, alpha=self.max_len)  # (N,)
        if batch.no_context:
            return DensePlan(batch, slots)
        read, positions = self.bucket(batch.max_context), batch.padded(batch.positions)  # (B, T)
        # A query sees the slots up to its own position: a triangle in prefill, a rectangle a row in decode.
        visible = self.position[:read] <= positions[:, None, :, None]  # (B, 1, T, read)
        # PyTorch adds masks to scores. It would turn a boolean one into numbers in every layer; here it is once.
        mask = self.k.new_zeros(visible.shape).masked_fill(~visible, -torch.inf)
        rows = slice(0, batch.rows) if batch.starts is None else batch.row[batch.starts[:-1]]
        return DensePlan(batch, slots, rows, read, visible, mask)

    def bucket(self, longest: int) -> int:
        """How many positions are read where none at or past `longest` is needed: one of few lengths."""
        return min(self.max_len, -(-longest // self.read_multiple) * self.read_multiple)

    def attend(self, plan: DensePlan, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this layer's new keys and values, then attend: q, k, v (N, H, D) -> (N, H, D)."""
        self.write(plan, layer, k, v)
        if plan.mask is None:  # all that a query may see came with this step
            return super().attend(plan, layer, q, k, v)
        return self.read(plan, layer, q)

    def write(self, plan: DensePlan, layer: int, k: Tensor, v: Tensor) -> None:
        """Put the new keys and values (N, H, D) into their slots, all of them in one operation each."""
        keys, values = self.k[layer], self.v[layer]  # (max_batch + 1, max_len, H, D)
        keys.view(-1, *k.shape[1:]).index_copy_(0, plan.slots, k)
        values.view(-1, *v.shape[1:]).index_copy_(0, plan.slots, v)

    def read(self, plan: DensePlan, layer: int, q: Tensor) -> Tensor:
        """Attention of q (N, H, D) over its rows' slots as far as this step reads, under its mask."""
        keys = self.k[layer, plan.rows, : plan.read].transpose(1, 2)  # (B, H, read, D); a view in decode
        values = self.v[layer, plan.rows, : plan.read].transpose(1, 2)
        queries = plan.batch.padded(q).transpose(1, 2)  # (B, H, T, D)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=plan.mask)
        return plan.batch.packed(out.transpose(1, 2))

    def clear(self, rows: Tensor) -> None:
        """These rows (n,) begin new texts: zeros, since the old ones may have left NaN."""
        self.k.index_fill_(1, rows, 0)
        self.v.index_fill_(1, rows, 0)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Rows `sources` (n,) are to be known as rows `targets`, which are free: keys and values are copied.

        Row by row, since all at once would be held in memory twice.
        """
        for source, target in zip(torch.split(sources, 1), torch.split(targets, 1), strict=True):
            self.k.index_copy_(1, target, self.k.index_select(1, source))
            self.v.index_copy_(1, target, self.v.index_select(1, source))

    def tensors(self) -> tuple[Tensor, ...]:
        """What a captured step knows by address."""
        return self.k, self.v

    def shapes(self, rows: int, tokens: int) -> list[tuple[int, int]]:
        """Rows and columns of prefills that are captured, smallest first: powers of two, of up to so many tokens."""
        widths = [1 << n for n in range(4, 32) if 1 << n < 2 * self.max_len]
        shapes = [(1 << n, width) for n in range((rows - 1).bit_length() + 1) for width in widths]
        return sorted([each for each in shapes if prod(each) <= tokens], key=prod)

    def captured(self, going: Sequence[int], chunks: Sequence[Chunk]) -> tuple[int, int] | None:
        """Rows and columns of a captured step that these chunks fit into; None where a row continues a context."""
        if going or any(chunk.start for chunk in chunks):
            return None
        return len(chunks), max(len(chunk.token_ids) for chunk in chunks)

    def layout(self, rows: int, columns: int) -> Layout:
        """How a captured step of so many rows and columns is packed: a rectangle, each row padded."""
        return Layout(rows, rows * columns, rows, columns, columns, no_context=True)
