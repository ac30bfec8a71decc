"""Short prompts beside a long one, a row that runs while a prompt arrives, and the ragged kernel alone.

Attention alone is one layer of gpt2's heads, inside a graph, and needs a GPU: the book's ragged kernel, SDPA on a
padded rectangle, and pages gathered for SDPA. What is made once a step for all layers, masks, work list and the
rectangle of queries, is made beforehand. The engines run on a CPU too.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nanobench.core.machine import place, stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.core.timing import call_seconds
from nanobench.micro.paged_kernel import HEAD_SIZE, HEADS, PAGE, Pages
from nanobench.micro.queue_load import greedy
from nanobench.options import Device, Out, OwnModel
from nanoinfer import LLM
from nanoinfer.cache.ragged import ragged_kernels_for
from nanoinfer.config import RECIPES
from nanoinfer.engine.step import Chunk, Prefill, Prompts
from nanoinfer.kernels.paged_attention_torch import gather_pages
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model
from nanoinfer.requests import Metrics

CALLS = 8  # in a graph
SHORT, LONG, ARRIVING = 10, 900, 1000  # tokens of prompts
ROWS = 32  # the last one long, the others short
CHUNKS = (None, 64)  # prefill_chunk
RUNNING = 16  # tokens that the row has made when the long prompt arrives


class AttentionTime(Record):
    """Seconds of one call of attention for one layer."""

    case: str
    tokens: int  # new ones, of all rows
    columns: int  # of the rectangle that holds them
    arm: str
    seconds: Spread


class EngineTimes(Record):
    """One engine: a call of 31 short prompts and a long one; and a row that runs while a longer one arrives."""

    engine: str
    prefill_chunk: int | None
    alone_s: Spread  # to the first token of a short prompt, medians of the rows, with no long one beside them
    short_s: Spread  # the same, beside the long one
    long_s: Spread  # to the long one's first token
    step_s: Spread  # between two tokens of the row that runs, before anything arrives
    pause_s: Spread  # the longest time between two of its tokens, from the arrival on


class RaggedReport(ResultsFile):
    """One run of `python -m bench ragged`."""

    kind: Literal["ragged"] = "ragged"
    model: str
    dtype: str
    attention: tuple[AttentionTime, ...]
    engines: tuple[EngineTimes, ...]


def measure(device: Device = None, out: Out = Path("my-bench/ragged.json"), model: OwnModel = None) -> RaggedReport:
    """Measure both, print them, write them. model: None is random gpt2 on a GPU, the small one on a CPU."""
    where, dtype = place(device)
    on_gpu = where.type == "cuda"
    name = model or ("random:gpt2" if on_gpu else "small")
    attention = []
    if on_gpu:
        with torch.inference_mode():
            attention = [time for case, rows in CASES.items() for time in _attention(case, rows, where, dtype)]
    else:
        print("no GPU: attention alone is left out, and engines with graphs, which would run as those without")
    weights = load_model(name, where, dtype, seed=0)
    engines = [
        _engine(weights, engine, chunk, 15 if on_gpu else 3)
        for engine, recipe in RECIPES.items()
        if recipe.cache != "naive" and (on_gpu or recipe.launch == "eager")
        for chunk in CHUNKS
    ]
    report = RaggedReport(
        model=name, attention=tuple(attention), engines=tuple(engines), **stamp(where, dtype)
    )  # fmt: skip
    report.save(out)
    return report


def _attention(
    case: str, rows: Sequence[tuple[int, int]], device: torch.device, dtype: torch.dtype
) -> Iterator[AttentionTime]:
    variants = ragged_variants(rows, device, dtype)
    calls = {arm: partial(lambda call, i: call(), call) for arm, call in variants.items()}
    tokens, columns = sum(new for _, new in rows), len(rows) * max(new for _, new in rows)
    for arm, spread in call_seconds(calls, CALLS, 9, device).items():
        print(f"{case:44} {arm:22} {spread.in_us()}")
        yield AttentionTime(case=case, tokens=tokens, columns=columns, arm=arm, seconds=spread)


def _engine(model: GPT2, engine: str, chunk: int | None, repeats: int) -> EngineTimes:
    """One engine with one prefill_chunk, warmed up, and every run once before it is timed."""
    draws = random.Random(0)
    short = [draws.choices(range(model.config.vocab_size), k=SHORT) for _ in range(ROWS - 1)]
    long, arriving = (draws.choices(range(model.config.vocab_size), k=length) for length in (LONG, ARRIVING))
    with LLM(model, engine=engine, max_batch=ROWS, prefill_chunk=chunk) as llm:
        llm.warm_up()
        runs = [
            (median(first_tokens(llm, short)), first_tokens(llm, [*short, long]), gaps(llm, short[0], arriving))
            for _ in range(repeats + 1)
        ][1:]
    found = EngineTimes(
        engine=engine, prefill_chunk=chunk, alone_s=Spread.of([alone for alone, _, _ in runs]),
        short_s=Spread.of([median(times[:-1]) for _, times, _ in runs]),
        long_s=Spread.of([times[-1] for _, times, _ in runs]),
        step_s=Spread.of([before for _, _, (before, _) in runs]),
        pause_s=Spread.of([longest for _, _, (_, longest) in runs]),
    )  # fmt: skip
    ms = [1e3 * spread.median for spread in (found.alone_s, found.short_s, found.long_s, found.step_s, found.pause_s)]
    print(
        f"{engine:12} prefill_chunk {chunk!s:4} first token of short prompts {ms[0]:8.2f} ms alone, {ms[1]:8.2f} beside"
        f" a long one ({ms[2]:.2f} ms); a row's step {ms[3]:.2f} ms, its longest pause {ms[4]:.2f} ms"
    )
    return found


def first_tokens(llm: LLM, prompts: list[list[int]]) -> list[float]:
    """Seconds from the call to each prompt's first token."""
    asked = time.perf_counter()
    rows = [llm.core.submit(request, asked=asked) for request in llm.requests(prompts, greedy(1))]
    while llm.core.busy:
        llm.core.step()
    return [Metrics.of(row).ttft_s for row in rows]


def gaps(llm: LLM, running: list[int], arriving: list[int]) -> tuple[float, float]:
    """Seconds between two tokens of a row: the median before another prompt arrives, and the longest from then on."""
    core, (first, second) = llm.core, llm.requests([running, arriving], [greedy(200), greedy(1)])
    row = core.submit(first)
    while len(row.token_ids) < RUNNING:
        core.step()
    newcomer = core.submit(second)
    while not newcomer.ended or len(row.token_ids) < 2 * RUNNING:
        core.step()
    core.cancel(row)
    while core.busy:
        core.step()
    between = [after - before for before, after in itertools.pairwise(row.times)]
    return median(between[: RUNNING - 1]), max(between[RUNNING - 1 :])


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
