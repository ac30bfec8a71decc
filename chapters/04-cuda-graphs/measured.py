"""Chapter 4's numbers from results files: start-up, a draining batch, prefill by length, the parts of a step.

The files come from `python -m bench graphs`, `run`, `timeline` and `sampling`, each with `--out
bench/results/h200-NAME.json`; `python -m nanobook prose` then fills the numbers into the text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from nanobench.core.records import Report
from nanobench.micro.graphs import Drain, GraphsReport, Ladder, Prefill
from nanobench.micro.recompiles import RecompileReport
from nanobench.micro.sampling import SamplingReport
from nanobench.micro.step_breakdown import Part, breakdown
from nanobench.micro.timeline import StepTimeline, Timeline
from nanobench.report.intervals import claimed
from nanobench.report.values import seconds, share, size
from nanobook.examples import only, results
from nanocourse.exercises.chapters import run_folder
from nanoinfer.model.config import PRESETS

GPT2, BYTES = PRESETS["gpt2"], 2  # bfloat16
SETTING = "top-k 50, top-p 0.95"


graphs = partial(results, GraphsReport, "h200-ladder", "graphs")  # start-up, a draining batch, prefill by length
whole = partial(results, Report, "h200-graphs", "run --preset graphs")  # generations from a prompt of one token
recompiles = partial(results, RecompileReport, "h200-recompiles-graph", "recompiles --engine paged-graph")


def timeline(name: str = "h200-timeline") -> Timeline:
    """A step of each engine, by the profiler."""
    return results(Timeline, name, "timeline")


def samplers(name: str = "h200-sampling") -> SamplingReport:
    """Choosing tokens, alone."""
    return results(SamplingReport, name, "sampling")


def step_of(engine: str) -> StepTimeline:
    """One engine's step on the time line."""
    return only(timeline().steps, engine=engine)


def part_of(name: str, engine: str = "paged-graph") -> Part:
    """One part of an engine's step."""
    return only(breakdown(step_of(engine)), name=name)


def prefill_of(batch: int, tokens: int, variant: str) -> Prefill:
    """TTFT of one batch of prompts. variant: "eager", "graph", or "graph, fused"."""
    return only(graphs().prefills, batch=batch, tokens=tokens, arm=variant)


def drain() -> Drain:
    """The batch that drains."""
    return only(graphs().drains)


def ladder_of(engine: str, rows: int) -> Ladder:
    """What it took to capture one engine's ladder."""
    return only(graphs().ladders, engine=engine, rows=rows)


def costs() -> None:
    """Start-up and memory by the ladder's top, in the order in which they were measured."""
    print(
        f"{'engine':13}{'rows up to':>11}{'batch sizes':>13}{'captures':>10}{'time':>9}{'a capture':>12}{'memory':>9}"
    )
    for one in graphs().ladders:
        times = f"{seconds(one.seconds):>9}{seconds(one.seconds / one.captures):>12}"
        print(f"{one.engine:13}{one.rows:>11}{one.graphs:>13}{one.captures:>10}{times}{size(one.driver_bytes):>9}")


def drained() -> None:
    """Hit rate and padding of a batch that drains, as counted and as computed from the ladder."""
    found = drain()
    eager, rate = sum(found.fallbacks.values()), found.replayed / found.steps
    print(f"{found.steps} decode steps: {found.replayed} replayed, {eager} eager; hit rate {rate:.1%}")
    print(f"padding rows among those computed: {found.padding_share:.2%}; by the ladder {found.predicted_share:.2%}")


def replayed_story(side: str) -> str:
    """A replay of the first story of graphs-that-lied.md, by its "right" graph or its "wrong" one."""
    lies = run_folder(Path(__file__).parent / "lies")("running")
    found = lies.measured()
    if found is None:
        raise ValueError(f"no results file {lies.NAME}: `{lies.COMMAND}`")
    return seconds(only(found.told, name="story").costs[side])


