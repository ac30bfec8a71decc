"""Options that several commands have, each said once."""

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
