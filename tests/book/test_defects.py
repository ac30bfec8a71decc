"""The list of defects names tests that exist, and leaves none of the captured step's out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = ROOT / "chapters" / "04-cuda-graphs" / "defects.md"
ROW = re.compile(r"^\| (?P<name>[GPMTE]\d\d) \| (?P<threads>[^|]+) \| (?P<wrong>[^|]+) \| (?P<here>[^|]+) \|$")

pytestmark = pytest.mark.skipif(not LIST.is_file(), reason="not a checkout")


def rows() -> dict[str, dict[str, str]]:
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if re.match(r"\| [A-Z]\d", line)]
    matches = [ROW.match(line) for line in lines]
    assert all(matches), [line for line, match in zip(lines, matches, strict=True) if not match]
    return {match["name"]: match.groupdict() for match in matches if match}


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_entry_is_there_once() -> None:
    wanted = (
        [f"G{n:02d}" for n in range(1, 25)] + [f"G{n}" for n in range(30, 39)] + [f"P{n:02d}" for n in range(1, 11)]
    )
    assert set(wanted) <= rows().keys()
    text = LIST.read_text(encoding="utf-8")
    assert all(text.count(f"| {name} |") == 1 for name in rows())


def test_every_named_test_exists() -> None:
    named = re.findall(r"`([^`]+)`", LIST.read_text(encoding="utf-8"))
    assert len(named) > 60
    for name in named:
        file, _, test = name.partition("::")
        assert test in names_in(file), name


def test_every_row_cites_a_thread_and_says_what_stands_against_it() -> None:
    """By a test, or by a sentence; what went wrong is a sentence, too."""
    owners = LIST.read_text(encoding="utf-8").split("## ")[0]
    for name, row in rows().items():
        threads = row["threads"].split(", ")
        assert all(re.fullmatch(r"[\w.-]+#\d+", thread) for thread in threads), name
        assert all(re.search(rf"\b{re.escape(thread.split('#')[0])}\b", owners) for thread in threads), name
        assert row["wrong"].endswith("."), name
        assert "`" in row["here"] or row["here"].endswith("."), name
