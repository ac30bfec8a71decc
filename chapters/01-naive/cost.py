"""What naive generation costs, by arithmetic: floating-point operations, bytes, and columns of a step.

A multiplication and an addition count as two operations. Left out are LayerNorm, GELU, softmax and the embeddings,
which are less than a hundredth of the rest. The measured side of each number comes from bench/results.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nanobench.core.records import Report
from nanobench.micro.timeline import StepTimeline, Timeline
from nanobench.report.values import factor, limit_tokens_per_s, seconds, share, size
from nanobook.examples import only
from nanobook.text.marker_values import load
from nanoinfer.model.config import PRESETS, ModelConfig

RESULTS = Path(__file__).parents[2] / "bench" / "results"


def token_flops(config: ModelConfig) -> int:
    """Of one token in the matrices of all blocks: two for each number in them."""
    C = config.n_embd
    return 2 * config.n_layer * (4 * C * C + 2 * C * config.inner)


def attention_flops(config: ModelConfig, tokens: int) -> int:
    """Of one row of T tokens: every query with every key, and as much again for the values.

    The whole square counts, as for a kernel that masks afterwards; one that skips what is hidden saves up to half.
    """
    return 4 * config.n_layer * config.n_embd * tokens * tokens


def head_flops(config: ModelConfig) -> int:
    """Of one row: the last real token against every row of the token embedding."""
    return 2 * config.n_embd * config.vocab_size


def step_flops(config: ModelConfig, tokens: int, rows: int = 1) -> int:
    """Of one naive step over `rows` rows of T tokens."""
    return rows * (tokens * token_flops(config) + attention_flops(config, tokens) + head_flops(config))


def operations(config: ModelConfig) -> int:
    """That a pass launches: two lookups and a sum; two norms, two sums, four products, attention, GELU; three more."""
    return 3 + 10 * config.n_layer + 3


def columns(prompt: int, new: int) -> int:
    """Token positions that go through the model for `new` tokens after a prompt, in all steps together."""
    return new * prompt + new * (new - 1) // 2


def cached_columns(prompt: int, new: int) -> int:
    """The same where old tokens need not go through again: the prompt once, then each new token but the last."""
    return prompt + new - 1


def costs() -> None:
    """One naive step of GPT-2, and of the small model, by the number of its tokens."""
    print(f"{'':8}{'tokens':>8}{'matrices':>12}{'attention':>12}{'head':>8}{'together':>12}   GFLOP")
    for name, lengths in (("gpt2", (1, 128, 256, 512, 1000)), ("small", (512, 1000))):
        config = PRESETS[name]
        for tokens in lengths:
            parts = (tokens * token_flops(config), attention_flops(config, tokens), head_flops(config))
            cells = f"{parts[0] / 1e9:12.2f}{parts[1] / 1e9:12.2f}{parts[2] / 1e9:8.2f}{sum(parts) / 1e9:12.2f}"
            print(f"{name:8}{tokens:>8}{cells}")


def totals() -> None:
    """Whole generations after a prompt of one token: columns, and their operations for GPT-2."""
    config = PRESETS["gpt2"]
    print(f"{'new tokens':>12}{'columns':>12}{'of them needed':>18}{'TFLOP':>10}")
    for new in (128, 256, 512, 1023):
        flops = sum(step_flops(config, 1 + at) for at in range(new))
        print(f"{new:>12}{columns(1, new):>12,}{cached_columns(1, new):>18,}{flops / 1e12:10.1f}")


def measured(batch: int) -> tuple[float, float, Report]:
    """Seconds of a naive step of GPT-2, the mean number of its tokens, and the report they are from."""
    report = load("rungs", RESULTS)
    (result,) = report.find(model="random:gpt2", engine="naive", batch=batch)
    assert result.tokens_per_s
    return batch / result.tokens_per_s, result.case.prompt_tokens + result.case.new_tokens / 2, report


def _weights_read() -> str:
    _, _, report = measured(1)
    return seconds(2 * PRESETS["gpt2"].parameters / report.copy_bytes_per_s)


def _arithmetic() -> str:
    _, tokens, _ = measured(1)
    return seconds(step_flops(PRESETS["gpt2"], round(tokens)) / H200_BFLOAT16)


def _launch() -> str:
    step, _, report = measured(1)
    (result,) = report.find(model="random:gpt2", engine="naive", batch=1)
    assert result.launches_per_step
    return seconds(step / result.launches_per_step)


def _runs() -> str:
    """How much longer one row's step takes in the run of contexts than in the run of engines."""
    step, _, _ = measured(1)
    (other,) = load("h200-context", RESULTS).find(engine="naive", batch=1, prompt_tokens=128)
    assert other.tokens_per_s
    return share(1 / other.tokens_per_s / step - 1)


def _recorded() -> StepTimeline:
    """A step of one row, by the profiler."""
    return only(Timeline.load(RESULTS / "h200-timeline.json").steps, engine="naive")


def _reached() -> str:
    step, tokens, _ = measured(256)
    return f"{step_flops(PRESETS['gpt2'], round(tokens), 256) / step / 1e12:.0f} TFLOP"


def _growth() -> str:
    report = Report.load(RESULTS / "cpu-context.json")
    steps = [
        1 / (r.tokens_per_s or 1) for p in (512, 1000) for r in report.find(engine="naive", batch=1, prompt_tokens=p)
    ]
    return factor(steps[1] / steps[0])


def _counted(attention: float) -> str:
    """The growth of the small model's step from 512 to 1000 tokens, by its arithmetic with that part of attention."""
    config = PRESETS["small"]
    steps = [step_flops(config, T) - (1 - attention) * attention_flops(config, T) for T in (512, 1000)]
    return factor(steps[1] / steps[0])


def _attention(name: str) -> str:
    config = PRESETS[name]
    return share(attention_flops(config, 1000) / step_flops(config, 1000))


def _peak(end: str) -> str:
    """A token of the slowest or quickest tenth of the repeats at the peak of the H200's curve, one row."""
    report = load("h200-context", RESULTS)
    (result,) = report.find(engine="naive", batch=1, prompt_tokens=768)
    assert result.generate_s
    return seconds(getattr(result.generate_s, end) / result.case.new_tokens)


def _limit() -> str:
    """How much faster than the measured step of one row the bandwidth limit is."""
    _, _, report = measured(1)
    results = report.find(model="random:gpt2", engine="naive", batch=1)
    limit = limit_tokens_per_s(results)
    assert limit
    assert results[0].tokens_per_s
    return factor(limit / results[0].tokens_per_s)


H200_BFLOAT16 = 989e12  # operations a second of its tensor cores, without sparsity: the datasheet
NUMBERS: dict[str, Callable[[], str]] = {
    "operations": lambda: f"{operations(PRESETS['gpt2'])}",
    "weights": lambda: size(2 * PRESETS["gpt2"].parameters),
    "weights read": _weights_read,
    "tokens": lambda: f"{measured(1)[1]:.0f}",
    "arithmetic": _arithmetic,
    "launch": _launch,
    "kernels": lambda: seconds(sum(kernel.duration_us for kernel in _recorded().kernels) / 1e6),
    "unprofiled": lambda: seconds(_recorded().unprofiled_us / 1e6),
    "runs": _runs,
    "limit ratio": _limit,
    "reached": _reached,
    "growth": _growth,
    "growth counted": lambda: _counted(1),
    "growth halved": lambda: _counted(0.5),
    "attention gpt2": lambda: _attention("gpt2"),
    "attention small": lambda: _attention("small"),
    "peak low": lambda: _peak("p10"),
    "peak high": lambda: _peak("p90"),
}
