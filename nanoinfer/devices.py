"""Which device and which dtype a model is put on, and how much memory is left there. Chapter 1.

torch is imported by the functions that need it, so that `doctor` can ask for the rest where torch is broken.
"""

from __future__ import annotations

import contextlib
import os
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def choose_device(name: str | None) -> torch.device:
    """The named device, or for None a CUDA GPU where there is one. ValueError where it is not available."""
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {name} is not available: {why_no_cuda()}; use device cpu")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(f"device {name} is not available: there are {torch.cuda.device_count()} CUDA devices")
    return device


def why_no_cuda() -> str:
    """Why torch cannot reach a CUDA GPU here, as far as it can be told."""
    import torch

    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    return "torch finds no CUDA GPU, or no driver for one"


def choose_dtype(name: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """The named dtype; for None float32 on a CPU, bfloat16 on a GPU that computes in it, else float16."""
    import torch

    if name is None:
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    dtype: torch.dtype = getattr(torch, name) if isinstance(name, str) else name
    return dtype


def batched_tokens(device: torch.device) -> int:
    """Tokens of one step at most: enough to keep the device busy, and few enough that no row waits long for another."""
    return 256 if device.type == "cpu" else 2048


def has_triton() -> bool:
    """Whether Triton can be imported; there are no wheels of it for macOS and Windows."""
    return find_spec("triton") is not None


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on `device`; None where the operating system does not say."""
    import torch

    if device.type == "cpu":
        return free_host_memory()
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # held by torch, and not in use
    return free + unused


def free_host_memory(root: Path = Path("/")) -> int | None:
    """Bytes that programs can still get: Linux's own estimate, less where a container has a limit; None if unknown.

    root: of the file system, for tests. A limit counts files that were read as used; what it can drop of them is free.
    """
    free, own = None, PurePath()
    try:
        rows = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        free = int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", ()):
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, StopIteration):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        own = PurePath(next(line[4:] for line in lines if line.startswith("0::/")))
    for group in (root / "sys/fs/cgroup" / path for path in (own, *own.parents)):  # each may have a limit
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max", there is no limit
            room = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            room += int(stat.get("inactive_file", 0))
            free = room if free is None else min(free, room)
    return None if free is None else max(free, 0)
