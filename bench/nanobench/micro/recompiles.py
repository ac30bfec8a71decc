"""Kernels that Triton compiles over 512 steps of growing contexts and 1 to 32 rows: none after the first.

Triton compiles a kernel again for each set of compile-time constants, and for arguments with other properties. A number
that grows with the context must be neither. A first run with every batch size may compile; then contexts grow for 512
steps while rows leave one by one, and nothing may be compiled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from nanobench.core.compile_counter import TritonLog
from nanobench.core.machine import cuda, stamp
from nanobench.core.records import Record, ResultsFile
from nanobench.micro.queue_load import greedy
from nanobench.options import Gpu, Model, Out
from nanoinfer import LLM
from nanoinfer.devices import choose_dtype

ROWS = 32
STEPS = 512
PROMPT = 16  # tokens of each row before the steps


class Compiled(Record):
    """One run and what was compiled during it."""

    what: str
    decode_steps: int
    kernels: dict[str, int]  # compilations by the kernel's name
    seconds: float  # that they took


class RecompileReport(ResultsFile):
    """One run of `python -m bench recompiles`."""

    kind: Literal["recompiles"] = "recompiles"
    model: str
    engine: str
    rows: int
    longest: int  # tokens of the longest sequence
    runs: tuple[Compiled, ...] = ()


def measure(
    device: Gpu = None,
    out: Out = Path("my-bench/recompiles.json"),
    model: Model = "random:gpt2",
    engine: Annotated[str, typer.Option(help="paged or paged-graph.")] = "paged",
) -> None:
    """Count, print, write; exit code 1 where the long run compiled something. ValueError without a CUDA GPU."""
    where = cuda(device, "Triton compiles for GPUs: on a CPU there is nothing to count")
    llm = LLM(model, engine=engine, device=str(where), dtype=choose_dtype(None, where), max_batch=ROWS)
    report = RecompileReport(model=model, engine=engine, rows=ROWS, longest=PROMPT + STEPS + 1, **stamp(where))
    report = report.fill(out, runs=count(llm))
    raise typer.Exit(1 if report.runs[-1].kernels else 0)


def count(llm: LLM, rows: int = ROWS, steps: int = STEPS) -> tuple[Compiled, Compiled]:
    """Two runs of an LLM: a step with every number of rows, then `steps` steps while rows leave one by one.

    The sequences of both reach the same length, so that the cache and its tables have the same shape.
    """
    vocab = llm.model.config.vocab_size
    generator = torch.Generator().manual_seed(0)

    def prompts(lengths: list[int]) -> list[list[int]]:
        return [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in lengths]

    first = [row + 2 for row in range(rows)]  # new tokens, the first by prefill: one row leaves with each step
    first_lengths = [PROMPT] * (rows - 1) + [PROMPT + steps - rows]
    later = [steps * (row + 1) // rows + 1 for row in range(rows)]
    return (
        _run(llm, "every number of rows", prompts(first_lengths), first),
        _run(llm, "growing contexts", prompts([PROMPT] * rows), later),
    )


def _run(llm: LLM, what: str, prompts: list[list[int]], new_tokens: list[int]) -> Compiled:
    before = llm.stats.decode_steps
    with TritonLog() as log:
        llm.generate(prompts, list(map(greedy, new_tokens)))
    steps = llm.stats.decode_steps - before
    return Compiled(what=what, decode_steps=steps, kernels=dict(log.kernels), seconds=log.seconds)
