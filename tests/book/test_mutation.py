"""Planted mistakes: caught, in a subprocess too; missed; in a line that no test executes; in one that is gone."""

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
        return first + second if first < 100 else 100
    def unused(self) -> int:
        return 0
'''
RUN = "from nanoinfer.adder import Adder; assert Adder().add"
TEST = f"""
import subprocess, sys
def test_sum(): {RUN}(1) == 3
def test_subprocess(): subprocess.run([sys.executable, "-c", "{RUN}(-1) == 0"], check=True)
"""
SUM = "return first + second if first < 100 else 100"
MUTANTS = [
    ("add", SUM, SUM.replace("+", "-"), "caught", ["tests/test_adder.py::test_sum"]),
    ("add", "return 0", "return 1", "caught", ["tests/test_adder.py::test_subprocess"]),
    ("add", SUM, SUM.replace("100", "99"), "not caught", []),
    ("unused", "return 0", "return 1", "not executed", None),
    ("add", "return first * second", "pass", "does not apply", None),
]
COVERAGE = Path(__file__).parents[1] / "coverage-by-test.ini"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small package with tests of its own."""
    root = tmp_path_factory.mktemp("checkout")
    for name, text in {"nanoinfer/__init__.py": "", "nanoinfer/adder.py": SOURCE, "tests/test_adder.py": TEST}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_every_mutant_is_found_again_and_changes_the_file(checkout: Path) -> None:
    made = planted.drawn(checkout / "nanoinfer", 200, seed=0)
    assert {"without: if first < 0:", "def add(self, first, second=3):"} <= {mutant.name for mutant in made}
    for mutant in made:
        text = planted.find(mutant, checkout / "nanoinfer").mutated(mutant)
        compile(text, "mutated", "exec")
        assert text != SOURCE.encode()
        assert b'"""Add two numbers."""' in text


def test_what_each_mutant_comes_to(checkout: Path, tmp_path: Path) -> None:
    made = [planted.Mutant("adder.py", f"Adder.{name}", was, now, 0, now) for name, was, now, *_ in MUTANTS]
    for name, text in {"mutants.json": json.dumps([vars(mutant) for mutant in made]), "run.log": ""}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["COVERAGE_FILE"] = str(tmp_path / "combined")
    for command in (
        f"pytest -p nanobook.subprocess_coverage --cov=nanoinfer --cov-config={COVERAGE} --cov-context=test",
        f"nanobook.mutation run {tmp_path} --mutants {tmp_path}/mutants.json --jobs 1",
    ):
        subprocess.run([sys.executable, "-m", *command.split()], cwd=checkout, env=environment, check=True)
    found = mutation.results(tmp_path / "results.jsonl").values()
    assert [(each["status"], each.get("caught")) for each in found] == [(status, by) for *_, status, by in MUTANTS]
