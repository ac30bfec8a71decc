"""What each engine adds to the one before: lines of code, gain in speed, and where it loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from nanobench.core.records import Report, Result
from nanobench.report.intervals import interval as bootstrap
from nanobench.report.intervals import verdict
from nanobench.report.values import case_bytes, engine_label, engines_of, factor, models_of, prompts_of, significant
from nanobench.systems import UNFUSED
from nanobook.syllabus import syllabus
from nanoinfer.config import ENGINES

BATCHES = (1, 8, 64, 256)


@dataclass(frozen=True)
class Rung:
    """An engine's chapter, the engine that it is compared with, and whether it is of a lab."""

    chapter: int
    before: str | None
    lab: bool = False


RUNGS = {
    "naive": Rung(1, None),
    "dense": Rung(2, "naive"),
    "paged": Rung(3, "dense"),
    "dense-graph-unfused": Rung(4, "dense"),  # the same memory and operations, launched in another way
    "dense-graph": Rung(4, "dense-graph-unfused"),  # what fused kernels add to that
    "paged-graph-unfused": Rung(4, "paged"),
    "paged-graph": Rung(4, "paged-graph-unfused"),
    "fused": Rung(6, "paged-graph"),
    "persistent": Rung(6, "fused", lab=True),
}
GRAPHED_PEERS = ("transformers-static-compile", "vllm", "vllm-triton-attention")


def ledger(
    report: Report, model: str | None = None, batches: Sequence[int] = BATCHES
) -> tuple[list[str], list[list[str]]]:
    """Header and rows: an engine a row, in the book's order. Only those that were run, with what each is held against.

    Graphs and fused kernels are two rows, so that neither is credited with the other's gain. If the report has no
    graphs without fused kernels, as on a CPU, an engine with graphs is compared with the one without. Below, the last
    engine that was run, over the peers that replay graphs too.
    """
    model = model or models_of(report)[0]
    header = ["engine", "chapter", "added lines", *(f"B = {batch}" for batch in batches), "where it loses"]
    chapters = {chapter.number: chapter for chapter in syllabus().chapters}
    rows = []
    measured = set[str | None](engines_of(report.find(model=model)))
    shown: set[tuple[int, bool]] = set()
    for engine, rung in RUNGS.items():
        before = rung.before
        if engine in ENGINES and before in UNFUSED and before not in measured:
            before = RUNGS[before].before
        if not measured.issuperset({engine, before} - {None}):
            continue
        # A chapter with several engines adds its lines once: they are shown at the first of them.
        source = rung.chapter, rung.lab
        lines = "as above" if source in shown else str(chapters[rung.chapter].lines(rung.lab))
        shown.add(source)
        over = f" over `{before}`" if before else ""
        compared = _compared(report, model, engine, before, batches)
        rows.append([f"`{engine}`{over}", str(rung.chapter), lines, *compared])
    newest = [engine for engine in RUNGS if engine in measured][-1:]
    for engine, peer in product(newest, GRAPHED_PEERS):
        if report.find(model=model, engine=peer):
            over = f" over {engine_label(peer)}"
            rows.append([f"`{engine}`{over}", "", "", *_compared(report, model, engine, peer, batches)])
    return header, rows


def _compared(report: Report, model: str, engine: str, before: str | None, batches: Sequence[int]) -> list[str]:
    """An engine's gains over another, a batch size each, and its losses."""
    gains = [_gain(report, model, engine, before, batch) for batch in batches]
    return [*gains, "; ".join(_losses(report, model, engine, before)) or "–"]


def _gain(report: Report, model: str, engine: str, before: str | None, batch: int) -> str:
    """Decode speed over the engine before, its interval if that holds no difference, or why there is no number."""
    if before is None:
        return "1×"
    pair = _pair(report, model, engine, before, batch)
    if pair is None:
        return "not run"
    for result in pair:
        if result.status != "ok":
            return f"{result.case.engine} {result.status}"
    new, old = pair
    low, high = bootstrap(new, old, "tok/s")
    if verdict(low, high) == "even":
        return f"{significant(low)} to {factor(high)}"
    return factor((new.tokens_per_s or 0) / (old.tokens_per_s or 1))


def _losses(report: Report, model: str, engine: str, before: str | None) -> list[str]:
    """Where an engine is worse than the one before, beyond the spread: decode, TTFT, memory."""
    if before is None:
        return []
    worst: dict[str, list[tuple[int, float]]] = {"decode": [], "TTFT": [], "memory": []}
    batches = sorted({r.case.batch for r in report.find(model=model, engine=engine)})
    for batch in batches:
        pair = _pair(report, model, engine, before, batch)
        if pair is None or any(r.status != "ok" for r in pair):
            continue
        new, old = pair
        if verdict(*bootstrap(new, old, "tok/s")) == "slower":
            worst["decode"].append((batch, (new.tokens_per_s or 0) / (old.tokens_per_s or 1)))
        if new.ttft_s and old.ttft_s and verdict(*bootstrap(new, old, "TTFT")) == "faster":  # a longer time
            worst["TTFT"].append((batch, new.ttft_s.median / old.ttft_s.median))
        used, used_before = case_bytes(new), case_bytes(old)
        if used and used_before and used > used_before * 1.03:
            worst["memory"].append((batch, used / used_before))
    return [_range(what, found, len(batches)) for what, found in worst.items() if found]


def _range(what: str, found: list[tuple[int, float]], measured: int) -> str:
    """`decode 0.8× to 0.9× at B = 1, 2, 4`."""
    values = sorted(value for _, value in found)
    ends = " to ".join(dict.fromkeys((factor(values[0]), factor(values[-1]))))
    at = "every B" if len(found) == measured else f"B = {', '.join(str(batch) for batch, _ in found)}"
    return f"{what} {ends} at {at}"


def _pair(report: Report, model: str, engine: str, before: str, batch: int) -> tuple[Result, Result] | None:
    """Both engines' results at a batch size, for the shortest prompt that was measured."""
    prompt = prompts_of(report.find(model=model))[0]
    of = [report.find(model=model, engine=name, batch=batch, prompt_tokens=prompt) for name in (engine, before)]
    return (of[0][0], of[1][0]) if all(of) else None
