"""Options that several commands have, each said once; and numbers with commas between."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nanoinfer.cli.options import output_file

Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the GPU where there is one.")]
Gpu = Annotated[str | None, typer.Option(help="cuda or cuda:N.")]
Out = Annotated[Path, typer.Option(parser=output_file, metavar="FILE", help="Results file.")]
Model = Annotated[str, typer.Option(help="As in `nanoinfer generate`.")]
OwnModel = Annotated[str | None, typer.Option(help="As in `nanoinfer generate`.")]
Models = Annotated[list[str], typer.Option(help="As in `nanoinfer generate`; repeatable.")]
Rows = Annotated[list[int], typer.Option(min=1, help="At once; repeatable.")]
NewTokens = Annotated[int, typer.Option(min=2)]
Repeats = Annotated[int, typer.Option(min=1)]


def integers(name: str, text: str | None) -> tuple[int, ...] | None:
    """The integers of `1,8,64`; None for None."""
    try:
        found = tuple(int(part) for part in text.split(",")) if text is not None else None
    except ValueError:
        found = (0,)
    if found is not None and min(found) < 1:
        raise ValueError(f"{name} must be whole numbers of at least 1, with commas between, not {text!r}")
    return found
