"""What a cache costs: its bytes and the slots that a step reads, by arithmetic; and times, from bench/results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from nanobench.micro.attention import AttentionReport, Backend
from nanobench.report.intervals import claimed
from nanobench.report.values import factor, seconds, share, size
from nanobook.examples import load as load_file
from nanobook.examples import only, results
from nanobook.text.marker_values import load
from nanoinfer.cache.captured import CapturedDense
from nanoinfer.model.config import PRESETS, ModelConfig

here = Path(__file__).parent
naive = load_file(here.parent / "01-naive" / "cost.py")
RESULTS = here.parents[1] / "bench" / "results"
GPT2, WIDTH = PRESETS["gpt2"], torch.bfloat16.itemsize
ROWS, SLOTS = 512, 1024


def token_bytes(config: ModelConfig = GPT2) -> int:
    """Of one token in the cache, in bfloat16."""
    return config.kv_numbers * WIDTH


def cache_bytes(config: ModelConfig = GPT2, rows: int = ROWS, slots: int = SLOTS) -> int:
    """Of a cache of so many rows; the dummy row is left out here, to keep it simple."""
    return rows * slots * token_bytes(config)


def weight_bytes(config: ModelConfig = GPT2) -> int:
    """Of the weights, in bfloat16."""
    return config.parameters * WIDTH


def cached_flops(new: int, config: ModelConfig = GPT2) -> int:
    """Of so many new tokens after a prompt of one, counted as in chapter 1: a column a step, its query reads all."""
    step = naive.token_flops(config) + naive.head_flops(config)
    return int(new * step + 4 * config.n_layer * config.n_embd * sum(range(1, new + 1)))


def work() -> None:
    """Whole generations of GPT-2 after a prompt of one token: operations without a cache and with one."""
    print(f"{'new tokens':>12}{'TFLOP without a cache':>26}{'with a cache':>16}{'ratio':>10}")
    for new in (128, 256, 512, 1023):
        without, cached = sum(naive.step_flops(GPT2, 1 + at) for at in range(new)), cached_flops(new)
        print(f"{new:>12}{without / 1e12:>26.1f}{cached / 1e12:>16.3f}{factor(without / cached):>10}")


def memory() -> None:
    """What a token and a row take, and how many rows take as much as the weights."""
    print(f"{'':14}{'weights':>10}{'a token':>12}{'a row of 1024':>16}{'512 rows':>12}{'rows = weights':>20}")
    for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
        config = PRESETS[name]
        row = cache_bytes(config, 1)
        cells = f"{size(weight_bytes(config)):>10}{token_bytes(config):>12,}{size(row):>16}{size(512 * row):>12}"
        print(f"{name:14}{cells}{weight_bytes(config) / row:>20.1f}")


def how_far() -> None:
    """How many slots a step reads, by the longest context in it, in a cache of 1024 slots."""
    cache = CapturedDense(PRESETS["tiny"], 1, SLOTS, torch.device("cpu"), torch.float32)
    print(f"{'longest text':14}{'slots read':>12}{'of them needed':>16}{'if all were read':>18}")
    for longest in (5, 128, 129, 300, 1000):
        read = cache.bucket(longest)
        print(f"{longest:<14}{read:>12}{longest / read:>16.1%}{longest / SLOTS:>18.1%}")


def attention() -> AttentionReport:
    """What was measured of SDPA and of read lengths. ValueError where the file is missing."""
    return results(AttentionReport, "h200-attention", "attention")


def backend(what: str, batch: int, mask: str) -> Backend:
    """One call of SDPA."""
    return only(attention().backends, what=what, batch=batch, mask=mask)


def _over_fast(what: str, batch: int, mask: str) -> str:
    fast = backend(what, batch, "is_causal" if what == "prefill" else "none")
    return claimed(backend(what, batch, mask).seconds, fast.seconds)


def converted(which: Callable[[list[float]], float]) -> str:
    """What a boolean mask costs more than none in all layers: the least or the most of the shapes measured."""
    extra = [
        backend(what, batch, "boolean").seconds.median
        - backend(what, batch, "is_causal" if what == "prefill" else "none").seconds.median
        for what, batch in (("prefill", 1), ("prefill", 8), ("decode", 1), ("decode", 64))
    ]
    return seconds(GPT2.n_layer * which(extra))


def launched() -> tuple[float, float, float]:
    """At one row: by how many launches the cached step has more, what these take, by how much it is longer."""
    report = load("rungs", RESULTS)
    one, other = (report.find(model="random:gpt2", engine=name, batch=1)[0] for name in ("naive", "dense"))
    steps = [1 / (r.tokens_per_s or 1) for r in (one, other)]
    assert one.launches_per_step
    assert other.launches_per_step
    more = other.launches_per_step - one.launches_per_step
    return more, more * steps[0] / one.launches_per_step, steps[1] - steps[0]


NUMBERS: dict[str, Callable[[], str]] = {
    "token": lambda: f"{token_bytes():,}",
    "row": lambda: size(cache_bytes(rows=1)),
    "cache": lambda: size(cache_bytes()),
    "weights": lambda: size(weight_bytes()),
    "rows as large": lambda: f"{weight_bytes() / cache_bytes(rows=1):.1f}",
    "used": lambda: share(256 / SLOTS),
    "multiple": lambda: f"{CapturedDense.read_multiple}",
    "prefill none": lambda: seconds(backend("prefill", 8, "is_causal").seconds.median),
    "prefill boolean": lambda: _over_fast("prefill", 8, "boolean"),
    "prefill additive": lambda: _over_fast("prefill", 8, "additive"),
    "decode boolean": lambda: _over_fast("decode", 64, "boolean"),
    "decode boolean 1": lambda: _over_fast("decode", 1, "boolean"),
    "conversion least": lambda: converted(min),
    "conversion most": lambda: converted(max),
    "decode additive": lambda: _over_fast("decode", 64, "additive"),
    "launches more": lambda: f"{launched()[0]:.0f}",
    "launches more time": lambda: seconds(launched()[1]),
    "longer at one row": lambda: seconds(launched()[2]),
}
