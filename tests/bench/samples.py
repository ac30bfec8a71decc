"""Reports made up for the tests of bench/: no measurement, and every number known."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from nanobench.core.records import Case, Machine, Memory, Report, Result, ResultsFile, Spread, Status

MACHINE = Machine(
    device="Test GPU", kind="cuda", capability="9.0", memory_bytes=10**11, l2_bytes=10**7, driver="1", cpu="Test CPU",
    cores=2, threads=2, power="mains", os="Linux", python="3.11", torch="2.11", cuda="13", triton="3.6",
    transformers="5.17",
)  # fmt: skip

STAMP: dict[str, Any] = {"date": "2026-01-02", "commit": "0123456789ab", "machine": MACHINE}


def result(
    engine: str, batch: int, step_s: float, *, model: str = "random:gpt2", prompt: int = 128, seed: int = 0
) -> Result:
    """A case whose decode step takes `step_s` seconds, give or take 1%; its TTFT is two steps."""
    draws = random.Random(f"{engine} {batch} {prompt} {seed}")
    noise = [1 + draws.uniform(-0.01, 0.01) for _ in range(7)]
    ttft = [2 * step_s * n for n in noise]
    whole = [t + 16 * step_s * n for t, n in zip(ttft, reversed(noise), strict=True)]
    generate_s, ttft_s = Spread.of(whole), Spread.of(ttft)
    decode_s = (generate_s.median - ttft_s.median) / 16
    return Result(
        case=Case(model=model, engine=engine, batch=batch, prompt_tokens=prompt, new_tokens=17),
        status="ok", generate_s=generate_s, ttft_s=ttft_s,
        tokens=17 * batch, tokens_per_s=batch / decode_s, floor_share=1e-4 / decode_s, launches_per_step=150.0,
        memory_before=Memory(allocated=10**9, reserved=10**9, driver=2 * 10**9),
        memory_peak=Memory(allocated=10**9 + batch * 10**7, reserved=2 * 10**9, driver=3 * 10**9),
    )  # fmt: skip


def failed(engine: str, batch: int, status: Status, reason: str, *, model: str = "random:gpt2") -> Result:
    """A case without numbers."""
    case = Case(model=model, engine=engine, batch=batch, prompt_tokens=128, new_tokens=17)
    return Result(case=case, status=status, reason=reason)


def report(*results: Result, device: str = "Test GPU", dtype: str = "bfloat16") -> Report:
    """A report of these results."""
    return Report(
        preset="gpu", dtype=dtype, seed=0, repeats=7,
        copy_bytes_per_s=4.25e12, import_s=1.5, results=results,
        **STAMP | {"machine": MACHINE.model_copy(update={"device": device})},
    )  # fmt: skip


def ladder(**options: str) -> Report:
    """naive and dense at three batch sizes, a peer, and a case of each kind that has no numbers."""
    return report(
        result("naive", 1, 0.002), result("dense", 1, 0.0025), result("transformers", 1, 0.004),
        result("naive", 8, 0.004), result("dense", 8, 0.0025), failed("transformers", 8, "missing", "not installed"),
        failed("naive", 64, "over budget", "about 99 s a run expected"), result("dense", 64, 0.0027),
        failed("transformers", 64, "out of memory", "the device's memory was full"),
        failed("dense", 256, "failed", "RuntimeError: no"),
        **options,
    )  # fmt: skip


def saved(made: ResultsFile, path: Path) -> Path:
    """Write a report and return where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made.model_dump_json(), encoding="utf-8")
    return path
