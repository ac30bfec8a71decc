"""Whoever is killed first, and whatever the others do at that moment: no process is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.serve.serving import children, command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")

SOON = 10.0  # seconds; on an idle machine some milliseconds are enough
ENDS = [signal.SIGTERM, signal.SIGKILL]


class Watched:
    """A process whose end can be waited for though it is nobody's child here."""

    def __init__(self, pid: int) -> None:
        self.pid, self._fd = pid, os.pidfd_open(pid)

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended by then."""
        return bool(select.select([self._fd], [], [], seconds)[0])

    def close(self) -> None:
        """Leave nothing behind where a test fails."""
        if not self.ends_within(0):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        os.close(self._fd)


@contextmanager
def watching(pids: list[int]) -> Iterator[list[Watched]]:
    found = [Watched(pid) for pid in pids]
    try:
        yield found
    finally:
        for each in found:
            each.close()


@contextmanager
def generations(hangs: bool) -> Iterator[list[Watched]]:
    """A process, the one it has started, and the one which that has started."""
    environment = {**os.environ, "GENERATIONS": "2", "HANGS": "yes" if hangs else ""}
    arguments = [sys.executable, "-m", "tests.serve.generations"]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(arguments, stdout=null, stderr=pipe, env=environment, text=True) as process:
        assert process.stderr
        pids = [int(process.stderr.readline()) for _ in range(3)]
        with watching(pids[::-1]) as found:  # the last one says first that it is there
            yield found


def test_all_stay_when_the_thread_that_asked_for_them_ends() -> None:
    """Linux takes that for the end of the parent, if it is the thread that has started them."""
    with generations(hangs=False) as found:
        assert not any(each.ends_within(0.1) for each in found)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("state", ["waits", "is stopped", "hangs"])
def test_none_outlives_the_first(state: str, end: signal.Signals) -> None:
    with generations(hangs=state == "hangs") as (first, *others):
        if state == "is stopped":
            for each in others:
                os.kill(each.pid, signal.SIGSTOP)
        os.kill(first.pid, end)
        assert [each.ends_within(SOON) for each in (first, *others)] == [True] * 3


@pytest.mark.parametrize("end", ENDS)
def test_the_last_goes_with_the_one_between_and_the_first_stays(end: signal.Signals) -> None:
    with generations(hangs=False) as (first, second, third):
        os.kill(third.pid, signal.SIGSTOP)
        os.kill(second.pid, end)
        assert second.ends_within(SOON)
        assert third.ends_within(SOON)
        assert not first.ends_within(0.1)


def test_a_fork_starts_processes_that_go_with_it_alone() -> None:
    """As a worker of `multiprocessing` does, which none of its parent's threads has come along to."""
    code = """
import os, signal
from nanoinfer.parallel.processes import spawn
own, _ = spawn("nanoinfer.remote.child")
if os.fork() == 0:
    its, _ = spawn("nanoinfer.remote.child")
    print(os.getpid(), its.pid, own.pid, flush=True)
    signal.pause()
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        with watching([*map(int, process.stdout.readline().split()), process.pid]) as (fork, its, own, parent):
            os.kill(fork.pid, signal.SIGKILL)
            assert its.ends_within(SOON)
            assert not own.ends_within(0.1)
            os.kill(parent.pid, signal.SIGKILL)
            assert own.ends_within(SOON)


def below(pid: int) -> list[int]:
    """All that it has started, and what these have."""
    return [each for child in children(pid) for each in (child, *below(child))]


@pytest.mark.long
def test_a_server_that_is_told_to_end_leaves_neither_engine_nor_rank_that_are_stopped(tmp_path: Path) -> None:
    """It kills the engine, and the rank goes with the engine."""
    with command(tmp_path / "log", "--tensor-parallel", "2") as served:
        served.ready()
        with watching(below(served.process.pid)) as found:
            assert len(found) == 2
            for each in found:
                os.kill(each.pid, signal.SIGSTOP)
            os.kill(served.process.pid, signal.SIGTERM)
            assert served.process.wait(60) == 0
            until = time.monotonic() + SOON
            assert all(each.ends_within(max(0.0, until - time.monotonic())) for each in found)
