"""The worker's side of grading: it confines itself before it reads the student's file.

After that, whatever it says may be the student's words: the parent takes values from it and compares them itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import asdict
from types import ModuleType
from typing import Any, BinaryIO

from nanocourse.checks import wire
from nanocourse.checks.server import Server
from nanocourse.grade.isolation import confine

OPEN = ("nanoinfer.model.config",)  # of the package, what any solution may import


class GradedServer(Server):
    """A server whose first request must be `confine`."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO, device: str) -> None:
        super().__init__(requests, replies, device)
        self._confined = False
        self._files: dict[str, ModuleType] = {}

    def _answer(self, header: dict[str, Any], body: bytes) -> None:
        if header["op"] == "confine":
            self.turn = header.get("turn", "")
            self._reply(self._confine(header))
        elif self._confined:
            super()._answer(header, body)
        else:
            raise wire.WireError("a worker that grades must be confined first")

    def _chapter_file(self, path: str, name: str) -> ModuleType:
        return self._files[path]

    def _confine(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Read the course's own files while they can be read, then give up access to them."""
        wanted = confine.Policy.of(asked["policy"])
        for path, name in wanted.files:
            self._files[path] = super()._chapter_file(path, name)
        if wanted.scenes:
            self.prepare_scenes()
        opened = {name: importlib.import_module(name) for name in OPEN}
        self.watched = wanted.watched
        kept = {0, 1, 2, self.requests.fileno(), self.replies.fileno()}
        done = confine.confine(wanted, kept)
        if not self.watched:
            only(opened, wanted.helpers)
        confine.environment(wanted.scratch)
        self._confined = True
        return {"op": "confined", **asdict(done)}


def only(opened: dict[str, ModuleType], helpers: Mapping[str, str]) -> None:
    """From now on only these modules of our packages exist. helpers: sources of modules, by name."""
    kept = dict(opened)
    for name in [name for name in sys.modules if name.startswith(confine.PACKAGES)]:
        del sys.modules[name]
    for name, source in helpers.items():
        kept[name] = module = ModuleType(name)
        exec(compile(source, f"<{name}>", "exec", dont_inherit=True), module.__dict__)
    for name, module in kept.items():
        sys.modules[name] = module
        _into_packages(name)
    sys.meta_path.insert(0, Absent())


def _into_packages(name: str) -> None:
    """Make a module an attribute of its package, an empty one if there is none, and so on upwards."""
    package, _, last = name.rpartition(".")
    if package:
        if package not in sys.modules:
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = []
        setattr(sys.modules[package], last, sys.modules[name])
        _into_packages(package)


class Absent:
    """A finder that raises a clear error when a solution imports another module of our packages."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """None for everything else, so that the next finder is asked."""
        if name.partition(".")[0] in confine.PACKAGES:
            raise ModuleNotFoundError(f"{name} is not there when work is graded", name=name)
