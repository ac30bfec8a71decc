"""Who records a step: the stand-in, which needs no GPU, or a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from nanoinfer.engine.fake_graph import escaping, record


class StandIn:
    """Notes a step's operations and repeats them, on a CPU."""

    def warm(self, step: Callable[[], Tensor]) -> None:
        """Run the step once."""
        step()

    def record(self, step: Callable[[], Tensor]) -> tuple[Any, Tensor]:
        """The step's graph, and the tensor that its replays write their result into."""
        return record(step)

    def elsewhere(self) -> AbstractContextManager[object]:
        """Imitates kernels on a stream that the capture does not follow."""
        return escaping()


class Cuda:
    """Captures CUDA graphs on a stream of its own, all in one memory pool."""

    def __init__(self) -> None:
        self.stream, self.other = torch.cuda.Stream(), torch.cuda.Stream()
        self.graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def warm(self, step: Callable[[], Tensor]) -> None:
        """Run the step once, on the stream on which it will be captured."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            step()
        torch.cuda.synchronize()  # also for what the step has launched elsewhere

    def record(self, step: Callable[[], Tensor]) -> tuple[Any, Tensor]:
        """The step's graph, and the tensor that its replays write their result into. Nothing is executed."""
        if not self.graphs:  # a pool ends with its last graph
            self.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # "relaxed" lets memory be allocated on the other stream. What must wait for the device is refused all the same.
        mode = {"pool": self.pool, "stream": self.stream, "capture_error_mode": "relaxed"}
        with torch.cuda.stream(self.stream), torch.cuda.graph(graph, **mode):
            result = step()
        torch.cuda.synchronize()
        self.graphs.add(graph)
        return graph, result

    def elsewhere(self) -> AbstractContextManager[object]:
        """A stream that the capture does not follow, as nothing makes it wait for the captured one."""
        return torch.cuda.stream(self.other)


Recorder = StandIn | Cuda


def recorder_for(device: str) -> Recorder:
    """Real graphs on a GPU, the stand-in elsewhere."""
    return Cuda() if device == "cuda" else StandIn()
