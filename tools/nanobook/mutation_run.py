"""Run tests on mutants: each mutant in a forked process, in a copy of the checkout, on the tests that execute it."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nanobook.mutation import ENGINE, Mutant, Place, find
from nanobook.source import PACKAGES

if TYPE_CHECKING:
    import pytest
    from coverage import CoverageData

CONTEXT = re.compile(r"(?:none\|)?(?P<test>\S+\.py::.+?)(?:\|| \()(?P<phase>setup|run|call|teardown)\)?")
DURATION = re.compile(r"([\d.]+)s (?:call|setup) +(\S+\.py::.*?) *")
FAST_S = 0.03  # of a test that is too fast to be listed
TEST_LIMIT_S = 30
ENOUGH = 5  # failed test functions, after which no more tests are run
NOT_COPIED = (".*", "__pycache__", "build", "dist", "my-*")
COVERAGE = """[run]
source_pkgs = nanoinfer
context = ${PYTEST_CURRENT_TEST-none}
patch = subprocess, _exit
parallel = true
concurrency = thread,multiprocessing
sigterm = true
disable_warnings = module-not-imported,no-data-collected
"""


def cover(folder: Path) -> None:
    """Run the default tests under coverage, subprocesses included. Writes FOLDER/combined and FOLDER/run.log."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "coveragerc"
    config.write_text(f"{COVERAGE}data_file = {folder}/combined\n", encoding="utf-8")
    options = ["--cov=nanoinfer", f"--cov-config={config}", "--cov-context=test", "--cov-report="]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *options, "--durations=0", "--durations-min=0.05"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with (folder / "run.log").open("wb") as log:
        subprocess.run(command, env=environment, stdout=log, check=False)  # tests that fail are left out later


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
        """Read what `cover` wrote."""
        from coverage import CoverageData

        data = CoverageData(str(folder / "combined"))
        data.read()
        seconds: dict[str, float] = defaultdict(lambda: FAST_S)
        for line in (folder / "run.log").read_text(encoding="utf-8").splitlines():
            if match := DURATION.fullmatch(line):
                seconds[match[2]] += float(match[1])
        return cls(data, seconds)

    def executing(self, place: Place, root: Path) -> tuple[list[str], list[str]]:
        """Tests that execute the place, and those that may only see its effect.

        What runs in a test's setup may be a fixture that its whole file shares. What runs at import may be seen by any.
        """
        lines = self.data.contexts_by_lineno(str(root / place.path))
        contexts = {context for line in place.lines for context in lines.get(line, ())}
        found = [match for context in contexts if (match := CONTEXT.fullmatch(context))]
        direct = {match["test"] for match in found}
        shared = {match["test"].partition("::")[0] for match in found if match["phase"] not in {"run", "call"}}
        at_import = bool(contexts) and not found
        every = {match["test"] for name in self.data.measured_contexts() if (match := CONTEXT.fullmatch(name))}
        return sorted(direct), sorted(t for t in every - direct if at_import or t.partition("::")[0] in shared)

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
        files = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
        return sorted(chosen, key=lambda test: files.index(test.partition("::")[0]))


@dataclass
class Tried:
    """What happened to some tests. how: `failed`, `crashed`, `hung` or `no collection`; empty where all passed."""

    how: str = ""
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def busy() -> float:
    """Processor seconds of this process and of those that it waited for: other work on the machine adds none."""
    return sum(os.times()[:4])


class Recorder:
    """A pytest plugin that writes down each event at once, so that a crash loses none, and stops after enough failures.

    It stops, too, when the tests have taken twice the processor time that was meant for them.
    """

    def __init__(self, file: IO[str], budget: float) -> None:
        self.file, self.failed = file, set[str]()
        self.end = busy() + 2 * budget
        self.session: pytest.Session | None = None

    def write(self, event: str, value: str) -> None:
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
        if (len(self.failed) >= ENOUGH or busy() > self.end) and self.session is not None:
            self.session.shouldstop = "enough"


