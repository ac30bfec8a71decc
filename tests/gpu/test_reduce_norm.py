"""Two GPUs' exchanges, many and with delays: no number is read before it was sent, and none is overwritten unread."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from nanoinfer.parallel.group import Group
from tests.gpu.conftest import two_gpus

pytestmark = [pytest.mark.gpu, two_gpus]
SIZES, DELAYS = (1, 3, 64, 256), (0, 0, 2_000, 20_000)
WIDTH = 256
dist: Any = torch.distributed


@pytest.mark.parametrize("wrong", [False, True])
def test_replays_with_delays(tmp_path: Path, wrong: bool) -> None:
    """10^5 replays of graphs with two exchanges. Wrong: both use one half of the inboxes, and some sums are wrong."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    replays = 300 if wrong else 100_000
    try:
        torch.multiprocessing.spawn(exchange, (store.port, replays, wrong, tmp_path), 2)
    except (ProcessExitedException, ProcessRaisedException):
        if wrong:  # a number that was overwritten unread is waited for in vain, and the kernel traps
            return
        raise
    counts = [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert any(counts) if wrong else counts == [0, 0]


def exchange(rank: int, port: int, replays: int, wrong: bool, path: Path) -> None:
    """One rank: in exchange n it sends n + 1,000 * rank, and counts rows whose sum is not 2n + 1,000."""
    from nanoinfer.kernels import reduce_norm as kernels

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    group = Group(dist.TCPStore("127.0.0.1", port, None, False), rank, 2, device)
    group.make_inbox(WIDTH, torch.float32, device)
    assert group.inbox
    if rank:  # many rows a program: it has sent all, and is long in reading, when the other begins the next exchange
        group.inbox.processors = 1
    n, failed = torch.zeros((), device=device), torch.zeros((), dtype=torch.int64, device=device)
    ones, bias = torch.ones(WIDTH, device=device), torch.zeros(WIDTH, device=device)
    if wrong:
        kernels.POLLS = 1 << 24  # some seconds
    graphs = {}

    def step(rows: int, delay: int) -> None:
        x = torch.zeros(rows, WIDTH, device=device)
        for half in range(2):
            n.add_(1)
            term = (n + 1000 * rank).expand(rows, WIDTH).contiguous()
            torch.cuda._sleep(delay)
            total, _ = kernels.reduce_norm(x, term, ones, bias, 1e-5, group.inbox, 0 if wrong else half)
            failed.add_((total != 2 * n + 1000).any(1).sum())

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for rows in SIZES:
            step(rows, 0)
    torch.cuda.synchronize()
    group.least(0)
    for rows in SIZES:
        for delay in DELAYS:
            graphs[rows, delay] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[rows, delay]):
                step(rows, delay)
    same, own = random.Random(1), random.Random(2 + rank)
    for _ in range(replays):
        graphs[same.choice(SIZES), own.choice(DELAYS)].replay()
    torch.cuda.synchronize()
    (path / str(rank)).write_text(str(int(failed)))
    group.least(0)
