"""Run tests on mutants: each mutant in a copy of the checkout, on the tests that execute it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from nanobook.planted import ENGINE, Mutant, Place, find

if TYPE_CHECKING:
    from coverage import CoverageData

CONTEXT = re.compile(r"(?:none\|)?(?P<test>(?P<file>\S+\.py)::.+?)(?:\|| \()(?P<phase>setup|run|call|teardown)\)?")
DURATION = re.compile(r"([\d.]+)s (?:call|setup) +(\S+\.py::.*?) *")
FAST_S = 0.03  # of a test that is too fast to be listed
TEST_LIMIT_S = 90  # on a busy machine
OPTIONS = (
    "-q", "-rfE", "--tb=no", "--maxfail=5", f"--timeout={TEST_LIMIT_S}", "--hypothesis-seed=0",
    "-p", "no:cacheprovider", "-p", "no:xdist",
)  # fmt: skip
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.M)
NOT_COPIED = (".*", "__pycache__", "build", "dist", "my-*")


def matches(contexts: Iterable[str]) -> list[re.Match[str]]:
    """The contexts that are tests."""
    return [match for context in contexts if (match := CONTEXT.fullmatch(context))]


def function_of(test: str) -> str:
    """A test without its parameters."""
    return test.partition("[")[0]


@dataclass(frozen=True)
class Tests:
    """Which tests execute which lines of the engine, and how long each takes."""

    data: CoverageData
    seconds: Mapping[str, float]

    @classmethod
    def load(cls, folder: Path) -> Tests:
        """Read the coverage and the durations of a run of all tests."""
        from coverage import CoverageData

        data = CoverageData(str(folder / "combined"))
        data.read()
        seconds: dict[str, float] = defaultdict(lambda: FAST_S)
        for line in (folder / "run.log").read_text(encoding="utf-8").splitlines():
            if match := DURATION.fullmatch(line):
                seconds[match[2]] += float(match[1])
        return cls(data, seconds)

    def executing(self, place: Place, root: Path) -> tuple[list[str], list[str]]:
        """Tests that execute the place, and tests that may only see its effect.

        What runs in a test's setup may be a fixture that its whole file shares. What runs in no test, at import or in a
        process that outlives one, may be seen by any test that executes this file, or else by any test at all.
        """
        lines = self.data.contexts_by_lineno(str(root / place.path))
        contexts = {context for line in place.lines for context in lines.get(line, ())}
        found = matches(contexts)
        direct = {match["test"] for match in found}
        files = {match["file"] for match in found if match["phase"] not in {"run", "call"}}
        every = matches(self.data.measured_contexts())
        others = {match["test"] for match in every if match["file"] in files} - direct
        if contexts and not found:
            others = {match["test"] for match in matches(set().union(*lines.values())) or every}
        return sorted(direct), sorted(others)

    def chosen(self, groups: Iterable[Sequence[str]], budget: float) -> list[str]:
        """Tests within the budget: one of each function before a second, fast ones first, grouped by file."""
        chosen: list[str] = []
        for group in groups:
            seen: Counter[str] = Counter()
            ranked = []
            for test in sorted(group, key=lambda test: (self.seconds[test], test)):
                ranked.append((seen[function_of(test)], self.seconds[test], test))
                seen[function_of(test)] += 1
            for _, seconds, test in sorted(ranked):
                if seconds <= budget or not chosen:
                    chosen.append(test)
                    budget -= seconds
        files = [test.partition("::")[0] for test in chosen]
        return sorted(chosen, key=lambda test: files.index(test.partition("::")[0]))


class Slot:
    """A copy of the checkout that holds one mistake at a time."""

    def __init__(self, root: Path, folder: Path, budget: float) -> None:
        self.root, self.folder, self.budget = root, folder, budget
        self.fails: dict[str, bool] = {}  # tests known to fail, or not, without a mistake
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)

    def tried(self, tests: Sequence[str]) -> tuple[str, list[str]]:
        """Run tests. Returns how they ended (`failed`, `crashed`, `hung`; empty where all passed) and which failed.

        They are killed with all that they have started when they take much longer than they were meant to.
        """
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)
        paths = [str(self.folder), str(self.folder / "bench"), str(self.folder / "tools")]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *OPTIONS, *tests], cwd=self.folder, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=10 * self.budget + 2 * TEST_LIMIT_S)
        except subprocess.TimeoutExpired:
            return "hung", list(tests)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        failed = [match[1] for match in FAILED.finditer(said)]
        if failed or process.returncode in (0, 5):
            return "failed" if failed else "", failed
        return "crashed", list(tests)

    def measured(self, place: Place, mutant: Mutant, chosen: Sequence[str]) -> dict[str, Any]:
        """Plant one mistake and run the tests; those that fail without it, too, are left out from then on."""
        file = self.folder / place.path
        while tests := [test for test in chosen if not self.fails.get(test)]:
            file.write_bytes(place.mutated(mutant))
            how, failed = self.tried(tests)
            shutil.copy2(self.root / place.path, file)
            if doubtful := [test for test in failed if test not in self.fails]:
                _, without = self.tried(doubtful)
                self.fails.update((test, test in without) for test in doubtful)
            caught = [test for test in failed if not self.fails.get(test)]
            if caught or not failed:
                return {"status": "caught" if caught else "not caught", "how": how, "caught": caught}
        return {"status": "not caught", "how": "no test passes without it", "caught": []}

    def result(self, mutant: Mutant, tests: Tests) -> dict[str, Any]:
        """All that is stored of one mutant."""
        began = time.monotonic()
        result: dict[str, Any] = {"status": "does not apply"}
        if place := find(mutant, ENGINE):
            groups = tests.executing(place, self.root)
            chosen = tests.chosen(groups, self.budget)
            result = self.measured(place, mutant, chosen) if chosen else {"status": "not executed"}
            result.update(chosen=len(chosen), left_out=sum(map(len, groups)) - len(chosen))
        excluded = [test for test, fails in self.fails.items() if fails]
        return {**result, "excluded": excluded, "seconds": round(time.monotonic() - began, 1)}


def run(mutants: Sequence[tuple[int, Mutant]], folder: Path, budget: float, jobs: int) -> None:
    """Measure these mutants, several at a time, on the tests whose coverage lies in the folder."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    tests, free = Tests.load(folder), SimpleQueue[Slot]()
    for job in range(jobs):
        free.put(Slot(Path.cwd(), folder / f"slot-{job}", budget))

    def measured(numbered: tuple[int, Mutant]) -> str:
        slot = free.get()
        try:
            return json.dumps({"mutant": numbered[0], **slot.result(numbered[1], tests)})
        finally:
            free.put(slot)

    with ThreadPoolExecutor(jobs) as pool:
        for line in pool.map(measured, mutants):
            with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")