def floors() -> dict[str, float]:
    """Seconds that each part's bytes alone would take at this device's copy bandwidth."""
    line, rate = timeline(), whole().copy_bytes_per_s
    wte, wpe = GPT2.vocab_size * GPT2.n_embd, GPT2.n_positions * GPT2.n_embd
    keys = line.batch * GPT2.kv_numbers * line.context
    numbers = {"matrices": GPT2.parameters - wte - wpe, "the head": wte, "attention": keys}
    return {name: number * BYTES / rate for name, number in numbers.items()}


def breakdown_table() -> None:
    """A replayed step by its parts, and what their bytes alone would take."""
    least, found = floors(), breakdown(step_of("paged-graph"))
    print(f"{'':17}{'share':>7}{'time':>11}{'its bytes alone':>18}")
    for part in found:
        alone = seconds(least[part.name]) if part.name in least else ""
        print(f"{part.name:17}{share(part.share):>7}{seconds(part.seconds):>11}{alone:>18}")
    print(f"{'all':17}{'':7}{seconds(sum(part.seconds for part in found)):>11}{seconds(sum(least.values())):>18}")


def _sampler(variant: str, batch: int, setting: str = SETTING, name: str = "h200-sampling") -> float:
    return only(samplers(name).times, batch=batch, setting=setting, arm=variant).seconds.median


def _launches(engine: str) -> int:
    return sum(event.kind == "launch" for event in step_of(engine).host)


def _prefill_gain(batch: int, tokens: int) -> str:
    eager, replayed = (prefill_of(batch, tokens, variant).ttft_s for variant in ("eager", "graph"))
    return claimed(eager, replayed)


def _bare(batch: int, tokens: int) -> str:
    bare = prefill_of(batch, tokens, "graph, fused").bare_s
    assert bare is not None
    return seconds(bare)


NUMBERS: dict[str, Callable[[], str]] = {
    "paged step": lambda: seconds(step_of("paged").unprofiled_us / 1e6),
    "paged busy": lambda: share(step_of("paged").busy),
    "paged launches": lambda: f"{_launches('paged')}",
    "graph step": lambda: seconds(step_of("paged-graph").unprofiled_us / 1e6),
    "graph kernels": lambda: f"{len(step_of('paged-graph').kernels)}",
    "graph busy": lambda: share(step_of("paged-graph").busy),
    "step floor": lambda: seconds(sum(floors().values())),
    "matrices time": lambda: seconds(part_of("matrices").seconds),
    "matrices floor": lambda: seconds(floors()["matrices"]),
    "sampler": lambda: seconds(_sampler("ours", 1)),
    "sampler greedy": lambda: seconds(_sampler("ours", 1, "greedy")),
    "sampler cpu": lambda: seconds(_sampler("ours", 1, name="cpu-sampling")),
    "sampler cpu top-p": lambda: seconds(_sampler("ours", 1, "top-p 0.95", "cpu-sampling")),
    "sampler cpu greedy": lambda: seconds(_sampler("ours", 1, "greedy", "cpu-sampling")),
    "sampler sorted": lambda: seconds(_sampler("sort", 1)),
    "sampler 64": lambda: seconds(_sampler("ours", 64)),
    "sampler sorted 64": lambda: seconds(_sampler("sort", 64)),
    "hit rate": lambda: share(drain().replayed / drain().steps),
    "prefill 1 16": lambda: _prefill_gain(1, 16),
    "prefill 1 1000": lambda: _prefill_gain(1, 1000),
    "prefill 8 256": lambda: _prefill_gain(8, 256),
    "ttft 8 256": lambda: seconds(prefill_of(8, 256, "graph, fused").ttft_s.median),
    "ttft 8 512": lambda: seconds(prefill_of(8, 512, "graph, fused").ttft_s.median),
    "ttft 1 16": lambda: seconds(prefill_of(1, 16, "graph, fused").ttft_s.median),
    "bare 1 16": lambda: _bare(1, 16),
    "captures paged": lambda: f"{ladder_of('paged-graph', 512).captures}",
    "captures dense": lambda: f"{ladder_of('dense-graph', 512).captures}",
    "story right": lambda: replayed_story("right"),
    "story wrong": lambda: replayed_story("wrong"),
    "compiled later": lambda: f"{sum(recompiles().runs[-1].kernels.values())}",
    "compiled steps": lambda: f"{recompiles().runs[-1].decode_steps}",
}
