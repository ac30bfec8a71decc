"""Commands of other packages: `course`, `read`, `rung` and `bench`, found by their entry points.

An entry point of the group `nanoinfer.commands` is a function that adds its command to a typer app. The engine knows
their names and the extras that bring what they need, and imports one only where it or `--help` is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from nanoinfer.cli.errors import Refused

EXTRAS = {"course": "teach", "read": "docs", "bench": "bench", "rung": "docs"}


class CommandGroup(TyperGroup):
    """The engine's own commands, and behind them those that are plugged in."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands whose modules can be imported."""
        names: list[str] = super().list_commands(ctx)
        for name in EXTRAS:
            with suppress(ImportError):
                load("nanoinfer.commands", name)
                names.append(name)
        return names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name. ModuleNotFoundError for a plug-in that lacks a module, None for an unknown name."""
        if cmd_name not in EXTRAS:
            return super().get_command(ctx, cmd_name)
        app = typer.Typer()
        load("nanoinfer.commands", cmd_name)(app)
        return typer.main.get_group(app).commands[cmd_name]


def load(group: str, name: str) -> Any:
    """What an entry point names. ModuleNotFoundError where there is none of that name."""
    for point in entry_points(group=group, name=name):
        return point.load()
    raise ModuleNotFoundError(name=f"a plug-in named {name}")


@contextmanager
def needing(command: str, extra: str | None) -> Iterator[None]:
    """Refused, naming the extra to install, where a plug-in lacks a package. extra: None for what is no plug-in."""
    try:
        yield
    except ModuleNotFoundError as error:
        if extra is None or "." in str(error.name):  # a part of a package that is there is missing by a mistake of ours
            raise
        what = f"`nanoinfer {command}` needs {error.name}, which is not installed"
        raise Refused(f"{what}: pip install 'nanoinfer[{extra}]'") from error
