"""Lines that are typed into the shell on a terminal: with history, and several rows each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings


def typed(commands: Iterable[str]) -> Iterator[str]:
    """One line at a time. Ctrl-C drops the line, Ctrl-D ends them. commands: what Tab completes."""
    keys = KeyBindings()
    keys.add("enter")(lambda event: event.current_buffer.validate_and_handle())
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    completer = WordCompleter([f"/{name}" for name in commands], sentence=True)
    session: PromptSession[str] = PromptSession("> ", history=history(), key_bindings=keys, completer=completer)
    with suppress(EOFError):
        while True:
            with suppress(KeyboardInterrupt):
                yield session.prompt(multiline=True, prompt_continuation="  ", complete_while_typing=False)


def history() -> History:
    """What was typed in earlier sessions; only of this session, where no file can be written."""
    try:
        folder = Path(typer.get_app_dir("nanoinfer", roaming=False))
        if sys.platform not in ("win32", "darwin"):
            folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "nanoinfer")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "history"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))  # what a person types is for them alone
        return FileHistory(str(path))
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return InMemoryHistory()
