"""`python -m nanobook`: hold the book's pages to source and results, draw its diagrams, run its notebooks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nanobench.errors import Commands

Root = Annotated[Path, typer.Option(help="Folder of the repository.")]
Check = Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 where something is stale.")]


class BookCommands(Commands):
    """Whose packages are those of the tests, which hold the book to its source."""

    extra = "test"


app = typer.Typer(cls=BookCommands, no_args_is_help=True, add_completion=False)


@app.callback()
def book() -> None:
    """Make the book, and hold it to the source and the results."""


@app.command()
def prose(check: Check = False, root: Root = Path(".")) -> None:
    """Fill numbers, tables, excerpts and figures into the pages of the book from results files and the source."""
    from nanobook.text import check_text as text

    if not check:
        for path in text.fill(root):
            print(f"{path} changed")
    faults = text.check(root, just_filled=not check)
    for fault in faults:
        print(fault, file=sys.stderr)
    raise typer.Exit(1 if faults else 0)


@app.command()
def lines(root: Root = Path(".")) -> None:
    """Count lines of code and tokens of all tracked source, beside the budgets."""
    from nanobook.lines import table

    print(table(root))


@app.command()
def ledger(
    results: Annotated[Path, typer.Option(help="Results file.")],
    model: Annotated[str | None, typer.Option(help="Of the file's models; its first one by default.")] = None,
) -> None:
    """What each rung adds, gains and loses, as a Markdown table."""
    from nanobench.core.records import Report
    from nanobench.report.figures.words import table
    from nanobook.text.ledger import ledger as rungs

    print("\n".join(table(*rungs(Report.load(results), model))))


@app.command()
def draw(
    folder: Annotated[str | None, typer.Argument(help="A folder of chapters/; by default all.")] = None,
    root: Root = Path("."),
) -> None:
    """Draw what comes from no results file: the chapters' diagrams."""
    from nanobench.report.figures.style import write
    from nanobook.figures.diagrams import diagrams

    for drawing in diagrams(root, folder):
        for path in write(drawing, root / "figures"):
            print(path)


@app.command()
def notebooks(check: Check = False, root: Root = Path(".")) -> None:
    """Make the notebooks from their sources, and run them from top to bottom on the CPU."""
    from nanobook import notebooks as books

    faults = books.check(root) if check else books.write(root)
    for fault in faults:
        print(fault, file=sys.stderr)
    raise typer.Exit(1 if faults else 0)


@app.command()
def proofs(
    names: Annotated[list[str] | None, typer.Argument(help="Only proofs whose name has all of these words.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Those that are not stale as well.")] = False,
    only_list: Annotated[bool, typer.Option("--list", help="Run nothing.")] = False,
    workers: Annotated[int | None, typer.Option("-n", min=1, help="Processes; one a processor by default.")] = None,
    root: Root = Path("."),
) -> None:
    """Run the slow tests that depend on something that has changed since they last passed."""
    from nanobook.proofs import command

    raise typer.Exit(command(root.resolve(), names or [], everything, only_list, workers))


if __name__ == "__main__":
    app()
