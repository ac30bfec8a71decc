"""Keys and values in one tensor, hidden by a mask: the preallocated KV cache. Chapter 2.

The past of a causal model does not change, so keys and values are computed once and kept. A decode step then feeds one
token a sequence. The price is room for the longest sequence in every row, used or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.cache.none import NoCache
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig

if TYPE_CHECKING:
    from nanoinfer.engine.engine import Sequence


class DensePlan(NamedTuple):
    """Where a batch writes, which rows it reads, and how far each of its tokens sees."""

    batch: Batch
    places: Tensor  # (N,) int64 of each new token, in a layer's rows end to end
    rows: Tensor | slice  # (B,) int64
    mask: Tensor | None  # (B, 1, T, S), added to the scores: 0 where a token sees a position, -inf where not


class DenseCache(NoCache):
    """Keys and values of `max_batch` rows with `max_len` positions each."""

    def __init__(
        self, config: ModelConfig, max_batch: int, max_len: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (2, config.n_layer, max_batch, max_len, config.n_head, config.head_size)
        self.k, self.v = torch.zeros(shape, dtype=dtype, device=device)  # (L, max_batch, max_len, H, D) each
        self.max_len, self.positions = max_len, torch.arange(max_len, device=device)

    @staticmethod
    def bytes(config: ModelConfig, max_batch: int, max_len: int, dtype: torch.dtype) -> int:
        """Return what the cache takes: a key and a value in every layer, row and position."""
        return max_batch * max_len * config.kv_numbers * dtype.itemsize

    def release(self, row: int) -> None:
        """Zero the row: the next sequence must not meet a NaN of this one, for 0 * NaN is NaN under any mask."""
        self.k[:, row] = self.v[:, row] = 0

    def keep(self, sequence: Sequence, count: int) -> int:
        return count

    def plan(self, batch: Batch) -> Any:
        """Find out once, for all layers, what each token may see: the positions of its row up to its own."""
        places, rows = torch.add(batch.positions, batch.row, alpha=self.max_len), batch.last(batch.row)
        if not batch.past:
            return DensePlan(batch, places, rows, None)
        S = batch.past + batch.longest
        seen = self.positions[:S] <= batch.padded(batch.positions)[:, None, :, None]  # (B, 1, T, S)
        return DensePlan(batch, places, rows, self.k.new_zeros(seen.shape).masked_fill(~seen, -torch.inf))

    def attend(self, plan: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the new keys and values, then attend: q, k, v (N, H, D) -> (N, H, D)."""
        self.write(plan, layer, k, v)
        if plan.mask is None:  # all that a token may see came with this step
            return super().attend(plan.batch, layer, q, k, v)
        return self.read(plan, layer, q)

    def write(self, plan: DensePlan, layer: int, k: Tensor, v: Tensor) -> None:
        """Put the new keys and values (N, H, D) into their places, all of them in one operation each."""
        self.k[layer].flatten(0, 1).index_copy_(0, plan.places, k)  # (max_batch * max_len, H, D)
        self.v[layer].flatten(0, 1).index_copy_(0, plan.places, v)

    def read(self, plan: DensePlan, layer: int, q: Tensor) -> Tensor:
        """Attend from q (N, H, D) over what the rows hold, under the mask."""
        assert plan.mask is not None
        keys = self.k[layer, plan.rows, : plan.mask.shape[-1]].transpose(1, 2)  # (B, H, S, D)
        values = self.v[layer, plan.rows, : plan.mask.shape[-1]].transpose(1, 2)
        queries = plan.batch.padded(q).transpose(1, 2)  # (B, H, T, D)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=plan.mask)
        return plan.batch.packed(out.transpose(1, 2))
