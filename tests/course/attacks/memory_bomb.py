"""1.1: two gigabytes, as a list, as a tensor, as shared pages and as a file in memory."""

import mmap
import os

import torch

SIZE = 2 << 30


def attention(q, k, v, positions):
    def in_memory():
        fd = os.memfd_create("x")
        os.truncate(fd, SIZE)

    told = []
    for name, act in (
        ("bytes", lambda: bytearray(SIZE)),
        ("tensor", lambda: torch.zeros(SIZE, dtype=torch.uint8)),
        ("shared", lambda: mmap.mmap(-1, SIZE)),
        ("memfd", in_memory),
    ):
        try:
            act()
            told.append(f"{name}: DONE")
        except (MemoryError, RuntimeError, OSError) as error:
            told.append(f"{name}: {getattr(error, 'strerror', None) or type(error).__name__}")
    return "; ".join(told)
