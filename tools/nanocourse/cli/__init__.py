"""`nanoinfer course`, plugged into the engine's command line."""

from __future__ import annotations

import typer

from nanocourse.cli import course


def add(to: typer.Typer) -> None:
    """Plug `nanoinfer course` in."""
    to.add_typer(course.app, name="course")
