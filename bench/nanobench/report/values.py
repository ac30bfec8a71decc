"""Quantities derived from a result, labels, and numbers as the text prints them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nanobench.core.records import Report, Result, Spread
from nanobench.systems import OTHERS
from nanoinfer.config import ENGINES, RECIPES

SHORT = {
    "transformers-nocache": "transformers, no cache",
    "transformers-static-compile": "transformers, static + compile",
    "dense-graph-unfused": "dense-graph, not fused",
    "paged-graph-unfused": "paged-graph, not fused",
    "vllm": "vLLM",
    "vllm-triton-attention": "vLLM, its Triton attention",
    "dense-1024": "dense, all of 1024 read",
    "dense-compile-reduce-overhead": "our step, torch.compile",
    "dense-compile-max-autotune": "our step, max-autotune",
}


def step_samples(result: Result) -> list[float]:
    """Seconds of one decode step, one for each repeat: its generation less the median TTFT, as in tokens/s."""
    if result.generate_s is None or result.ttft_s is None:
        return []
    first, steps = result.ttft_s.median, result.case.new_tokens - 1
    return [(whole - first) / steps for whole in result.generate_s.samples]


def decode(result: Result) -> Spread | None:
    """Decode tokens a second of the whole batch: the report's own median, and the range over the repeats."""
    if result.tokens_per_s is None:
        return None
    spread = Spread.of([result.case.batch / seconds for seconds in step_samples(result)])
    return spread.model_copy(update={"median": result.tokens_per_s})


def step_seconds(result: Result) -> Spread | None:
    """Seconds of one decode step of the whole batch, from the same medians as tokens/s."""
    if result.tokens_per_s is None:
        return None
    median = result.case.batch / result.tokens_per_s
    return Spread.of(step_samples(result)).model_copy(update={"median": median})


def limit_tokens_per_s(results: Sequence[Result]) -> float | None:
    """Tokens a second at the bandwidth limit, from the results of one batch.

    Runs of few new tokens have a shorter mean context and so a higher limit; the longest runs are taken.
    """
    known = [r for r in results if r.floor_share and r.tokens_per_s]
    if not known:
        return None
    longest = max(known, key=lambda r: r.case.new_tokens)
    assert longest.tokens_per_s
    assert longest.floor_share
    return longest.tokens_per_s / longest.floor_share


def case_bytes(result: Result) -> int | None:
    """Bytes that a case needed beside the weights and other systems; None on a CPU, or for another process's.

    That is what a run takes in tensors beyond what was there before it, and what the engine took when it was made: its
    cache, and the memory that torch reserves for its graphs.
    """
    if result.memory_peak is None or result.memory_before is None:
        return None
    return result.memory_peak.allocated - result.memory_before.allocated + made_bytes(result) or None  # torch saw none


def made_bytes(result: Result) -> int:
    """Bytes that an engine took when it was made: tensors, and what is reserved for graphs; 0 for who keeps none."""
    if (stages := result.stages) is None:
        return 0
    cache = stages.made.allocated - stages.before.allocated
    captured = max(stages.ready.reserved - stages.made.reserved, stages.ready.allocated - stages.made.allocated)
    return max(0, cache) + max(0, captured)


def engines_of(results: Iterable[Result]) -> list[str]:
    """Engines in the book's order, then the others in theirs, then unknown ones as they come."""
    present = list(dict.fromkeys(result.case.engine for result in results))
    # An engine without its fused kernels comes before the one with them, as in the ledger.
    ours = [name for engine in ENGINES for name in (f"{engine}-unfused", engine)]
    order = [*ours, *OTHERS]
    return sorted(present, key=lambda name: order.index(name) if name in order else len(order))


def models_of(report: Report) -> list[str]:
    """The models of a report, in its order."""
    return list(dict.fromkeys(result.case.model for result in report.results))


def batches_of(results: Iterable[Result]) -> list[int]:
    """Batch sizes, smallest first."""
    return sorted({result.case.batch for result in results})


def prompts_of(results: Iterable[Result]) -> list[int]:
    """Prompt lengths, shortest first."""
    return sorted({result.case.prompt_tokens for result in results})


def model_label(name: str) -> str:
    """`random:gpt2` in words."""
    return f"{name.removeprefix('random:')} (random weights)" if name.startswith("random:") else name


def engine_label(name: str, kind: str = "cuda") -> str:
    """An engine's or a peer's name as a legend prints it; on a CPU with the engines that run the same code."""
    twins = twins_of(name) if kind == "cpu" else []
    return ", ".join([SHORT.get(name, name), *twins[:1], *["…"] * (len(twins) > 1)])


def twins_of(name: str) -> list[str]:
    """The engines that run an eager engine's code where no step is recorded: they have the same cache."""
    if name == "naive" or name not in ENGINES or RECIPES[name].launch == "graph":
        return []
    return [other for other, recipe in RECIPES.items() if (recipe.cache, recipe.launch) == (name, "graph")]


def slug(model: str) -> str:
    """A model's name as a part of a file name."""
    return model.removeprefix("random:").replace("/", "-").replace(":", "-")


def significant(value: float, digits: int = 3) -> str:
    """`value` with about `digits` significant digits, thousands set off, never in powers of ten."""
    if value == 0:
        return "0"
    size = abs(value)
    decimals = digits - 1
    while size >= 10 and decimals > 0:
        size, decimals = size / 10, decimals - 1
    while 0 < size < 1 and decimals < 9:
        size, decimals = size * 10, decimals + 1
    return f"{value:,.{decimals}f}"


def seconds(value: float) -> str:
    """A duration in s, ms or µs."""
    return _in_units(value, {"s": 1.0, "ms": 1e-3}) or f"{significant(value * 1e6)} µs"


def size(value: float) -> str:
    """Bytes in decimal units."""
    return _in_units(value, {"GB": 1e9, "MB": 1e6, "kB": 1e3}) or f"{value:.0f} B"


def _in_units(value: float, units: dict[str, float]) -> str:
    """In the first unit that is no larger than the value; empty where all are."""
    return next((f"{significant(value / scale)} {unit}" for unit, scale in units.items() if abs(value) >= scale), "")


def rate(value: float) -> str:
    """Tokens a second."""
    return f"{value:,.0f} tok/s" if value >= 100 else f"{significant(value)} tok/s"


def share(value: float) -> str:
    """A share, in percent."""
    return f"{value:.0%}" if value >= 0.0995 else f"{value:.1%}"


def factor(value: float) -> str:
    """A ratio."""
    return f"{significant(value)}×"


def stem_of(stem: str, report: Report, model: str) -> str:
    """The results file's name, with the model where the file has several."""
    return f"{stem}-{slug(model)}" if len(models_of(report)) > 1 else stem
