"""The page "Run it as a service" says what the code does."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from nanoinfer.serve.app import OPEN
from nanoinfer.serve.config import KEY_VARIABLE, ServeConfig
from nanoinfer.serve.pages import bound_rows, field_rows
from nanoinfer.serve.run import HEAD

PAGE = Path(__file__).parents[2] / "chapters" / "SERVING.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")


@pytest.mark.parametrize("rows", [field_rows(), bound_rows()], ids=["fields", "bounds"])
def test_a_table_is_the_codes(rows: list[str]) -> None:
    assert "\n".join(["", *rows, "", ""]) in PAGE.read_text(encoding="utf-8"), "the page should have:\n" + "\n".join(
        rows
    )


def test_numbers_and_names_in_the_text() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"headers may have {HEAD >> 10} KiB" in text
    assert KEY_VARIABLE in text
    assert all(f"`{path}`" in text or f"GET {path}`" in text for path in OPEN)
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read_string(re.findall(r"```ini\n(.*?)```", text, re.S)[0])
    assert unit.getint("Service", "TimeoutStopSec") > ServeConfig().drain_timeout
    assert unit.getint("Service", "LimitNOFILE") > 2 * ServeConfig().connections
