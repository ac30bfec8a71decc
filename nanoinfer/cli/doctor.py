"""`nanoinfer doctor`: what this machine can run, and what stands in the way of the rest.

It works where nothing else does: without a GPU, without Triton, with a torch that is missing or broken.
"""

from __future__ import annotations

import json
import os
import platform
from typing import Any

from nanoinfer import __version__
from nanoinfer.capacity import free_host_memory
from nanoinfer.cli import machine
from nanoinfer.cli.options import with_options
from nanoinfer.cli.terminal import Output
from nanoinfer.config import ENGINES, RECIPES, fastest
from nanoinfer.model.config import PRESETS, ModelConfig

SCHEMA, SCHEMA_VERSION = "nanoinfer.doctor", 1


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
    Output().write(json.dumps(report) + "\n" if as_json else show(report))
    return 0 if report["runs"] else 1


def examine() -> dict[str, Any]:
    """Everything that is known, as nanoinfer/data/doctor.schema.json describes it."""
    torch, driver, triton = machine.probe_torch(), machine.probe_driver(), machine.probe_triton()
    missing = [name for name in machine.LIBRARIES if machine.installed(name) is None]
    problem = torch["problem"] or (f"pip install {' '.join(missing)}" if missing else machine.probe_run())
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
        "hub": machine.probe_hub(),
        "memory": memory(torch),
        "engines": engines(problem, bool(torch["gpus"]), triton),
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


def memory(torch: dict[str, Any]) -> list[dict[str, Any]]:
    """Free memory of each device, and the batch of full-context rows that it gives for each preset."""
    devices = [("cpu", free_host_memory(), "float32")]
    for index, gpu in enumerate(torch["gpus"]):
        devices.append((f"cuda:{index}", gpu["free_bytes"], "bfloat16" if float(gpu["capability"]) >= 8 else "float16"))
    found = []
    for device, free, dtype in devices:
        batch = None if free is None else batches(free, 4 if dtype == "float32" else 2)
        found.append({"device": device, "dtype": dtype, "free_bytes": free, "batch": batch})
    return found


def batches(free: int, size: int) -> dict[str, int]:
    """Rows of full context whose keys and values fit beside each preset's weights in `free` bytes.

    size: bytes a number.
    """
    left = {name: max(0, free - weight_bytes(config, size)) for name, config in PRESETS.items()}
    return {name: left[name] // cache_bytes_per_row(config, size) for name, config in PRESETS.items()}


def weight_bytes(config: ModelConfig, size: int) -> int:
    """Bytes of the parameters, the head's padding included."""
    return size * (config.parameters + (config.padded_vocab - config.vocab_size) * config.n_embd)


def cache_bytes_per_row(config: ModelConfig, size: int) -> int:
    """Bytes of keys and values of one row at full context."""
    return size * config.kv_numbers * config.n_positions


def engines(problem: str | None, gpu: bool, triton: dict[str, Any]) -> list[dict[str, Any]]:
    """Each engine of this version: whether it runs here, and what it lacks or how it runs."""
    found = []
    for name in ENGINES:
        paged, graph, remedy = RECIPES[name].cache == "paged", RECIPES[name].launch == "graph", problem
        if remedy is None and paged and gpu and triton["version"] is None:
            remedy = f"needs Triton on a GPU: {triton['remedy']}"
        notes = ["the kernels' PyTorch reference runs" + ", or Triton's interpreter" * triton["interpret"]] * paged
        notes += ["no step is captured"] * graph
        note = "on a CPU " + " and ".join(notes) if notes and not gpu and remedy is None else None
        found.append({"name": name, "runs": remedy is None, "remedy": remedy, "note": note})
    return found


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
    ]
    lines = [f"{name:<17} {value}" for name, value in rows] + ["", "Engines"]
    for engine in report["engines"]:
        said = ["runs" if engine["runs"] else "does not run", engine["remedy"] or engine["note"]]
        lines.append(f"  {engine['name']:<12} {': '.join(filter(None, said))}")
    lines.append(f"  {'auto':<12} {fastest(bool(gpus), triton['version'] is not None)}")
    verdict = "nanoinfer runs here." if report["runs"] else f"nanoinfer does not run here: {report['problem']}."
    return "\n".join([*lines, "", *batch_table(report["memory"]), "", verdict, ""])


def batch_table(memory: list[dict[str, Any]]) -> list[str]:
    """Rows of full context by preset and device, line by line."""
    columns = [["", "free memory", *PRESETS]]
    for place in memory:
        free, batch = place["free_bytes"], place["batch"] or dict.fromkeys(PRESETS)
        cells = ["unknown" if rows is None else f"{rows:,}" if rows else "none fits" for rows in batch.values()]
        free_memory = "unknown" if free is None else f"{free / 2**30:.1f} GiB"
        columns.append([f"{place['device']} {place['dtype']}", free_memory, *cells])
    table = [f"  {name:<12}" + "".join(f" {cell:>16}" for cell in cells) for name, *cells in zip(*columns, strict=True)]
    return [
        "Memory, and the largest batch: rows of full context whose keys and values fit beside the weights.",
        "It holds for the engines with a cache, chapters 2 and later; `naive` keeps none. Work space is not counted.",
        *table,
    ]
