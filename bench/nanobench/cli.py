"""`python -m bench`: measure the engines, compare results files, draw figures."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nanobench.load.command import load
from nanobench.measures import Bench
from nanobench.options import Device, integers
from nanoinfer.cli.options import output_file

app = typer.Typer(cls=Bench, no_args_is_help=True, add_completion=False)
app.command()(load)


def add(to: typer.Typer) -> None:
    """Add `nanoinfer bench` to the engine's command line."""
    to.add_typer(app, name="bench")


@app.callback()
def bench() -> None:
    """Measure every engine the same way."""


@app.command()
def run(
    preset: Annotated[
        str, typer.Option(help="laptop, cpu, colab, gpu, xl, graphs, ratios, context, compile or full.")
    ] = "laptop",
    device: Device = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=output_file, metavar="FILE", help="Results file; by default my-bench/PRESET.json."),
    ] = None,
    models: Annotated[str | None, typer.Option(help="Comma-separated, in place of the preset's.")] = None,
    engines: Annotated[str | None, typer.Option(help="Comma-separated, in place of the preset's.")] = None,
    batches: Annotated[str | None, typer.Option(help="Comma-separated, in place of the preset's.")] = None,
    prompt_tokens: Annotated[str | None, typer.Option(help="Comma-separated, in place of the preset's.")] = None,
    new_tokens: Annotated[int | None, typer.Option(min=2)] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Timed runs of every case, however long.")] = None,
    budget: Annotated[float | None, typer.Option(help="Seconds that one run of a case may take.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be measured, and for how long.")] = False,
) -> None:
    """Engines x batch sizes x models: tokens/s, TTFT, memory and the share of the bandwidth limit."""
    from nanobench.core.benchmark import Benchmark
    from nanobench.core.presets import PRESETS
    from nanobench.core.progress import Bar

    if preset not in PRESETS:
        raise typer.BadParameter(f"preset must be one of {', '.join(PRESETS)}, not {preset!r}")
    chosen = PRESETS[preset].changed(
        models=tuple(models.split(",")) if models is not None else None,
        engines=tuple(engines.split(",")) if engines is not None else None,
        batches=integers("batches", batches),
        prompt_tokens=integers("prompt_tokens", prompt_tokens),
        new_tokens=new_tokens,
        dtype=dtype,
        repeats=repeats,
        case_budget_s=budget,
    )
    out = out or output_file(f"my-bench/{preset}.json")
    try:
        with Bar() as bar:
            benchmark = Benchmark(chosen, device, out, bar.console.print, bar.advance_to)
            print(benchmark.expect()) if dry_run else benchmark.run()
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        raise typer.Exit(130) from None


@app.command()
def plot(
    results: Annotated[list[Path] | None, typer.Option(help="Results files; by default the book's.")] = None,
    mine: Annotated[Path | None, typer.Option(help="Yours; laid over those with the same model and lengths.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder; by default figures/bench for the book's, `figures` beside other files.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="The one drawn wide; by default the newest chapter's.")] = None,
) -> None:
    """Draw the figures: an SVG each, and a page with its alt text and a table of the numbers.

    Without a file, the book's figures are drawn anew.
    """
    from nanobench.report.plot import plot as draw

    for path in draw(results or [], out, engine, mine, partial(print, file=sys.stderr)):
        print(path)


@app.command()
def compare(first: Path, second: Path) -> None:
    """Ratios of the second run over the first, with intervals; exit code 1 where they differ beyond the spread."""
    from nanobench.report.compare import compare as compare_files

    raise typer.Exit(compare_files(first, second))


@app.command()
def ratios(
    results: Annotated[Path, typer.Argument(help="Results file.")],
    over: Annotated[str | None, typer.Option(help="Engine to compare with; the file's first by default.")] = None,
) -> None:
    """Decode speed of every engine of a file over one of them, with 95% intervals."""
    from nanobench.core.records import Report
    from nanobench.report.intervals import ratios as lines

    for line in lines(Report.load(results), over):
        print(line)


@app.command()
def schema(out: Annotated[Path, typer.Option(help="Folder.")] = Path("bench/schema")) -> None:
    """Write the JSON Schema of every kind of results file."""
    from nanobench.report.schemas import write

    for path in write(out):
        print(path)
