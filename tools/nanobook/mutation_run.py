"""Run tests on mutants: each mutant in a forked process, in a copy of the checkout, on the tests that execute it."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import select
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nanobook.planted import ENGINE, Mutant, Place, find
from nanobook.source import PACKAGES

if TYPE_CHECKING:
    import pytest
    from coverage import CoverageData

CONTEXT = re.compile(r"(?:none\|)?(?P<test>(?P<file>\S+\.py)::.+?)(?:\|| \()(?P<phase>setup|run|call|teardown)\)?")
DURATION = re.compile(r"([\d.]+)s (?:call|setup) +(\S+\.py::.*?) *")
FAST_S = 0.03  # of a test that is too fast to be listed
TEST_LIMIT_S = 90  # on a busy machine; the first test that reaches it ends the run
ENOUGH = 5  # failed test functions, after which no more tests are run
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


def busy() -> float:
    """Processor seconds of this process and of those that it waited for: other work on the machine adds none."""
    return sum(os.times()[:4])


class Recorder:
    """A pytest plugin that writes each event down at once, so that a crash loses none.

    It stops when enough tests have failed, or when they have taken twice the processor time that was meant for them.
    """

    def __init__(self, file: IO[str], budget: float) -> None:
        self.file, self.end = file, busy() + 2 * budget
        self.failed: set[str] = set()

    def write(self, event: str, value: str | int) -> None:
        """Append one event."""
        print(json.dumps([event, value]), file=self.file, flush=True)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write("failed", report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write("started", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.write("failed", report.nodeid)
            self.failed.add(function_of(report.nodeid))
        elif report.passed and report.when == "call":
            self.write("passed", report.nodeid)
        hung = report.failed and "Timeout" in report.longreprtext
        if hung or len(self.failed) >= ENOUGH or busy() > self.end:
            self.session.shouldstop = "enough"


class Slot:
    """A copy of the checkout that holds one mistake at a time."""

    def __init__(self, root: Path, folder: Path, budget: float) -> None:
        self.root, self.folder, self.budget = root, folder, budget
        self.events, self.log = folder.with_suffix(".events"), folder.with_suffix(".log")
        self.fails: dict[str, bool] = {}  # tests known to fail, or not, without a mistake
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)

    def tried(self, *arguments: str) -> tuple[str, list[str], list[str]]:
        """Run tests in a process that is killed at the limit with all that it has started.

        Returns how it ended (`failed`, `crashed`, `hung`, `no collection`; empty where all passed), the tests that
        failed and those that passed.
        """
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)
        self.events.unlink(missing_ok=True)  # a process of an interrupted run may still write to the old file
        self.events.touch()
        process = os.fork()
        if not process:
            try:
                self._run(arguments)
            finally:
                os._exit(1)
        done = os.pidfd_open(process)
        hung = not select.select([done], [], [], 10 * self.budget + 2 * TEST_LIMIT_S)[0]
        os.close(done)
        for group in (process, -process):
            with suppress(ProcessLookupError):
                os.kill(group, signal.SIGKILL)
        os.waitpid(process, 0)
        events: dict[str, list[Any]] = {"started": ["collection"], "failed": [], "passed": [], "exit": []}
        for event, value in map(json.loads, self.events.read_text(encoding="utf-8").splitlines()):
            events[event].append(value)
        how = "failed" if events["failed"] else "hung" if hung else "crashed" if not events["exit"] else ""
        if not how and events["exit"] not in ([0], [2], [5]):
            how = "no collection"
        failed = events["failed"] or events["started"][-1:] if how else []
        return how, failed, events["passed"]

    def _run(self, arguments: Sequence[str]) -> None:
        os.setsid()
        os.chdir(self.folder)
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream, target in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(target, stream)
        paths = [str(self.folder), str(self.folder / "bench"), str(self.folder / "tools")]
        sys.path[:] = [*paths, *(path for path in sys.path if not Path(path).is_relative_to(self.root))]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
            del sys.modules[name]
        import pytest

        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", f"--timeout={TEST_LIMIT_S}"]
        with self.events.open("a", encoding="utf-8") as file:
            recorder = Recorder(file, self.budget)
            recorder.write("exit", int(pytest.main([*options, *arguments], plugins=[recorder])))

    def measured(self, place: Place, mutant: Mutant, chosen: Sequence[str]) -> dict[str, Any]:
        """Plant one mistake and run the tests; those that fail without it, too, are left out from then on."""
        file, sound = self.folder / place.path, self.root / place.path
        began = time.monotonic()
        while tests := [test for test in chosen if not self.fails.get(test)]:
            file.write_bytes(place.mutated(mutant))
            os.utime(file, (began, began))  # no bytecode of another mutant is taken for this one's
            how, failed, passed = self.tried(*tests)
            shutil.copy2(sound, file)
            if how == "no collection" and self.tried("--collect-only", *tests)[0]:
                raise RuntimeError(f"pytest cannot collect these tests, mistake or no mistake: {tests}")
            if doubtful := [test for test in failed if test in tests and test not in self.fails]:
                without = self.tried(*doubtful)[1]
                self.fails.update((test, test in without) for test in doubtful)
            caught = [test for test in failed if not self.fails.get(test)]
            if caught or not failed:
                status = "caught" if caught else "not caught"
                return {"status": status, "how": how, "caught": caught, "passed": passed}
        return {"status": "not caught", "how": "no test passes without it", "caught": [], "passed": []}

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


def run(mutants: Sequence[tuple[int, Mutant]], folder: Path, budget: float, jobs: int, preload: Sequence[str]) -> None:
    """Measure these mutants, several at a time, on the tests whose coverage lies in the folder."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    for name in filter(None, preload):
        import_module(name)
    turn = multiprocessing.Value("i", 0)
    workers = []
    for job in range(jobs):
        workers.append(os.fork())
        if not workers[-1]:
            slot, tests = Slot(Path.cwd(), folder / f"slot-{job}", budget), Tests.load(folder)
            while True:
                with turn.get_lock():
                    at, turn.value = turn.value, turn.value + 1
                if at >= len(mutants):
                    os._exit(0)
                result = {"mutant": mutants[at][0], **slot.result(mutants[at][1], tests)}
                with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
    for worker in workers:
        os.waitpid(worker, 0)
