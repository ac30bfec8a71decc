"""Fixtures of the course's tests: one worker a file, the command line, and a release of chapter 1."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanocourse.release import wheels
from nanocourse.release.plan import plan
from nanocourse.release.release import release
from nanoinfer import cli
from tests.course.learner_files import Course, Keep, Released, Told


@pytest.fixture(scope="module")
def keep() -> Iterator[Keep]:
    kept = Keep()
    yield kept
    kept.end()


@pytest.fixture
def course(capsys: pytest.CaptureFixture[str]) -> Course:
    """Runs `nanoinfer course` with these arguments in this process."""

    def run(*arguments: object) -> Told:
        capsys.readouterr()
        code = cli.run(["course", *map(str, arguments)])
        return Told(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.make(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Released:
    """A release of chapter 1, and its plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wheels, "make", lambda folder: Path(shutil.copy2(wheel, folder)))
        planned, to = plan(1, variant="a name that is long enough"), tmp_path_factory.mktemp("release") / "deep" / "one"
        release(planned, to)
    return Released(planned, to)
