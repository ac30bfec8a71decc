"""`python -m bench`: measure the engines, draw the figures, hold the text to the numbers."""

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


@app.command()
def run(
    preset: Annotated[str, typer.Option(help="laptop, cpu, colab, gpu or full.")] = "laptop",
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the GPU where there is one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Results file; by default under bench/results/.")] = None,
    models: Annotated[str | None, typer.Option(help="Comma-separated, in place of the preset's.")] = None,
    engines: Annotated[str | None, typer.Option(help="Comma-separated, in place of the preset's.")] = None,
    batches: Annotated[str | None, typer.Option(help="Comma-separated, in place of the preset's.")] = None,
    prompt_tokens: Annotated[str | None, typer.Option(help="Comma-separated, in place of the preset's.")] = None,
    new_tokens: Annotated[int | None, typer.Option(min=2)] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1)] = None,
    budget: Annotated[float | None, typer.Option(help="Seconds that one run of a case may take.")] = None,
) -> None:
    """Engines x batch sizes x models: tokens/s, TTFT, memory and the share of the bandwidth floor."""
    from .presets import PRESETS
    from .run import Benchmark

    if preset not in PRESETS:
        raise typer.BadParameter(f"preset must be one of {', '.join(PRESETS)}, not {preset!r}")
    chosen = PRESETS[preset].changed(
        models=tuple(models.split(",")) if models else None,
        engines=tuple(engines.split(",")) if engines else None,
        batches=numbers(batches),
        prompt_tokens=numbers(prompt_tokens),
        new_tokens=new_tokens,
        dtype=dtype,
        repeats=repeats,
        case_budget_s=budget,
    )
    try:
        Benchmark(chosen, device, out or Path("bench/results") / f"{preset}.json").run()
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        raise typer.Exit(130) from None
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


@app.command()
def attention(
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the GPU where there is one.")] = None,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench/results/attention.json"),
) -> None:
    """Which SDPA backend runs, with and without a mask; and what the dense cache's read length costs."""
    from .attention import measure

    measure(device, out)


@app.command()
def plot(
    results: Annotated[list[Path] | None, typer.Option(help="Results files; by default all of bench/results.")] = None,
    mine: Annotated[Path | None, typer.Option(help="A results file of yours, laid over the others.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("figures"),
    engine: Annotated[str | None, typer.Option(help="The one in colour; by default the newest chapter's.")] = None,
) -> None:
    """Draw the figures: SVG for light and dark pages, PNG, alt text and a table of the numbers."""
    from .plot import plot as draw

    for path in _or_exit(lambda: draw(results or [], out, engine, mine)):
        print(path)


@app.command()
def timeline(
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench/results/timeline.json"),
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the GPU where there is one.")] = None,
    model: Annotated[str, typer.Option(help="As in `nanoinfer generate`.")] = "random:gpt2",
    batch: Annotated[int, typer.Option(min=1)] = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each row before the steps.")] = 128,
    engines: Annotated[str | None, typer.Option(help="Comma-separated; by default all of ours.")] = None,
) -> None:
    """One decode step of each engine, by torch's profiler: the host's operators and launches, the GPU's kernels."""
    from .timeline import all_engines, measure

    _or_exit(lambda: measure(device, out, model, batch, context, all_engines(engines)))


@app.command()
def compare(first: Path, second: Path) -> None:
    """Ratios of the second run over the first, with intervals; exit code 1 where they differ beyond the spread."""
    from .compare import compare as held

    raise typer.Exit(_or_exit(lambda: held(first, second)))


@app.command()
def prose(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 where a page is stale.")] = False,
    root: Annotated[Path, typer.Option(help="Folder of the repository.")] = Path("."),
) -> None:
    """Fill numbers, tables, excerpts and figures into the pages of the book from results files and the source."""
    from . import prose as text

    if not check:
        for path in _or_exit(lambda: text.fill(root)):
            print(f"{path} changed")
    faults = _or_exit(lambda: text.check(root))
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

    print("\n".join(_or_exit(lambda: table(*rungs(Report.load(results), model)))))


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
def schema(out: Annotated[Path, typer.Option(help="Folder.")] = Path(__file__).parent / "schema") -> None:
    """Write the JSON Schema of every kind of results file."""
    from .schemas import write

    for path in write(out):
        print(path)


def _or_exit(run: Callable[[], T]) -> T:
    """What `run` gives; exit code 2 and one sentence where it refuses."""
    try:
        return run()
    except (ValueError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


@app.command()
def kernels(
    device: Annotated[str | None, typer.Option(help="cuda or cuda:N.")] = None,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench/results/kernels.json"),
) -> None:
    """The paged kernel alone, against SDPA on a dense cache: cold L2, inside a graph."""
    from .kernels import measure

    measure(device, out)


def numbers(text: str | None) -> tuple[int, ...] | None:
    """`1,8,64` as numbers."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"takes whole numbers with commas between, not {text!r}") from None


if __name__ == "__main__":
    app()
