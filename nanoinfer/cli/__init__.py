"""The command `nanoinfer`: generate, shell, doctor, course, read, bench.

Importing this loads neither torch nor prompt_toolkit: a refused argument is answered at once. Whatever goes wrong is
said in one sentence on standard error; the exit code is 2 for what was asked, 1 for what happened, 130 for Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from nanoinfer import __version__
from nanoinfer.cli import doctor, generate, plugins, shell
from nanoinfer.cli.errors import CLOSED_PIPE, FAILED, REFUSED, STOPPED, Refused, Stopped, failure
from nanoinfer.cli.terminal import Output, PipeClosed, prepare_streams, remark

EPILOG = """\
Examples:

nanoinfer generate "Once upon a time" -m gpt2

nanoinfer shell -m gpt2

nanoinfer doctor

`nanoinfer COMMAND --help` has more. NANOINFER_TRACEBACK=1 shows where an error comes from."""

app = typer.Typer(add_completion=False, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
app.command("generate", epilog=generate.EPILOG)(generate.generate)
app.command("shell", epilog=shell.EPILOG)(shell.shell)
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)
plugins.add_commands(app)


def _version(wanted: bool) -> None:
    if wanted:
        Output().write(f"nanoinfer {__version__}\n")
        raise typer.Exit


@app.callback()
def _nanoinfer(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """GPT-2 inference from scratch, from a naive loop to a dict of CUDA graphs."""


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code. What goes wrong is said in one sentence on standard error."""
    prepare_streams()
    try:
        return _invoke(list(arguments) or ["--help"])
    except PipeClosed:
        return CLOSED_PIPE
    except (Stopped, KeyboardInterrupt) as stop:
        remark(f"nanoinfer: {str(stop) or 'stopped by Ctrl-C'}")
        return STOPPED
    except Exception as error:
        usage = getattr(error, "format_message", None)  # of the command line library's own errors, in any version of it
        refused = usage is not None or isinstance(error, Refused)
        message = _usage(usage(), arguments) if usage else str(error) if isinstance(error, Refused) else failure(error)
        if message:  # none where a group of commands alone has printed its help
            remark(f"nanoinfer: {message}")
        return REFUSED if refused else FAILED


def _usage(message: str, arguments: Sequence[str]) -> str:
    """The library's sentence, with a word on what beginners most often mean by it."""
    hint = ""
    if "extra argument" in message and arguments[0] == "generate":
        hint = ": put a prompt of several words in quotes"
    return message[:1].lower() + message[1:].removesuffix(".") + hint


def _invoke(arguments: list[str]) -> int:
    """Parse and call. Not through typer's own `main`, which would answer Ctrl-C and closed pipes its own way."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("nanoinfer", arguments) as context:
            code = command.invoke(context)
    except typer.Exit as exit_:
        code = exit_.exit_code
    return code or 0
