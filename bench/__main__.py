"""`python -m bench run`: measure the engines on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

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
