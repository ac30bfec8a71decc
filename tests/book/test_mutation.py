"""Planted mistakes: one that a test catches, one in a line that no test executes, one whose statement is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanobook import mutation, planted

SOURCE = '''
class Adder:
    def add(self, first: int, second: int = 2) -> int:
        """Add two numbers."""
        if first < 0:
            return 0
        return first + second
'''
COVERAGE = Path(__file__).parents[1] / "coverage-by-test.ini"
TEST = "from nanoinfer.adder import Adder\n\n\ndef test_sum():\n    assert Adder().add(1) == 3\n"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of one function with a test of its own."""
    root = tmp_path_factory.mktemp("checkout")
    for name, text in {"nanoinfer/__init__.py": "", "nanoinfer/adder.py": SOURCE, "tests/test_adder.py": TEST}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_every_mutant_is_found_again_and_changes_the_file(checkout: Path) -> None:
    made = planted.drawn(checkout / "nanoinfer", 200, seed=0)
    names = {mutant.name for mutant in made}
    assert {"return first - second", "without: if first < 0:", "def add(self, first, second=3):"} <= names
    for mutant in made:
        place = planted.find(mutant, checkout / "nanoinfer")
        assert place is not None
        text = place.mutated(mutant)
        compile(text, "mutated", "exec")
        assert text != SOURCE.encode()
        assert b'"""Add two numbers."""' in text


def test_caught_not_executed_and_gone(checkout: Path, tmp_path: Path) -> None:
    place = ("adder.py", "Adder.add")
    entries = [
        planted.Mutant(*place, "return first + second", "return first - second", 0, "caught"),
        planted.Mutant(*place, "2", "2.0", 0, "a default that no test can tell"),
        planted.Mutant(*place, "return 0", "return 1", 0, "not executed"),
        planted.Mutant(*place, "return first * second", "pass", 0, "gone"),
    ]
    stored = tmp_path / "mutants.json"
    stored.write_text(json.dumps([vars(entry) for entry in entries]), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    for command in (
        ["pytest", "--cov=nanoinfer", f"--cov-config={COVERAGE}", "--cov-context=test", "--cov-report="],
        ["nanobook.mutation", "run", str(tmp_path), "--mutants", str(stored), "--jobs", "1", "--preload", ""],
    ):
        output = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=checkout, env={**environment, "COVERAGE_FILE": str(tmp_path / "combined")}, timeout=120, check=True,
            stdout=subprocess.PIPE, text=True,
        ).stdout  # fmt: skip
        (tmp_path / "run.log").write_text(output, encoding="utf-8")
    found = mutation.results(tmp_path / "results.jsonl")
    assert [found[at]["status"] for at in range(4)] == ["caught", "not caught", "not executed", "does not apply"]
    assert found[0]["caught"] == ["tests/test_adder.py::test_sum"]
