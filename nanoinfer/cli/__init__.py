"""The command `nanoinfer`: generate, batch, shell, doctor, serve, watch, and what is plugged in: course, read, bench.

Importing this loads neither torch nor prompt_toolkit: a refused argument is answered at once. Whatever goes wrong is
said in one sentence on standard error; the exit code is 2 for what was asked, 1 for what happened, 130 for Ctrl-C.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from nanoinfer import __version__
from nanoinfer.cli import batch, doctor, generate, serve, shell, watch
from nanoinfer.cli.errors import explained
from nanoinfer.cli.plugins import EXTRAS, CommandGroup, needing
from nanoinfer.cli.terminal import Output, prepare_streams, remark

EPILOG = """\
Examples:
nanoinfer generate "Once upon a time" -m gpt2
nanoinfer batch prompts.jsonl --out results
nanoinfer shell -m gpt2
nanoinfer doctor
nanoinfer serve
nanoinfer watch
`nanoinfer COMMAND --help` has more. NANOINFER_TRACEBACK=1 shows where an error comes from."""


def _paragraphs(text: str) -> str:
    """The text with each line as a paragraph of its own: typer joins the lines of one."""
    return text.replace("\n", "\n\n")


HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(cls=CommandGroup, add_completion=False, epilog=_paragraphs(EPILOG), context_settings=HELP_OPTIONS)
app.command("generate", epilog=_paragraphs(generate.EPILOG))(generate.generate)
app.command("batch", epilog=_paragraphs(batch.EPILOG))(batch.batch)
app.command("shell", epilog=_paragraphs(shell.EPILOG))(shell.shell)
app.command("doctor", epilog=_paragraphs(doctor.EPILOG))(doctor.doctor)
app.command("serve", epilog=_paragraphs(serve.EPILOG))(serve.serve)
app.command("watch", epilog=_paragraphs(watch.EPILOG))(watch.watch)


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
    warnings.formatwarning = lambda message, *_, **__: f"nanoinfer: {message}\n"  # one sentence, like all that is said
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code. What goes wrong is said in one sentence on standard error."""
    prepare_streams()
    arguments = list(arguments) or ["--help"]
    group = typer.main.get_command(app)
    try:
        try:  # not typer's own `main`, which would answer Ctrl-C and closed pipes its own way
            with (
                needing(arguments[0], EXTRAS.get(arguments[0]) or None),
                group.make_context("nanoinfer", arguments) as context,
            ):
                return group.invoke(context) or 0
        except typer.Exit as exit_:
            return exit_.exit_code
        finally:
            Output().write("")  # flushes what typer and others have printed themselves, or says why it cannot be
    except (KeyboardInterrupt, Exception) as error:
        known = explained(error)
        if str(known):
            remark(f"nanoinfer: {known}")
        return known.code
