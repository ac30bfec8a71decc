"""The layers of isolation by themselves: what they ask of a kernel, and what they report."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nanocourse.exercises import chapters
from nanocourse.grade.assignment import Limits
from nanocourse.grade.graded_worker import interrupted
from nanocourse.grade.isolation import bubblewrap, landlock, probe
from nanocourse.grade.isolation.confine import Policy
from nanocourse.grade.workspace import Workspace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")


@pytest.fixture
def wanted() -> Iterator[Policy]:
    with Workspace((), Limits()) as workspace:
        yield workspace.policy()


def test_a_hole_is_seen_by_the_probe(wanted: Policy, tmp_path: Path) -> None:
    """A layer whose effect is not seen is missing, whatever its call returned."""
    (tmp_path / "secret").write_text("x")
    told = probe.run(replace(wanted, read=(*wanted.read, "/"), starting=True), [str(tmp_path / "secret")])
    assert told.missing["landlock"] == "listing / was possible all the same" or "not implemented" in str(told.missing)
    if wanted.user is None:
        assert "secret can be read" in told.missing["hidden files"]


@pytest.mark.skipif(bool(bubblewrap.why_not()), reason="no bubblewrap")
def test_a_place_can_be_reached_by_whomever_a_worker_becomes(tmp_path: Path) -> None:
    """Or torch, which imports parts of itself later, would not find them."""
    place = tmp_path / "above" / "place"
    place.mkdir(parents=True)
    command = [*bubblewrap.prefix([place]), "stat", "--format=%a", str(place.parent)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "755\n"


@pytest.mark.parametrize(("version", "files", "size"), [(1, 13, 8), (4, 15, 16), (7, 16, 24)])
def test_an_older_landlock_is_asked_for_what_it_knows(
    monkeypatch: pytest.MonkeyPatch, version: int, files: int, size: int
) -> None:
    asked: list[tuple[int, ...]] = []

    def old(number: int, *args: object) -> int:
        if number == landlock.CREATE_RULESET and args[0] is not None:
            asked.append((ctypes.cast(args[0], ctypes.POINTER(landlock._Ruleset)).contents.files, int(args[1])))  # type: ignore[call-overload]
            return os.open("/dev/null", os.O_RDONLY)
        return version

    monkeypatch.setattr(landlock, "_call", old)
    landlock.restrict([], [], [], [])
    assert asked == [((1 << files) - 1, size)]


def test_one_call_of_a_lent_function_has_an_end() -> None:
    def forever() -> None:
        while True:
            pass

    with pytest.raises(TimeoutError, match="too long"), interrupted(0.05):
        forever()


def test_the_grader_itself_has_a_limit_of_memory() -> None:
    script = "from nanocourse.grade.isolation import system; system.bound_memory(64 << 20); bytearray(256 << 20)"
    path = os.pathsep.join(str(Path(__file__).parents[2] / name) for name in ("", "tools"))
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False
    )
    assert done.stderr.strip().endswith(b"MemoryError")


def test_a_queue_of_millions_of_blocks_is_not_made() -> None:
    (play,) = chapters.exercise("5.7").example().args
    for blocks, events in ((25_000_000, []), (1, [("step",)] * 20_000)):
        with pytest.raises(ValueError, match="at most"):
            play(1, blocks, 1, events)
