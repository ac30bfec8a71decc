"""Slow proofs, and which of them are stale.

A proof is a group of slow tests that depend on the same files: the marked or the plain tests of a file, the strength of
one exercise, one notebook. When all its tests pass, a hash of what they depend on is stored as its key. As long as the
key agrees, nothing that the proof looks at has changed, and it is not run again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from nanobook.depends import Dependencies, Part

KEYS = "tests/proofs.json"
SLOW = ("tests/course", "tests/book")  # folders whose unmarked tests are proofs as well
MARKS = ("strength", "notebook", "readme", "long")
NARROWED = {  # by mark: tests whose parameter names all they read of a folder
    "strength": re.compile(r"(?P<proof>(?P<chapter>\d+)\.(?P<number>\d+)).*"),
    "notebook": re.compile(r"(?P<proof>(?P<notebook>.+))"),
}


@dataclass
class Proof:
    """Tests that are proven together. tests: their pytest ids. narrowed: see `depends.READS`."""

    name: str
    path: str
    narrowed: dict[str, str]
    tests: list[str] = field(default_factory=list)

    def parts(self) -> set[Part]:
        """Where its dependencies begin: the definitions of its tests."""
        functions = (re.sub(r"\[.*", "", test.removeprefix(self.path + "::"), flags=re.S) for test in self.tests)
        return {Part(self.path, function.replace("::", ".")) for function in functions}


class Proofs:
    """The proofs of a repository, their keys now, and those stored when they last passed."""

    def __init__(self, root: Path, found: Iterable[Proof]) -> None:
        self.found = {proof.name: proof for proof in found}
        self._needs, self._file = Dependencies(root), root / KEYS
        self._stored: dict[str, Any] = json.loads(self._file.read_text("utf-8")) if self._file.is_file() else {}

    @cached_property
    def keys(self) -> dict[str, str | None]:
        """The key of each proof now; None where it cannot be computed."""
        return {name: self._key(proof) for name, proof in self.found.items()}

    def _key(self, proof: Proof) -> str | None:
        try:
            parts = self._needs.of(proof.parts(), proof.narrowed)
            return self._needs.digest(parts, *sorted(proof.tests), *map(_version, ("torch", "triton")))
        except (SyntaxError, OSError):
            return None

    def stale(self) -> list[Proof]:
        """The proofs whose key is not the stored one, the longest first."""
        return self.by_seconds(name for name, key in self.keys.items() if key != self._of(name).get("key", ""))

    def by_seconds(self, names: Iterable[str]) -> list[Proof]:
        """These proofs, the longest first, as far as is known."""
        return [self.found[name] for name in sorted(names, key=lambda name: -self.seconds(name))]

    def seconds(self, name: str) -> float:
        """How long a proof took when it last passed; 0 where it never has."""
        return float(self._of(name).get("seconds", 0))

    def _of(self, name: str) -> dict[str, Any]:
        of: dict[str, Any] = self._stored.get(name, {})
        return of

    def passed(self, name: str, seconds: float) -> None:
        """Store a proof's key."""
        self._stored[name] = {"key": self.keys[name], "seconds": round(seconds, 1)}
        self._write()

    def failed(self, name: str) -> None:
        """Forget a proof's key."""
        self._stored.pop(name, None)
        self._write()

    def _write(self) -> None:
        """Store what is known of the proofs that there are, one on a line."""
        known = {name: of for name, of in sorted(self._stored.items()) if name in self.found and of["key"]}
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(of)}" for name, of in known.items())
        self._file.write_text(f"{{\n{lines}\n}}\n" if lines else "{}\n", encoding="utf-8")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


class Collector:
    """A pytest plugin that groups the tests it is shown into proofs."""

    def __init__(self) -> None:
        self.proofs: dict[str, Proof] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            path = item.nodeid.partition("::")[0]
            mark = next(filter(item.get_closest_marker, MARKS), "")
            if item.get_closest_marker("gpu") or not (mark or path.startswith(SLOW)):
                continue
            parameter = getattr(getattr(item, "callspec", None), "id", "")
            match = NARROWED[mark].fullmatch(parameter) if mark in NARROWED else None
            narrowed = match.groupdict() if match else {}
            name = " ".join(filter(None, (path, mark, narrowed.pop("proof", ""))))
            self.proofs.setdefault(name, Proof(name, path, narrowed)).tests.append(item.nodeid)


class Recorder:
    """A pytest plugin that stores a proof's key as soon as its last test has passed."""

    def __init__(self, proofs: Proofs, running: Sequence[Proof]) -> None:
        self.proofs = proofs
        self.failed: set[str] = set()
        self.proven: dict[str, float] = {}
        self._of = {test: proof.name for proof in running for test in proof.tests}
        self._left = {proof.name: set(proof.tests) for proof in running}
        self._seconds = dict.fromkeys(self._left, 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = self._of.get(report.nodeid)
        if name is None:
            return
        self._seconds[name] += report.duration
        if not report.passed and name not in self.failed:
            self.failed.add(name)  # a skipped test has proven nothing
            self.proofs.failed(name)
        if report.when == "teardown":
            self._left[name].discard(report.nodeid)
            if not self._left[name] and name not in self.failed:
                self.proven[name] = self._seconds[name]
                self.proofs.passed(name, self._seconds[name])


def collected() -> list[Proof]:
    """Find the proofs of the repository in this folder. RuntimeError with what pytest says if its tests do not load."""
    collector, said = Collector(), io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(["--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", "tests"], plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(said.getvalue().strip())
    return list(collector.proofs.values())


def run(proofs: Proofs, wanted: Sequence[Proof], workers: int) -> tuple[int, Recorder]:
    """Run some proofs and store the keys of those that pass. Returns pytest's exit code and what was found."""
    recorder = Recorder(proofs, wanted)
    with tempfile.TemporaryDirectory() as folder:
        tests = Path(folder) / "tests"
        tests.write_text("\n".join(test for proof in wanted for test in proof.tests), encoding="utf-8")
        options = ["-q", "-m", "", "--durations=10", "-n", str(workers), "--dist", "worksteal", f"@{tests}"]
        code = pytest.main(options, plugins=[recorder])
    return int(code), recorder


def command(root: Path, names: Sequence[str], everything: bool, only_list: bool, workers: int | None) -> int:
    """`python -m nanobook proofs`. Returns the exit code."""
    os.chdir(root)
    proofs = Proofs(root, collected())
    wanted = proofs.by_seconds(proofs.found) if everything else proofs.stale()
    wanted = [proof for proof in wanted if all(word in proof.name for word in names)]
    for proof in wanted:
        known = f"{proofs.seconds(proof.name):.0f} s" if proofs.seconds(proof.name) else "new"
        print(f"{known:>8}  {proof.name}")
    total = sum(proofs.seconds(proof.name) for proof in wanted)
    kind = "" if everything else " stale"
    print(
        f"{len(wanted)} of {len(proofs.found)} proofs are{kind or ' to be run'}, {total:.0f} s of tests when last run"
    )
    if only_list or not wanted:
        return 0
    code, recorder = run(proofs, wanted, workers or os.cpu_count() or 1)
    for name in sorted(recorder.failed):
        print(f"not proven: {name}")
    print(f"{len(recorder.proven)} proofs passed, {sum(recorder.proven.values()):.0f} s of tests")
    return code  # a proof with a skipped test is not proven, but nothing has failed
