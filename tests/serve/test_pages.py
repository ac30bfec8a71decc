"""The page "Run it as a service" says what the code does."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.docstrings import described
from nanoinfer.serve.app import OPEN
from nanoinfer.serve.config import BOUNDS, KEY_VARIABLE, ServeConfig
from nanoinfer.serve.fields import FIELDS

PAGE = Path(__file__).parents[2] / "chapters" / "SERVING.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")


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
    _, told, _ = described(ServeConfig)
    rows = []
    for name in BOUNDS:
        default = told[name].unset or f"{getattr(ServeConfig, name):,}"
        rows.append(f"| `--{name.replace('_', '-')}` | {default} | {told[name].help} |")
    return rows


@pytest.mark.parametrize("rows", [field_rows(), bound_rows()], ids=["fields", "bounds"])
def test_a_table_is_the_codes(rows: list[str]) -> None:
    assert "\n".join(["", *rows, "", ""]) in PAGE.read_text(encoding="utf-8"), "the page should have:\n" + "\n".join(
        rows
    )


def test_numbers_and_names_in_the_text() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert KEY_VARIABLE in text
    assert all(f"`{path}`" in text or f"GET {path}`" in text for path in OPEN)
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read_string(re.findall(r"```ini\n(.*?)```", text, re.S)[0])
    assert unit.getint("Service", "TimeoutStopSec") > ServeConfig().drain_timeout
    assert unit.getint("Service", "LimitNOFILE") > 2 * ServeConfig().connections
