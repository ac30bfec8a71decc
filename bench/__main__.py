"""`python -m bench`: measure the engines, draw the figures, hold the text to the numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .text import app, or_exit

__all__ = ["app"]

Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the GPU where there is one.")]


@app.command()
def run(
    preset: Annotated[
        str, typer.Option(help="laptop, cpu, colab, gpu, xl, graphs, ratios, context, compile or full.")
    ] = "laptop",
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="Results file; by default under bench/results/.")] = None,
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
    """Engines x batch sizes x models: tokens/s, TTFT, memory and the share of the bandwidth floor."""
    from .presets import PRESETS
    from .progress import Bar
    from .run import Benchmark

    if preset not in PRESETS:
        raise typer.BadParameter(f"preset must be one of {', '.join(PRESETS)}, not {preset!r}")
    try:
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
        with Bar() as bar:
            benchmark = Benchmark(chosen, device, out or Path("bench/results") / f"{preset}.json", bar.say, bar.advance)
            print(benchmark.expect()) if dry_run else benchmark.run()
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        raise typer.Exit(130) from None
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


@app.command()
def attention(
    device: Device = None,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench/results/attention.json"),
) -> None:
    """Which SDPA backend runs, with and without a mask; and what the dense cache's read length costs."""
    from .attention import measure

    or_exit(lambda: measure(device, out))


@app.command()
def kernels(
    device: Annotated[str | None, typer.Option(help="cuda or cuda:N.")] = None,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench/results/kernels.json"),
) -> None:
    """The paged kernel alone, against SDPA on a dense cache and FlashInfer's: cold L2, inside a graph."""
    from .kernels import measure

    or_exit(lambda: measure(device, out))


@app.command()
def sampling(
    device: Annotated[str | None, typer.Option(help="cuda or cuda:N.")] = None,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench/results/sampling.json"),
) -> None:
    """The sampling kernel alone, against a sort, torch.topk and rejection: inside a graph."""
    from .sampling import measure

    or_exit(lambda: measure(device, out))


@app.command()
def graphs(
    device: Annotated[str | None, typer.Option(help="cuda or cuda:N.")] = None,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench/results/graphs.json"),
    model: Annotated[str, typer.Option(help="As in `nanoinfer generate`.")] = "random:gpt2",
) -> None:
    """Chapter 4's costs and gains: the ladder, its start-up, a batch that drains, TTFT by length, sampling."""
    from .graphs import measure

    or_exit(lambda: measure(device, out, model))


@app.command()
def timeline(
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench/results/timeline.json"),
    device: Device = None,
    model: Annotated[str, typer.Option(help="As in `nanoinfer generate`.")] = "random:gpt2",
    batch: Annotated[int, typer.Option(min=1)] = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each row before the steps.")] = 128,
    engines: Annotated[str | None, typer.Option(help="Comma-separated; by default all of ours.")] = None,
) -> None:
    """One decode step of each engine, by torch's profiler: the host's operators and launches, the GPU's kernels."""
    from .timeline import all_engines, measure

    or_exit(lambda: measure(device, out, model, batch, context, all_engines(engines)))


@app.command()
def memory(
    device: Device = None,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench/results/memory.json"),
    model: Annotated[str | None, typer.Option(help="As in `nanoinfer generate`.")] = None,
    pool: Annotated[float | None, typer.Option(help="MB of keys and values that both caches get.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Short ones; 512 on a GPU, 24 on a CPU.")] = None,
) -> None:
    """What dense and paged caches hold and waste; many short requests in a pool that is too small for dense rows."""
    from .waste import measure

    or_exit(lambda: measure(device, out, model, None if pool is None else int(pool * 1e6), requests))


@app.command()
def recompiles(
    device: Annotated[str | None, typer.Option(help="cuda or cuda:N.")] = None,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench/results/recompiles.json"),
    model: Annotated[str, typer.Option(help="As in `nanoinfer generate`.")] = "random:gpt2",
    engine: Annotated[str, typer.Option(help="paged or paged-graph.")] = "paged",
) -> None:
    """Kernels that Triton compiles over 512 steps of growing contexts and 1 to 32 rows: none after the first."""
    from .recompiles import measure

    raise typer.Exit(or_exit(lambda: measure(device, out, model, engine)))


@app.command()
def sanitize(
    out: Annotated[Path | None, typer.Option(help="Results file; none by default.")] = None,
    only: Annotated[str | None, typer.Option(help="Names of cases, comma-separated; by default all.")] = None,
) -> None:
    """compute-sanitizer's memcheck and racecheck over every kernel, and over a planted overrun that must be caught."""
    from .sanitize import sanitize as check

    raise typer.Exit(or_exit(lambda: check(only.split(",") if only else None, out)))


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
