"""compute-sanitizer's memcheck and racecheck over every kernel, and over a planted overrun that it must catch.

The tool comes with CUDA. Every tensor gets an allocation of its own (PYTORCH_NO_CUDA_MEMORY_CACHING=1) with padding
behind it. Otherwise an overrun would land within the many megabytes that PyTorch allocates at once, and go unnoticed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from nanobench.core.machine import child_environment
from nanobench.core.records import Record, Saved
from nanobench.micro.sanitize_cases import CASES, PLANTED
from nanoinfer.cli.options import output_file

FOUND = 86  # exit code of the tool when it has found something
PADDING = 64 * 1024  # unused bytes behind each allocation
SECONDS = 500
REFUSALS = ("Device not supported", "not supported on this", "Unable to launch", "Failed to initialize")
Tool = Literal["memcheck", "racecheck"]


class Finding(Record):
    """What one tool found in some cases."""

    tool: Tool
    cases: tuple[str, ...]
    expected: int  # errors: 0, or at least this many
    errors: int | None  # None where the output could not be read
    first: str = ""  # the first thing that it found

    @property
    def as_expected(self) -> bool:
        """Clean where it should be, caught where it should be."""
        if self.errors is None:
            return False
        return self.errors >= self.expected if self.expected else self.errors == 0


class SanitizeReport(Saved):
    """One run of `python -m bench sanitize`."""

    kind: Literal["sanitize"] = "sanitize"
    tool: str  # its version
    findings: tuple[Finding, ...]


Run = subprocess.CompletedProcess[str]
Execute = Callable[[Sequence[str]], Run]


def measure(
    out: Annotated[
        Path | None, typer.Option(parser=output_file, metavar="FILE", help="Results file; none by default.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Names of cases, comma-separated; by default all.")] = None,
) -> None:
    """Run the tools; exit code 1 where something is not as expected."""
    raise typer.Exit(sanitize(only.split(",") if only else None, out))


def sanitize(only: Sequence[str] | None = None, out: Path | None = None, execute: Execute | None = None) -> int:
    """Run the tools and print a table. 0 where all is as expected, 1 where something is not.

    only: names of cases. ValueError for an unknown one, and where there is no tool, or it refuses the machine.
    """
    names = tuple(only or CASES)
    for name in names:
        if name not in CASES:
            raise ValueError(f"case must be one of {'; '.join(CASES)}, not {name!r}")
    program, execute = find(), execute or _execute
    version = execute([program, "--version"]).stdout.strip().splitlines()
    findings = []
    for tool, cases, expected in (("memcheck", names, 0), ("racecheck", names, 0), ("memcheck", tuple(PLANTED), 1)):
        finding = _check(program, tool, cases, expected, execute)  # type: ignore[arg-type]
        verdict = "as expected" if finding.as_expected else "NOT AS EXPECTED"
        said = "no answer" if finding.errors is None else f"{finding.errors} errors"
        print(f"{tool:10} {', '.join(cases)}: {said}, {verdict}{': ' + finding.first if finding.first else ''}")
        findings.append(finding)
    report = SanitizeReport(tool=version[-1] if version else "unknown", findings=tuple(findings))
    if out is not None:
        report.save(out)
    return 0 if all(finding.as_expected for finding in findings) else 1


def find() -> str:
    """The path of the tool. ValueError where it is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin", "/opt/cuda/bin"])
    program = shutil.which("compute-sanitizer", path=path)
    if program is None:
        raise ValueError("compute-sanitizer is not installed: it comes with the CUDA toolkit; nothing was checked")
    return program


def _check(program: str, tool: Tool, cases: Sequence[str], expected: int, execute: Execute) -> Finding:
    options = [f"--tool={tool}", f"--error-exitcode={FOUND}", "--print-limit=20"]
    if tool == "memcheck":
        options += [f"--padding={PADDING}", "--report-api-errors=no"]  # torch asks for symbols that the driver may lack
    done = execute([program, *options, sys.executable, "-m", "nanobench.micro.sanitize_cases", *cases])
    for refusal in REFUSALS:
        if refusal in done.stdout:
            raise ValueError(f"compute-sanitizer refuses this machine ({refusal}); nothing was checked")
    found = re.search(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", done.stdout)
    errors = int(found[1] or found[2]) if found else None
    ran = done.stdout.count("ran: ")
    if expected == 0 and errors == 0 and (done.returncode != 0 or ran != len(cases)):
        errors = None  # the program itself failed: that the tool found nothing means nothing
    lines = [line.lstrip("= ") for line in done.stdout.splitlines() if line.startswith("=========")]
    first = next((line for line in lines if re.match(r"(Invalid|Error|Race|Program hit|Out-of)", line)), "")
    if errors is None:
        first = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else f"exit code {done.returncode}"
    return Finding(tool=tool, cases=tuple(cases), expected=expected, errors=errors, first=first[:200])


def _execute(command: Sequence[str]) -> Run:
    """Run a command in which every tensor gets an allocation of its own."""
    environment = {**child_environment(), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        return subprocess.run(
            list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
            env=environment, timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Run(command, 124, f"still running after {SECONDS} s")
