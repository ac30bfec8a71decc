"""The folder in which a submission is graded: its files laid out for workers, and what those workers may reach."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from nanocourse.exercises.exercise import Exercise
from nanocourse.grade.allowed_imports import helper_modules
from nanocourse.grade.assignment import Limits
from nanocourse.grade.graded_worker import Setting, fresh
from nanocourse.grade.isolation import bubblewrap, policy, probe, system
from nanocourse.grade.isolation.confine import LAYERS, Policy
from nanocourse.grade.record import Isolation


class Workspace:
    """A temporary folder for one submission. hidden: what its workers must not read.

    layers: those to apply, all except in tests. If we are root, the submission has a user of its own.
    """

    def __init__(self, hidden: Iterable[Path], limits: Limits, layers: tuple[str, ...] = LAYERS) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nanoinfer-")).resolve()
        self.folder.chmod(0o711)
        self.scratch, self._staged, self.layers = self.folder / "scratch", self.folder / "work", layers
        self.hidden = tuple(hidden)
        self.machine = policy.Machine.survey(self.hidden, limits)
        self.user = policy.a_user(0)
        self.no_user = policy.why_no_user(self.user) if self.user is not None else ""
        self.watched = True  # until the probe finds that the packages cannot be read
        self.lacking = set(LAYERS)  # until the probe reports which layers hold
        self.user = None if self.no_user or "user" not in layers else self.user
        self._mkdir(self.scratch)
        self._mkdir(self._staged)
        privileged = self.user is not None
        self.unwrapped = bubblewrap.why_not(privileged) if "bubblewrap" in layers else "switched off"
        wrapped = [] if self.unwrapped else bubblewrap.prefix([self.folder], [self.scratch], privileged)
        self.prefix = wrapped  # a command that runs a worker

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def setting(self, exercise: Exercise, staged: Path, compiling: bool = False) -> Setting:
        """What a worker of an exercise is given. compiling: it may start the CUDA assembler."""
        files = []
        if exercise.spec.kernel is not None:
            files.append((str(exercise.spec.kernel.launcher), "nanoinfer_launcher"))
        made = self.policy((staged.parent,))
        if compiling:
            made = replace(made, starting=True, execute=assemblers(), tasks=made.tasks + 32)
        return Setting(made, tuple(files), helper_modules(exercise), self.watched, exercise.spec.scene is not None)

    def policy(self, own: Iterable[Path] = ()) -> Policy:
        """A worker's policy, with an empty scratch folder."""
        own_folder = fresh(self.scratch, self.user)
        return self.machine.policy(own_folder, own, self.user, layers=self.layers, unwrapped=self.unwrapped)

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
        found = (self._a_file(path) for path in (*self.hidden, *policy.own_sources()))
        return [str(path) for path in dict.fromkeys(found) if path is not None]

    def _a_file(self, place: Path) -> Path | None:
        """The first file of a place that a worker does not need: an environment may be beneath it."""
        if place.is_file():
            return place.resolve()
        for folder, names, files in os.walk(place.resolve()):
            names[:] = sorted(name for name in names if os.path.join(folder, name) not in self.machine.read)
            for name in sorted(files):
                path = Path(folder, name)
                if str(path) not in self.machine.read and path.is_file():
                    return path
        return None

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
    import importlib.util

    found = importlib.util.find_spec("triton")
    places = list(found.submodule_search_locations or ()) if found else []
    own = [str(path) for place in places for path in Path(place, "backends", "nvidia", "bin").glob("ptxas*")]
    return (*own, *LOADERS)
