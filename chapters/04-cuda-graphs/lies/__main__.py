"""`python chapters/04-cuda-graphs/lies`: run the lies, print right and wrong output, exit 1 if one is no lie."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import torch

from nanobench.core.machine import stamp
from nanocourse.exercises.chapters import run_folder

running = run_folder(Path(__file__).resolve().parent)("running")


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
        print(f"{'story':17}the opening, with the model that ships")
        for lie in running.catalogue.LIES.values():
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
    told = running.run(asked.names or known, asked.device, show)
    if asked.json:
        lines = [one.model_copy(update={"error": one.error.rpartition("\n")[2]}) for one in told]
        running.LiesReport(told=lines, **stamp(torch.device(asked.device))).save(asked.json)
    odd = [one.name for one in told if not one.as_expected]
    print(f"{len(told) - len(odd)} of {len(told)} as expected" + (f"; not so: {', '.join(odd)}" if odd else ""))
    return 1 if odd else 0


def show(told: Any) -> None:
    """Print one lie with its outputs."""
    lie = running.LIES[told.name]
    print(f"{told.name}  {lie.entry}  {', '.join(lie.threads)}".rstrip())
    print(f"  {told.verdict}{'' if told.as_expected else ', UNEXPECTED'}")
    for side in told.sides:
        for at, line in enumerate(told.shown(side)):
            print(textwrap.fill(line, 110, initial_indent=f"  {'' if at else side:7}", subsequent_indent=" " * 9))
    if told.error:
        print(textwrap.indent(told.error, "    | "))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
