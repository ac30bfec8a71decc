"""A sum over ranks of a step's rows, by each way that there is: a process a GPU, timed inside captured graphs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor

from nanobench.core.records import Record, Spread
from nanobench.core.timing import call_seconds
from nanobench.micro.queue_load import say
from nanoinfer.parallel.group import Group

CALLS, REPEATS = 32, 15
HOST = "127.0.0.1"
dist: Any = torch.distributed
mp: Any = torch.multiprocessing

Kind = Literal["nccl", "one-shot", "two-shot", "norm alone", "nccl and norm", "in one kernel"]


class Reduced(Record):
    """One all-reduce of (rows, width) numbers. Kinds with a norm add the sum to the residual stream, and normalise."""

    kind: Kind
    ranks: int
    rows: int
    width: int
    seconds: Spread


def measure_reduces(ranks: int, width: int, rows: Sequence[int], dtype: torch.dtype) -> list[Reduced]:
    """Of the first so many GPUs."""
    store = dist.TCPStore(HOST, 0, None, True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reduces.json"
        mp.spawn(_rank, (ranks, store.port, width, list(rows), dtype, path), ranks)
        found = [Reduced(**each) for each in json.loads(path.read_text())]
    for each in found:
        say(f"{each.rows:4} rows of {each.width}, {each.kind:13}: {1e6 * each.seconds.median:5.1f} us")
    return found


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
