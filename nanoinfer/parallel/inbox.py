"""Memory of a GPU that the other ranks' kernels write to. Chapter 8.

PyTorch's symmetric memory maps the same allocation of every rank into all of them. What is done with it is in
kernels/reduce_norm.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from torch import Tensor

ROWS = 512  # of a step at most; timed with up to 256, where it is faster than NCCL
c10d: Any = torch._C._distributed_c10d


class _Renumbered(c10d.Store):  # type: ignore[misc]
    """A store whose keys do not tell how many mappings a process has made before.

    torch counts these in each process and puts the number into its keys, "NAME/NUMBER/RANK": one rank may serve its
    second model, and another its first.
    """

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store, self._numbers = store, dict[str, str]()

    def _key(self, key: str) -> str:
        name, rank = key.rsplit("/", 1)
        return f"{self._numbers.setdefault(name, str(len(self._numbers)))}/{rank}"

    def set(self, key: str, value: bytes) -> None:
        self._store.set(self._key(key), value)

    def get(self, key: str) -> bytes:
        value: bytes = self._store.get(self._key(key))
        return value

    def wait(self, keys: Sequence[str], *timeout: Any) -> None:
        self._store.wait([self._key(key) for key in keys], *timeout)


@contextmanager
def symmetric_group(store: Any, rank: int, size: int) -> Iterator[str]:
    """The name under which torch knows these ranks meanwhile. store: where they find each other, and nobody else's."""
    renumbered, name = _Renumbered(store), f"nanoinfer-{id(store)}"
    group = c10d.ProcessGroup(renumbered, rank, size)  # held here: the registry does not
    c10d._register_process_group(name, group)
    try:
        yield name
    finally:
        c10d._unregister_process_group(name)


def mapped(shape: Sequence[int], dtype: torch.dtype, device: torch.device, group: str) -> tuple[Tensor, list[int]]:
    """A tensor of that shape on each rank, not filled, and the addresses at which all of them lie in this process.

    group: of `symmetric_group`. Raises RuntimeError where GPUs cannot reach each other's memory.
    """
    strides = torch.empty(*shape, device="meta").stride()
    own: Tensor = c10d._SymmetricMemory.empty_strided_p2p(shape, strides, dtype, device, group)
    return own, c10d._SymmetricMemory.rendezvous(own, group).buffer_ptrs


class Inbox:
    """Room for every rank's terms of a sum, twice: (2, size, rows, width) on each rank, whose own place stays empty.

    Ranks make it together, and before the first use all must have. Raises as `mapped`. lost: in the host's memory,
    where kernels look while they wait: not 0 once a rank is lost, and then they go on with what is there.
    """

    def __init__(self, store: Any, rank: int, size: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rank, self.size, self.rows = rank, size, ROWS
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count
        with symmetric_group(store, rank, size) as group:
            self.mine, addresses = mapped((2, size, ROWS, width), dtype, device, group)
        self.mine.fill_(-0.0)
        self.lost = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self.addresses = torch.tensor([*addresses, self.lost.data_ptr()], device=device)
        torch.cuda.synchronize(device)
