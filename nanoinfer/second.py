"""The front door of rungs 5 and later: chapter 1's, for requests of a server and engines with settings. Chapter 5."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any

from nanoinfer import first
from nanoinfer.chapters import ENGINES
from nanoinfer.outputs import RowReader
from nanoinfer.requests import Completion
from nanoinfer.text.samples import SampleMaker


class LLM(first.LLM):
    """As chapter 1's. settings: its own, and those of the engine's maker, such as `max_batched_tokens`.

    engine.stats counts what the engine has done.
    """

    Maker = SampleMaker

    def __init__(self, model: str | Path = "small", engine: str | None = None, **settings: Any) -> None:
        own = settings.keys() & signature(first.LLM).parameters
        self.settings = {name: value for name, value in settings.items() if name not in own}
        super().__init__(model, engine, **{name: settings[name] for name in own})

    def make(self, engine: str, max_batch: int) -> Any:
        module, name = ENGINES[engine].split(":")
        return getattr(import_module(module), name)(engine, self.model, max_batch, self.max_len, **self.settings).make()

    def generate(self, prompts: Any, params: Any = None) -> list[Any]:
        """As chapter 1's; samples of a prompt stand side by side."""
        return sorted(super().generate(prompts, params), key=attrgetter("index", "sample"))

    def completion(self, s: Any) -> Completion:
        return RowReader(s, self.tokenizer).completion()
