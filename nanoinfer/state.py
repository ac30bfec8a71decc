"""All that belongs to the rows of a running batch, on the device. Chapter 1.

One tensor a quantity, one entry a row; live rows are always rows 0..n-1. What changes from step to step lives here
and is advanced here: no Python number changes between two decode steps of the same batch. Chapter 4 rests on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from nanoinfer.requests import Request


@dataclass(frozen=True)
class BatchState:
    """The rows of a batch. Every tensor is (N,); `at` gives the same record over fewer rows."""

    token: Tensor  # int64, the newest token: not yet fed to the model
    position: Tensor  # int64, where that token stands in its text
    step: Tensor  # int64, how many tokens the row has produced
    seed: Tensor  # int64
    temperature: Tensor  # float32
    top_k: Tensor  # int32
    top_p: Tensor  # float32

    @classmethod
    def empty(cls, max_batch: int, device: torch.device) -> BatchState:
        """`max_batch` free rows."""
        integers = torch.zeros(4, max_batch, dtype=torch.int64, device=device)
        floats = torch.ones(2, max_batch, dtype=torch.float32, device=device)
        top_k = torch.zeros(max_batch, dtype=torch.int32, device=device)
        token, position, step, seed = integers
        return cls(token, position, step, seed, floats[0], top_k, floats[1])

    def at(self, rows: slice | Tensor) -> BatchState:
        """The given rows: views for a slice, so that writing into them writes here; copies for a tensor of rows."""
        return BatchState(*(getattr(self, field.name)[rows] for field in fields(self)))

    def admit(self, rows: Tensor, requests: Sequence[Request]) -> None:
        """Begin `requests` in the given rows (B,), which are free: nothing produced, parameters set."""
        params = [request.params for request in requests]
        device = self.token.device
        self.step.index_fill_(0, rows, 0)  # `self.step[rows] = 0` would wait for the GPU
        self.seed[rows] = upload([request.seed for request in requests], torch.int64, device)
        self.temperature[rows] = upload([p.temperature for p in params], torch.float32, device)
        self.top_k[rows] = upload([p.top_k for p in params], torch.int32, device)
        self.top_p[rows] = upload([p.top_p for p in params], torch.float32, device)

    def move(self, source: int, target: int) -> None:
        """Row `source` becomes row `target`."""
        for field in fields(self):
            tensor = getattr(self, field.name)
            tensor[target] = tensor[source]


def upload(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A new tensor on `device`, without waiting for it.

    On a GPU the copy goes through pinned memory, fresh each time: from ordinary memory the copy would wait for all that
    the GPU has yet to do, and a pinned buffer used twice could be overwritten before the first copy has read it.
    """
    tensor = torch.tensor(values, dtype=dtype)
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class Fetch:
    """Tokens on their way to the host: the copy starts now, `wait` has them."""

    def __init__(self, tokens: Tensor) -> None:
        if tokens.device.type == "cuda":
            self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._host.copy_(tokens, non_blocking=True)
            self._arrived: torch.cuda.Event | None = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()
        else:
            self._host, self._arrived = tokens.clone(), None

    def wait(self) -> list[int]:
        """The tokens; on a GPU, the host waits here until they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.tolist()
