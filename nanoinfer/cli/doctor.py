"""`nanoinfer doctor`: what this machine can run, and what stands in the way of the rest.

It works where nothing else does: without a GPU, without Triton, with a torch that is missing or broken. Every probe
answers, none raises.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import distributions
from typing import Any

from nanoinfer import __version__
from nanoinfer.capacity import free_host_memory
from nanoinfer.cli.errors import sentence
from nanoinfer.cli.options import with_options
from nanoinfer.cli.terminal import write
from nanoinfer.config import ENGINES, RECIPES, fastest
from nanoinfer.model.config import PRESETS
from nanoinfer.model.hub import HUB_NAMES

LIBRARIES = ("tiktoken", "safetensors", "huggingface_hub")  # what the engine imports besides torch
SCHEMA, SCHEMA_VERSION = "nanoinfer.doctor", 1
BATCH = (
    "Memory, and the largest batch: rows of full context whose keys and values fit beside the weights.\n"
    "It holds for the engines with a cache, chapters 2 and later; `naive` keeps none. Work space is not counted."
)


@with_options()
def doctor(*, as_json: bool = False) -> int:
    """Say what this machine can run, and why not the rest.

    as_json: one JSON object, for programs.

    Examples:
    nanoinfer doctor
    nanoinfer doctor --json
    Exit code: 0 where nanoinfer runs, at least on the CPU; 1 where it does not.
    """
    report = examine()
    write(json.dumps(report) + "\n" if as_json else show(report))
    return 0 if report["runs"] else 1


def examine() -> dict[str, Any]:
    """Everything that is known, as nanoinfer/data/doctor.schema.json describes it."""
    torch, driver, triton = probe_torch(), probe_driver(), probe_triton()
    missing = [name for name in LIBRARIES if installed(name) is None]
    problem = torch["problem"] or (f"pip install {' '.join(missing)}" if missing else probe_run())
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "runs": problem is None,
        "problem": problem,
        "nanoinfer": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "torch": torch,
        "driver": driver,
        "cuda_remedy": cuda_remedy(torch, driver),
        "triton": triton,
        "hub": probe_hub(),
        "memory": memory(torch["gpus"]),
        "engines": [engine(name, problem, bool(torch["gpus"]), triton) for name in ENGINES],
    }


def cuda_remedy(torch: dict[str, Any], driver: str | None) -> str | None:
    """What to do about a GPU that cannot be used; None where one can."""
    if torch["gpus"]:
        return None
    if driver is None:
        return "no NVIDIA driver answers here, so all runs on the CPU"
    if torch["problem"] is None and torch["cuda_build"] is None:
        return "there is a driver, but torch was built without CUDA: install a CUDA build, see https://pytorch.org"
    hidden = torch["problem"] is None and "CUDA_VISIBLE_DEVICES" in os.environ
    reason = "look at CUDA_VISIBLE_DEVICES" if hidden else "the driver may be too old for this torch"
    return f"there is a driver, but torch finds no GPU: {reason}"


def memory(gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Free memory of each device, and the largest batch of each preset there."""
    found: list[dict[str, Any]] = [{"device": "cpu", "dtype": "float32", "free_bytes": free_host_memory()}]
    for index, gpu in enumerate(gpus):
        dtype = "bfloat16" if float(gpu["capability"]) >= 8 else "float16"
        found.append({"device": f"cuda:{index}", "dtype": dtype, "free_bytes": gpu["free_bytes"]})
    return [one | {"batch": batches(one["free_bytes"], 4 if one["dtype"] == "float32" else 2)} for one in found]


def batches(free: int | None, size: int) -> dict[str, int] | None:
    """Rows of full context whose keys and values fit beside each preset's weights in `free` bytes, if that is known.

    size: bytes a number. The weights include the head's padding.
    """
    if free is None:
        return None
    weights = {name: one.parameters + (one.padded_vocab - one.vocab_size) * one.n_embd for name, one in PRESETS.items()}
    left = {name: max(0, free // size - weights[name]) for name in PRESETS}
    return {name: left[name] // (one.kv_numbers * one.n_positions) for name, one in PRESETS.items()}


def engine(name: str, problem: str | None, gpu: bool, triton: dict[str, Any]) -> dict[str, Any]:
    """Whether an engine runs here, and what it lacks or how it runs."""
    paged, graph = RECIPES[name].cache == "paged", RECIPES[name].launch == "graph"
    if problem is None and paged and gpu and triton["version"] is None:
        problem = f"needs Triton on a GPU: {triton['remedy']}"
    notes = ["the kernels' PyTorch reference runs" + ", or Triton's interpreter" * triton["interpret"]] * paged
    notes += ["no step is captured"] * graph
    note = "on a CPU " + " and ".join(notes) if notes and not gpu and problem is None else None
    return {"name": name, "runs": problem is None, "remedy": problem, "note": note}


def show(report: dict[str, Any]) -> str:
    """The report for a reader."""
    torch, triton, hub = report["torch"], report["triton"], report["hub"]
    cuda = f"built for CUDA {torch['cuda_build']}" if torch["cuda_build"] else "built without CUDA"
    unset = "unset HF_HUB_OFFLINE once and run `nanoinfer generate -m gpt2 hello`"
    fetch = unset if hub["offline"] else "the first `-m gpt2` fetches it (0.5 GB)"
    gpus = [f"{gpu['name']}, compute capability {gpu['capability']}" for gpu in torch["gpus"]]
    rows = [
        ("nanoinfer", report["nanoinfer"]),
        ("Python", f"{report['python']} on {report['platform']}"),
        ("torch", torch["problem"] or f"{torch['version']}, {cuda}"),
        ("NVIDIA driver", report["driver"] or ("unknown" if gpus else "none")),
        *([(f"GPU {index}", gpu) for index, gpu in enumerate(gpus)] or [("GPU", f"none: {report['cuda_remedy']}")]),
        ("Triton", triton["version"] or f"not installed: {triton['remedy']}"),
        ("TRITON_INTERPRET", "1: kernels are interpreted, which is slow" if triton["interpret"] else "not set"),
        ("hub cache", hub["problem"] or hub["cache"]),
        ("gpt2 in it", "yes" if hub["gpt2_cached"] else f"no: {fetch}"),
        ("HF_HUB_OFFLINE", "1: nothing is fetched" if hub["offline"] else "not set"),
        ("\nEngines", ""),
    ]
    for one in report["engines"]:
        said = ["runs" if one["runs"] else "does not run", one["remedy"] or one["note"]]
        rows.append((f"  {one['name']}", ": ".join(filter(None, said))))
    rows.append(("  auto", fastest(bool(gpus), triton["version"] is not None)))
    lines = [f"{name:<17} {value}".rstrip() for name, value in rows] + ["", BATCH]
    lines += [f"  {name:<12}" + "".join(f" {cell:>16}" for cell in cells) for name, *cells in table(report["memory"])]
    verdict = "nanoinfer runs here." if report["runs"] else f"nanoinfer does not run here: {report['problem']}."
    return "\n".join([*lines, "", verdict, ""])


def table(memory: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Largest batches, a row a preset and a column a device."""
    columns = [("", "free memory", *PRESETS)]
    for one in memory:
        free, batch = one["free_bytes"], one["batch"] or dict.fromkeys(PRESETS)
        cells = ["unknown" if rows is None else f"{rows:,}" if rows else "none fits" for rows in batch.values()]
        free_memory = "unknown" if free is None else f"{free / 2**30:.1f} GiB"
        columns.append((f"{one['device']} {one['dtype']}", free_memory, *cells))
    return zip(*columns, strict=True)


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
