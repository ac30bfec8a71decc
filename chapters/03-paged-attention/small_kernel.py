"""The smallest Triton kernel that is right: decode attention over pages, one token after the other. Needs Triton.

`TRITON_INTERPRET=1 python chapters/03-paged-attention/small_kernel.py` runs it on a CPU; on a GPU leave out the
variable. There are no wheels of Triton for macOS and Windows.
"""

from __future__ import annotations

import os
import sys

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def attend_kernel(
    q, k_pool, v_pool, tables, lengths, out, width, H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr
):  # fmt: skip
    """Program (b, h) reads the pages of row b, and of each its head's part."""
    row, head, d = tl.program_id(0), tl.program_id(1), tl.arange(0, D)
    query = tl.load(q + (row * H + head) * D + d).to(tl.float32) * D**-0.5  # (D,)
    maximum, total, acc = -float("inf"), 0.0, tl.zeros((D,), dtype=tl.float32)
    for token in range(tl.load(lengths + row)):
        page = tl.load(tables + row * width + token // PAGE).to(tl.int64)
        at = ((page * H + head) * PAGE + token % PAGE) * D + d  # (D,)
        score = tl.sum(query * tl.load(k_pool + at).to(tl.float32))
        higher = tl.maximum(maximum, score)
        weight, rescale = tl.exp(score - higher), tl.exp(maximum - higher)
        acc = acc * rescale + weight * tl.load(v_pool + at).to(tl.float32)
        total = total * rescale + weight
        maximum = higher
    tl.store(out + (row * H + head) * D + d, acc / tl.maximum(total, 1e-30))


def attend(q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, lengths: Tensor) -> Tensor:
    """One query a row, q (B, H, D), over the first `lengths` (B,) tokens of its pages -> (B, H, D).

    Pools (pages, H, PAGE, D), tables (B, width) int32. D must be a power of two, and a row of length 0 gives zeros.
    """
    B, H, D = q.shape
    q, tables, out = q.contiguous(), tables.contiguous(), torch.empty(B, H, D, dtype=q.dtype, device=q.device)
    attend_kernel[(B, H)](q, k_pool, v_pool, tables, lengths, out, tables.shape[1], H=H, D=D, PAGE=k_pool.shape[2])
    return out


def main() -> None:
    """Two rows of one head, in pages of four tokens: the kernel's result, and a softmax over the row's tokens."""
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("There is no GPU here: set TRITON_INTERPRET=1, which runs kernels on the CPU.")
    tables, lengths = torch.tensor([[4, 1], [2, 0]], dtype=torch.int32), torch.tensor([6, 3])
    pools = torch.full((2, 5, 1, 4, 2), torch.nan)  # keys and values; what no token was written to holds NaN
    q = torch.tensor([[[1.0, 2.0]], [[-1.0, 0.5]]])  # (B, H, D)
    texts = []
    for row, length in enumerate(lengths.tolist()):
        kv = torch.arange(4.0 * length).view(2, length, 1, 2).sin()  # (2, S, H, D) of this row's tokens
        for token in range(length):
            pools[:, tables[row, token // 4], :, token % 4] = kv[:, token]
        texts.append(kv)
    out = attend(*(x.to(device) for x in (q, pools[0], pools[1], tables, lengths))).cpu()
    print("row  tokens  pages    the kernel     softmax over the row's tokens")
    for row, (keys, values) in enumerate(texts):
        right = (keys[:, 0] @ q[row, 0] * 2**-0.5).softmax(0) @ values[:, 0]
        pages = ", ".join(map(str, tables[row, : -(-len(keys) // 4)].tolist()))
        pair = [" ".join(f"{x:6.3f}" for x in result.tolist()) for result in (out[row, 0], right)]
        print(f"{row:>3}  {len(keys):>6}  {pages:7} {pair[0]}  {pair[1]}")


if __name__ == "__main__":
    main()
