"""Checks the commands in a text: every line of an `sh` fence must parse, and our commands must have its options."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any

import typer

OURS = {
    "nanoinfer.cli": ["nanoinfer"],
    "nanobench.cli": ["python", "-m", "bench"],
    "nanobook.__main__": ["python", "-m", "nanobook"],
}
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.M | re.S)


def broken_commands(text: str) -> Iterator[tuple[int, str]]:
    """Line and fault of every command that the shell, or one of our command lines, does not understand."""
    for fence in FENCE.finditer(text):
        first = text[: fence.start(2)].count("\n") + 1
        lines = fence[2].splitlines()
        for at, command in _commands(fence[1], lines):
            try:
                fault = understood(command)
            except ValueError as error:  # shlex: a quotation that does not end
                fault = str(error)
            if fault:
                yield first + at, f"a command that does not work: {command!r}: {fault}"
        if fence[1] in ("sh", "bash") and (fault := _shell(fence[2])):
            yield first, f"not a shell's language: {fault}"


def _commands(language: str, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Lines that are commands: all of an `sh` fence, those with a prompt in a `text` or `console` fence."""
    for at, line in enumerate(lines):
        if language in ("sh", "bash"):
            yield at, line.removeprefix("$ ")
        elif language in ("text", "console", "") and line.startswith("$ "):
            yield at, line[2:]


def understood(command: str) -> str:
    """What is wrong with the parts of a line that call our commands; empty if nothing is."""
    for part in re.split(r"&&|\|\||;|\|", command) if not re.search(r"[\"']", command) else [command]:
        words = shlex.split(part, comments=True)
        while words and re.fullmatch(r"\w+=\S*", words[0]):
            words = words[1:]  # variables before a command
        for start, prefix in OURS.items():
            if words[: len(prefix)] == prefix and (fault := _parse(start, words[len(prefix) :])):
                return fault
    return ""


@lru_cache
def _group(which: str) -> Any:
    """One of our command lines, ready to parse."""
    return typer.main.get_command(import_module(which).app)


def _parse(which: str, arguments: list[str]) -> str:
    """Parse the arguments as the command itself would, without running it."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name.startswith("-"):
        return ""  # --help and --version
    command = _group(which).get_command(None, name)
    if command is None:
        return f"there is no command {name!r}"
    ends = [i for i, word in enumerate(rest) if word in ("&&", "|", ";", ">", ">>", "<", "||", "&")]
    rest = rest[: ends[0]] if ends else rest
    context = command.context_class(command, info_name=name, help_option_names=["-h", "--help"])
    try:
        command.make_parser(context).parse_args(args=list(rest))
    except Exception as error:  # a class of click, from whichever copy of click typer uses
        return str(getattr(error, "message", error))
    return ""


def _shell(script: str) -> str:
    """What bash says about the syntax of a fence, if there is a bash."""
    try:
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stderr.strip()
