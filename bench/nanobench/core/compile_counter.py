"""What is compiled while a benchmark runs: graphs by torch.compile, kernels by Triton; how many, and for how long.

A compilation within a timed run spoils its time. So they are counted there, and ought to be none.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from nanoinfer.kernels.available import has_triton


class TritonLog:
    """Kernels that Triton compiles, or loads from its cache on disk, within a `with`.

    `kernels` counts them by name; `seconds` is what it took in all. A kernel compiles once for each set of dtypes,
    compile-time constants and properties of its arguments (16 divides it; it is 1), on each device. Both hooks are
    triton.knobs', there since 3.4; other hooks than ours go on being called.
    """

    def __init__(self) -> None:
        self.kernels: Counter[str] = Counter()
        self.seconds = 0.0
        self._began = 0.0
        self._runtime: Any = None
        self._others: tuple[Any, Any] = (None, None)

    def __enter__(self) -> TritonLog:
        """Begin to count. Does nothing where there is no Triton."""
        if has_triton():
            from triton import knobs

            self._runtime = knobs.runtime
            self._others = (self._runtime.jit_cache_hook, self._runtime.jit_post_compile_hook)
            self._runtime.jit_cache_hook, self._runtime.jit_post_compile_hook = self._before, self._after
        return self

    def __exit__(self, *exception: object) -> None:
        """End, and put the hooks back that were there."""
        if self._runtime is not None:
            self._runtime.jit_cache_hook, self._runtime.jit_post_compile_hook = self._others

    def _before(self, **info: Any) -> Any:
        other = self._others[0]
        stops = other(**info) if other is not None else None  # a hook that says True keeps Triton from compiling
        self._began = time.perf_counter()
        return stops

    def _after(self, **info: Any) -> Any:
        self.seconds += time.perf_counter() - self._began
        self.kernels[info["fn"].name] += 1
        other = self._others[1]
        return other(**info) if other is not None else None


def torch_graphs() -> int:
    """Graphs that torch.compile has made in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def torch_seconds() -> float:
    """Seconds that torch.compile has taken in this process so far, tuning included."""
    from torch._dynamo.utils import calculate_time_spent

    return float(calculate_time_spent()["total_wall_time"])
