"""What the places of chapter 4's exercises share: a `GraphEngine` that records with or without a GPU.

Without one it records with fakes, and is no faster for it.
"""

from __future__ import annotations

from typing import Any

from nanoinfer.engine.fake_graph import FakeRecorder


def _found(self: Any) -> Any:
    own = self.__dict__["recorder"]
    return FakeRecorder() if own is None and self.rows and self.model.device.type == "cpu" else own


def _kept(self: Any, recorder: Any) -> None:
    self.__dict__["recorder"] = recorder


RECORDED = {"nanoinfer.engine.graphs:GraphEngine.recorder": property(_found, _kept)}
