"""1.1: two gigabytes, as a list, as a tensor, as shared pages and as a file in memory."""

import mmap
import os

import torch
from attempts import told

SIZE = 2 << 30


def attention(q, k, v, positions):
    return told({
        "bytes": lambda: bytearray(SIZE),
        "tensor": lambda: torch.zeros(SIZE, dtype=torch.uint8),
        "shared": lambda: mmap.mmap(-1, SIZE),
        "memfd": lambda: os.truncate(os.memfd_create("x"), SIZE),
    })  # fmt: skip
