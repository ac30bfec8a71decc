"""Rows of the tables that the page "Run it as a service" shows."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_type_hints

from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.fields import FIELDS


def field_rows() -> list[str]:
    """Every field of a request, as Markdown."""
    rows = []
    for name, field in FIELDS.items():
        extra: Any = field.json_schema_extra
        default = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
        rows.append(f"| `{name}` | {extra['what']} | {default} | {field.description} |")
    return rows


def bound_rows() -> list[str]:
    """Every bound, with its default and what happens beyond, as Markdown."""
    hints, rows = get_type_hints(ServeConfig, include_extras=True), []
    for field in fields(ServeConfig):
        option: Any = hints[field.name].__metadata__[0]
        if option.rich_help_panel == "Bounds":
            default: Any = option.show_default if isinstance(option.show_default, str) else f"{field.default:,}"
            rows.append(f"| `--{field.name.replace('_', '-')}` | {default} | {option.help} |")
    return rows
