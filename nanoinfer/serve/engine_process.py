"""An `AsyncLLM` whose engine has a process of its own. Chapter 5.

Python runs one thread of a process at a time, so JSON, text and sockets would take their time from the engine's loop.
Here they cannot: what comes of the rows arrives in records like the engine's own, and the same streams read these.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.async_llm import AsyncLLM
from nanoinfer.cache.sharing import SharedBlocks
from nanoinfer.config import EngineConfig
from nanoinfer.engine.loop import CLOSED
from nanoinfer.serve.engine_link import Start
from nanoinfer.serve.engine_remote import RemoteLoop
from nanoinfer.serve.processes import spawn
from nanoinfer.text.samples import SampleMaker
from nanoinfer.text.tokenizer import gpt2_tokenizer

if TYPE_CHECKING:
    from nanoinfer.engine.stats import Stats
    from nanoinfer.requests import Request


class ProcessLLM(AsyncLLM):
    """As `AsyncLLM`, with the engine in a process of its own: arguments and errors are the same.

    model: by name or path. The process is started and the model loaded at once, and that blocks. Nothing of torch is
    loaded here. The process ends with this one, however that comes about. stats and gauges are those of the last
    message. `llm` there is none.
    """

    def __init__(self, model: str | Path | None = None, *, revision: str | None = None, **settings: Any) -> None:
        config, settings = sendable(model, settings)
        if config.replicas > 1:
            raise ValueError("replicas have processes of their own: use an AsyncLLM")
        self._served = self._remote = RemoteLLM(Start(model, revision, settings), config.seed)
        self._outlets = {}

    @property
    def pid(self) -> int:
        """The engine's process."""
        return self._remote.loop.process.pid


def sendable(model: object, settings: dict[str, Any]) -> tuple[EngineConfig, dict[str, Any]]:
    """The config of these settings, and they themselves as they can go to another process.

    ValueError for bad settings, and for a model that is given otherwise than by name or path.
    """
    config = EngineConfig(**settings)
    for what, given in (("model", model), ("speculate", config.speculate)):
        if given is not None and not isinstance(given, str | Path):
            raise ValueError(f"{what} must be a name or a path for another process, not a {type(given).__name__}")
    if config.dtype is not None:
        settings = settings | {"dtype": str(config.dtype).removeprefix("torch.")}
    return config, settings


class RemoteLLM:
    """What an `AsyncLLM` needs of an `LLM`, for one in another process."""

    def __init__(self, start: Start, seed: int, first: int = 0) -> None:
        process = spawn()
        self.loop = RemoteLoop(process, first)
        self.close = weakref.finalize(self, self.loop.close)  # at exit, too
        try:
            self.loop.link.send(start)
            self.facts = facts = self.loop.ready.result()
            self.tokenizer = gpt2_tokenizer()
        except BaseException:
            self.close()
            raise
        seeds = random.Random(seed)
        self._maker = SampleMaker(self.tokenizer, facts.max_len, facts.vocab_size, seeds, facts.end_of_text)
        self._blocks = SharedBlocks(facts.blocks, facts.block_size, 1) if facts.block_size else None

    @property
    def stats(self) -> Stats:
        return self.loop.stats

    def requests(self, prompts: Any, params: Any = None) -> list[Request]:
        """As `LLM.requests`."""
        if self.loop.closed:
            raise RuntimeError(CLOSED)
        requests = self._maker.requests(prompts, params)
        for request in requests:
            if self._blocks:
                self._blocks.check(request)
        return requests

    def warm_up(self, on_capture: Callable[[int, int], None] | None = None) -> None:
        """As `LLM.warm_up`; on_capture is called in another thread."""
        self.loop.warm_up(on_capture).result()
