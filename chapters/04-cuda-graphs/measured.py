"""Chapter 4's numbers out of results files: start-up, a draining batch, prefill by length, a step by cause.

Made by `python -m bench graphs`, `run`, `timeline` and `sampling`, each with `--out bench/results/h200-NAME.json`; the
text is filled anew by `python -m bench prose`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from nanobench.core.records import Report
from nanobench.micro.graphs import Drain, GraphsReport, Ladder, Prefill
from nanobench.micro.recompiles import RecompileReport
from nanobench.micro.sampling import SamplingReport
from nanobench.micro.step_breakdown import NONE, Cause, causes
from nanobench.micro.timeline import StepTimeline, Timeline
from nanobench.report.figures.timeline import busy
from nanobench.report.values import factor, seconds, share, size
from nanoinfer.model.config import PRESETS

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
GPT2, BYTES = PRESETS["gpt2"], 2  # bfloat16
SETTING = "top-k 50, top-p 0.95"


def _read(name: str, command: str, kind: Any) -> Any:
    """A results file. ValueError with the command that makes it."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"no results file {name}.json: `python -m bench {command} --out bench/results/{name}.json`")
    return kind.model_validate_json(path.read_bytes())


@cache
def graphs() -> GraphsReport:
    """Start-up, a draining batch and prefill by length."""
    return _read("h200-ladder", "graphs", GraphsReport)  # type: ignore[no-any-return]


@cache
def whole() -> Report:
    """Whole generations from a prompt of one token."""
    return _read("h200-graphs", "run --preset graphs", Report)  # type: ignore[no-any-return]


@cache
def timeline(name: str = "h200-timeline") -> Timeline:
    """A step of each engine, by the profiler."""
    return _read(name, "timeline", Timeline)  # type: ignore[no-any-return]


@cache
def samplers() -> SamplingReport:
    """Choosing tokens, alone."""
    return _read("h200-sampling", "sampling", SamplingReport)  # type: ignore[no-any-return]


@cache
def recompiles() -> RecompileReport:
    """What Triton compiled while texts grew."""
    return _read("h200-recompiles-graph", "recompiles --engine paged-graph", RecompileReport)  # type: ignore[no-any-return]


def step_of(engine: str) -> StepTimeline:
    """One engine's step on the time line."""
    (found,) = [step for step in timeline().steps if step.engine == engine]
    return found


def cause_of(name: str, engine: str = "paged-graph") -> Cause:
    """One cause of an engine's step."""
    (found,) = [cause for cause in causes(step_of(engine)) if cause.name == name]
    return found


def prefill_of(batch: int, tokens: int, arm: str) -> Prefill:
    """TTFT of one batch of prompts. arm: "eager", "graph", or "graph, fused"."""
    (found,) = [p for p in graphs().prefills if (p.batch, p.tokens, p.arm) == (batch, tokens, arm)]
    return found


def drain() -> Drain:
    """The batch that drains."""
    (found,) = graphs().drains
    return found


def ladder_of(engine: str, rows: int) -> Ladder:
    """What it took to capture one engine's ladder."""
    (found,) = [one for one in graphs().ladders if (one.engine, one.rows) == (engine, rows)]
    return found


def costs() -> None:
    """Start-up and memory by the ladder's top, in the order in which they were measured."""
    print(
        f"{'engine':13}{'rows up to':>11}{'batch sizes':>13}{'captures':>10}{'time':>9}{'a capture':>12}{'memory':>9}"
    )
    for one in graphs().ladders:
        times = f"{seconds(one.seconds):>9}{seconds(one.seconds / one.captures):>12}"
        print(f"{one.engine:13}{one.rows:>11}{one.graphs:>13}{one.captures:>10}{times}{size(one.driver_bytes):>9}")


def drained() -> None:
    """Hit rate and padding of a batch that drains, as counted and as the ladder's arithmetic has it."""
    found = drain()
    eager, rate = sum(found.fallbacks.values()), found.replayed / found.steps
    print(f"{found.steps} decode steps: {found.replayed} replayed, {eager} eager; hit rate {rate:.1%}")
    print(f"rows of nobody among those computed: {found.padding_share:.2%}; by the ladder {found.predicted_share:.2%}")


def floors() -> dict[str, float]:
    """Seconds that each cause's bytes alone would take at this device's copy bandwidth."""
    line, rate = timeline(), whole().copy_bytes_per_s
    wte, wpe = GPT2.vocab_size * GPT2.n_embd, GPT2.n_positions * GPT2.n_embd
    keys = line.batch * GPT2.kv_numbers * line.context
    numbers = {"matrices": GPT2.parameters - wte - wpe, "the head": wte, "attention": keys}
    return {name: number * BYTES / rate for name, number in numbers.items()}


