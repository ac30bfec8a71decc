"""The README says what is so: its sample is what comes out, its code runs, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from nanoinfer import cli

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

pytestmark = pytest.mark.skipif(not README.is_file(), reason="not a checkout")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)


def words(text: str) -> list[str]:
    """Words alone: the README breaks lines where a terminal would."""
    return text.split()


def test_sample_is_what_comes_out(capsys: pytest.CaptureFixture[str]) -> None:
    first, *shown = blocks("text")[0].splitlines()
    command = shlex.split(first.removeprefix("$ "))
    assert command[0] == "nanoinfer"
    assert cli.run([*command[1:], "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    remark, story = shown[0], "\n".join(shown[1:])
    assert err.splitlines()[0] == remark
    assert words(out) == words(story)


def test_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    exec(compile(code, str(README), "exec"), {})
    assert len(capsys.readouterr().out.split()) > 40


def test_every_command_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """What to type next: each line parses, up to the point where it would load a model or read a file."""
    commands = [line for line in blocks("text")[1].splitlines() if line.startswith("nanoinfer ")]
    assert len(commands) == 5
    for line in commands:
        command = re.split(r"\s{2,}", line)[0] if "prompts.txt" not in line else line.split(" for programs")[0]
        assert cli.run([*shlex.split(command)[1:], "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "THIRD_PARTY.md", "tools/training/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target
