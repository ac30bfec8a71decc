"""How much a device can take: tokens of a step, rows of a captured one, and what memory is left.

torch is imported by the functions that need it, so that `doctor` can ask for the rest where torch is broken.
"""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from nanoinfer.model.gpt2 import GPT2

MEMORY_SHARE = 0.1  # of free memory that a captured step may take


def batched_tokens(device: torch.device) -> int:
    """Tokens of one step at most: enough to keep the device busy, and few enough that no row waits long for another."""
    return 256 if device.type == "cpu" else 2048


def affordable_rows(model: GPT2) -> int:
    """Rows of a step that may be captured without taking more than a tenth of the memory that is free now.

    A step's largest tensors are its logits, twice in float32 where a sampler filters them, and the widest sublayer's.
    """
    free = free_memory(model.device)
    per_row = 12 * model.config.padded_vocab + 16 * model.config.inner
    return 2**31 if free is None else int(free * MEMORY_SHARE) // per_row


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
    with contextlib.suppress(OSError, ValueError, KeyError):  # not every system that has the file has all of its lines
        rows = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        free = int(rows["MemAvailable"].split()[0]) * 1024
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
