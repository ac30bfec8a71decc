"""What ranks do together: sums and gathers of tensors, and numbers that they agree on. Chapter 8.

A group belongs to one engine. It is made of torch.distributed's process groups themselves and not of its one global
group, so that it can end with the engine and leaves the program's own alone (as torchft does, meta-pytorch/torchft,
process_group.py). Gloo on a CPU, NCCL on GPUs.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import Tensor

if TYPE_CHECKING:
    from nanoinfer.parallel.inbox import Inbox

dist: Any = torch.distributed  # its types leave half of its names out
PATIENCE = timedelta(minutes=30)  # of a collective; who dies or hangs is noticed by others, and sooner


class Group:
    """One rank's end. All ranks make the same calls in the same order.

    store: where ranks find each other. device: of the tensors. None of the calls waits for a GPU: NCCL's go to the
    current stream, in place, so that a step with them can be captured. inbox: for small sums, if there is one.
    """

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self._store = rank, size, store
        self.inbox: Inbox | None = None
        self._host = _gloo(dist.PrefixStore("host", store), rank, size)
        self._device: Any = self._host if device.type == "cpu" else _nccl(store, rank, size)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of x over all ranks, in its place."""
        options = dist.AllreduceOptions()
        options.asyncOp = False
        _wait(self._device.allreduce([x], options))
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """x (...) of each rank, of one shape on all: (size, ...)."""
        options, every = dist.distributed_c10d.AllgatherOptions(), x.new_empty(self.size * len(x), *x.shape[1:])
        options.asyncOp = False
        _wait(self._device._allgather_base(every, x.contiguous(), options))
        return every.view(self.size, *x.shape)

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers. The host waits."""
        numbers = torch.tensor([number])
        self._host.allreduce([numbers], dist.ReduceOp.MIN).wait()
        return int(numbers)

    def make_inbox(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        """Let small sums of rows (N, width) go through memory that all ranks write to, where all of them can."""
        from nanoinfer.parallel.inbox import Inbox  # not every build of torch has what it needs

        made: Inbox | None = None
        try:
            made = Inbox(dist.PrefixStore("inbox", self._store), self.rank, self.size, width, dtype, device)
        except RuntimeError as error:
            warnings.warn(f"sums of ranks go through NCCL alone: {error}", RuntimeWarning, stacklevel=2)
        self.inbox = made if self.least(int(made is not None)) else None

    def abort(self) -> None:
        """End what is under way, from any thread: who waits for it goes on, or raises."""
        if self.inbox:
            self.inbox.lost.fill_(1)
        if self._device is not self._host:
            self._device.abort()


def _wait(work: Any) -> None:
    """Until gloo is done. NCCL returns nothing for what is on the current stream already."""
    if work is not None:
        work.wait()


def _gloo(store: Any, rank: int, size: int) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]  # a host's name may lead nowhere
    options._timeout = PATIENCE
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = PATIENCE
    return dist.ProcessGroupNCCL(dist.PrefixStore("device", store), rank, size, options)
