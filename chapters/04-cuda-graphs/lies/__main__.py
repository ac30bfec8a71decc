"""`python chapters/04-cuda-graphs/lies`: run the lies, print right and wrong output, exit 1 if one is no lie."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from nanocourse.exercises.chapters import run_folder  # noqa: E402

lies = run_folder(Path(__file__).resolve().parent)
catalogue, running = lies("catalogue"), lies("running")


def main() -> int:
    """Exit code 0 where every lie lied, and every right one did not; 1 where not; 2 for what cannot be done."""
    parser = argparse.ArgumentParser(prog="lies", description="Graphs that lied, run.")
    parser.add_argument("names", nargs="*", help="which ones; all by default")
    parser.add_argument("--list", action="store_true", help="list them, and run none")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a results file")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # by this program itself, for a process of its own
    asked = parser.parse_args()
    if asked.list:
        print(f"{running.STORY:12}     the opening, with the model that ships")
        for lie in catalogue.LIES.values():
            print(f"{lie.name:12}{lie.entry:5}{', '.join(lie.threads)}")
        return 0
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA GPU here: --device cpu runs the lies by the stand-in")
    known = running.names(asked.device)
    if unknown := [name for name in asked.names if name not in known]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(known)} on this device")
    if asked.one:
        for part, value in running.tell(asked.one, asked.device):
            print(json.dumps({"part": part, "value": value}), flush=True)
        os._exit(0)  # a capture that has failed may not let the process end
    told = running.run(asked.names or known, asked.device, lambda one: show(one, asked.device))
    if asked.json:
        lies("report").save(told, asked.device, asked.json)
    odd = [one.name for one in told if not one.expected(asked.device)]
    print(f"{len(told) - len(odd)} of {len(told)} as expected" + (f"; not so: {', '.join(odd)}" if odd else ""))
    return 1 if odd else 0


def show(told: Any, device: str) -> None:
    """Print one lie with its outputs."""
    lie = catalogue.LIES.get(told.name)
    print(f"{told.name}  {lie.entry}  {', '.join(lie.threads)}".rstrip() if lie else told.name)
    print(f"  {told.verdict}{'' if told.expected(device) else ', UNEXPECTED'}")
    for side, lines in told.sides.items():
        cost = told.costs.get(side)
        costs = [] if cost is None else [f"{cost * 1e6:.1f} µs" if device == "cuda" else f"{cost:.0f} operations"]
        for at, line in enumerate([*map(running.quoted, lines), *costs]):
            print(textwrap.fill(line, 110, initial_indent=f"  {side if at == 0 else '':7}", subsequent_indent=" " * 9))
    if told.error:
        print(textwrap.indent(told.error, "    | "))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
