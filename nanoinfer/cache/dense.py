"""Memory in one tensor, hidden by a boolean mask: the preallocated KV cache. Chapter 2.

Chapter 1 computed the keys and values of old tokens again and again, and got the same numbers each time: the past of a
causal model does not change. Here they are kept, so a decode step feeds one new token a row. The price: room for the
longest text that any row may reach, read by every step up to a common length, under a mask. Text: chapters/02-kv-cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.cache.naive import FullContext
from nanoinfer.model.batch import Step
from nanoinfer.model.config import ModelConfig

READ_MULTIPLE = 128  # read lengths are multiples of this: few shapes, and aligned ones


class DenseCache:
    """Keys and values of `max_batch` rows of up to `max_len` tokens each, and of one dummy row.

    A step writes by a tensor of slots, and reads the first `read` positions of its rows under a mask made of the
    tokens' positions. Nothing that changes from step to step is a Python number but `read`, which takes few values.
    The dummy row takes what padding columns and padding rows write. A row begins as zeros, so that the slots that no
    token has been written to are finite, and hidden. (A masked value has weight 0, and 0 * NaN is NaN.)

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
        self.max_len, self.dummy, self.read_multiple = max_len, max_batch, read_multiple
        shape = (2, config.n_layer, max_batch + 1, max_len, config.n_head, config.head_size)
        self.k, self.v = torch.zeros(shape, dtype=dtype, device=device)  # (L, max_batch + 1, max_len, H, D) each
        self.row = torch.arange(max_batch + 1, device=device)
        self.position = torch.arange(max_len, device=device)

    @staticmethod
    def bytes(config: ModelConfig, max_batch: int, max_len: int, dtype: torch.dtype) -> int:
        """What the cache takes: a key and a value of width C, for every layer, row and slot."""
        return (max_batch + 1) * max_len * config.kv_numbers * dtype.itemsize

    def begin(self, step: Step) -> Step:
        """Say once for all layers where this step writes and what it reads. The model sees the new tokens alone."""
        self._rows, self._fresh = step.rows, step.fresh
        T = step.positions.shape[1]
        real = self.position[:T] <= step.last[:, None]  # (B, T) columns that are no padding
        rows = torch.where(real, self.row[step.rows][:, None], self.dummy)  # (B, T)
        self._slots = (rows * self.max_len + step.positions).view(-1)  # (B * T,) in a layer's rows, end to end
        if not step.fresh:
            self._read = self.bucket(step.longest)
            # A query sees the slots up to its own position: a triangle in prefill, a rectangle a row in decode.
            self.visible = self.position[: self._read] <= step.positions[:, None, :, None]  # (B, 1, T, read)
            # PyTorch adds masks to scores. It would turn a boolean one into numbers in every layer; here it is once.
            self._mask = self.k.new_zeros(self.visible.shape).masked_fill(~self.visible, -torch.inf)
        return step

    def bucket(self, longest: int) -> int:
        """How many positions are read where none at or past `longest` is needed: one of few lengths."""
        return min(self.max_len, -(-longest // self.read_multiple) * self.read_multiple)

    def tensors(self) -> tuple[Tensor, ...]:
        """What a captured step knows by address."""
        return self.k, self.v

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this layer's new keys and values, then attend: q, k, v (B, T, H, D) -> (B, T, H, D)."""
        self.write(layer, k, v)
        if self._fresh:  # all that a query may see came with this step
            return FullContext().attend(layer, q, k, v)
        return self.read(layer, q)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Put the new keys and values (B, T, H, D) into their slots, all of them in one operation each."""
        keys, values = self.k[layer], self.v[layer]  # (max_batch + 1, max_len, H, D)
        keys.view(-1, *k.shape[2:]).index_copy_(0, self._slots, k.flatten(0, 1))
        values.view(-1, *v.shape[2:]).index_copy_(0, self._slots, v.flatten(0, 1))

    def read(self, layer: int, q: Tensor) -> Tensor:
        """Attention of q (B, T, H, D) over the rows' slots as far as this step reads, under its mask."""
        keys = self.k[layer, self._rows, : self._read].transpose(1, 2)  # (B, H, read, D); a view in decode
        values = self.v[layer, self._rows, : self._read].transpose(1, 2)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=self._mask)
        return out.transpose(1, 2)

    def can_admit(self, tokens: int) -> bool:
        """Whether a row of up to `tokens` tokens fits now: every free row holds `max_len`."""
        return tokens <= self.max_len

    def admit(self, row: int, tokens: int) -> None:
        """Make room for a row of up to `tokens` tokens: zeros, since an old text may have left NaN."""
        self.k[:, row].zero_()
        self.v[:, row].zero_()

    def grow(self, lengths: Sequence[int]) -> None:
        """Rows 0, 1, ... are about to hold texts of these lengths: their room is there already."""

    def release(self, rows: Sequence[int]) -> None:
        """Give the rows' room back."""

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Rows `sources` are to be known as rows `targets`, which are free: keys and values are copied, row by row."""
        for source, target in zip(sources, targets, strict=True):
            self.k[:, target] = self.k[:, source]
            self.v[:, target] = self.v[:, source]
