"""Memory of a GPU that the other ranks' kernels write to. Chapter 8.

PyTorch's symmetric memory maps the same allocation of every rank into all of them. What is done with it is in
kernels/reduce_norm.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

ROWS = 512  # of a step: with more, a library's all-reduce is as fast
FLOODS = 5000  # once a millisecond, after a rank was lost

c10d: Any = torch._C._distributed_c10d


def mapped(shape: Sequence[int], dtype: torch.dtype, device: torch.device, group: str) -> tuple[Tensor, list[int]]:
    """A tensor of that shape on each rank, not filled, and the addresses at which all of them lie in this process.

    group: a name under which torch knows the ranks. Raises RuntimeError where GPUs cannot reach each other's memory.
    """
    strides = torch.empty(*shape, device="meta").stride()
    own: Tensor = c10d._SymmetricMemory.empty_strided_p2p(shape, strides, dtype, device, group)
    return own, c10d._SymmetricMemory.rendezvous(own, group).buffer_ptrs


class Inbox:
    """Room for every rank's terms of a sum, twice: (2, size, rows, width) on each rank.

    Ranks make it together, and before the first use all must have. Raises as `mapped`.
    """

    def __init__(self, store: Any, rank: int, size: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rank, self.size, self.rows = rank, size, ROWS
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count
        name = f"nanoinfer-{id(self)}"
        group = c10d.ProcessGroup(store, rank, size)  # held here: the registry does not
        c10d._register_process_group(name, group)
        try:
            self.mine, addresses = mapped((2, size, ROWS, width), dtype, device, name)
        finally:
            c10d._unregister_process_group(name)
        self.mine.fill_(-0.0)
        self.addresses = torch.tensor(addresses, device=device)
        self._aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(device)

    def flood(self) -> None:
        """Let kernels that wait for a rank that was lost go on, with numbers that mean nothing."""
        with torch.cuda.stream(self._aside):
            for _ in range(FLOODS):
                self.mine.zero_()
                self._aside.synchronize()
                time.sleep(0.001)
