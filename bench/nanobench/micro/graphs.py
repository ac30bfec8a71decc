"""Costs and gains of graphs: start-up, a batch that drains, prefill by length, sampled against greedy decoding.

`bench run` measures tokens a second of whole generations. Here is the rest of chapter 4: the padding of each ladder,
the seconds and bytes of capturing all of it, the hit rate and padding of a batch that drains, TTFT by prompt length
beside the replay alone, and how much slower sampling is than greedy decoding.
"""

from __future__ import annotations

import gc
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch

from nanobench.core.machine import stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanoinfer import LLM, SamplingParams
from nanoinfer.devices import choose_device
from nanoinfer.engine.graphs import GraphEngine, ladder
from nanoinfer.engine.stats import GraphStats
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model

LADDERS = (64, 256, 512)
LENGTHS = (16, 64, 128, 256, 512, 1000)
PREFILL_BATCHES = (1, 8)
REPEATS = 15
SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, max_tokens=256, ignore_eos=True)
GREEDY = SamplingParams(temperature=0, max_tokens=256, ignore_eos=True)
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


class Sampling(Record):
    """Whole generations, tokens a second."""

    batch: int
    greedy: Spread
    sampled: Spread


class GraphsReport(ResultsFile):
    """One run of `python -m bench graphs`."""

    kind: Literal["graphs"] = "graphs"
    model: str
    dtype: str
    ladders: tuple[Ladder, ...] = ()
    drains: tuple[Drain, ...] = ()
    prefills: tuple[Prefill, ...] = ()
    sampling: tuple[Sampling, ...] = ()


def measure(device_name: str | None, path: Path, name: str) -> None:
    """Measure all of it, print tables, write them to `path`. ValueError without a CUDA GPU."""
    device = choose_device(device_name)
    if device.type != "cuda":
        raise ValueError("CUDA graphs need a CUDA GPU")
    model = load_model(name, device, torch.bfloat16)
    report = GraphsReport(model=name, dtype="bfloat16", **stamp(device))
    parts: dict[str, Callable[[GPT2], Sequence[Record]]] = {
        "ladders": _ladders, "drains": _drains, "prefills": _prefills, "sampling": _sampling,
    }  # fmt: skip
    for part, run in parts.items():
        report = report.model_copy(update={part: tuple(run(model))})
        report.save(path)
        for record in getattr(report, part):
            print(f"{part:9}", _line(record))


def padded_share(sizes: Sequence[int], batches: Sequence[int]) -> float:
    """Share of padding in all rows computed, where each of `batches` runs in the next larger of `sizes`."""
    return 1 - sum(batches) / sum(sizes[bisect_left(sizes, batch)] for batch in batches)


def _ladders(model: GPT2) -> list[Ladder]:
    found = []
    for engine in ("paged-graph", "dense-graph"):
        for rows in LADDERS:
            gc.collect()
            torch.cuda.empty_cache()
            with LLM(model, engine=engine, max_batch=rows) as llm:
                free, started = torch.cuda.mem_get_info()[0], time.perf_counter()
                llm.warm_up()
                torch.cuda.synchronize()
                seconds, taken = time.perf_counter() - started, free - torch.cuda.mem_get_info()[0]
                assert isinstance(llm.stats, GraphStats)
                share = padded_share(ladder(rows), range(1, rows + 1))
                found.append(
                    Ladder(
                        engine=engine, rows=rows, graphs=len(ladder(rows)), padded_share=share,
                        captures=llm.stats.captures, seconds=seconds, driver_bytes=taken,
                    )
                )  # fmt: skip
    return found


