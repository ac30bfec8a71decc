"""One system in one case: made, warmed up, timed. A failure is recorded and the other systems go on."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nanobench.core.machine import memory_now, synchronize
from nanobench.core.records import Case, Graphs, Result, Stages, Status, Turns
from nanobench.systems import make
from nanobench.systems.base import Limits, Missing, System
from nanoinfer.model.gpt2 import GPT2


@dataclass
class Prepared:
    """A system, and what it took to make it; or why there is none."""

    system: System | None = None
    status: Status = "ok"
    reason: str = ""
    make_s: float = 0.0
    warm_up_s: float = 0.0
    compile_s: float = 0.0
    stages: Stages | None = None


@dataclass
class CaseRunner:
    """One system in one case, and what has been measured of it."""

    case: Case
    prepared: Prepared
    repeats: int = 0
    first_s: float = 0.0
    compile_s: float = 0.0
    compiles: int = 0
    counted: dict[str, Any] = field(default_factory=dict)  # the engine's counters when the timed runs began
    generate_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    failure: Result | None = None

    @property
    def system(self) -> System:
        """The system, which exists: where it could not be made there is no runner."""
        assert self.prepared.system is not None
        return self.prepared.system

    def time(self, prompts: Tensor, new_tokens: int, device: torch.device) -> list[float]:
        """Seconds of one whole generation, by the host's clock. Empty where it fails; the failure is recorded."""
        synchronize(device)
        start = time.perf_counter()
        try:
            rows = self.system.generate(prompts, new_tokens)
        except Exception as error:
            status, reason = failure_of(error)
            self.failure = Result(case=self.case, status=status, reason=reason)
            return []
        synchronize(device)
        seconds = time.perf_counter() - start
        if [len(row) for row in rows] != [new_tokens] * len(prompts):
            raise AssertionError(f"{self.case.engine} gave {sum(map(len, rows))} tokens, not {new_tokens} a row")
        return [seconds]

    def take_turn(self, prompts: Tensor, device: torch.device) -> None:
        """One timed run, and one more for its first token."""
        self.generate_s += self.time(prompts, self.case.new_tokens, device)
        self.ttft_s += self.time(prompts, 1, device)

    def turns(self) -> Turns:
        """The timed runs so far, as they are saved."""
        return Turns(
            case=self.case, generate_s=tuple(self.generate_s), ttft_s=tuple(self.ttft_s), compiles=self.compiles
        )

    def go_on(self, earlier: Turns) -> None:
        """Begin with the timed runs of an interrupted run."""
        self.generate_s, self.ttft_s = [*earlier.generate_s], [*earlier.ttft_s]
        self.compiles = earlier.compiles


def prepare(engine: str, model: GPT2, limits: Limits, compile_seconds: Callable[[], float]) -> Prepared:
    """Make a system and let it capture, with the seconds and the memory of each."""
    release_memory(model.device)
    before, compiled, start = memory_now(model.device), compile_seconds(), time.perf_counter()
    try:
        system = make(engine, model, limits)
        ready = time.perf_counter()
        release_memory(model.device)
        after, again = memory_now(model.device), time.perf_counter()
        if (warm_up := getattr(system, "warm_up", None)) is not None:
            warm_up()
        synchronize(model.device)
        done = time.perf_counter()
    except Missing as error:
        return Prepared(status="missing", reason=str(error))
    except Exception as error:
        status, reason = failure_of(error)
        return Prepared(status=status, reason=reason)
    release_memory(model.device)
    last = memory_now(model.device)
    stages = Stages(before=before, made=after, ready=last) if before and after and last else None
    return Prepared(
        system, make_s=ready - start, warm_up_s=done - again, compile_s=compile_seconds() - compiled, stages=stages
    )


def failure_of(error: Exception) -> tuple[Status, str]:
    """Status and reason of a failure. Where the device's memory was full, what can be released is released."""
    if isinstance(error, torch.OutOfMemoryError):
        gc.collect()
        torch.cuda.empty_cache()
        return "out of memory", "the device's memory was full"
    return "failed", f"{type(error).__name__}: {first_line(error)}"


def first_line(error: Exception) -> str:
    """The first line of an error's message, which may be empty."""
    return next(iter(str(error).splitlines()), "")


def runs_due(turn: int, repeats: int, turns: int) -> int:
    """Timed runs that a system of `repeats` has had after this of `turns` turns: they are spread evenly over them."""
    return (turn + 1) * repeats // turns


def counters(system: System) -> dict[str, Any]:
    """The counters of one of our engines as they stand now; empty for others."""
    stats = getattr(system, "stats", None)
    found = {} if stats is None else vars(stats)
    return {name: dict(value) if isinstance(value, dict) else value for name, value in found.items()}


def graph_counters(before: dict[str, Any], after: dict[str, Any]) -> Graphs | None:
    """What was counted between two readings; None for a system without graphs."""
    if "captures" not in after:
        return None

    def since(name: str) -> Any:
        return after[name] - before.get(name, 0)

    earlier = before.get("fallbacks", {})
    fallbacks = {reason: n - earlier.get(reason, 0) for reason, n in after["fallbacks"].items()}
    rows = since("replayed_rows")
    return Graphs(
        captures=after["captures"],
        capture_s=after["capture_s"],
        bytes=after["graph_bytes"],
        steps=since("decode_steps"),
        replayed=since("replayed_steps"),
        padding_share=since("padding_rows") / rows if rows else None,
        fallbacks={reason: n for reason, n in fallbacks.items() if n},
    )


def random_prompts(batch: int, length: int, vocab_size: int, seed: int) -> Tensor:
    """Random prompts (B, T) int64 on the host: never zeros, which run faster than data does."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (batch, length), generator=generator)


def release_memory(device: torch.device) -> None:
    """Return unused memory to the device, and start a new peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
