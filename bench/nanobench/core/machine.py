"""The device that is measured: its name and versions, clocks, memory, and the bandwidth that it reaches."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from nanobench.core.records import Clocks, Machine, Memory
from nanobench.core.timing import seconds
from nanoinfer.devices import choose_device, choose_dtype

LAUNCH = re.compile(r"(cuda|cu|hip)\w*Launch")  # cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch, ...


def stamp(device: torch.device, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Date, commit and machine: what every results file states; and dtype, where one holds for the whole file."""
    today = datetime.now(timezone.utc).date().isoformat()
    known = {"date": today, "commit": commit(), "machine": describe(device)}
    return known if dtype is None else {"dtype": str(dtype).removeprefix("torch."), **known}


def place(name: str | None) -> tuple[torch.device, torch.dtype]:
    """The device of that name, and what it computes best in."""
    device = choose_device(name)
    return device, choose_dtype(None, device)


def cuda(name: str | None, otherwise: str) -> torch.device:
    """The device of that name. ValueError, with that sentence, where it is no CUDA GPU."""
    device = choose_device(name)
    if device.type != "cuda":
        raise ValueError(otherwise)
    return device


def describe(device: torch.device) -> Machine:
    """Device, driver and versions, as far as they can be read."""
    cpu = _cpu_name()
    own: dict[str, Any] = {"device": cpu, "memory_bytes": 0}
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        own = {
            "device": gpu.name, "capability": f"{gpu.major}.{gpu.minor}", "memory_bytes": gpu.total_memory,
            "l2_bytes": gpu.L2_cache_size, "driver": _driver(),
        }  # fmt: skip
    elif hasattr(os, "sysconf"):
        own["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        kind="cuda" if device.type == "cuda" else "cpu", cpu=cpu, cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(), power=_power(), os=platform.platform(terse=True),
        python=platform.python_version(), torch=torch.__version__, cuda=torch.version.cuda, triton=_version("triton"),
        transformers=_version("transformers"), **own,
    )  # fmt: skip


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read plus written a second by a large copy: the device's own limit, best of several."""
    size = 2**31 if device.type == "cuda" else 2**27
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(seconds(partial(target.copy_, source), device, 4) for _ in range(8))


def import_seconds() -> float:
    """Seconds that a fresh process takes to import torch and the engine."""
    code = "import time; t = time.perf_counter(); import nanoinfer.engine.engine; print(time.perf_counter() - t)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=child_environment()
    )
    return float(done.stdout)


def child_environment() -> dict[str, str]:
    """The environment of a child process that imports what this one can, in a clone that is not installed too."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def launches(run: Callable[[], object]) -> tuple[int, int]:
    """Kernels that `run` has the GPU compute, and calls that launch them, by torch's profiler.

    A replayed graph is one call. Copies and fills of memory are not counted.
    """
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    events = list(profiler.events() or ())
    on_gpu = [event.name for event in events if event.device_type == DeviceType.CUDA]
    calls = sum(event.device_type == DeviceType.CPU and bool(LAUNCH.match(event.name)) for event in events)
    return sum(not name.startswith(("Memcpy", "Memset")) for name in on_gpu), calls


def memory_now(device: torch.device, peak: bool = False) -> Memory | None:
    """Bytes in use, or torch's peak since the last reset; None on a CPU, where the rest of the process counts too."""
    if device.type == "cpu":
        return None
    free, total = torch.cuda.mem_get_info(device)
    most = "max_" if peak else ""
    used = {name: getattr(torch.cuda, f"{most}memory_{name}")(device) for name in ("allocated", "reserved")}
    return Memory(**used, driver=total - free)


class ClockLog:
    """Clocks and throttle reasons of a GPU, through nvidia-ml-py where it is installed."""

    def __init__(self, device: torch.device) -> None:
        self._handle: Any = None
        if device.type == "cuda":
            with contextlib.suppress(Exception):  # no library, no driver, no rights: then the log stays empty
                import pynvml

                pynvml.nvmlInit()
                self._nvml = pynvml
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(device.index or 0)
        self._mhz: list[int] = []
        self._reasons: set[str] = set()

    def sample(self) -> None:
        """Read the clock now."""
        if self._handle is None:
            return
        nvml = self._nvml
        self._mhz.append(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM))
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        for name in ("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"):
            if mask & getattr(nvml, f"nvmlClocksThrottleReason{name}", 0):
                self._reasons.add(name)

    def take(self) -> Clocks | None:
        """What was sampled since the last call."""
        if not self._mhz:
            return None
        clocks = Clocks(sm_mhz_min=min(self._mhz), sm_mhz_max=max(self._mhz), throttled=tuple(sorted(self._reasons)))
        self._mhz, self._reasons = [], set()
        return clocks


def commit() -> str:
    """The checkout's commit, with `+` where files differ from it. NANOINFER_COMMIT sets it for a copy of a checkout."""
    if said := os.environ.get("NANOINFER_COMMIT"):
        return said
    try:
        git = ["git", "-C", str(Path(__file__).parent)]
        name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
        return name.stdout.strip() + ("+" if dirty.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _driver() -> str | None:
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return None


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _power() -> str:
    """Mains or battery, where the operating system says so."""
    supplies = Path("/sys/class/power_supply")
    with contextlib.suppress(OSError):
        states = [p.read_text().strip() for p in supplies.glob("*/status")]
        if "Discharging" in states:
            return "battery"
        if states or any(p.read_text().strip() == "1" for p in supplies.glob("*/online")):
            return "mains"
    return "unknown"
