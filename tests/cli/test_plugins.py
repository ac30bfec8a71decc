"""Commands that other packages plug in: what is listed, what is imported, and what is said of a missing package."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points, metadata
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.cli import plugins
from tests.cli.commands import PACKAGES, assert_refused, run_without

OWN = ["generate", "batch", "shell", "doctor", "serve", "watch"]
COMMANDS = [*OWN, *PACKAGES]


def listed(help_text: str) -> list[str]:
    """The commands that a help text lists, in its order."""
    words = [line.split()[1] for line in help_text.split("Commands")[1].splitlines() if line.startswith("│ ")]
    return [word for word in words if word in COMMANDS]


def test_every_plug_in_is_an_entry_point_with_an_extra_that_exists() -> None:
    assert {point.name: point.value.split(".")[0] for point in entry_points(group="nanoinfer.commands")} == PACKAGES
    assert [point.name for point in entry_points(group="nanoinfer.generate")] == ["mine"]
    assert list(plugins.EXTRAS) == [*PACKAGES]
    assert set(plugins.EXTRAS.values()) <= set(metadata("nanoinfer").get_all("Provides-Extra") or ())


def test_without_their_packages_commands_are_not_listed_and_say_how_to_get_them(tmp_path: Path) -> None:
    lines = ["course", "course --help", "course check 1", "course --nix", "read", "bench run --dry-run", "bench --help"]
    mine = ["generate", "x", "-m", "random:tiny", "--mine", str(tmp_path)]
    told = run_without([*PACKAGES.values()], ["--help"], [], mine, *(line.split() for line in lines))
    for code, out, err, imported in told[:2]:
        assert (code, listed(out), err, imported) == (0, OWN, "", [])
    sentence = "nanoinfer: `nanoinfer {}` needs {}, which is not installed: pip install 'nanoinfer[{}]'\n"
    assert told[2][:3] == (2, "", sentence.format("generate --mine", "nanocourse", "teach"))
    for line, result in zip(lines, told[3:], strict=True):
        name = line.split()[0]
        assert result[:3] == (2, "", sentence.format(name, PACKAGES[name], plugins.EXTRAS[name])), line


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put this code in the place of what is plugged in as `course`."""
    point = EntryPoint("course", "a_plug_in:add", "nanoinfer.commands")

    def found(group: str, name: str) -> list[EntryPoint]:
        return [point] if (point.group, point.name) == (group, name) else []

    def write(code: str) -> None:
        (tmp_path / "a_plug_in.py").write_text(f"import typer\n{code}")
        monkeypatch.delitem(sys.modules, "a_plug_in", raising=False)

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "entry_points", found)
    return write


COMMAND = """
def add(app):
    @app.command("course", epilog="The end.")
    def command(number: int = 1) -> int:
        "Something else."
        {}
        return number
"""


def test_any_function_that_an_entry_point_names_adds_a_command(plug_in: Any, invoke: Any) -> None:
    plug_in(COMMAND.format("print(number)"))
    assert invoke("course", "--number", "7") == (7, "7\n", "")
    shown = invoke("--help").out
    assert "Something else." in shown
    assert listed(shown) == [*OWN, "course"]
    assert "The end." in invoke("course", "-h").out
    assert_refused(invoke("read"), "`nanoinfer read` needs", "pip install 'nanoinfer[docs]'")  # which is no entry point


def test_a_missing_package_is_told_from_a_mistake(plug_in: Any, invoke: Any) -> None:
    """A package that is missing is to be installed; a missing part of one that is there is a fault of ours."""
    plug_in(COMMAND.format("import no_such_package.part"))
    assert_refused(
        invoke("course", "--number", "7"), "`nanoinfer course` needs no_such_package", "pip install 'nanoinfer[teach]'"
    )
    plug_in(COMMAND.format("import nanoinfer.no_such_module"))
    assert_refused(invoke("course"), "ModuleNotFoundError", "nanoinfer.no_such_module", code=1)


def test_a_broken_plug_in_spoils_no_other_command(plug_in: Any, invoke: Any) -> None:
    plug_in("raise ImportError('a library is too old')")
    assert listed(invoke("--help").out) == OWN
    assert_refused(invoke("course"), "ImportError: a library is too old", code=1)
