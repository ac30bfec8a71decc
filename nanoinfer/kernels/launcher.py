"""Launching a Triton kernel in as little of the host's time as can be. Chapter 3."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial, reduce
from operator import or_
from typing import Any

import triton
from torch import Tensor
from triton.runtime import driver


class Launcher:
    """Launches a kernel by the compiled form that it had before.

    `kernel[grid](...)` looks at every argument to find the form that fits, and on the host that takes longer than the
    launch. A form depends on dtypes, on numbers, and on whether 16 divides each address: that is soon compared. The
    launch itself is as in PyTorch's own use of Triton, torch/_inductor/runtime/triton_heuristics.py. It is no public
    interface: before a form is launched so, Triton's own launch of it is watched, and must be the same call.
    """

    trusted = True  # of the class: until Triton is seen to launch in another way

    def __init__(self, kernel: Any, num_warps: int) -> None:
        self.kernel, self.num_warps = kernel, num_warps
        self._compiled: dict[tuple[object, ...], Any] = {}
        self._unwatched: dict[tuple[object, ...], Any] = {}

    def __call__(self, grid: Any, tensors: tuple[Tensor, ...], numbers: tuple[float, ...], **constants: int) -> None:
        """As `kernel[grid](*tensors, *numbers, **constants)`: all parameters of the kernel, in its order."""
        device = tensors[0].get_device()
        key = (device, *[tensor.dtype for tensor in tensors], *numbers, *constants.values())
        aligned = reduce(or_, map(Tensor.data_ptr, tensors)) % 16 == 0
        if aligned and (known := self._compiled.get(key)):
            form = driver.active.get_current_stream(device), known.function, known.packed_metadata
            known.run(*grid, *form, None, None, None, *tensors, *numbers, *constants.values())  # None: no hooks
            return
        launch = partial(self.kernel[grid], *tensors, *numbers, **constants, num_warps=self.num_warps)
        if not (aligned and self.trusted):
            launch()
        elif (seen := self._unwatched.pop(key, None)) is None:
            self._unwatched[key] = launch()  # None under Triton's interpreter, which compiles nothing
        elif _launches_so(seen, launch, grid, device, (*tensors, *numbers, *constants.values())):
            self._compiled[key] = seen
        else:
            Launcher.trusted = False
            what = f"Triton {triton.__version__} launches kernels in a way that is not known here"
            warnings.warn(f"{what}: each launch takes the host longer", RuntimeWarning, stacklevel=2)


def _launches_so(
    compiled: Any, launch: Callable[[], object], grid: tuple[int, ...], device: int, arguments: tuple[object, ...]
) -> bool:
    """Launch; and whether Triton did it by the call that `Launcher` makes, but for the hooks."""
    run: Any = getattr(compiled, "_run", None)
    calls: list[tuple[Any, ...]] = []

    def watched(*call: Any) -> Any:
        calls.append(call)
        return run(*call)

    if not callable(run):
        launch()
        return False
    compiled._run = watched
    try:
        launch()
    finally:
        compiled._run = run
    try:
        known = *grid, driver.active.get_current_stream(device), compiled.function, compiled.packed_metadata
        (call,) = calls
        pairs = zip(call[len(known) + 3 :], arguments, strict=True)  # after three for hooks
        same = all(given is ours or (not isinstance(ours, Tensor) and given == ours) for given, ours in pairs)
        return bool(same and call[: len(known)] == known and compiled.run is run)
    except Exception:
        return False
