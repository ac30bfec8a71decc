"""Planted mistakes: draw mutants of the engine, run the tests that execute each, and compare two runs.

    python -m nanobook.mutation draw                  # writes tests/mutants.json, before any test is changed
    COVERAGE_FILE=FOLDER/combined pytest -q -n 2 -p nanobook.subprocess_coverage --cov=nanoinfer \
        --cov-config=tests/coverage-by-test.ini --cov-context=test --cov-report= \
        --durations=0 --durations-min=0.05 >FOLDER/run.log
    python -m nanobook.mutation run FOLDER            # appends to FOLDER/results.jsonl, and resumes there
    python -m nanobook.mutation table BEFORE AFTER    # names the mistakes that only BEFORE caught

Each runs in the root of the checkout that it measures; FOLDER is absolute and outside of it. A mutant is stored by its
function and by the statement that it replaces, so it still applies after the code has moved. `run` names the mutants
that no longer apply.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from nanobook import mutation_run
from nanobook.planted import ENGINE, drawn, load

Stored = Annotated[Path, typer.Option("--mutants", help="File of the mutants.")]
STORED = Path("tests/mutants.json")


def results(path: Path) -> dict[int, dict[str, Any]]:
    """What a run found, by the number of the mutant."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result["mutant"]: result for result in map(json.loads, lines)}


app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command()
def draw(count: int = 200, seed: int = 0, path: Stored = STORED) -> None:
    """Draw mutants of the engine in equal numbers from each module that has functions."""
    entries = [json.dumps(asdict(mutant), ensure_ascii=False) for mutant in drawn(ENGINE, count, seed)]
    path.write_text("[\n" + ",\n".join(entries) + "\n]\n", encoding="utf-8")


@app.command()
def run(
    folder: Path,
    path: Stored = STORED,
    seconds: Annotated[float, typer.Option(help="Time of the tests chosen for one mutant.")] = 60.0,
    jobs: int = 2,
) -> None:
    """Run the tests that execute each mutant, those that are fast first, until five have failed."""
    found = load(path)
    done = results(folder / "results.jsonl")
    left = [(at, mutant) for at, mutant in enumerate(found) if at not in done]
    mutation_run.run(left, folder.resolve(), seconds, jobs)


@app.command()
def table(before: Path, after: Path, path: Stored = STORED) -> None:
    """Compare two runs; exit code 1 where a mistake that was caught before is caught no longer."""
    runs = [results(path) for path in (before, after)]
    statuses = sorted({result["status"] for each in runs for result in each.values()})
    print("| mutants | before | after |\n| --- | ---: | ---: |")
    for status in statuses:
        counts = [Counter(result["status"] for result in each.values())[status] for each in runs]
        print(f"| {status} | {counts[0]} | {counts[1]} |")
    print("| seconds | " + " | ".join(f"{sum(r['seconds'] for r in each.values()):.0f}" for each in runs) + " |")
    freed = 0
    for at, mutant in enumerate(load(path)):
        was, now = (each.get(at, {"status": "not run"})["status"] for each in runs)
        if was == "caught" != now:
            freed += 1
            print(f"{at}: {mutant.file} {mutant.function}, `{mutant.name}`: {now}")
    raise typer.Exit(1 if freed else 0)


if __name__ == "__main__":
    app()
