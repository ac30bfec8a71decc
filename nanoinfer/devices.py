"""Which device and which dtype a model is put on. Chapter 1."""

from __future__ import annotations

import torch


def choose_device(name: str | None) -> torch.device:
    """The named device, or for None a CUDA GPU where there is one. ValueError where it is not available."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            built = torch.version.cuda is not None
            why = "torch finds no CUDA GPU, or no driver for one" if built else "this torch was built without CUDA"
            raise ValueError(f"device {name} is not available: {why}; use device cpu")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(f"device {name} is not available: there are {torch.cuda.device_count()} CUDA devices")
    return device


def choose_dtype(name: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """The named dtype; for None float32 on a CPU, bfloat16 on a GPU that computes in it, else float16."""
    if name is None:
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    dtype: torch.dtype = getattr(torch, name) if isinstance(name, str) else name
    return dtype
