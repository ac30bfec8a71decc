"""Options are made of signatures and docstrings, and the help of each says something."""

from __future__ import annotations

import pytest
import typer

from nanoinfer.cli import app
from nanoinfer.cli.options import with_options
from nanoinfer.docstrings import described
from tests.cli.test_visible import option


@pytest.mark.parametrize("name", typer.main.get_group(app).commands)
def test_every_option_and_command_has_a_help(name: str) -> None:
    command = typer.main.get_group(app).commands[name]
    assert [one.name for one in command.params if len(one.help or "") < 8] == []
    assert command.help
    assert f"nanoinfer {name}" in (command.epilog or "")


def function(first: str, *, several: list[int] | None = None, loud: bool = True, as_json: bool = False) -> None:
    """Do something, and no more than
    that: it is enough.

    first NAME: a name, which
    goes on.
    several: numbers. None: three of them.
    loud: whether it is loud.
    as_json: for programs.

    Examples:
    one: two
    """


def test_a_docstring_is_all_that_an_option_needs() -> None:
    lead, told, examples = described(function)
    assert (lead, examples) == ("Do something, and no more than\nthat: it is enough.", "one: two")
    assert told["first"] == ("NAME", "A name, which goes on.", "")
    app = typer.Typer(add_completion=False)
    app.command()(with_options()(function))
    made = typer.main.get_command(app).params
    assert [*map(option, made)] == [
        "NAME required", "--several ... (three of them)", "--loud --no-loud (True)", "--json",
    ]  # fmt: skip
    assert made[0].help == "A name, which goes on."
    assert made[1].help == "Numbers. May be given again."
