"""`python -m nanobook`: hold the book's pages to source and results, draw its diagrams, run its notebooks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nanobench.errors import or_exit

Root = Annotated[Path, typer.Option(help="Folder of the repository.")]

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def book() -> None:
    """Make the book, and hold it to the source and the results."""


@app.command()
def prose(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 where a page is stale.")] = False,
    root: Annotated[Path, typer.Option(help="Folder of the repository.")] = Path("."),
) -> None:
    """Fill numbers, tables, excerpts and figures into the pages of the book from results files and the source."""
    from nanobook.text import check_text as text

    if not check:
        for path in or_exit(lambda: text.fill(root)):
            print(f"{path} changed")
    faults = or_exit(lambda: text.check(root))
    for fault in faults:
        print(fault, file=sys.stderr)
    raise typer.Exit(1 if faults else 0)


@app.command()
def ledger(
    results: Annotated[Path, typer.Option(help="Results file.")],
    model: Annotated[str | None, typer.Option(help="Of the file's models; its first one by default.")] = None,
) -> None:
    """What each rung adds, gains and loses, as a Markdown table."""
    from nanobench.core.records import Report
    from nanobench.report.figures.words import table
    from nanobook.text.ledger import ledger as rungs

    print("\n".join(or_exit(lambda: table(*rungs(Report.load(results), model)))))


@app.command()
def structure(out: Annotated[Path, typer.Option(help="Folder of the figure.")] = Path("figures")) -> None:
    """Lines of code a module, and the import graph by chapter."""
    from nanobench.report.figures.style import write
    from nanobench.report.figures.words import table
    from nanobook.figures.imports import imports

    drawing = imports()
    print("\n".join(table(drawing.header, drawing.rows)))
    for path in write(drawing, out):
        print(path)


@app.command()
def walk(out: Annotated[Path, typer.Option(help="Folder of the figure.")] = Path("figures")) -> None:
    """Draw the paged kernel's walk through memory: which program reads which pages."""
    from nanobench.report.figures.style import write
    from nanobook.figures.kernel_walk import walk as drawing

    for path in write(drawing(), out):
        print(path)


@app.command()
def diagrams(
    chapter: Annotated[str | None, typer.Argument(help="A folder of chapters/; by default all of them.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("figures"),
    root: Annotated[Path, typer.Option(help="Folder of the repository.")] = Path("."),
) -> None:
    """Draw the diagrams of the chapters, which their own drawings.py describe."""
    from nanobench.report.figures.style import write
    from nanobook.figures.diagrams import diagrams as of_chapters

    for drawing in or_exit(lambda: of_chapters(root, chapter)):
        for path in write(drawing, out):
            print(path)


@app.command()
def notebooks(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 where one is stale.")] = False,
    root: Annotated[Path, typer.Option(help="Folder of the repository.")] = Path("."),
) -> None:
    """Make the notebooks from their sources, and run them from top to bottom on the CPU."""
    from nanobook import notebooks as books

    faults = or_exit(lambda: books.check(root) if check else books.write(root))
    for fault in faults:
        print(fault, file=sys.stderr)
    raise typer.Exit(1 if faults else 0)


if __name__ == "__main__":
    app()
