"""Lines that are typed: with history and several rows on a terminal, plainly from a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from nanoinfer.cli.terminal import is_terminal, remark

COMMANDS = (
    "temperature", "top-k", "top-p", "max-tokens", "seed", "greedy", "engine", "model", "more", "settings", "help",
    "quit",
)  # fmt: skip

HELP = """\
Type the beginning of a text and press Enter; the model continues it.
  Alt-Enter (or Esc, then Enter)  a new line within the text
  Ctrl-C                          stop a continuation, or clear the line
  Ctrl-D, /quit                   leave
  //text                          a text that begins with one slash
  /more                           go on with the last text
  /temperature 0.7                divides the logits; 0 is greedy
  /greedy                         always the likeliest token
  /top-k 40                       keep the 40 likeliest tokens; 0 keeps all
  /top-p 0.9                      of those, the fewest that reach this probability; 1 keeps all
  /max-tokens 128                 new tokens at most
  /seed 7                         the same text each time; /seed none: a new one each time
  /engine naive                   another engine over the same weights
  /model gpt2                     another model: a name, a folder or a file
  /settings                       all of these as they are now; one without a value shows itself"""


def reader() -> Generator[str, None, None]:
    """One text or command at a time, until the end of input."""
    if is_terminal(sys.stdin) and is_terminal(sys.stdout):
        remark("/help lists the commands, Alt-Enter adds a line, Ctrl-D leaves")
        return _typed()
    return _piped()


def _piped() -> Generator[str, None, None]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # what is no UTF-8 is refused line by line
    for line in sys.stdin or ():
        yield line.removesuffix("\n").removesuffix("\r")


def _typed() -> Generator[str, None, None]:
    session = _session()
    while True:
        try:
            yield session.prompt("> ")
        except KeyboardInterrupt:  # at the prompt: the line is dropped
            continue
        except EOFError:
            return


def _session() -> Any:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        history=_history(),
        key_bindings=keys,
        multiline=True,
        prompt_continuation="  ",
        completer=WordCompleter([f"/{name}" for name in COMMANDS], sentence=True),
        complete_while_typing=False,
    )


def state_folder() -> Path:
    """Where this user's programs keep what they remember."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "nanoinfer"


def _history() -> Any:
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
        path.touch(mode=0o600)  # what a person types is nobody else's
        with path.open("ab"):
            return ForgivingHistory(str(path))
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return InMemoryHistory()
