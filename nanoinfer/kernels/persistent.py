"""One launch from token to next token: all layers, head and sampling, over pages. Chapter 6.

`Persistent` holds a model's weights in the kernel's order, and the words by which its programs tell each other values.
`PersistentForward` is what an engine takes: one row, greedy or sampled without filters; for all else it says why not. A
replay of its captured launch needs nothing from the host: launches are counted on the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nanoinfer.kernels.fused_forward import unfiltered
from nanoinfer.kernels.persistent_kernel import token_kernel
from nanoinfer.kernels.persistent_shape import Shape, pack
from nanoinfer.kernels.persistent_words import POLLS
from nanoinfer.kernels.streamed import fused_forwards
from nanoinfer.model.gpt2 import GPT2

if TYPE_CHECKING:
    from nanoinfer.cache.paged import PagedCache
    from nanoinfer.engine.samplers import Sampler
    from nanoinfer.engine.state import BatchState

WARPS = 8
ROWS = 1  # that a launch serves
WAITS = (
    "the stream after the layer before",
    "queries, keys and values",
    "the parts of attention",
    "the stream after attention",
)


class Persistent:
    """Makes the next token of row 0 in one launch.

    model: on a GPU of compute capability 9 or more; its weights are copied (`Packed`), later changes are not followed.
    cache: where the row's keys and values lie. programs: at most so many; None takes one a multiprocessor.
    delays: up to so many ns before each wait, by chance: for tests. polls: of one wait at most, 0 waits for nothing.
    spread: how far apart lie the words that all programs add to. ahead: whether weights are asked for ahead of their
    use; without, a program waits for them where it asks. No result depends on either.
    Raises ValueError where the kernel does not know the model, or where not all of its programs could run at once:
    they wait for each other, and one that has not begun would be waited for in vain.
    """

    def __init__(
        self, model: GPT2, cache: PagedCache, *, programs: int | None = None, delays: int = 0, polls: int = POLLS,
        spread: int = 8, ahead: bool = True,
    ) -> None:  # fmt: skip
        if why := refuses(model):
            raise ValueError(why)
        device = model.device
        most = torch.cuda.get_device_properties(device).multi_processor_count
        shape = Shape.of(
            model.config,
            programs or most,
            cache.max_len,
            cache.block_size,
            model.dtype.itemsize,
            polls,
            delays,
            spread,
            ahead,
        )
        self.model, self.cache, self.shape = model, cache, shape
        self.packed = pack(model, shape)
        # Launch 1 is the first: words of zeros are of none.
        self.counter = torch.ones(1, dtype=torch.int64, device=device)
        self.sums = torch.zeros(shape.sum_words, dtype=torch.int64, device=device)
        self.words = torch.zeros(shape.stamped_words, dtype=torch.int64, device=device)
        self.failed = torch.zeros(1, dtype=torch.int32, pin_memory=True)  # the host can read it after a trap
        self.failed[0] = -1
        self._fits = False

    def step(self, state: BatchState) -> Tensor:
        """Feed row 0's newest token, choose the next one, advance the row; return it (1,), a view of the state."""
        arguments = self._arguments(state)
        if not self._fits:
            self._check(token_kernel.warmup(*arguments, S=self.shape, grid=(self.shape.G,), num_warps=WARPS))
        token_kernel[(self.shape.G,)](*arguments, S=self.shape, num_warps=WARPS, launch_cooperative_grid=True)
        return state.token[:ROWS]

    @property
    def failure(self) -> str | None:
        """Why the kernel gave up waiting, and ended with an error; None where it did not."""
        code = int(self.failed[0])
        if code < 0:
            return None
        layer, what = divmod(code, 8)
        where = f"layer {layer}, {WAITS[what - 1]}" if layer < self.shape.L else "the head"
        return f"the persistent kernel gave up waiting: {where}"

    def _arguments(self, state: BatchState) -> tuple[Any, ...]:
        packed, model, cache = self.packed, self.model, self.cache
        return (
            packed.stream, packed.projections, packed.row_sums, packed.gains, packed.biases, model.wte.weight,
            model.wpe.weight, cache.k, cache.v, cache.tables, cache.tables.stride(0), cache.k.stride(0),
            state.integers, state.integers.stride(0), state.floats, self.counter, self.sums, self.words, self.failed,
        )  # fmt: skip

    def _check(self, compiled: Any) -> None:
        """ValueError unless all programs can run at once, as the driver counts for this very kernel."""
        compiled._init_handles()
        resident = ctypes.c_int()
        count = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveBlocksPerMultiprocessor
        function, threads, shared = (
            ctypes.c_void_p(compiled.function),
            32 * WARPS,
            ctypes.c_size_t(compiled.metadata.shared),
        )
        if count(ctypes.byref(resident), function, threads, shared):
            raise ValueError("the driver does not say how many programs can run at once")
        most = resident.value * torch.cuda.get_device_properties(self.model.device).multi_processor_count
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
        if self.refusal:
            return self.refusal
        if rows > ROWS:
            return "more rows than one launch serves"
        return None if sampler is unfiltered else "filters, penalties or logprobs, which one launch does not know"

    def decode(self, rows: int, longest: int, sampler: Sampler) -> Tensor:
        return self.kernel.step(self.state)

    def refresh(self) -> None:
        if not self.refusal:
            self.kernel.packed = pack(self.kernel.model, self.kernel.shape)


def persistent_forwards(model: GPT2, cache: PagedCache, state: BatchState) -> list[Any]:
    """What engine persistent may compute captured steps by."""
    return [PersistentForward(model, cache, state), *fused_forwards(model, cache, state)]


def forwards_of(recipe: str) -> Callable[[GPT2, PagedCache, BatchState], list[Any]]:
    """What makes the forwards of a recipe: "fused" or "persistent"."""
    return persistent_forwards if recipe == "persistent" else fused_forwards


def refuses(model: GPT2) -> str | None:
    """Why no kernel is made for this model where it is; None where one may be."""
    device = model.device
    if device.type != "cuda":
        return "one launch a token needs a GPU"
    if torch.cuda.get_device_capability(device) < (9, 0):
        return "one launch a token was built for GPUs of compute capability 9"
    return None
