"""What is measured, by name: models, engines, batch sizes and lengths, and how long a case may take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nanoinfer.config import ModelConfig
from nanoinfer.llm import ENGINES

from .contestants import PEERS

# Without a cache the n-th token costs a pass over all before it: long runs would measure patience.
UNCACHED = ("naive", "transformers-nocache")
UNCACHED_TOKENS = 64


@dataclass(frozen=True)
class Preset:
    """One sweep. `dtype` None takes what the device computes best in; a case over `case_budget_s` is not run."""

    name: str
    models: tuple[str, ...]
    batches: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    new_tokens: int
    engines: tuple[str, ...] = (*ENGINES, *PEERS)
    dtype: str | None = None
    repeats: int = 7
    case_budget_s: float = 20.0
    seed: int = 0

    def new_tokens_of(self, engine: str) -> int:
        """New tokens of a row: fewer for engines that keep no cache."""
        return min(self.new_tokens, UNCACHED_TOKENS) if engine in UNCACHED else self.new_tokens

    def changed(self, **options: object) -> Preset:
        """The preset with some options replaced, those that are not None."""
        return replace(self, **{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]


_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "laptop", ("small",), (1, 2, 4, 8), prompt_tokens=(32,), new_tokens=32,
            engines=(*ENGINES, "transformers"), repeats=7, case_budget_s=6,
        ),
        Preset("cpu", ("random:gpt2",), (1, 8), prompt_tokens=(32,), new_tokens=64, case_budget_s=60),
        Preset("colab", ("random:gpt2",), _POWERS[:8], prompt_tokens=(1,), new_tokens=256, case_budget_s=12),
        Preset("gpu", ("random:gpt2",), _POWERS, prompt_tokens=(128,), new_tokens=128),
        # Time a token against context length: a few steps after prompts of growing length.
        Preset(
            "context", ("random:gpt2",), (1, 8, 64), (1, 128, 256, 384, 512, 640, 768, 896, 1000), new_tokens=17,
            engines=ENGINES,
        ),
        Preset("full", ("random:gpt2", "random:gpt2-xl"), _POWERS, prompt_tokens=(1,), new_tokens=512),
    )
}  # fmt: skip


def floor_seconds(config: ModelConfig, itemsize: int, batch: int, mean_context: float, bytes_per_s: float) -> float:
    """The least time of one decode step: every weight read once, and every key and value of the context.

    The token embedding is also the head and is counted once. Real kernels also write and read activations; no step of
    this model on this device can be faster, and none is quite so fast.
    """
    return (config.parameters + batch * config.kv_numbers * mean_context) * itemsize / bytes_per_s
