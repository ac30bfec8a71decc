"""One contestant in one case: made, warmed up, timed; a failure is recorded and the others go on."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nanobench.core.machine import memory_now, synchronize
from nanobench.core.records import Case, Graphs, Result, Stages, Status
from nanobench.systems import Contestant, Limits, Missing, make
from nanoinfer.model.gpt2 import GPT2


@dataclass
class Made:
    """A contestant, and what it took to make it; or why there is none."""

    contestant: Contestant | None = None
    status: Status = "ok"
    reason: str = ""
    make_s: float = 0.0
    warm_up_s: float = 0.0
    compile_s: float = 0.0
    stages: Stages | None = None


@dataclass
class Entrant:
    """One contestant in one case, and what has been measured of it."""

    case: Case
    made: Made
    repeats: int = 0
    first_s: float = 0.0
    compile_s: float = 0.0
    compiles: int = 0
    counted: dict[str, Any] = field(default_factory=dict)  # the engine's counters when the timed runs began
    generate_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    failure: Result | None = None

    @property
    def contestant(self) -> Contestant:
        """It stands: cases of contestants that could not be made have no entrant."""
        assert self.made.contestant is not None
        return self.made.contestant

    def time(self, prompts: Tensor, new_tokens: int, device: torch.device) -> list[float]:
        """Seconds of one whole generation, by the host's clock; nothing where it fails."""
        synchronize(device)
        start = time.perf_counter()
        rows = self.attempt(partial(self.contestant.generate, prompts, new_tokens))
        synchronize(device)
        seconds = time.perf_counter() - start
        if rows is None:
            return []
        if [len(row) for row in rows] != [new_tokens] * len(prompts):
            raise AssertionError(f"{self.case.engine} gave {sum(map(len, rows))} tokens, not {new_tokens} a row")
        return [seconds]

    def attempt(self, run: Callable[[], list[list[int]]]) -> list[list[int]] | None:
        """What `run` gives; where it fails, the failure is recorded."""
        try:
            return run()
        except Exception as error:
            status, reason = why(error)
            self.failure = Result(case=self.case, status=status, reason=reason)
        return None

    def take_turn(self, prompts: Tensor, device: torch.device) -> None:
        """One timed run, and one more for its first token."""
        self.generate_s += self.time(prompts, self.case.new_tokens, device)
        self.ttft_s += self.time(prompts, 1, device)


def made(engine: str, model: GPT2, limits: Limits, compile_seconds: Callable[[], float]) -> Made:
    """Make a contestant and let it capture, with the seconds and the memory of each."""
    free(model.device)
    before, compiled, start = memory_now(model.device), compile_seconds(), time.perf_counter()
    try:
        contestant = make(engine, model, limits)
        ready = time.perf_counter()
        free(model.device)
        after, again = memory_now(model.device), time.perf_counter()
        if (warm_up := getattr(contestant, "warm_up", None)) is not None:
            warm_up()
        synchronize(model.device)
        done = time.perf_counter()
    except Missing as error:
        return Made(status="missing", reason=str(error))
    except Exception as error:
        status, reason = why(error)
        return Made(status=status, reason=reason)
    free(model.device)
    last = memory_now(model.device)
    stages = Stages(before=before, made=after, ready=last) if before and after and last else None
    return Made(
        contestant, make_s=ready - start, warm_up_s=done - again, compile_s=compile_seconds() - compiled, stages=stages
    )


def why(error: Exception) -> tuple[Status, str]:
    """Status and reason of a failure; after one for want of memory, memory is given back."""
    if isinstance(error, torch.OutOfMemoryError):
        gc.collect()
        torch.cuda.empty_cache()
        return "out of memory", "the device's memory was full"
    first = str(error).splitlines()[0] if str(error) else ""
    return "failed", f"{type(error).__name__}: {first}"


def takes_turn(turn: int, repeats: int, turns: int) -> bool:
    """Whether a contestant of `repeats` runs has one in this of `turns` turns: they are spread evenly over them."""
    return (turn + 1) * repeats // turns > turn * repeats // turns


def counters(contestant: Contestant) -> dict[str, Any]:
    """The counters of one of our engines as they stand now; empty for others."""
    stats = getattr(contestant, "stats", None)
    found = {} if stats is None else dict(vars(stats))
    return {name: dict(value) if isinstance(value, dict) else value for name, value in found.items()}


def graphs_of(before: dict[str, Any], after: dict[str, Any]) -> Graphs | None:
    """What was counted between two readings; None where nothing was ever captured."""
    if not after.get("captures"):
        return None

    def since(name: str) -> Any:
        return after[name] - before.get(name, 0)

    earlier = before.get("fallbacks", {})
    fallbacks = {why: n - earlier.get(why, 0) for why, n in after["fallbacks"].items()}
    rows = since("replayed_rows")
    return Graphs(
        captures=after["captures"],
        capture_s=after["capture_s"],
        bytes=after["graph_bytes"],
        steps=since("decode_steps"),
        replayed=since("replayed_steps"),
        padding_share=since("padding_rows") / rows if rows else None,
        fallbacks={why: n for why, n in fallbacks.items() if n},
    )


def random_prompts(batch: int, length: int, vocab_size: int, seed: int) -> Tensor:
    """Random prompts (B, T) int64 on the host: never zeros, which run faster than data does."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (batch, length), generator=generator)


def free(device: torch.device) -> None:
    """Give back what nobody holds, and begin a new peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
