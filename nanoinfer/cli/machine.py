"""What this machine has, found out without trusting that any of it works: every probe answers, none raises."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import distributions
from typing import Any

from nanoinfer.cli.errors import sentence
from nanoinfer.model.hub import HUB_NAMES

LIBRARIES = ("tiktoken", "safetensors", "huggingface_hub")  # what the engine imports besides torch


def installed(name: str) -> str | None:
    """The version of a library, without importing it; None where it is not installed."""
    return next((found.version for found in distributions(name=name)), None)


def probe_torch() -> dict[str, Any]:
    """Version, CUDA build and GPUs of torch; or why it cannot be imported."""
    found: dict[str, Any] = {"version": None, "cuda_build": None, "problem": None, "gpus": []}
    try:
        import torch

        found |= {"version": str(torch.__version__), "cuda_build": torch.version.cuda}
        for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            capability = "{}.{}".format(*torch.cuda.get_device_capability(index))
            free, total = torch.cuda.mem_get_info(index)
            gpu = {"name": torch.cuda.get_device_name(index), "capability": capability}
            found["gpus"].append(gpu | {"free_bytes": free, "total_bytes": total})
    except Exception as error:  # a broken build fails in any way it likes
        found["problem"] = f"torch cannot be used ({sentence(error)}): install it again, see https://pytorch.org"
    return found


def probe_driver() -> str | None:
    """The NVIDIA driver's version, which is there or not whatever torch was built for."""
    with suppress(OSError, subprocess.SubprocessError):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
        return answer.stdout.split("\n")[0].strip() or None
    return None


def probe_triton() -> dict[str, Any]:
    """Whether Triton is installed, and what to do where it is not."""
    found, no_wheel = installed("triton"), f"there are no wheels for {platform.system()}: use Linux, WSL2 or Colab"
    remedy = None if found else "pip install triton" if sys.platform == "linux" else no_wheel
    return {"version": found, "interpret": os.environ.get("TRITON_INTERPRET") == "1", "remedy": remedy}


def probe_hub() -> dict[str, Any]:
    """Where the hub's cache is, whether gpt2 lies in it, and whether the hub may be asked."""
    found: dict[str, Any] = {"cache": None, "gpt2_cached": False, "offline": False, "problem": None}
    try:
        from huggingface_hub import constants, try_to_load_from_cache

        found |= {"cache": str(constants.HF_HUB_CACHE), "offline": bool(constants.HF_HUB_OFFLINE)}
        names = ("config.json", "model.safetensors")
        found["gpt2_cached"] = all(isinstance(try_to_load_from_cache(HUB_NAMES["gpt2"], name), str) for name in names)
    except Exception as error:
        found["problem"] = f"huggingface_hub cannot be used ({sentence(error)}): pip install huggingface_hub"
    return found


def probe_run() -> str | None:
    """Generate one token on the CPU; None if that works, else what goes wrong."""
    try:
        from nanoinfer import LLM, SamplingParams

        with LLM("random:tiny", engine="naive", device="cpu") as llm:
            llm.generate("x", SamplingParams(max_tokens=1))
    except Exception as error:
        return sentence(error)
    return None
