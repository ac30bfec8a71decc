"""Where the time of one step goes, from a time line: what its kernels are for, and when none runs.

The profiler slows a step down, so each part's share is applied to the step's time without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanobench.micro.timeline import Kernel, StepTimeline

# The first part with a pattern in the kernel's name. Matrices have the libraries' names; all others are small.
PATTERNS = (
    ("attention", ("_attend_kernel", "_write_kernel", "sdpa", "flash_fwd", "fmha", "index_copy")),
    ("sums and norms", ("_add_norm_kernel", "layer_norm", "CUDAFunctor_add<c10", "CUDAFunctor_a", "Gelu")),
    ("sampling", ("_sample_kernel", "ArgMax", "native::reduce_kernel")),
    ("matrices", ("_linear_kernel", "nvjet", "gemm", "gemv", "cublas", "splitK")),
)
HEAD, SMALL, NONE = "the head", "small kernels", "nothing runs"
PARTS = ("matrices", HEAD, "attention", "sums and norms", "sampling", SMALL, NONE)


@dataclass(frozen=True)
class Part:
    """One part of a step: how many kernels it has, its share, and its seconds in a step without the profiler."""

    name: str
    kernels: int
    share: float
    seconds: float


def breakdown(step: StepTimeline) -> list[Part]:
    """Every part of a step, in a fixed order; shares add up to 1. ValueError for a step without kernels."""
    if not step.kernels:
        raise ValueError(f"{step.engine}: a time line of a CPU has no kernels to break down")
    names = [kernel.name for kernel in step.kernels]
    alone = _alone(step)
    time, count = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0)
    for kernel, us in zip(step.kernels, alone, strict=True):
        part = _part(kernel, names)
        time[part] += us
        count[part] += 1
    time[NONE] = step.duration_us - sum(alone)
    return [
        Part(name, count[name], us / step.duration_us, us / step.duration_us * step.unprofiled_us / 1e6)
        for name, us in time.items()
    ]


def _part(kernel: Kernel, names: list[str]) -> str:
    """What a kernel is for. The head is the one matrix kernel that occurs once a step; others occur in every layer."""
    for part, patterns in PATTERNS:
        if any(pattern in kernel.name for pattern in patterns):
            return HEAD if part == "matrices" and names.count(kernel.name) == 1 else part
    return SMALL


def _alone(step: StepTimeline) -> list[float]:
    """Microseconds of each kernel within the step's window that no earlier kernel has taken already."""
    until, found = 0.0, []
    for kernel in step.kernels:  # in the order in which they begin
        end = min(kernel.start_us + kernel.duration_us, step.duration_us)
        found.append(max(0.0, end - max(until, kernel.start_us)))
        until = max(until, end)
    return found
