"""One launch from token to next token: all layers, head and sampling, over pages. Chapter 6.

`Persistent` holds a model's weights in the kernel's order, and the words by which its programs tell each other values.
`PersistentForward` is what an engine takes: one row, greedy or sampled without filters; for all else it says why not. A
replay of its captured launch needs nothing from the host: launches are counted on the device.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nanoinfer.kernels import sampling
from nanoinfer.kernels.fused_forward import FusedForward
from nanoinfer.kernels.streamed import StreamedForward
from nanoinfer.labs.one_kernel.kernel import token_kernel
from nanoinfer.labs.one_kernel.shape import Shape, pack
from nanoinfer.model.gpt2 import GPT2

if TYPE_CHECKING:
    from nanoinfer.cache.paged import PagedCache
    from nanoinfer.engine.samplers import Sampler
    from nanoinfer.engine.state import BatchState

WARPS = 8
WAITS = (
    "the stream after the layer before",
    "queries, keys and values",
    "the parts of attention",
    "the stream after attention",
)


class Persistent:
    """Makes the next token of row 0 in one launch.

    model: on a GPU of compute capability 9 or more; its weights are copied (`Packed`), later changes are not followed.
    cache: where the row's keys and values lie. programs: at most so many; None takes one a multiprocessor. settings: as
    for `Shape.of`.
    Raises ValueError where the kernel does not know the model, or where not all of its programs could run at once:
    they wait for each other, and one that has not begun would be waited for in vain.
    """

    def __init__(self, model: GPT2, cache: PagedCache, programs: int | None = None, **settings: int) -> None:
        device = model.device
        if device.type != "cuda":
            raise ValueError("one launch a token needs a GPU")
        if torch.cuda.get_device_capability(device) < (9, 0):
            raise ValueError("one launch a token was built for GPUs of compute capability 9")
        self.model, self.cache = model, cache
        self.multiprocessors: int = torch.cuda.get_device_properties(device).multi_processor_count
        most, size = programs or self.multiprocessors, model.dtype.itemsize
        self.shape = Shape.of(model.config, most, cache.max_len, cache.block_size, size, **settings)
        self.packed = pack(model, self.shape)
        # Launch 1 is the first: words of zeros are of none.
        self.counter = torch.ones(1, dtype=torch.int64, device=device)
        self.sums = torch.zeros(self.shape.sum_words, dtype=torch.int64, device=device)
        self.words = torch.zeros(self.shape.stamped_words, dtype=torch.int64, device=device)
        self.failed = torch.full((1,), -1, dtype=torch.int32, pin_memory=True)  # the host can read it after a trap
        self._fits = False

    def step(self, state: BatchState) -> Tensor:
        """Feed row 0's newest token, choose the next one, advance the row; return it (1,), a view of the state."""
        packed, model, cache = self.packed, self.model, self.cache
        arguments = (
            packed.stream, packed.projections, packed.row_sums, packed.gains, packed.biases, model.wte.weight,
            model.wpe.weight, cache.k, cache.v, cache.tables, cache.tables.stride(0), cache.k.stride(0),
            state.integers, state.integers.stride(0), state.floats, self.counter, self.sums, self.words, self.failed,
        )  # fmt: skip
        grid = (self.shape.G,)
        if not self._fits:
            self._check(token_kernel.warmup(*arguments, S=self.shape, grid=grid, num_warps=WARPS))
        token_kernel[grid](*arguments, S=self.shape, num_warps=WARPS, launch_cooperative_grid=True)
        return state.token[:1]

    @property
    def failure(self) -> str | None:
        """Why the kernel gave up waiting, and ended with an error; None where it did not."""
        code = int(self.failed[0])
        if code < 0:
            return None
        layer, what = divmod(code, 8)
        where = f"layer {layer}, {WAITS[what - 1]}" if layer < self.shape.L else "the head"
        return f"the persistent kernel gave up waiting: {where}"

    def _check(self, compiled: Any) -> None:
        """ValueError unless all programs can run at once, as the driver counts for this very kernel."""
        compiled._init_handles()
        resident = ctypes.c_int()
        count = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveBlocksPerMultiprocessor
        function, shared = ctypes.c_void_p(compiled.function), ctypes.c_size_t(compiled.metadata.shared)
        if count(ctypes.byref(resident), function, 32 * WARPS, shared):
            raise ValueError("the driver does not say how many programs can run at once")
        most = resident.value * self.multiprocessors
        if most < self.shape.G:
            raise ValueError(f"{self.shape.G} programs wait for each other, and {most} of them can run at once")
        self._fits = True


class PersistentForward:
    """A `Forward` of one launch, for one row. It costs a copy of the model's blocks; see `Persistent`."""

    name = "persistent"

    def __init__(self, model: GPT2, cache: PagedCache, state: BatchState) -> None:
        self.state, self.refusal = state, ""
        try:
            self.kernel = Persistent(model, cache)
        except ValueError as error:
            self.refusal = str(error)

    def why_not(self, rows: int, sampler: Sampler) -> str | None:
        if self.refusal or rows > 1:
            return self.refusal or "more rows than one launch serves"
        return None if sampler is unfiltered else "filters, penalties or logprobs, which one launch does not know"

    def decode(self, rows: int, longest: int, sampler: Sampler) -> Tensor:
        return self.kernel.step(self.state)

    def refresh(self) -> None:
        if not self.refusal:
            self.kernel.packed = pack(self.kernel.model, self.kernel.shape)


def unfiltered(logits: Tensor, rows: BatchState) -> Tensor:
    """`sampling.sample`, for rows that are known to have no filters: this kernel knows none."""
    return sampling.sample(logits, rows)


class Unfiltered(FusedForward):
    """A `FusedForward` that chooses for itself for such rows too, as it does for all that `sampling.sample` serves."""

    def decode(self, rows: int, longest: int, sampler: Sampler) -> Tensor:
        return super().decode(rows, longest, sampling.sample if sampler is unfiltered else sampler)


def persistent_forwards(model: GPT2, cache: Any, state: BatchState) -> list[Any]:
    """What engine persistent may compute captured steps by."""
    fused = Unfiltered(model, cache, state)
    return [PersistentForward(model, cache, state), fused, StreamedForward(fused)]
