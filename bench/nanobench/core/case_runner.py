"""One system in one case: made, warmed up, timed. A failure is recorded and the other systems go on."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nanobench.core.machine import memory_now
from nanobench.core.records import Case, Graphs, Result, Stages, Turns
from nanobench.core.timing import synchronize
from nanobench.systems import make
from nanobench.systems.base import Limits, Missing, System
from nanoinfer.model.gpt2 import GPT2


@dataclass
class Prepared:
    """A system, what it took to make it, and what a `Result` says of it; or its status, and why there is none."""

    facts: dict[str, Any]
    system: System | None = None
    compile_s: float = 0.0


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
            self.failure = Result(case=self.case, **failure_of(error))
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
        times = {"generate_s": tuple(self.generate_s), "ttft_s": tuple(self.ttft_s)}
        return Turns(case=self.case, compiles=self.compiles, **times)


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
    except Exception as error:
        return Prepared(failure_of(error))
    release_memory(model.device)
    last = memory_now(model.device)
    stages = Stages(before=before, made=after, ready=last) if before and after and last else None
    facts = {"make_s": ready - start, "warm_up_s": done - again, "stages": stages}
    return Prepared(facts, system, compile_seconds() - compiled)


def failure_of(error: Exception) -> dict[str, Any]:
    """Status and reason of a failure. Where the device's memory was full, what can be released is released."""
    if isinstance(error, Missing):
        return {"status": "missing", "reason": str(error)}
    if isinstance(error, torch.OutOfMemoryError):
        gc.collect()
        torch.cuda.empty_cache()
        return {"status": "out of memory", "reason": "the device's memory was full"}
    return {"status": "failed", "reason": f"{type(error).__name__}: {first_line(error)}"}


def first_line(error: Exception) -> str:
    """The first line of an error's message, which may be empty."""
    return next(iter(str(error).splitlines()), "")


def counters(system: System) -> dict[str, Any]:
    """The counters of one of our engines as they stand now; empty for others."""
    stats = getattr(system, "stats", None)
    found = {} if stats is None else vars(stats)
    return {name: dict(value) if isinstance(value, dict) else value for name, value in found.items()}


def graph_counters(before: dict[str, Any], after: dict[str, Any]) -> Graphs | None:
    """What was counted between two readings; None for a system without graphs."""
    if "captures" not in after:
        return None
    names = ("decode_steps", "replayed_steps", "padding_rows", "replayed_rows")
    steps, replayed, padding, rows = (after[name] - before[name] for name in names)
    return Graphs(
        captures=after["captures"], capture_s=after["capture_s"], bytes=after["graph_bytes"], steps=steps,
        replayed=replayed, padding_share=padding / rows if rows else None,
        fallbacks=dict(Counter(after["fallbacks"]) - Counter(before["fallbacks"])),
    )  # fmt: skip


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