def causes_table() -> None:
    """A replayed step by cause, and what its bytes alone would take."""
    least, found = floors(), causes(step_of("paged-graph"))
    print(f"{'':17}{'share':>7}{'time':>11}{'its bytes alone':>18}")
    for cause in found:
        alone = seconds(least[cause.name]) if cause.name in least else ""
        print(f"{cause.name:17}{share(cause.share):>7}{seconds(cause.seconds):>11}{alone:>18}")
    print(f"{'all':17}{'':7}{seconds(sum(c.seconds for c in found)):>11}{seconds(sum(least.values())):>18}")


def _case(engine: str, batch: int) -> Any:
    (found,) = whole().find(engine=engine, batch=batch)
    return found


def _sampler(arm: str, batch: int) -> float:
    (found,) = [t for t in samplers().times if (t.batch, t.setting, t.arm) == (batch, SETTING, arm)]
    return found.seconds.median


def _launches(engine: str) -> int:
    return sum(event.kind == "launch" for event in step_of(engine).host)


def _prefill_gain(batch: int, tokens: int) -> str:
    eager, replayed = (prefill_of(batch, tokens, arm).ttft_s.median for arm in ("eager", "graph"))
    return factor(eager / replayed)


def _bare(batch: int, tokens: int) -> str:
    bare = prefill_of(batch, tokens, "graph, fused").bare_s
    assert bare is not None
    return seconds(bare)


def _missing() -> float:
    """Seconds of a step beyond what its bytes take."""
    return step_of("paged-graph").unprofiled_us / 1e6 - sum(floors().values())


NUMBERS: dict[str, Callable[[], str]] = {
    "paged step": lambda: seconds(step_of("paged").unprofiled_us / 1e6),
    "paged busy": lambda: share(busy(step_of("paged"))),
    "paged launches": lambda: f"{_launches('paged')}",
    "graph step": lambda: seconds(step_of("paged-graph").unprofiled_us / 1e6),
    "graph kernels": lambda: f"{len(step_of('paged-graph').kernels)}",
    "graph busy": lambda: share(busy(step_of("paged-graph"))),
    "graph gain": lambda: factor(step_of("paged").unprofiled_us / step_of("paged-graph").unprofiled_us),
    "step floor": lambda: seconds(sum(floors().values())),
    "matrices time": lambda: seconds(cause_of("matrices").seconds),
    "matrices floor": lambda: seconds(floors()["matrices"]),
    "matrices factor": lambda: factor(cause_of("matrices").seconds / floors()["matrices"]),
    "head time": lambda: seconds(cause_of("the head").seconds),
    "head floor": lambda: seconds(floors()["the head"]),
    "attention time": lambda: seconds(cause_of("attention").seconds),
    "attention floor": lambda: seconds(floors()["attention"]),
    "norms time": lambda: seconds(cause_of("sums and norms").seconds),
    "gaps time": lambda: seconds(cause_of(NONE).seconds),
    "matrices missing": lambda: share((cause_of("matrices").seconds - floors()["matrices"]) / _missing()),
    "sampler": lambda: seconds(_sampler("ours", 1)),
    "sampler sorted": lambda: seconds(_sampler("sort", 1)),
    "sampler 64": lambda: seconds(_sampler("ours", 64)),
    "sampler sorted 64": lambda: seconds(_sampler("sort", 64)),
    "hit rate": lambda: share(drain().replayed / drain().steps),
    "drain steps": lambda: f"{drain().steps}",
    "drain padding": lambda: share(drain().padding_share),
    "prefill 1 16": lambda: _prefill_gain(1, 16),
    "prefill 1 1000": lambda: _prefill_gain(1, 1000),
    "prefill 8 256": lambda: _prefill_gain(8, 256),
    "ttft 8 256": lambda: seconds(prefill_of(8, 256, "graph, fused").ttft_s.median),
    "ttft 8 512": lambda: seconds(prefill_of(8, 512, "graph, fused").ttft_s.median),
    "ttft 1 16": lambda: seconds(prefill_of(1, 16, "graph, fused").ttft_s.median),
    "bare 1 16": lambda: _bare(1, 16),
    "eager 1 16": lambda: seconds(prefill_of(1, 16, "eager").ttft_s.median),
    "captures paged": lambda: f"{ladder_of('paged-graph', 512).captures}",
    "captures dense": lambda: f"{ladder_of('dense-graph', 512).captures}",
    "capture time": lambda: seconds(ladder_of("paged-graph", 512).seconds),
    "capture memory": lambda: size(ladder_of("paged-graph", 512).driver_bytes),
    "compiled later": lambda: f"{sum(recompiles().runs[-1].kernels.values())}",
    "compiled steps": lambda: f"{recompiles().runs[-1].decode_steps}",
}
