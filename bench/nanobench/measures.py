"""The commands that measure one thing each: `python -m bench attention`, `kernels`, `memory` and so on.

Each is the function `measure` of a module in `micro`. Its options stand there; the module, and torch with it, is
imported once the command is used.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from nanobench.errors import Commands

NAMES = (
    "attention", "kernels", "ragged", "queue", "speculation", "speculation-texts", "ranks", "replicas", "sampling",
    "one-kernel", "graphs", "timeline", "memory", "recompiles", "sanitize", "turns",
)  # fmt: skip
OTHERWISE = {"kernels": "paged_kernel", "memory": "kv_usage"}  # modules of another name than their command's


class Measure(TyperCommand):
    """One of them. What it says of itself is the first paragraph of its module's docstring."""

    def __init__(self, name: str) -> None:
        self.module = OTHERWISE.get(name, name.replace("-", "_"))
        source = (Path(__file__).parent / "micro" / f"{self.module}.py").read_text(encoding="utf-8")
        super().__init__(name, help=" ".join(source.split('"""')[1].split("\n\n")[0].split()))

    @cached_property
    def real(self) -> Any:
        """The command that its module's `measure` makes."""
        app = typer.Typer(add_completion=False)
        app.command(self.name, help=self.help)(import_module(f"nanobench.micro.{self.module}").measure)
        return typer.main.get_command(app)

    def get_params(self, ctx: Any) -> Any:
        return self.real.get_params(ctx)

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        return self.real.make_context(*arguments, **more)


class Bench(Commands):
    """The commands of `cli.py`, then those that measure one thing each."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *NAMES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return Measure(cmd_name) if cmd_name in NAMES else super().get_command(ctx, cmd_name)
