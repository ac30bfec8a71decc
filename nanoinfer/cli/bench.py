"""`nanoinfer bench`: the benchmark that stands beside the package in a clone, and travels inside it in the wheel."""

from __future__ import annotations

import sys

import typer

from nanoinfer.cli.errors import Refused


def bench(context: typer.Context) -> int:
    """Measure engines, compare results, draw figures: the same as `python -m bench` in a clone (see bench --help)."""
    from nanoinfer.reading import shelf

    try:
        sys.path.insert(0, str(shelf.root()))
        from bench.__main__ import app
    except FileNotFoundError as error:
        raise Refused(str(error)) from error
    except ModuleNotFoundError as error:
        raise Refused(f"the benchmark needs {error.name}: pip install 'nanoinfer[bench]'") from error
    try:
        app(context.args, prog_name="nanoinfer bench")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
