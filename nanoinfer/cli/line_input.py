"""Lines that are typed into the shell: with history and several rows on a terminal, plainly from a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import typer

from nanoinfer.cli.terminal import is_terminal, remark


def read_lines(commands: Iterable[str]) -> Generator[str, None, None]:
    """One text or command at a time, until the end of input. commands: what Tab completes."""
    if is_terminal(sys.stdin) and is_terminal(sys.stdout):
        remark("/help lists the commands, Alt-Enter adds a line, Ctrl-D leaves")
        yield from typed(commands)
        return
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # what is not UTF-8 is refused line by line
    for line in sys.stdin or ():
        yield line.removesuffix("\n").removesuffix("\r")


def typed(commands: Iterable[str]) -> Generator[str, None, None]:
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


def state_folder() -> Path:
    """Where this user's programs keep what they remember."""
    if sys.platform in ("win32", "darwin"):
        return Path(typer.get_app_dir("nanoinfer", roaming=False))
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "nanoinfer"


def history() -> Any:
    """What was typed in earlier sessions; only of this session, where no file can be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class ForgivingHistory(FileHistory):
        """A full disk costs the line's place in the history, not the session."""

        def store_string(self, string: str) -> None:
            with contextlib.suppress(OSError):
                super().store_string(string)

    try:
        path = state_folder() / "history"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)  # what a person types is for them alone
        with path.open("ab"):
            return ForgivingHistory(str(path))
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return InMemoryHistory()
