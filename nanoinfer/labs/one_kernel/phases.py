"""The phases of the one-launch step in PyTorch, on the weights as the kernel has them. Chapter 6.

Programs of the kernel wait for each other, and Triton's interpreter runs one after another. So here each phase is a
function over all programs at once: what the kernel's parts are held against, and where its cut can be followed by hand.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.labs.one_kernel.shape import Packed, Shape


def pieces(x: Tensor, S: Shape) -> Tensor:
    """(C,) -> (NC, 256), zeros past C."""
    return F.pad(x, (0, S.NC * 256 - S.C)).view(S.NC, 256)


def normed_rows(x: Tensor, gain: Tensor, tiles: Tensor, sums: Tensor, S: Shape) -> Tensor:
    """LayerNorm of the stream x (C,) times each program's rows, (G, rows): gain * x first, the mean afterwards.

    tiles: (G, T, NC, 2048). sums: (G, 2, T * 8), what hangs on the weights alone.
    """
    deviation = (x.var(unbiased=False) + S.EPS).sqrt()
    rows = tiles.float().view(S.G, -1, S.NC, 8, 256)
    y = torch.einsum("gtcrk,ck->gtr", rows, pieces(gain.float() * x, S)).flatten(1)
    return y / deviation - x.mean() / deviation * sums[:, 0] + sums[:, 1]


def part(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Attention over some tokens: the output not yet divided (D,), the highest score, the sum of weights."""
    scores = keys @ query * len(query) ** -0.5
    top = scores.max() if len(scores) else torch.tensor(-1e30)
    weight = (scores - top).exp()
    return weight @ values, top, weight.sum()


def join(parts: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Attention's output (D,), from its parts."""
    outs, tops, totals = (torch.stack(each) for each in zip(*parts, strict=True))
    weight = (tops - tops.max()).exp()
    return weight @ outs / (weight @ totals)


def projected(y: Tensor, projections: Tensor, S: Shape) -> Tensor:
    """Each head's share of the projection of y (H, D), added: (C,). projections: (G, RJ_POWER, D)."""
    shares = torch.einsum("hprd,hd->hpr", projections.float().view(S.H, S.P, -1, S.D), y)
    return shares[..., : S.RJ].reshape(S.H, -1)[:, : S.C].sum(0)


def down(inner: Tensor, tiles: Tensor, S: Shape) -> Tensor:
    """What each program's inner numbers (G, TF * 8) add to the stream, added: (C,). tiles: (G, TF, NC, 2048)."""
    columns = tiles.float().view(S.G, S.TF, S.NC, 256, 8)
    return torch.einsum("gtcnk,gtk->cn", columns, inner.view(S.G, S.TF, 8)).flatten()[: S.C]


def layer(
    x: Tensor, index: int, packed: Packed, keys: Tensor, values: Tensor, S: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer over the stream x (C,), with earlier keys and values (T, H, D): the stream, and the new ones (H, D)."""
    tiles, sums = packed.stream[:, index], packed.row_sums[index].view(S.G, -1)
    q_sums = sums[:, : 2 * S.TQ * 8].view(S.G, 2, -1)
    up_sums = sums[:, 2 * S.TQ * 8 :].view(S.G, 2, -1)
    y = normed_rows(x, packed.gains[2 * index], tiles[:, : S.TQ], q_sums, S)[:, : S.RQ]
    qkv = y.reshape(S.H, -1)[:, : 3 * S.D].view(S.H, 3, S.D)
    out = []
    for head in range(S.H):
        k = torch.cat([keys[:, head], qkv[head, 1:2]])
        v = torch.cat([values[:, head], qkv[head, 2:3]])
        each = -(-len(k) // S.P)
        out.append(
            join([part(qkv[head, 0], k[j * each : (j + 1) * each], v[j * each : (j + 1) * each]) for j in range(S.P)])
        )
    x = x + projected(torch.stack(out), packed.projections[index], S) + packed.biases[index, 0]
    y = normed_rows(x, packed.gains[2 * index + 1], tiles[:, S.TQ : S.TQ + S.TF], up_sums, S)
    x = x + down(F.gelu(y, approximate="tanh"), tiles[:, S.TQ + S.TF :], S) + packed.biases[index, 1]
    return x, qkv[:, 1], qkv[:, 2]


def fixed(value: Tensor) -> Tensor:
    """`words.fixed`: int64, and a NaN is a number."""
    return (value.nan_to_num(nan=-(2.0**17)).clamp(-(2.0**17), 2.0**17) * 2.0**30).long()
