"""`nanoinfer doctor`: what this machine can run, and what stands in the way of the rest.

It works where nothing else does: without a GPU, without Triton, with a torch that is missing or broken.
"""

from __future__ import annotations

import json
import os
import platform
from typing import Annotated, Any

import typer

from nanoinfer import __version__
from nanoinfer.cli import machine
from nanoinfer.cli.terminal import Output
from nanoinfer.devices import free_host_memory
from nanoinfer.llm import ENGINES
from nanoinfer.model.config import PRESETS

EPILOG = """\
Examples:

nanoinfer doctor

nanoinfer doctor --json

Exit code: 0 where nanoinfer runs, at least on the CPU; 1 where it does not."""

SCHEMA, SCHEMA_VERSION = "nanoinfer.doctor", 1


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> int:
    """Say what this machine can run, and why not the rest."""
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
    if torch["problem"] is None and os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        return "there is a driver, but torch finds no GPU: look at CUDA_VISIBLE_DEVICES"
    return "there is a driver, but torch finds no GPU: the driver may be too old for this torch"


def memory(torch: dict[str, Any]) -> list[dict[str, Any]]:
    """Free memory of each place, and the batch of full-context rows that it gives for each preset."""
    places = [("cpu", free_host_memory(), "float32")]
    for index, gpu in enumerate(torch["gpus"]):
        dtype = "bfloat16" if int(gpu["capability"].split(".")[0]) >= 8 else "float16"
        places.append((f"cuda:{index}", gpu["free_bytes"], dtype))
    sizes = {"float32": 4, "bfloat16": 2, "float16": 2}
    return [
        {
            "device": device,
            "dtype": dtype,
            "free_bytes": free,
            "batch": None if free is None else machine.batches(free, sizes[dtype]),
        }
        for device, free, dtype in places
    ]


def engines(problem: str | None, gpu: bool, triton: dict[str, Any]) -> list[dict[str, Any]]:
    """Each engine of this version: whether it runs here, and what it lacks or how it runs."""
    found = []
    for name in ENGINES:
        remedy, notes = problem, []
        if remedy is None and name.startswith("paged"):
            if gpu and triton["version"] is None:
                remedy = f"needs Triton on a GPU: {triton['remedy']}"
            elif not gpu:
                notes.append("the kernels' PyTorch twins run" + (", or Triton's interpreter" * triton["interpret"]))
        if name.endswith("-graph") and not gpu:
            notes.append("no step is captured")
        note = "on a CPU " + " and ".join(notes) if notes and remedy is None else None
        found.append({"name": name, "runs": remedy is None, "remedy": remedy, "note": note})
    return found


def show(report: dict[str, Any]) -> str:
    """The report for a reader."""
    torch, triton, hub = report["torch"], report["triton"], report["hub"]
    rows = [
        ("nanoinfer", report["nanoinfer"]),
        ("Python", f"{report['python']} on {report['platform']}"),
        ("torch", torch["problem"] or f"{torch['version']}, {_cuda_build(torch)}"),
        ("NVIDIA driver", report["driver"] or ("unknown" if torch["gpus"] else "none")),
    ]
    for index, gpu in enumerate(torch["gpus"]):
        rows.append((f"GPU {index}", f"{gpu['name']}, compute capability {gpu['capability']}"))
    if not torch["gpus"]:
        rows.append(("GPU", f"none: {report['cuda_remedy']}"))
    rows += [
        ("Triton", triton["version"] or f"not installed: {triton['remedy']}"),
        ("TRITON_INTERPRET", "1: kernels are interpreted, which is slow" if triton["interpret"] else "not set"),
        ("hub cache", hub["problem"] or hub["cache"]),
        ("gpt2 in it", "yes" if hub["gpt2_cached"] else _gpt2_remedy(hub)),
        ("HF_HUB_OFFLINE", "1: nothing is fetched" if hub["offline"] else "not set"),
    ]
    text = "".join(f"{name:<17} {value}\n" for name, value in rows)
    text += "\nEngines\n" + "".join(_engine_line(engine) for engine in report["engines"])
    text += "\n" + _batch_table(report["memory"])
    verdict = "nanoinfer runs here." if report["runs"] else f"nanoinfer does not run here: {report['problem']}."
    return f"{text}\n{verdict}\n"


def _cuda_build(torch: dict[str, Any]) -> str:
    return f"built for CUDA {torch['cuda_build']}" if torch["cuda_build"] else "built without CUDA"


def _gpt2_remedy(hub: dict[str, Any]) -> str:
    if hub["offline"]:
        return "no: unset HF_HUB_OFFLINE once and run `nanoinfer generate -m gpt2 hello`"
    return "no: the first `-m gpt2` fetches it (0.5 GB)"


def _engine_line(engine: dict[str, Any]) -> str:
    said = engine["remedy"] or engine["note"]
    return f"  {engine['name']:<12} {'runs' if engine['runs'] else 'does not run'}{': ' + said if said else ''}\n"


def _batch_table(memory: list[dict[str, Any]]) -> str:
    """Rows of full context by preset and place."""
    heads = [f"{place['device']} {place['dtype']}" for place in memory]
    free = ["unknown" if place["free_bytes"] is None else f"{place['free_bytes'] / 2**30:.1f} GiB" for place in memory]
    lines = [("free memory", free)]
    for name in PRESETS:
        cells = []
        for place in memory:
            rows = None if place["batch"] is None else place["batch"][name]
            cells.append("unknown" if rows is None else f"{rows:,}" if rows else "none fits")
        lines.append((name, cells))
    lines.insert(0, ("", heads))
    table = "".join(f"  {name:<12}" + "".join(f" {cell:>16}" for cell in cells) + "\n" for name, cells in lines)
    return (
        "Memory, and the largest batch: rows of full context whose keys and values fit beside the weights.\n"
        "It holds for the engines with a cache, chapters 2 and later; `naive` keeps none. Work space is not counted.\n"
        + table
    )
