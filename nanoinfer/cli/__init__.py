"""The command `nanoinfer`: generate, batch, shell, doctor, serve, watch, and what is plugged in: course, read, bench.

Importing this loads neither torch nor prompt_toolkit: a refused argument is answered at once. Whatever goes wrong is
said in one sentence on standard error; the exit code is 2 for what was asked, 1 for what happened, 130 for Ctrl-C.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from nanoinfer import __version__
from nanoinfer.cli import batch, doctor, generate, serve, shell, watch
from nanoinfer.cli.errors import explained
from nanoinfer.cli.options import with_options
from nanoinfer.cli.plugins import EXTRAS, CommandGroup, needing
from nanoinfer.cli.terminal import prepare_streams, remark, write
from nanoinfer.docstrings import described


@with_options()
def nanoinfer(*, version: bool = False) -> None:
    """GPT-2 inference from scratch, from a naive loop to a dict of CUDA graphs.

    version: print it, and no more.

    Examples:
    nanoinfer generate "Once upon a time" -m gpt2
    nanoinfer batch prompts.jsonl --out results
    nanoinfer shell -m gpt2
    nanoinfer doctor
    nanoinfer serve
    nanoinfer watch
    `nanoinfer COMMAND --help` has more. NANOINFER_TRACEBACK=1 shows where an error comes from.
    """
    if version:
        write(f"nanoinfer {__version__}\n")
        raise typer.Exit


def _told(command: Any) -> dict[str, Any]:
    """What typer shows of a command. It joins the lines of a paragraph, so each example becomes one."""
    text, _, examples = described(command)
    return {"help": text, "epilog": f"Examples:\n{examples}".replace("\n", "\n\n")}


app = typer.Typer(cls=CommandGroup, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
app.callback(**_told(nanoinfer), invoke_without_command=True)(nanoinfer)
for command in (generate.generate, batch.batch, shell.shell, doctor.doctor, serve.serve, watch.watch):
    app.command(**_told(command))(command)


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    warnings.formatwarning = lambda message, *_, **__: f"nanoinfer: {message}\n"  # one sentence, like all that is said
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code. What goes wrong is said in one sentence on standard error.

    Where the package refuses an argument, the user reads the name of the option.
    """
    prepare_streams()
    name, *_ = arguments = list(arguments) or ["--help"]
    group = typer.main.get_group(app)
    try:
        try:  # not typer's own `main`, which would answer Ctrl-C and closed pipes its own way
            with needing(name, EXTRAS.get(name)), group.make_context("nanoinfer", arguments) as context:
                return group.invoke(context) or 0
        except typer.Exit as exit_:
            return exit_.exit_code
        finally:
            write("")  # flushes what typer and others have printed themselves, or says why it cannot be
    except (KeyboardInterrupt, Exception) as error:
        options = group.commands[name].params if name in group.commands else []
        known = explained(error, {option.name or "": option.opts[0] for option in options})
        if str(known):
            remark(f"nanoinfer: {known}")
        return known.code
