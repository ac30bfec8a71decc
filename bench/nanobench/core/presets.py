"""What is measured, by name: models, engines, batch sizes and lengths, and how long a case may take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nanobench.core.records import Case
from nanobench.systems import ON_REQUEST, OTHERS, PEERS, UNFUSED, check_name
from nanoinfer.config import BOUNDS, ENGINES, INT32
from nanoinfer.model.config import ModelConfig

# Without a cache the n-th token costs a pass over all before it: long runs would take minutes.
UNCACHED = ("naive", "transformers-nocache")
UNCACHED_TOKENS = 64
LEAST_REPEATS = 3


@dataclass(frozen=True)
class Preset:
    """One sweep.

    dtype: None takes what the device computes best in.
    case_budget_s: a case of which one run would take longer is not run.
    repeats: timed runs of a case. Where they would take longer than timed_s they are fewer, but at least 3.
    other_batches: batch sizes of the systems that are not engines of the book, and of the engines without their fused
    kernels; None for the same as `batches`.
    uncached_tokens: new tokens at most, for engines without a cache.
    """

    name: str
    models: tuple[str, ...]
    batches: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    new_tokens: int
    engines: tuple[str, ...] = (*ENGINES, *PEERS)
    dtype: str | None = None
    repeats: int = 7
    timed_s: float = float("inf")
    other_batches: tuple[int, ...] | None = None
    uncached_tokens: int = UNCACHED_TOKENS
    case_budget_s: float = 20.0
    seed: int = 0

    def new_tokens_of(self, engine: str) -> int:
        """New tokens of a row: fewer for engines that keep no cache."""
        return min(self.new_tokens, self.uncached_tokens) if engine in UNCACHED else self.new_tokens

    @property
    def max_len(self) -> int:
        """Tokens of the longest row, prompt and new ones."""
        return max(self.prompt_tokens) + self.new_tokens

    def batches_of(self, engine: str) -> tuple[int, ...]:
        """Batch sizes of one system."""
        return self.other_batches if engine in OTHERS and self.other_batches is not None else self.batches

    def repeats_of(self, run_s: float) -> int:
        """Timed runs of a case of which one takes `run_s` seconds."""
        affordable = self.repeats if run_s <= 0 else int(min(self.repeats, self.timed_s / run_s))
        return max(min(LEAST_REPEATS, self.repeats), affordable)

    def cases(self) -> list[Case]:
        """Every case, in the order in which they are measured."""
        return [
            Case(model=model, engine=engine, batch=batch, prompt_tokens=prompt, new_tokens=self.new_tokens_of(engine))
            for model in self.models
            for prompt in self.prompt_tokens
            for batch in sorted({*self.batches, *(self.other_batches or ())})
            for engine in self.engines
            if batch in self.batches_of(engine)
        ]

    def changed(self, **options: object) -> Preset:
        """The preset with some options replaced, those that are not None. ValueError for one that is out of range.

        Batches given here hold for every system, and repeats for every case, however long it takes.
        """
        given = {name: value for name, value in options.items() if value is not None}
        if "batches" in given:
            given["other_batches"] = None
        if "repeats" in given:
            given.setdefault("timed_s", float("inf"))
        new = replace(self, **given)  # type: ignore[arg-type]
        for engine in new.engines:
            check_name(engine)
        for name, most in (("batches", BOUNDS["max_batch"][1]), ("prompt_tokens", INT32)):
            if wrong := [value for value in getattr(new, name) if not 1 <= value <= most]:
                raise ValueError(f"{name} must be whole numbers from 1 to {most}, not {wrong[0]}")
        if not new.case_budget_s > 0:  # nan too
            raise ValueError(f"budget must be above 0 seconds, not {new.case_budget_s:g}")
        return new


_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_FEW = (1, 8, 64, 256, 512)  # for systems that compile, or plan, for seconds at each batch size
_ALL = (*ENGINES, *UNFUSED, *PEERS)  # on a GPU, where kernels are fused

PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "laptop", ("small",), (1, 2, 4, 8), prompt_tokens=(32,), new_tokens=32,
            engines=(*ENGINES, "transformers"), repeats=7, case_budget_s=6,
        ),
        Preset("cpu", ("random:gpt2",), (1, 8), prompt_tokens=(32,), new_tokens=32, case_budget_s=60),
        Preset(
            "colab", ("random:gpt2",), _POWERS[:8], prompt_tokens=(1,), new_tokens=256, timed_s=12,
            other_batches=_FEW[:3], case_budget_s=12, engines=_ALL,
        ),
        # About four minutes on an H200: few slow runs, and few batch sizes of the other systems.
        Preset(
            "gpu", ("random:gpt2",), _POWERS, prompt_tokens=(128,), new_tokens=64, timed_s=1.2, other_batches=_FEW,
            uncached_tokens=32, case_budget_s=5, engines=_ALL,
        ),
        # Time a token against context length: a few steps after prompts of growing length.
        Preset(
            "context", ("random:gpt2",), (1, 8, 64), (1, 128, 256, 384, 512, 640, 768, 896, 1000), new_tokens=17,
            engines=("naive", "dense", "paged"), timed_s=1,
        ),
        Preset(
            "full", ("random:gpt2", "random:gpt2-xl"), _POWERS, prompt_tokens=(1,), new_tokens=512, timed_s=10,
            other_batches=_FEW, engines=_ALL,
        ),
        # Paged against dense: with a cache of 1024 slots, all of them read, and with a cache of the case's own size.
        Preset(
            "ratios", ("random:gpt2",), (64, 256), prompt_tokens=(1,), new_tokens=512,
            engines=("dense", "dense-1024", "paged"), timed_s=40, case_budget_s=10,
        ),
        # Whole generations from a prompt of one token: the book's fastest engines, and its fastest peers, vLLM among
        # them. Six minutes on an H200.
        Preset(
            "graphs", ("random:gpt2",), (1, 2, 4, 8, 16, 64, 256, 512), prompt_tokens=(1,), new_tokens=512,
            engines=(
                "dense-graph", "paged-graph-unfused", "paged-graph", "fused", "persistent",
                "transformers-static-compile", "vllm",
            ),
            timed_s=2.5, other_batches=_FEW, case_budget_s=10,
        ),
        Preset(
            "xl", ("random:gpt2-xl",), (1, 8, 64, 256), prompt_tokens=(128,), new_tokens=64, timed_s=2.5,
            uncached_tokens=32, case_budget_s=15, engines=_ALL,
        ),
        # Our own step under torch.compile, beside the graphs captured by hand.
        Preset(
            "compile", ("random:gpt2",), (1, 64), prompt_tokens=(1,), new_tokens=128,
            engines=(*(e for e in ENGINES if e.startswith("dense")), *(n for n in ON_REQUEST if "compile" in n)),
            timed_s=5, case_budget_s=10,
        ),
    )
}  # fmt: skip


def limit_seconds(config: ModelConfig, itemsize: int, batch: int, mean_context: float, bytes_per_s: float) -> float:
    """The least time of one decode step: every weight read once, and every key and value of the context.

    The token embedding is also the head and is counted once. Real kernels read and write activations as well, so every
    step takes longer than this.
    """
    return (config.parameters + batch * config.kv_numbers * mean_context) * itemsize / bytes_per_s
