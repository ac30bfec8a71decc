"""Commands of other packages, found by their entry points: `course`, `read` and `bench`.

An entry point of the group `nanoinfer.commands` is a function that adds its command to the app. The engine knows what
each is called and which extra brings what it needs, and imports nothing of it.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import typer

from nanoinfer.cli.errors import Refused

EXTRAS = {"course": "teach", "read": "docs", "bench": "bench"}
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}


def add_commands(app: typer.Typer) -> None:
    """Add each command that is installed; in place of one that is not, a command that says how to get it."""
    for name in EXTRAS:
        try:
            load("nanoinfer.commands", name)(app)
        except ModuleNotFoundError as error:
            command = app.command(name, add_help_option=False, context_settings=ANYTHING, hidden=True)
            command(_missing(name, error))


def load(group: str, name: str) -> Any:
    """What an entry point names. ModuleNotFoundError where nothing of that name is installed."""
    for point in entry_points(group=group, name=name):
        return point.load()
    raise ModuleNotFoundError(f"nothing named {name} is installed", name=name)


def needs(name: str, error: ModuleNotFoundError) -> str:
    """Which extra brings a module that the command `name` could not import."""
    return f"`nanoinfer {name}` needs {error.name}: pip install 'nanoinfer[{EXTRAS[name]}]'"


def _missing(name: str, error: ModuleNotFoundError) -> Any:
    def command(context: typer.Context) -> None:
        """Not installed."""
        raise Refused(needs(name, error))

    return command
