"""Where the time of one step goes, by cause, read off a time line: what its kernels are for, and when none runs.

The profiler slows a step down, so each cause's share is applied to the step's time without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanobench.micro.timeline import Kernel, StepTimeline

# The first whose pattern is in a kernel's name. Matrices by the libraries' names for them; what fits none is small.
PATTERNS = (
    ("attention", ("_attend_kernel", "_write_kernel", "sdpa", "flash_fwd", "fmha", "index_copy")),
    ("sums and norms", ("_add_norm_kernel", "layer_norm", "CUDAFunctor_add<c10", "CUDAFunctor_a", "Gelu")),
    ("sampling", ("_sample_kernel", "ArgMax", "native::reduce_kernel")),
    ("matrices", ("_linear_kernel", "nvjet", "gemm", "gemv", "cublas", "splitK")),
)
HEAD, SMALL, NONE = "the head", "small kernels", "nothing runs"
CAUSES = ("matrices", HEAD, "attention", "sums and norms", "sampling", SMALL, NONE)


@dataclass(frozen=True)
class Cause:
    """One cause: its share of the step, its kernels on the window, and its seconds of a step without the profiler."""

    name: str
    kernels: int
    share: float
    seconds: float


def causes(step: StepTimeline) -> list[Cause]:
    """Every cause of a step, in a fixed order; shares add up to 1. ValueError for a step without kernels."""
    if not step.kernels:
        raise ValueError(f"{step.engine}: a time line of a CPU has no kernels, so there are no causes to tell")
    names = [kernel.name for kernel in step.kernels]
    alone = _alone(step)
    time, count = dict.fromkeys(CAUSES, 0.0), dict.fromkeys(CAUSES, 0)
    for kernel, us in zip(step.kernels, alone, strict=True):
        cause = _cause(kernel, names)
        time[cause] += us
        count[cause] += 1
    time[NONE] = step.duration_us - sum(alone)
    return [
        Cause(
            name, count[name], time[name] / step.duration_us, time[name] / step.duration_us * step.unprofiled_us / 1e6
        )
        for name in CAUSES
    ]


def _cause(kernel: Kernel, names: list[str]) -> str:
    """What a kernel is for. The head is the one matrix kernel that occurs once a step; a layer's occur in each."""
    for cause, patterns in PATTERNS:
        if any(pattern in kernel.name for pattern in patterns):
            return HEAD if cause == "matrices" and names.count(kernel.name) == 1 else cause
    return SMALL


def _alone(step: StepTimeline) -> list[float]:
    """Microseconds of each kernel within the step's window that no earlier kernel has taken already."""
    until, found = 0.0, []
    for kernel in step.kernels:  # in the order in which they begin
        end = min(kernel.start_us + kernel.duration_us, step.duration_us)
        found.append(max(0.0, end - max(until, kernel.start_us)))
        until = max(until, end)
    return found
