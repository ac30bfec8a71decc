"""What this machine has, found out without trusting that any of it works: every probe answers, none raises."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.hub import HUB_NAMES

LIBRARIES = ("tiktoken", "safetensors", "huggingface_hub")  # what the engine imports besides torch


def installed(name: str) -> str | None:
    """The version of a library, without importing it; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def probe_torch() -> dict[str, Any]:
    """Version, CUDA build and GPUs of torch; or why it cannot be imported."""
    found: dict[str, Any] = {"version": None, "cuda_build": None, "problem": None, "gpus": []}
    try:
        import torch

        found |= {"version": str(torch.__version__), "cuda_build": torch.version.cuda}
        if torch.cuda.is_available():
            found["gpus"] = [_gpu(torch, index) for index in range(torch.cuda.device_count())]
    except Exception as error:  # a broken build fails in any way it likes
        found["problem"] = f"torch cannot be used ({_first_line(error)}): install it again, see https://pytorch.org"
    return found


def _gpu(torch: Any, index: int) -> dict[str, Any]:
    capability = torch.cuda.get_device_capability(index)
    free, total = torch.cuda.mem_get_info(index)
    return {
        "name": torch.cuda.get_device_name(index),
        "capability": f"{capability[0]}.{capability[1]}",
        "free_bytes": free,
        "total_bytes": total,
    }


def probe_driver() -> str | None:
    """The NVIDIA driver's version, which is there or not whatever torch was built for."""
    with contextlib.suppress(OSError):  # Linux tells it without a program
        module = Path("/proc/driver/nvidia/version").read_text().split("\n")[0]
        if number := re.search(r"\s(\d+\.[\d.]+)\s", module):
            return number[1]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = answer.stdout.split("\n")
    return lines[0].strip() or None


def probe_triton() -> dict[str, Any]:
    """Whether Triton is installed, and what to do where it is not."""
    version, remedy = installed("triton"), None
    if version is None and sys.platform == "linux":
        remedy = "pip install triton"
    elif version is None:
        remedy = f"there are no wheels for {platform.system()}: use Linux, WSL2 or Colab"
    return {"version": version, "interpret": os.environ.get("TRITON_INTERPRET") == "1", "remedy": remedy}


def probe_hub() -> dict[str, Any]:
    """Where the hub's cache is, whether gpt2 lies in it, and whether the hub may be asked."""
    found: dict[str, Any] = {"cache": None, "gpt2_cached": False, "offline": False, "problem": None}
    try:
        import huggingface_hub
        from huggingface_hub import constants

        names = ("config.json", "model.safetensors")
        cached = [huggingface_hub.try_to_load_from_cache(HUB_NAMES["gpt2"], name) for name in names]
        found |= {"cache": str(constants.HF_HUB_CACHE), "offline": bool(constants.HF_HUB_OFFLINE)}
        found["gpt2_cached"] = all(isinstance(path, str) for path in cached)
    except Exception as error:
        found["problem"] = f"huggingface_hub cannot be used ({_first_line(error)}): pip install huggingface_hub"
    return found


def probe_run() -> str | None:
    """Generate one token on the CPU; None if that works, else what goes wrong."""
    try:
        from nanoinfer.llm import LLM
        from nanoinfer.requests import SamplingParams

        with LLM("random:tiny", engine="naive", device="cpu") as llm:
            llm.generate("x", SamplingParams(max_tokens=1))
    except Exception as error:
        return _first_line(error)
    return None


def weight_bytes(config: ModelConfig, size: int) -> int:
    """Bytes of the parameters with `size` bytes a number, the head's padding included."""
    return size * (config.parameters + (config.padded_vocab - config.vocab_size) * config.n_embd)


def cache_bytes_per_row(config: ModelConfig, size: int) -> int:
    """Bytes of keys and values of one row at full context."""
    return config.kv_numbers * config.n_positions * size


def batches(free: int, size: int) -> dict[str, int]:
    """Rows of full context whose keys and values fit beside each preset's weights; 0 where nothing fits."""
    rows = {}
    for name, config in PRESETS.items():
        left = free - weight_bytes(config, size)
        rows[name] = max(0, left // cache_bytes_per_row(config, size))
    return rows


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
