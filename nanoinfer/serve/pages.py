"""Rows of the tables that the page "Run it as a service" shows."""

from __future__ import annotations

from nanoinfer.docstrings import described
from nanoinfer.serve.config import BOUNDS, ServeConfig
from nanoinfer.serve.fields import FIELDS


def field_rows() -> list[str]:
    """Every field of a request, as Markdown."""
    return [
        f"| `{one.name}` | {one.what} | {one.default if one.default == 'required' else f'`{one.default}`'} "
        f"| {one.sentence} |"
        for one in FIELDS
    ]


def bound_rows() -> list[str]:
    """Every bound, with its default and what happens beyond, as Markdown."""
    _, told, _ = described(ServeConfig)
    rows = []
    for name in BOUNDS:
        default = told[name].unset or f"{getattr(ServeConfig, name):,}"
        rows.append(f"| `--{name.replace('_', '-')}` | {default} | {told[name].help} |")
    return rows
