"""The ragged kernel alone, against SDPA on a padded rectangle and on gathered pages.

One layer of gpt2's heads, inside a graph. What is made once a step for all layers, masks, work list and the rectangle
of queries, is made beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nanobench.core.machine import cuda, stamp
from nanobench.core.records import Older, Record, ResultsFile, Spread
from nanobench.core.timing import call_seconds
from nanobench.micro.paged_kernel import HEAD_SIZE, HEADS, PAGE, Pages
from nanobench.options import Gpu, Out
from nanoinfer.cache.ragged import ragged_kernels_for
from nanoinfer.engine.step import Chunk, Prefill, Prompts
from nanoinfer.kernels.paged_attention_torch import gather_pages

CALLS = 8  # in a graph
DTYPE = torch.bfloat16


class AttentionTime(Record):
    """Seconds of one call of attention for one layer."""

    case: str
    tokens: int  # new ones, of all rows
    columns: int  # of the rectangle that holds them
    arm: str
    seconds: Spread


class RaggedReport(ResultsFile):
    """One run of `python -m bench ragged`."""

    kind: Literal["ragged"] = "ragged"
    model: str = "random:gpt2"  # whose heads it has
    dtype: str
    attention: tuple[AttentionTime, ...] = ()
    engines: Older = ()


def measure(device: Gpu = None, out: Out = Path("my-bench/ragged.json")) -> None:
    """Measure, print, and write. ValueError without a CUDA GPU."""
    where = cuda(device, "the ragged benchmark needs a CUDA GPU: times in the interpreter mean nothing")
    with torch.inference_mode():
        times = (time for case, rows in CASES.items() for time in _attention(case, rows, where))
        RaggedReport(**stamp(where, DTYPE)).fill(out, attention=times)


def _attention(case: str, rows: Sequence[tuple[int, int]], device: torch.device) -> Iterator[AttentionTime]:
    variants = ragged_variants(rows, device, DTYPE)
    calls = {arm: partial(lambda call, i: call(), call) for arm, call in variants.items()}
    tokens, columns = sum(new for _, new in rows), len(rows) * max(new for _, new in rows)
    for arm, spread in call_seconds(calls, CALLS, 9, device).items():
        yield AttentionTime(case=case, tokens=tokens, columns=columns, arm=arm, seconds=spread)


# Of each row the tokens that its pages hold already, and the new ones.
CASES: dict[str, Sequence[tuple[int, int]]] = {
    **{f"one prompt of {tokens}": [(0, tokens)] for tokens in (16, 128, 512, 1024)},
    "31 prompts of 10 and one of 900": [(0, 10)] * 31 + [(0, 900)],
    "64 rows that go on at 512, a piece of 256": [(511, 1)] * 64 + [(256, 256)],
    "256 rows that go on at 400, prompts of 700": [(399, 1)] * 256 + [(0, 300), (0, 250), (0, 150)],
}


def ragged_variants(
    rows: Sequence[tuple[int, int]], device: torch.device, dtype: torch.dtype
) -> dict[str, Callable[[], Tensor]]:
    """All variants over random queries, keys and values, each checked against SDPA in float32."""
    chunks = [Chunk(row, start, [0] * new) for row, (start, new) in enumerate(rows)]
    prefill = Prefill(chunks)
    layout = prefill.layout
    batch = Prompts.of_packed(prefill.pack(layout, dummy=len(rows)).to(device), layout)
    S = -(-max(map(sum, rows)) // PAGE) * PAGE
    q = torch.randn(layout.tokens, HEADS, HEAD_SIZE, device=device, dtype=dtype)
    dense = torch.randn(1, 2, len(rows), HEADS, S, HEAD_SIZE, device=device, dtype=dtype)
    pages, (keys, values), ragged = Pages.of(dense, PAGE), dense[0], ragged_kernels_for(device)
    (k_pool, v_pool), tables, work = pages.pools[0], pages.tables, ragged.work_list(batch)
    queries = batch.padded(q).transpose(1, 2)  # (B, H, T, D)
    visible = torch.arange(S, device=device) <= batch.padded(batch.positions)[:, None, :, None]  # (B, 1, T, S)
    mask = torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, -torch.inf)

    def padded() -> Tensor:
        if not layout.past:  # then there are as many keys as queries, and a mask is not needed
            T = layout.longest
            return F.scaled_dot_product_attention(queries, keys[:, :, :T], values[:, :, :T], is_causal=True)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)

    def gathered() -> Tensor:
        k, v = gather_pages(k_pool, tables), gather_pages(v_pool, tables)  # (B, H, S, D)
        return F.scaled_dot_product_attention(queries, k, v, attn_mask=mask)

    def paged() -> Tensor:
        out: Tensor = ragged.attend_ragged(q, k_pool, v_pool, tables, batch, work)  # (N, H, D)
        return out

    found = {"sdpa, padded": padded, "sdpa, pages gathered": gathered, "ragged kernel": paged}
    whole = F.scaled_dot_product_attention(queries.float(), keys.float(), values.float(), attn_mask=visible)
    expected = batch.packed(whole.transpose(1, 2))
    for name, call in found.items():
        got = call() if name == "ragged kernel" else batch.packed(call().transpose(1, 2))
        torch.testing.assert_close(got.float(), expected, rtol=2e-2, atol=2e-2, msg=name)
    return found
