"""One model on one GPU and on several: tokens/s, time of a step, of a sum over ranks.

On GPUs also a sum over ranks of a step's rows, by each way that there is: a process a GPU, inside captured graphs.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.distributed
import torch.multiprocessing
import typer
from torch import Tensor

from nanobench.core.machine import place, stamp
from nanobench.core.records import Older, Record, ResultsFile, Spread
from nanobench.core.timing import by_turns, call_seconds
from nanobench.micro.queue_load import greedy, ids
from nanobench.options import Device, Models, NewTokens, Out, Repeats, Rows
from nanoinfer import LLM
from nanoinfer.model.weights import model_config
from nanoinfer.parallel.group import Group

SEED = 7


class Ranked(Record):
    """One engine with so many rows at once."""

    model: str
    ranks: int
    rows: int
    tokens_per_s: Spread  # of a whole `generate()`
    step_s: Spread  # median gap between two tokens of a row, in each run


Kind = Literal["nccl", "one-shot", "two-shot", "norm alone", "nccl and norm", "in one kernel"]


class Reduced(Record):
    """One all-reduce of (rows, width) numbers. Kinds with a norm add the sum to the residual stream, and normalise."""

    kind: Kind
    ranks: int
    rows: int
    width: int
    seconds: Spread


class RanksReport(ResultsFile):
    """One run of `python -m bench ranks`."""

    kind: Literal["ranks"] = "ranks"
    dtype: str
    prompt_tokens: int
    new_tokens: int
    reduces: tuple[Reduced, ...] = ()
    held: Older = ()
    cases: tuple[Ranked, ...] = ()


def measure(
    device: Device = None,
    out: Out = Path("my-bench/ranks.json"),
    model: Models = ["random:gpt2-xl"],  # noqa: B006
    tensor_parallel: Annotated[int, typer.Option(min=2, help="GPUs beside one; processes on a CPU.")] = 2,
    rows: Rows = [1, 8, 64, 256],  # noqa: B006
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 128,
    new_tokens: NewTokens = 512,
    repeats: Repeats = 3,
) -> RanksReport:
    """Measure every model with one rank and with several, by turns; write the file after each model."""
    where, dtype = place(device)
    on_gpu, blocks = where.type == "cuda", 1 + max(rows) * -(-(prompt_tokens + new_tokens) // 16)
    settings: dict[str, Any] = {"max_batch": max(rows), "kv_blocks": blocks, "prefix_caching": False}
    settings |= {"device": device, "engine": "paged-graph" if on_gpu else "paged"}
    report = RanksReport(prompt_tokens=prompt_tokens, new_tokens=new_tokens, **stamp(where, dtype))
    if on_gpu:
        width = model_config(model[-1]).n_embd
        report = report.fill(out, reduces=measure_reduces(tensor_parallel, width, rows, torch.bfloat16))
    for name in model:
        with ExitStack() as stack:
            counts = (1, tensor_parallel)
            llms = {count: stack.enter_context(LLM(name, tensor_parallel=count, **settings)) for count in counts}
            for llm in llms.values():
                llm.warm_up()
            cases = (case for count in rows for case in _cases(name, llms, count, prompt_tokens, new_tokens, repeats))
            report = report.fill(out, cases=cases)
    return report


def _runs(llm: LLM, rows: int, prompt: int, new: int) -> Iterator[tuple[float, float]]:
    """Of one run after the other: tokens a second, and the median gap between two tokens."""
    draws = random.Random(SEED)
    while True:
        prompts = [ids(draws, prompt, llm.model.config.vocab_size) for _ in range(rows)]
        began = time.perf_counter()
        done = llm.generate(prompts, greedy(new))
        rate = rows * new / (time.perf_counter() - began)
        yield rate, float(torch.tensor([gap for one in done for gap in one.metrics.itl_s]).median())


def _cases(name: str, llms: dict[int, LLM], rows: int, prompt: int, new: int, repeats: int) -> Iterator[Ranked]:
    """So many rows on each number of ranks, by turns; all have the same prompts in a turn."""
    arms = {count: partial(next, _runs(llm, rows, prompt, new)) for count, llm in llms.items()}
    for count, both in by_turns(arms, repeats).items():
        rates, steps = (Spread.of(each) for each in zip(*both, strict=True))
        yield Ranked(model=name, ranks=count, rows=rows, tokens_per_s=rates, step_s=steps)


CALLS, REPEATS = 32, 15
HOST = "127.0.0.1"
dist: Any = torch.distributed
mp: Any = torch.multiprocessing


def measure_reduces(ranks: int, width: int, rows: Sequence[int], dtype: torch.dtype) -> list[Reduced]:
    """Of the first so many GPUs."""
    store = dist.TCPStore(HOST, 0, None, True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reduces.json"
        mp.spawn(_rank, (ranks, store.port, width, list(rows), dtype, path), ranks)
        return [Reduced(**each) for each in json.loads(path.read_text())]


def _rank(rank: int, ranks: int, port: int, width: int, rows: list[int], dtype: torch.dtype, path: Path) -> None:
    """One rank's process. All make the same calls in one order; the first one writes down its times."""
    torch.cuda.set_device(rank)
    device, store = torch.device("cuda", rank), dist.TCPStore(HOST, port, None, False)
    group = Group(store, rank, ranks, device)
    group.make_inbox(width, dtype, device)
    from nanoinfer.parallel.inbox import symmetric_group

    found = []
    with symmetric_group(dist.PrefixStore("bench", store), rank, ranks) as name:
        for count in rows:
            calls = _variants(group, name, width, count, dtype, device)
            for kind, seconds in call_seconds(calls, CALLS, REPEATS, device).items():
                each = Spread.of([pair / 2 for pair in seconds.samples])
                found.append(
                    {"kind": kind, "ranks": ranks, "rows": count, "width": width, "seconds": each.model_dump()}
                )
            group.least(0)
    if rank == 0:
        path.write_text(json.dumps(found))
    group.least(0)  # nobody leaves while others still write to its memory


def _variants(
    group: Group, name: str, width: int, rows: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Callable[[int], Tensor]]:
    """Each does two sums in a row."""
    from nanoinfer.kernels.fused import FusedOps
    from nanoinfer.kernels.reduce_norm import reduce_norm  # Triton is not everywhere
    from nanoinfer.parallel.inbox import mapped

    draws = torch.Generator(device).manual_seed(group.rank)
    x, term, update = (torch.randn(rows, width, generator=draws, device=device).to(dtype) for _ in range(3))
    weight, bias = torch.ones(width, dtype=dtype, device=device), torch.zeros(width, dtype=dtype, device=device)
    shared, _ = mapped((rows, width), dtype, device, name)
    shared.copy_(term)
    ops, fused, inbox = torch.ops.symm_mem, FusedOps(), group.inbox
    twice: dict[str, Callable[[int], Any]] = {
        "nccl": lambda half: group.all_reduce(update),
        "one-shot": lambda half: ops.one_shot_all_reduce(shared, "sum", name),
        "two-shot": lambda half: ops.two_shot_all_reduce_(shared, "sum", name),
        "norm alone": lambda half: fused.add_norm(x, update, weight, bias, 1e-5),
        "nccl and norm": lambda half: fused.add_norm(x, group.all_reduce(update), weight, bias, 1e-5),
        "in one kernel": lambda half: reduce_norm(x, term, weight, bias, 1e-5, inbox, half),
    }

    def both(call: Callable[[int], Any]) -> Callable[[int], Tensor]:
        return lambda _: (call(0), call(1))[1]

    return {name: both(call) for name, call in twice.items()}
