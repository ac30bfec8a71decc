"""A proof is run again when something that it depends on has changed, and only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanobook.depends import Dependencies
from nanobook.proofs import KEYS, Proof, Proofs

# Three imports lie between the first test and deep.py; strings lead the second to named.py, run.py and a data file.
FILES = {
    "toy/__init__.py": "", "toy/top.py": "from toy.middle import middle\n", "toy/deep.py": "VALUE = 1\n",
    "toy/middle.py": "def middle():\n    from toy import deep\n    return deep.VALUE\n",
    "toy/named.py": "def name(): pass\n", "toy/run.py": "print('run')\n", "toy/reader.py": "import glob\n",
    "toy/loose.py": "UNUSED = True\n", "data/table.csv": "1,2\n", "data/one.txt": "1\n", "data/two.txt": "2\n",
    "tests/conftest.py": """
import pytest
from toy import loose

@pytest.fixture
def table():
    return "data/table.csv"
""",
    "tests/test_all.py": """
import pytest
from toy import top, reader

def helper():
    return top.middle()

@pytest.mark.long
def test_imports():
    assert helper() == 1

@pytest.mark.strength
def test_strings(table):
    assert ["python", "-m", "toy.run"] and "toy.named:name" and table

@pytest.mark.readme
def test_skipped():
    pytest.skip("not here")

@pytest.mark.notebook
@pytest.mark.parametrize("name", ["one", "two"])
def test_narrowed(name):
    assert reader
""",
}  # fmt: skip
TESTS = "tests/test_all.py"
FOUND = [
    Proof("imports", TESTS, {}, [f"{TESTS}::test_imports"]),
    Proof("strings", TESTS, {}, [f"{TESTS}::test_strings"]),
    Proof("one", TESTS, {"notebook": "one"}, [f"{TESTS}::test_narrowed[one]"]),
    Proof("two", TESTS, {"notebook": "two"}, [f"{TESTS}::test_narrowed[two]"]),
]
READS = {"toy/reader.py": ("data/{notebook}.txt",)}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def stale(repository: Path) -> set[str]:
    return {proof.name for proof in Proofs(repository, FOUND).stale()}


def prove_all(repository: Path) -> None:
    proofs = Proofs(repository, FOUND)
    for name in proofs.found:
        proofs.passed(name, 1.0)


@pytest.fixture(autouse=True)
def _reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanobook.proofs.Dependencies", lambda root: Dependencies(root, READS))


@pytest.mark.parametrize(
    "changed, expected",
    [
        ("toy/deep.py", {"imports"}), ("toy/named.py", {"strings"}), ("toy/run.py", {"strings"}),
        ("data/table.csv", {"strings"}), ("data/one.txt", {"one"}), ("toy/loose.py", set()),
        ("toy/__init__.py", {"imports", "strings", "one", "two"}),
    ],
)  # fmt: skip
def test_a_changed_line_makes_exactly_the_right_proofs_stale(
    repository: Path, changed: str, expected: set[str]
) -> None:
    assert stale(repository) == {"imports", "strings", "one", "two"}
    prove_all(repository)
    assert stale(repository) == set()
    with (repository / changed).open("a") as file:
        file.write("# changed\n")
    assert stale(repository) == expected


def test_a_proof_whose_key_cannot_be_computed_is_always_stale(repository: Path) -> None:
    (repository / "toy/deep.py").write_text("this is no Python\n")
    prove_all(repository)
    assert stale(repository) == {"imports"}


def test_a_proof_leaves_a_key_when_it_passes_and_none_when_it_fails(repository: Path) -> None:
    def prove() -> tuple[int, set[str]]:
        command = [sys.executable, "-m", "nanobook", "proofs", "-n", "1", "--root", str(repository)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(repository), os.environ.get("PYTHONPATH", "")])}
        environment.pop("PYTEST_XDIST_WORKER", None)
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        return done.returncode, set(json.loads((repository / KEYS).read_text()))

    kept = {f"{TESTS} strength", f"{TESTS} notebook one", f"{TESTS} notebook two"}
    assert prove() == (0, {*kept, f"{TESTS} long"})
    (repository / "toy/deep.py").write_text("VALUE = 2\n")
    assert prove() == (1, kept)
