"""What to guess in chapter 5 before it is measured: in a few seconds, on a CPU or a GPU."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from nanocourse.exercises.chapters import run_file
from nanocourse.learner.predict import Prediction
from nanoinfer import LLM, SamplingParams
from nanoinfer.model.weights import load_model

clock = run_file(Path(__file__).parents[1] / "clock.py", "nanoinfer_ch05_clock")
NEW = (48, 4, 4, 6, 8, 4, 12, 40, 6, 4, 8, 16)  # new tokens of twelve requests
ROWS, PROMPT, SERVED = 4, 8, 400


def asks() -> list[object]:
    """Twelve requests that are all there at the beginning."""
    return [clock.Ask(0.0, PROMPT, new) for new in NEW]


def batches(device: torch.device) -> float:
    """Static over continuous, if each batch took its longest row and the other engine had no row idle."""
    static = sum(max(NEW[at : at + ROWS]) for at in range(0, len(NEW), ROWS))
    return static / (sum(NEW) / ROWS)


def steps(device: torch.device) -> float:
    """The same by the engine's scheduler."""
    static, continuous = (clock.run(asks(), clock.engine(ROWS), static=static) for static in (True, False))
    return len(static.steps) / len(continuous.steps)


def no_queue(device: torch.device) -> float:
    """By a formula for a single row that serves one request at a time: from half to nine tenths."""
    return 9.0


def wait_factor(device: torch.device) -> float:
    """p99 of the first token at nine tenths of the capacity over that at half, on the simulated clock."""
    everyone = clock.run([clock.Ask(0.0, 48, 32)] * 200, clock.engine(8))
    per_second = 200 / everyone.seconds
    runs = [
        clock.run(clock.poisson(share * per_second, SERVED, lambda draws: (48, draws.randint(16, 48))), clock.engine(8))
        for share in (0.5, 0.9)
    ]
    low, high = (clock.quantile(run.waits, 0.99) for run in runs)
    return float(high / low)


def by_rows(device: torch.device) -> float:
    """If a step took as long for eight rows as for one."""
    return 8.0


def gain(device: torch.device) -> float:
    """Tokens a second of eight requests at once over those of eight one after the other, on this machine."""
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    prompts = [[464, 21831]] * 8
    with LLM(load_model("small", device, torch.float32), engine="dense", max_batch=8, max_len=64) as llm:
        llm.generate(prompts, params)
        start = time.perf_counter()
        llm.generate(prompts, params)
        together = time.perf_counter() - start
        start = time.perf_counter()
        for prompt in prompts:
            llm.generate([prompt], params)
        return (time.perf_counter() - start) / together


def shared_blocks(device: torch.device) -> float:
    """All tokens of the part that is shared, of eight texts but the first."""
    return 7 * 40.0


def cached(device: torch.device) -> float:
    """Prompt tokens that eight texts, one after the other, find computed: they share forty tokens in blocks of 16."""
    with LLM(
        load_model("small", device, torch.float32), engine="paged", max_batch=2, max_len=128, prefix_caching=True
    ) as llm:
        for at in range(8):
            llm.generate([[*range(100, 140), 200 + at]], SamplingParams(max_tokens=1, temperature=0))
        return float(llm.stats.cached_tokens)


def _steps(bound: float, measured: float) -> str:
    return (
        "the last sequence to begin may be a long one, and then rows are idle at the end in both; no length is known "
        "in advance, so an engine cannot begin with the longest"
    )


def _wait(bound: float, measured: float) -> str:
    return (
        "with eight rows a request waits only if all are taken, which is rare at half of the capacity; near it a crowd "
        "takes long to dissolve, and p99 is the one who came behind it"
    )


def _gain(bound: float, measured: float) -> str:
    if measured > 8.5:
        return "the fixed part of each call is shared as well"
    return "a step of eight rows does eight times the arithmetic, and shares only the rest of its time"


def _cached(bound: float, measured: float) -> str:
    return "only full blocks are found: of forty tokens two blocks of sixteen, by each text but the first"


PREDICTIONS = (
    Prediction(
        "static", f"Twelve requests, of {', '.join(map(str, NEW))} new tokens in this order, and {ROWS} rows. "
        "How many times as many steps do batches take that end together?", "times",
        batches, "each batch takes its longest row, and the other way has no idle row at all", steps, _steps,
    ),
    Prediction(
        "waiting", "An engine of eight rows goes from half of its capacity to nine tenths. By which factor does p99 of "
        "the first token grow?", "times", no_queue, "u / (1 - u) for a single server: from 1 to 9", wait_factor, _wait,
    ),
    Prediction(
        "batch", "Eight requests of 24 tokens at once, or one after the other: how many times as many tokens a second?",
        "times", by_rows, "eight rows in the time of one", gain, _gain,
    ),
    Prediction(
        "shared", "Eight texts of 41 tokens, one after the other, have their first 40 in common. How many prompt "
        "tokens are found in blocks of 16, in all?",
        "tokens", shared_blocks, "the common part, seven times", cached, _cached,
    ),
)  # fmt: skip
