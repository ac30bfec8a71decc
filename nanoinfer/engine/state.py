"""All that belongs to the rows of a running batch, on the device. Chapter 4.

One entry a row in every tensor; live rows are always rows 0..n-1. What changes from step to step lives here and is
advanced here: no Python number changes between two decode steps of the same batch, so a step can be recorded.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from nanoinfer.records import SamplingParams

_FLOATS = Struct("=ff")


class Begun(NamedTuple):
    """A sequence that gets a row of the state. step: how many tokens it has generated before."""

    row: int
    seed: int
    step: int
    params: SamplingParams


def _integers(line: int) -> Tensor:
    """A property of the state: one line of its integers, (N,)."""
    return cast(Tensor, property(lambda state: state.integers[line]))


def _floats(line: int) -> Tensor:
    return cast(Tensor, property(lambda state: state.floats[line]))


@dataclass(frozen=True)
class BatchState:
    """The rows of a batch, and a dummy row at the end that takes what padding writes.

    The quantities lie in two tensors, one line each, so that a row comes, moves or goes in one operation a tensor.
    What a captured step keeps is their addresses; what may change between two replays is everything in them.
    A row that is not live is padding: its position is 0 and stays there, and `row` sends what it writes to the dummy.
    """

    integers: Tensor  # (7, N) int64
    floats: Tensor  # (2, N) float32

    @classmethod
    def empty(cls, max_batch: int, device: torch.device) -> BatchState:
        """`max_batch` free rows and the dummy row."""
        integers = torch.zeros(7, max_batch + 1, dtype=torch.int64, device=device)
        integers[6] = max_batch
        return cls(integers, torch.zeros(2, max_batch + 1, dtype=torch.float32, device=device))

    @property
    def dummy(self) -> int:
        """The number of the dummy row, the last one."""
        return self.integers.shape[1] - 1

    token = _integers(0)  # the newest token: not yet fed to the model
    position = _integers(1)  # where that token stands in its text
    step = _integers(2)  # how many tokens the row has produced: the number of the one that comes next
    live = _integers(3)  # 1 for a row whose prompt has been read, 0 for a padding row
    seed = _integers(4)  # of the row's noise
    top_k = _integers(5)  # 0 for no such filter
    row = _integers(6)  # the row's own number, where it is live; the dummy row's for a padding row
    temperature = _floats(0)  # 0 for greedy
    top_p = _floats(1)  # 1 for no such filter

    def at(self, rows: slice | Tensor) -> BatchState:
        """The given rows: views for a slice, so that writing into them writes here; copies for a tensor of rows."""
        return BatchState(self.integers[:, rows], self.floats[:, rows])

    def admit(self, begun: Sequence[Begun]) -> Tensor:
        """Begin sequences in their rows, which are free: parameters set, and padding until the prompt is read.

        Returns the rows (n,) on the device.
        """
        values = array("q")
        for each in begun:
            params = each.params
            values.extend((0, 0, each.step, 0, each.seed, params.top_k, self.dummy, each.row))
            values.frombytes(_FLOATS.pack(params.temperature, params.top_p))  # two numbers in one: a single copy
        packed = upload(torch.frombuffer(values, dtype=torch.int64).view(-1, 9), torch.int64, self.token.device)
        at = packed[:, 7]
        self.integers.index_copy_(1, at, packed[:, :7].T)
        self.floats.index_copy_(1, at, packed.view(torch.float32)[:, 16:].T)
        return at

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Rows `sources` (n,) become rows `targets` (n,); no row is in both."""
        moved = self.at(sources)
        moved.row.copy_(torch.where(moved.live > 0, targets, self.dummy))
        self.integers.index_copy_(1, targets, moved.integers)
        self.floats.index_copy_(1, targets, moved.floats)

    def free(self, rows: slice) -> None:
        """These rows are padding from now on."""
        self.integers[:6, rows] = 0
        self.integers[6, rows] = self.dummy
        self.floats[:, rows] = 0


def upload(values: Sequence[object] | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Values, or a tensor of the host, as a tensor on `device`, without waiting for it.

    On a GPU the copy goes through pinned memory, fresh each time: from ordinary memory the copy would wait for all that
    the GPU has yet to do, and a pinned buffer used twice could be overwritten before the first copy has read it.
    """
    tensor = values if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
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

    @property
    def arrived(self) -> bool:
        """Whether they are known to be there already, so that `wait` would not wait."""
        return self._arrived is not None and bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def wait(self) -> list[Any]:
        """The tokens; on a GPU, the host waits here until they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[Any] = self._host.tolist()
        return values
