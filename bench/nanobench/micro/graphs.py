"""Chapter 4's costs and gains: the ladder, its start-up, a batch that drains, TTFT by length.

`bench run` measures tokens a second of whole generations. Here is the rest of chapter 4: the padding of each ladder,
the seconds and bytes of capturing all of it, the hit rate and padding of a batch that drains, and TTFT by prompt
length beside the replay alone.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from nanobench.core.case_runner import release_memory
from nanobench.core.machine import cuda, stamp
from nanobench.core.records import Older, Record, ResultsFile, Spread
from nanobench.core.timing import by_turns, seconds
from nanobench.micro.queue_load import greedy
from nanobench.options import Gpu, Model, Out
from nanoinfer import LLM
from nanoinfer.engine.graphs import GraphEngine, ladder
from nanoinfer.engine.stats import GraphStats
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model

LADDERS = (64, 256, 512)
LENGTHS = (16, 64, 128, 256, 512, 1000)
PREFILL_BATCHES = (1, 8)
REPEATS = 15
# Name, engine, and whether its kernels are fused.
VARIANTS = (("eager", "paged", None), ("graph", "paged-graph", False), ("graph, fused", "paged-graph", True))


class Ladder(Record):
    """A ladder's padding, and what capturing it took with one engine."""

    engine: str
    rows: int
    graphs: int  # decode steps of one sampler and one read length
    padded_share: float  # of all rows computed, where each batch size from 1 to `rows` comes once
    captures: int
    seconds: float
    driver_bytes: int


class Drain(Record):
    """A batch whose rows end one after the other."""

    rows: int
    steps: int
    replayed: int
    fallbacks: dict[str, int]
    padding_share: float
    predicted_share: float  # computed from the ladder, over the batch sizes that occurred


class Prefill(Record):
    """Seconds to the first token of a batch of prompts, as a caller sees them, and of the replay alone."""

    arm: str  # the variant
    batch: int
    tokens: int
    ttft_s: Spread
    bare_s: float | None


class GraphsReport(ResultsFile):
    """One run of `python -m bench graphs`."""

    kind: Literal["graphs"] = "graphs"
    model: str
    dtype: str
    ladders: tuple[Ladder, ...] = ()
    drains: tuple[Drain, ...] = ()
    prefills: tuple[Prefill, ...] = ()
    sampling: Older = ()


def measure(
    device: Gpu = None, out: Out = Path("my-bench/graphs.json"), model: Model = "random:gpt2",
) -> None:  # fmt: skip
    """Measure all of it, print tables, write them. ValueError without a CUDA GPU."""
    where = cuda(device, "CUDA graphs need a CUDA GPU")
    weights = load_model(model, where, torch.bfloat16)
    report = GraphsReport(model=model, **stamp(where, torch.bfloat16))
    report.fill(out, ladders=_ladders(weights), drains=_drains(weights), prefills=_prefills(weights))


def padded_share(sizes: Sequence[int], batches: Sequence[int]) -> float:
    """Share of padding in all rows computed, where each of `batches` runs in the next larger of `sizes`."""
    return 1 - sum(batches) / sum(sizes[bisect_left(sizes, batch)] for batch in batches)


def _ladders(model: GPT2) -> Iterator[Ladder]:
    for engine, rows in itertools.product(("paged-graph", "dense-graph"), LADDERS):
        release_memory(model.device)
        with LLM(model, engine=engine, max_batch=rows) as llm:
            free = torch.cuda.mem_get_info()[0]
            took = seconds(llm.warm_up, model.device)
            yield Ladder(
                engine=engine, rows=rows, graphs=len(ladder(rows)),
                padded_share=padded_share(ladder(rows), range(1, rows + 1)), captures=_stats(llm).captures,
                seconds=took, driver_bytes=free - torch.cuda.mem_get_info()[0],
            )  # fmt: skip


def _stats(llm: LLM) -> GraphStats:
    assert isinstance(llm.stats, GraphStats)
    return llm.stats


def _drains(model: GPT2) -> Iterator[Drain]:
    """Row i ends after 8 * (i + 1) tokens, so that every batch size from 64 to 1 occurs for eight steps."""
    rows = 64
    with LLM(model, engine="paged-graph", max_batch=rows) as llm:
        llm.warm_up()
        llm.generate([[1 + i] for i in range(rows)], [greedy(8 * (i + 1)) for i in range(rows)])
        stats = _stats(llm)
        batches = [rows - step // 8 for step in range(1, stats.decode_steps + 1)]
        yield Drain(
            rows=rows, steps=stats.decode_steps, replayed=stats.replayed_steps, fallbacks=dict(stats.fallbacks),
            padding_share=stats.padding_rows / stats.replayed_rows,
            predicted_share=padded_share(ladder(rows), batches),
        )  # fmt: skip


def _prefills(model: GPT2) -> Iterator[Prefill]:
    for batch in PREFILL_BATCHES:
        llms = {name: LLM(model, engine=engine, max_batch=batch, fused=fused) for name, engine, fused in VARIANTS}
        for tokens in LENGTHS:
            prompts = torch.randint(0, 50257, (batch, tokens)).tolist()
            arms = {
                name: partial(seconds, partial(llm.generate, prompts, greedy(1)), model.device)
                for name, llm in llms.items()
            }
            for name, times in by_turns(arms, REPEATS, untimed=2).items():  # two warm up, and capture
                bare = _bare(llms[name], batch * tokens)
                yield Prefill(arm=name, batch=batch, tokens=tokens, ttft_s=Spread.of(times), bare_s=bare)
        for llm in llms.values():
            llm.close()


def _bare(llm: LLM, tokens: int) -> float | None:
    """Seconds of replaying the newest prefill of that many tokens, and nothing else; None where no graph holds them."""
    if not isinstance(llm.core, GraphEngine):
        return None
    captured = [step for key, step in llm.core.graphs.items() if key.columns >= tokens]
    return seconds(captured[-1].graph.replay, llm.model.device, 20) if captured else None
