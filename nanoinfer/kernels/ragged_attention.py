"""Causal attention over pages for any number of new tokens a row: prompts, pieces of them, decode. Chapter 5.

The tokens of all rows lie end to end. A *work list* cuts each row's tokens into tiles, and a program takes one tile
and one head: it walks over the row's pages up to its last token, as FlashAttention walks over keys.
ragged_attention_torch.py has the same function in PyTorch. Online softmax in tiles: Dao et al. 2022,
"FlashAttention", section 3.1.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanoinfer.kernels.launcher import Launcher
from nanoinfer.model.batch import Batch

MANY = 512  # tokens of a step from which on large tiles keep a GPU busy
LONG = 64  # tokens a row, on average, that fill them
TILE_BYTES = 16384  # of keys, and of values, that are read at once: shared memory of a T4 holds no more


@triton.jit
def _ragged_kernel(
    q, k_pool, v_pool, tables, row, positions, work, out, q_stride, table_stride, scale,
    H: tl.constexpr, D: tl.constexpr, D_POWER: tl.constexpr, PAGE: tl.constexpr, QUERIES: tl.constexpr,
    TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (h, i) attends from the tokens of item i of the work list, head h, to their row's pages.

    Programs start in this order, head by head: those of items without tokens, the last, end while others work.
    """
    head, item = tl.program_id(0), tl.program_id(1)
    first, count = tl.load(work + 2 * item), tl.load(work + 2 * item + 1)
    if count == 0:
        return
    n, d = first + tl.arange(0, QUERIES), tl.arange(0, D_POWER)
    real = tl.arange(0, QUERIES) < count
    position = tl.load(positions + n, mask=real, other=-1)  # (Q,)
    end = tl.max(position, 0).to(tl.int32) + 1
    table = tables + tl.load(row + first) * table_stride
    inner = (d < D)[None, :]
    query = tl.load(q + n[:, None] * q_stride + head * D + d[None, :], mask=real[:, None] & inner, other=0.0)  # (Q, D)
    maximum = tl.full((QUERIES,), -3e38, dtype=tl.float32)  # below all scores, and finite: -inf less -inf would be NaN
    total = tl.zeros((QUERIES,), dtype=tl.float32)
    acc = tl.zeros((QUERIES, D_POWER), dtype=tl.float32)

    for start in tl.range(0, end, TILE, num_stages=STAGES):
        token = start + tl.arange(0, TILE)  # (TILE,)
        inside = token < end
        page = tl.load(table + token // PAGE, mask=inside, other=0).to(tl.int64)
        at = ((page * H + head) * PAGE + token % PAGE) * D  # (TILE,)
        mask = inside[:, None] & inner
        keys = tl.load(k_pool + at[:, None] + d[None, :], mask=mask, other=0.0)  # (TILE, D)
        # The mask is on the values too, not only on their scores: weight 0 times NaN would be NaN.
        values = tl.load(v_pool + at[:, None] + d[None, :], mask=mask, other=0.0)  # (TILE, D)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale  # (Q, TILE)
        scores = tl.where(token[None, :] <= position[:, None], scores, -float("inf"))
        higher = tl.maximum(maximum, tl.max(scores, 1))
        weights, rescale = tl.exp(scores - higher[:, None]), tl.exp(maximum - higher)
        acc = acc * rescale[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        total = total * rescale + tl.sum(weights, 1)
        maximum = higher

    result = acc / tl.maximum(total, 1e-30)[:, None]
    target = out + (n[:, None] * H + head) * D + d[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=real[:, None] & inner)


_attend = Launcher(_ragged_kernel, num_warps=4)


def tile_of(tokens: int, rows: int) -> int:
    """Tokens of a row that a program takes, in a step of so many: 16 are the fewest that matrix units take."""
    return LONG if tokens >= max(MANY, LONG * rows) else 16


def work_list(batch: Batch) -> Tensor:
    """(P, 2) int32: the first token and the number of tokens of each program's tile.

    P is known without looking at a value: B rows cut N tokens into at most ceil(N / tile) + B tiles. Those that are too
    many have no tokens, and come last.
    """
    starts, tile = batch.starts, tile_of(len(batch.token_ids), batch.rows)
    tiles = (starts.diff() + (tile - 1)) // tile  # (B,)
    ends = tiles.cumsum(0)  # (B,) tiles of a row and of all before it
    item = torch.arange(-(-len(batch.token_ids) // tile) + batch.rows, device=starts.device)  # (P,)
    b = torch.searchsorted(ends, item, right=True).clamp(max=batch.rows - 1)  # (P,) whose tile it is
    first = starts[b] + (item - (ends - tiles)[b]) * tile
    return torch.stack([first, (starts[b + 1] - first).clamp(0, tile)], 1).int()


def attend_ragged(q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, batch: Batch, work: Tensor) -> Tensor:
    """Causal attention of any number of new tokens a row, q (N, H, D), over its pages -> (N, H, D).

    tables: (rows, width) int32 of all rows. A token at position p reads the first p + 1 tokens of its row's pages,
    which hold the new ones already. work: of `work_list`. Sums are in float32, and so are products of float32.
    """
    N, H, D = q.shape
    D_POWER, queries = max(16, 1 << (D - 1).bit_length()), tile_of(N, batch.rows)
    out = torch.empty(N, H, D, dtype=q.dtype, device=q.device)
    tensors = q, k_pool, v_pool, tables, batch.row, batch.positions, work, out
    tile = max(32, min(128, TILE_BYTES // (D_POWER * q.element_size())))
    _attend(
        (H, len(work), 1), tensors, (q.stride(0), tables.stride(0), D**-0.5), H=H, D=D,
        D_POWER=D_POWER, PAGE=k_pool.shape[2], QUERIES=queries, TILE=tile, STAGES=2 if queries == LONG else 3,
    )  # fmt: skip
    return out
