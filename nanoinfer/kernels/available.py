"""Which kernels run here: there are no wheels of Triton for macOS and Windows. Chapter 3."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def has_triton() -> bool:
    """Whether Triton can be imported."""
    return find_spec("triton") is not None


def kernels_for(device: torch.device) -> Any:
    """Return Triton's kernels on a GPU and under its interpreter, the same in PyTorch elsewhere."""
    if os.environ.get("TRITON_INTERPRET") == "1" or (device.type == "cuda" and has_triton()):
        from nanoinfer.kernels import paged_attention

        return paged_attention
    from nanoinfer.kernels import paged_attention_torch

    return paged_attention_torch