class Slot:
    """A copy of the checkout that holds one mistake at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder, self.events = root, folder, folder.with_suffix(".events")
        self.environment = {
            "PYTHONPATH": os.pathsep.join(self.paths), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)

    @property
    def paths(self) -> list[str]:
        """Where Python looks for packages first."""
        return [str(self.folder), str(self.folder / "bench"), str(self.folder / "tools")]

    def tried(self, tests: Sequence[str], budget: float, *options: str) -> Tried:
        """Run tests in a process of their own, which is killed at the limit with all that it has started."""
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)
        self.events.write_text("", encoding="utf-8")
        process = os.fork()
        if not process:
            try:
                self._run([*options, *tests], budget)
            finally:
                os._exit(1)
        done = os.pidfd_open(process)
        hung = not select.select([done], [], [], 10 * budget + 5 * TEST_LIMIT_S)[0]
        os.close(done)
        for group in (process, -process):
            with suppress(ProcessLookupError):
                os.kill(group, signal.SIGKILL)
        os.waitpid(process, 0)
        return self._read(hung)

    def _run(self, arguments: Sequence[str], budget: float) -> None:
        os.setsid()
        os.chdir(self.folder)
        log = os.open(self.folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream, target in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(target, stream)
        os.environ.update(self.environment)
        sys.path[:] = [*self.paths, *(path for path in sys.path if not Path(path).is_relative_to(self.root))]
        for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
            del sys.modules[name]
        import pytest

        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", f"--timeout={TEST_LIMIT_S}"]
        with self.events.open("w", encoding="utf-8") as file:
            recorder = Recorder(file, budget)
            recorder.write("exit", str(int(pytest.main([*options, *arguments], plugins=[recorder]))))

    def _read(self, hung: bool) -> Tried:
        tried, last, code = Tried(), "collection", ""
        for event, value in map(json.loads, self.events.read_text(encoding="utf-8").splitlines()):
            if event == "started":
                last = value
            elif event == "exit":
                code = value
            else:
                getattr(tried, event).append(value)
        if tried.failed:
            tried.how = "failed"
        elif hung or not code:
            tried.how, tried.failed = "hung" if hung else "crashed", [last]
        elif code not in {"0", "5"}:
            tried.how, tried.failed = "no collection", [last]
        return tried


def measure(
    slot: Slot, place: Place, mutant: Mutant, chosen: Sequence[str], budget: float, known: dict[str, bool]
) -> dict[str, Any]:
    """Plant one mistake and run the tests; those that fail without it, too, are left out from then on."""
    file, sound = slot.folder / place.path, (slot.root / place.path).read_bytes()
    began = time.monotonic()
    while tests := [test for test in chosen if known.get(test, True)]:
        file.write_bytes(place.mutated(mutant))
        os.utime(file, (began, began))  # no bytecode of another mutant is taken for this one's
        tried = slot.tried(tests, budget)
        file.write_bytes(sound)
        shutil.copystat(slot.root / place.path, file)
        if tried.how == "no collection" and slot.tried(tests, budget, "--collect-only").how:
            raise RuntimeError(f"pytest cannot collect these tests, mistake or no mistake: {tests}")
        doubtful = [test for test in tried.failed if test in chosen and test not in known]
        again = slot.tried(doubtful, budget).failed if doubtful else []
        known.update((test, test not in again) for test in doubtful)
        caught = [test for test in tried.failed if known.get(test, True)]
        if caught or not tried.failed:
            status = "caught" if caught else "not caught"
            return {"status": status, "how": tried.how, "caught": caught, "passed": tried.passed}
    return {"status": "not caught", "how": "no test passes without it", "caught": [], "passed": []}


def run(mutants: Sequence[tuple[int, Mutant]], folder: Path, coverage: Path, budget: float, jobs: int,
        preload: Sequence[str]) -> None:  # fmt: skip
    """Measure these mutants, in several processes at a time."""
    root = Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    for name in filter(None, preload):
        import_module(name)
    turn = multiprocessing.Value("i", 0)
    workers = []
    for job in range(jobs):
        workers.append(os.fork())
        if not workers[-1]:
            slot, known, tests = Slot(root, folder / f"slot-{job}"), dict[str, bool](), Tests.load(coverage)
            while True:
                with turn.get_lock():
                    at, turn.value = turn.value, turn.value + 1
                if at >= len(mutants):
                    os._exit(0)
                number, mutant = mutants[at]
                result = one(slot, mutant, tests, budget, known)
                with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"mutant": number, **result}) + "\n")
    for worker in workers:
        os.waitpid(worker, 0)


def one(slot: Slot, mutant: Mutant, tests: Tests, budget: float, known: dict[str, bool]) -> dict[str, Any]:
    """The result of one mutant."""
    began = time.monotonic()
    place = find(mutant, ENGINE)
    chosen: list[str] = []
    result: dict[str, Any] = {"status": "does not apply"}
    if place is not None:
        direct, shared = tests.executing(place, slot.root)
        chosen = tests.chosen((direct, shared), budget)
        result = {"status": "not executed"}
        if chosen:
            left_out = len(direct) + len(shared) - len(chosen)
            result = {
                **measure(slot, place, mutant, chosen, budget, known),
                "chosen": len(chosen),
                "left_out": left_out,
            }
    excluded = [test for test, passes in known.items() if not passes]
    return {**result, "excluded": excluded, "seconds": round(time.monotonic() - began, 1)}
