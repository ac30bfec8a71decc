"""How the commands refuse: one sentence on standard error, and exit code 2."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import typer
from typer.core import TyperGroup


def writable(path: Path | None) -> Path | None:
    """The path of a results file. ValueError where it cannot be written, before hours of measuring are lost."""
    if path is None:
        return None
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with TemporaryFile(dir=next(folder for folder in path.absolute().parents if folder.exists())):
            return path
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


class Commands(TyperGroup):
    """A group of commands; where one raises ValueError or OSError, its message is printed and the exit code is 2.

    extra: of the package, which installs what they need.
    """

    extra = "bench"

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # `| head` has read enough: the command line library ends quietly
        except ModuleNotFoundError as error:
            if "." in str(error.name):  # a part of a package that is there is missing by a mistake of ours
                raise
            what = f"{ctx.command_path.split()[-1]}: it needs {error.name}, which is not installed"
            print(f"{what}: pip install 'nanoinfer[{self.extra}]'", file=sys.stderr)
            raise typer.Exit(2) from None
        except (ValueError, OSError) as error:
            print(f"{ctx.command_path.split()[-1]}: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
