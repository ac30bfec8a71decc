"""Lines that are typed into the shell: with history and several rows on a terminal, plainly from a pipe."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nanoinfer.cli.terminal import is_terminal, remark

if TYPE_CHECKING:
    from prompt_toolkit.history import History


def read_lines(commands: Iterable[str]) -> Iterator[str]:
    """One text or command at a time, until the end of input. commands: what Tab completes."""
    if is_terminal(sys.stdin) and is_terminal(sys.stdout):
        remark("/help lists the commands, Alt-Enter adds a line, Ctrl-D leaves")
        return typed(commands)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # what is not UTF-8 is refused line by line
    return (line.removesuffix("\n").removesuffix("\r") for line in sys.stdin)


def typed(commands: Iterable[str]) -> Iterator[str]:
    """Lines from a terminal. Ctrl-C drops the line, Ctrl-D ends them."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()
    keys.add("enter")(lambda event: event.current_buffer.validate_and_handle())
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    completer = WordCompleter([f"/{name}" for name in commands], sentence=True)
    session: PromptSession[str] = PromptSession("> ", history=history(), key_bindings=keys, completer=completer)
    while True:
        try:
            yield session.prompt(multiline=True, prompt_continuation="  ", complete_while_typing=False)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def history() -> History:
    """What was typed in earlier sessions; only of this session, where no file can be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        folder = Path(typer.get_app_dir("nanoinfer", roaming=False))
        if sys.platform not in ("win32", "darwin"):
            folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "nanoinfer")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "history"
        path.touch(mode=0o600)  # what a person types is for them alone
        path.open("ab").close()
        return FileHistory(str(path))
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return InMemoryHistory()
