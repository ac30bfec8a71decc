"""Memory of a GPU that the other ranks' kernels write to. Chapter 8.

PyTorch's symmetric memory maps the same allocation of every rank into all of them. What is done with it is in
kernels/reduce_norm.py.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed
from torch import Tensor

ROWS = 512  # of a step: with more, a library's all-reduce is as fast
FLOODS = 5000  # once a millisecond, after a rank was lost

symmetric: Any = torch._C._distributed_c10d._SymmetricMemory


class Inbox:
    """Room for every rank's terms of a sum, twice: (2, size, rows, width) on each rank.

    Raises RuntimeError where GPUs cannot write to each other's memory. Ranks make it together; before the first use,
    all must have.
    """

    def __init__(self, store: Any, rank: int, size: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rank, self.size, self.rows = rank, size, ROWS
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count
        shape, name = (2, size, ROWS, width), f"nanoinfer-{id(store)}"
        strides = [size * ROWS * width, ROWS * width, width, 1]
        symmetric.set_group_info(name, rank, size, store)
        self.mine: Tensor = symmetric.empty_strided_p2p(shape, strides, dtype, device, name)
        self._handle = symmetric.rendezvous(self.mine, name)
        self.mine.fill_(-0.0)
        self.addresses = torch.tensor(self._handle.buffer_ptrs, dtype=torch.int64, device=device)
        self._aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(device)

    def flood(self) -> None:
        """Let kernels that wait for a rank that was lost go on, with numbers that mean nothing."""
        with torch.cuda.stream(self._aside):
            for _ in range(FLOODS):
                self.mine.zero_()
                self._aside.synchronize()
                time.sleep(0.001)