def _drains(model: GPT2) -> list[Drain]:
    """Row i ends after 8 * (i + 1) tokens, so that every batch size from 64 to 1 occurs for eight steps."""
    rows = 64
    with LLM(model, engine="paged-graph", max_batch=rows) as llm:
        llm.warm_up()
        params = [SamplingParams(temperature=0, max_tokens=8 * (i + 1), ignore_eos=True) for i in range(rows)]
        llm.generate([[1 + i] for i in range(rows)], params)
        stats = llm.stats
        assert isinstance(stats, GraphStats)
        batches = [rows - step // 8 for step in range(1, stats.decode_steps + 1)]
        return [
            Drain(
                rows=rows, steps=stats.decode_steps, replayed=stats.replayed_steps, fallbacks=dict(stats.fallbacks),
                padding_share=stats.padding_rows / stats.replayed_rows,
                predicted_share=padded_share(ladder(rows), batches),
            )
        ]  # fmt: skip


def _prefills(model: GPT2) -> list[Prefill]:
    found = []
    for batch in PREFILL_BATCHES:
        llms = {name: LLM(model, engine=engine, max_batch=batch, fused=fused) for name, engine, fused in VARIANTS}
        for tokens in LENGTHS:
            prompts = torch.randint(0, 50257, (batch, tokens)).tolist()
            samples: dict[str, list[float]] = {name: [] for name in llms}
            for turn in range(REPEATS + 2):
                for name, llm in llms.items():
                    torch.cuda.synchronize()
                    started = time.perf_counter()
                    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
                    if turn >= 2:  # the first two warm up, and capture
                        samples[name].append(time.perf_counter() - started)
            for name, llm in llms.items():
                spread = Spread.of(samples[name])
                bare = _bare(llm, batch * tokens)
                found.append(Prefill(arm=name, batch=batch, tokens=tokens, ttft_s=spread, bare_s=bare))
        for llm in llms.values():
            llm.close()
    return found


def _bare(llm: LLM, tokens: int) -> float | None:
    """Seconds of replaying the newest prefill of that many tokens, and nothing else; None where no graph holds them."""
    if not isinstance(llm.core, GraphEngine):
        return None
    captured = [step for key, step in llm.core.graphs.items() if key.columns >= tokens]
    if not captured:
        return None
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(20):
        captured[-1].graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / 20


def _sampling(model: GPT2) -> list[Sampling]:
    found = []
    for batch in (1, 64):
        prompts = torch.randint(0, 50257, (batch, 1)).tolist()
        with LLM(model, engine="paged-graph", max_batch=batch) as llm:
            rates: dict[str, list[float]] = {"greedy": [], "sampled": []}
            for turn in range(8):
                for kind, params in (("greedy", GREEDY), ("sampled", SAMPLED)):
                    started = time.perf_counter()
                    llm.generate(prompts, params)
                    if turn:
                        rates[kind].append(batch * params.max_tokens / (time.perf_counter() - started))
        found.append(Sampling(batch=batch, greedy=Spread.of(rates["greedy"]), sampled=Spread.of(rates["sampled"])))
    return found


def _line(record: Record) -> str:
    """A record as it is printed."""
    match record:
        case Ladder():
            return (
                f"{record.engine:12} up to {record.rows:3} rows: {record.graphs:2} sizes, {record.padded_share:.1%}"
                f" padded; {record.captures:3} captures in {record.seconds:.1f} s, {record.driver_bytes / 1e6:.0f} MB"
            )
        case Drain():
            return (
                f"{record.rows} rows to 0: {record.replayed} of {record.steps} steps replayed, padding "
                f"{record.padding_share:.2%}, predicted {record.predicted_share:.2%}, fallbacks {record.fallbacks}"
            )
        case Prefill():
            bare = "" if record.bare_s is None else f", the replay alone {record.bare_s * 1e3:.3f} ms"
            return f"B={record.batch} T={record.tokens:4} {record.arm:14} {record.ttft_s.median * 1e3:7.3f} ms{bare}"
        case Sampling():
            share = record.sampled.median / record.greedy.median
            return f"B={record.batch}: greedy {record.greedy.median:,.0f} tok/s, sampled {share:.1%} of it"
    return str(record)
