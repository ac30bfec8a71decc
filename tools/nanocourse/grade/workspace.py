"""The folder in which a submission is graded: its files laid out for workers, and what those workers may reach."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nanocourse.exercises.exercise import Exercise
from nanocourse.grade.allowed_imports import helper_modules
from nanocourse.grade.assignment import Limits
from nanocourse.grade.isolation import bubblewrap, policy, probe, system
from nanocourse.grade.isolation.confine import LAYERS, TASKS, Policy
from nanocourse.grade.record import Isolation


class Workspace:
    """A temporary folder for one submission. hidden: what its workers must not read.

    layers: those to apply, all except in tests. If we are root, the submission has a user of its own.
    """

    def __init__(self, hidden: Iterable[Path], limits: Limits, layers: tuple[str, ...] = LAYERS) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nanoinfer-")).resolve()
        self.folder.chmod(0o711)
        self.scratch, self._staged, self.layers = self.folder / "scratch", self.folder / "work", layers
        self.hidden = tuple(dict.fromkeys(path.resolve() for path in (*hidden, *policy.own_sources())))
        self.limits, (self.read, self.listed) = limits, policy.readable(self.hidden)
        user = policy.a_user()
        self.no_user = policy.why_no_user() if user is not None else ""
        self.user = None if self.no_user or "user" not in layers else user
        self.watched = True  # until the probe finds that the packages cannot be read
        self.lacking = set(LAYERS)  # until the probe reports which layers hold
        self._mkdir(self.scratch)
        self._mkdir(self._staged)
        privileged = self.user is not None
        self.unwrapped = bubblewrap.why_not(privileged) if "bubblewrap" in layers else "switched off"
        # A command that runs a worker.
        self.prefix = [] if self.unwrapped else bubblewrap.prefix([self.folder], [self.scratch], privileged)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def stage(self, exercise: Exercise, source: bytes, near: dict[str, bytes]) -> Path:
        """Write one exercise's file and those beside it, readable only by the worker. Returns the file's path."""
        folder = self._staged / exercise.mark
        folder.mkdir(mode=0o750, exist_ok=True)
        for name, data in (near | {exercise.file: source}).items():
            (folder / name).write_bytes(data)
            (folder / name).chmod(0o640)
            self._give(folder / name)
        self._give(folder)
        return folder / exercise.file

    def for_exercise(self, exercise: Exercise, staged: Path, compiling: bool = False) -> Policy:
        """A worker's policy for one exercise. compiling: it may start the CUDA assembler."""
        kernel = exercise.spec.kernel
        files = ((str(kernel.launcher), "nanoinfer_launcher"),) if kernel is not None else ()
        given: dict[str, Any] = {"files": files, "helpers": helper_modules(exercise), "watched": self.watched}
        made = self.policy((staged.parent,), scenes=exercise.spec.scene is not None, **given)
        return replace(made, starting=True, execute=assemblers(), tasks=made.tasks + 32) if compiling else made

    def policy(self, own: Iterable[Path] = (), **more: Any) -> Policy:
        """A worker's policy, with an empty scratch folder. own: what it may read in addition, its student's files."""
        limits = self.limits
        tasks = TASKS + (system.tasks_of(os.getuid()) if self.user is None and system.LINUX else 0)
        return Policy(
            str(self._fresh()), (*self.read, *policy.DEVICES, *map(str, own)), self.listed,
            user=self.user, tasks=tasks, memory=limits.memory_mb << 20, scratch_size=limits.disk_mb << 20,
            file_size=limits.disk_mb << 18, cpu_s=int(limits.submission_s), layers=self.layers,
            unwrapped=self.unwrapped, **more,
        )  # fmt: skip

    def isolation(self, guard: dict[str, str]) -> Isolation:
        """Which layers hold, found by trying them in a process like a worker. guard: what the grader itself lacks."""
        if not system.LINUX:
            return Isolation((), (("layers", f"{sys.platform} has none that is used here"),))
        told = probe.run(self.policy(), self._forbidden(), self.prefix)
        self.watched = "hidden files" not in told.present
        if self.no_user:
            told.missing["user"] = self.no_user
        missing = told.missing | guard
        self.lacking = set(missing)
        own = [name for name in ("unreadable grader", "subreaper") if name not in guard]
        present = [name for name in (*own, *told.present) if name not in missing]
        return Isolation(tuple(present), tuple(missing.items()))

    def _forbidden(self) -> list[str]:
        """Files that no worker may be able to read, for the probe: one from each hidden place."""
        found = map(self._a_file, self.hidden)
        return [str(path) for path in dict.fromkeys(found) if path is not None]

    def _a_file(self, place: Path) -> Path | None:
        """The first file of a place that a worker does not need: an environment may be beneath it."""
        if place.is_file():
            return place
        for folder, names, files in os.walk(place):
            names[:] = sorted(name for name in names if os.path.join(folder, name) not in self.read)
            for name in sorted(files):
                path = Path(folder, name)
                if str(path) not in self.read and path.is_file():
                    return path
        return None

    def _fresh(self) -> Path:
        """An empty scratch folder for one worker."""
        for old in self.scratch.iterdir():
            shutil.rmtree(old, ignore_errors=True)
        made = self.scratch / f"{time.monotonic_ns()}"
        made.mkdir(mode=0o700)
        if self.user is not None:
            os.chown(made, self.user, self.user)
        return made

    def _mkdir(self, path: Path) -> None:
        path.mkdir()
        path.chmod(0o711)

    def _give(self, path: Path) -> None:
        if self.user is not None:
            os.chown(path, -1, self.user)


# What starts a program that is linked dynamically; it can start others too, which are confined as the worker is.
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")


def assemblers() -> tuple[str, ...]:
    """The assemblers that come with Triton, and the loaders that start them."""
    found = find_spec("triton")
    places = list(found.submodule_search_locations or ()) if found else []
    own = [str(path) for place in places for path in Path(place, "backends", "nvidia", "bin").glob("ptxas*")]
    return (*own, *LOADERS)
