"""Commands of the text: figures, comparison, numbers in prose, the ledger, schemas."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

T = TypeVar("T")

app = typer.Typer(help="Measure every engine the same way.", no_args_is_help=True, add_completion=False)


@app.callback()
def bench() -> None:
    """Measure every engine the same way."""


def or_exit(run: Callable[[], T]) -> T:
    """What `run` gives; exit code 2 and one sentence where it refuses."""
    try:
        return run()
    except (ValueError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


@app.command()
def plot(
    results: Annotated[list[Path] | None, typer.Option(help="Results files; by default all of bench/results.")] = None,
    mine: Annotated[Path | None, typer.Option(help="A results file of yours, laid over the others.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("figures"),
    engine: Annotated[str | None, typer.Option(help="The one in colour; by default the newest chapter's.")] = None,
) -> None:
    """Draw the figures: SVG for light and dark pages, PNG, alt text and a table of the numbers."""
    from .plot import plot as draw

    for path in or_exit(lambda: draw(results or [], out, engine, mine)):
        print(path)


@app.command()
def compare(first: Path, second: Path) -> None:
    """Ratios of the second run over the first, with intervals; exit code 1 where they differ beyond the spread."""
    from .compare import compare as held

    raise typer.Exit(or_exit(lambda: held(first, second)))


@app.command()
def ratios(
    results: Annotated[Path, typer.Argument(help="Results file.")],
    over: Annotated[str | None, typer.Option(help="Engine to compare with; the file's first by default.")] = None,
) -> None:
    """Decode speed of every engine of a file over one of them, with 95% intervals."""
    from .ratios import ratios as of_file
    from .records import Report

    print("\n".join(or_exit(lambda: list(of_file(Report.load(results), over)))))


@app.command()
def prose(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 where a page is stale.")] = False,
    root: Annotated[Path, typer.Option(help="Folder of the repository.")] = Path("."),
) -> None:
    """Fill numbers, tables, excerpts and figures into the pages of the book from results files and the source."""
    from . import prose as text

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
    from .figures.words import table
    from .ledger import ledger as rungs
    from .records import Report

    print("\n".join(or_exit(lambda: table(*rungs(Report.load(results), model)))))


@app.command()
def structure(out: Annotated[Path, typer.Option(help="Folder of the figure.")] = Path("figures")) -> None:
    """Lines of code a module, and the import graph by chapter."""
    from .figures.imports import imports
    from .figures.style import write
    from .figures.words import table

    drawing = imports()
    print("\n".join(table(drawing.header, drawing.rows)))
    for path in write(drawing, out):
        print(path)


@app.command()
def walk(out: Annotated[Path, typer.Option(help="Folder of the figure.")] = Path("figures")) -> None:
    """Draw the paged kernel's walk through memory: which program reads which pages."""
    from .figures.style import write
    from .figures.walk import walk as drawing

    for path in write(drawing(), out):
        print(path)


@app.command()
def diagrams(
    chapter: Annotated[str | None, typer.Argument(help="A folder of chapters/; by default all of them.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("figures"),
    root: Annotated[Path, typer.Option(help="Folder of the repository.")] = Path("."),
) -> None:
    """Draw the diagrams of the chapters, which their own drawings.py describe."""
    from .figures.chapters import diagrams as of_chapters
    from .figures.style import write

    for drawing in or_exit(lambda: of_chapters(root, chapter)):
        for path in write(drawing, out):
            print(path)


@app.command()
def schema(out: Annotated[Path, typer.Option(help="Folder.")] = Path(__file__).parent / "schema") -> None:
    """Write the JSON Schema of every kind of results file."""
    from .schemas import write

    for path in write(out):
        print(path)


@app.command()
def notebooks(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 where one is stale.")] = False,
    root: Annotated[Path, typer.Option(help="Folder of the repository.")] = Path("."),
) -> None:
    """Make the notebooks from their sources, and run them from top to bottom on the CPU."""
    from . import notebooks as books

    faults = or_exit(lambda: books.check(root) if check else books.write(root))
    for fault in faults:
        print(fault, file=sys.stderr)
    raise typer.Exit(1 if faults else 0)
