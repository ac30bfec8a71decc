"""An `LLM` whose engines have processes of their own: one, or several behind one queue.

Python runs one thread of a process at a time, so JSON, text and sockets would take their time from the engine's loop.
Here they cannot: what comes of the rows arrives in records like the engine's own, and the same streams read these.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

from nanoinfer.async_llm import AsyncLLM, ServingLLM
from nanoinfer.cache.sharing import SharedBlocks
from nanoinfer.config import EngineConfig
from nanoinfer.engine.stats import Stats
from nanoinfer.parallel.replicas import ReplicaLoop, devices
from nanoinfer.remote.loop import RemoteLoop


class RemoteLLM(ServingLLM):
    """As a `ServingLLM`. core and model there are none in this process, and nothing of torch is loaded here.

    model: by name or path. The processes end with this one, however that comes about. facts: as of one engine, its rows
    and blocks times the number of engines. stats and gauges are those of the last messages.
    """

    loop: Any

    def __init__(self, model: str | Path | None = None, *, revision: str | None = None, **settings: Any) -> None:
        self.config = config = EngineConfig(**settings)
        for what, given in (("model", model), ("speculate", config.speculate)):
            if not isinstance(given, str | Path | None):
                raise ValueError(f"{what} must be a name or a path for another process, not a {type(given).__name__}")
        each = [settings | {"replicas": 1} | device for device in devices(config)]
        self.loops = [RemoteLoop(ServingLLM, model, revision, one) for one in each]
        self._ends = [weakref.finalize(self, loop.close) for loop in self.loops]  # at exit, too
        try:
            facts, *_ = [loop.ready.result() for loop in self.loops]
        except BaseException:
            self.close()
            raise
        count, block = len(self.loops), facts.block_size
        check = SharedBlocks(facts.blocks, block, 1).check if block else lambda request: None
        self._know(replace(facts, max_batch=facts.max_batch * count, blocks=facts.blocks * count), check)
        shared = facts.block_size if config.prefix_caching is not False else 0
        self.loop = self.loops[0] if count == 1 else ReplicaLoop(self.loops, shared)

    @property
    def stats(self) -> Stats:  # type: ignore[override]
        """As of one engine; of several, sums of what every engine counts."""
        every = [loop.stats for loop in self.loops]
        names = [field.name for field in fields(Stats)]
        return every[0] if len(every) == 1 else Stats(*[sum(getattr(each, n) for each in every) for n in names])

    def warm_up(self, on_capture: Callable[[int, int], None] | None = None) -> None:
        """As `LLM.warm_up`, of all at once; on_capture hears of the first one's captures."""
        self._check_open()
        with ThreadPoolExecutor(len(self.loops)) as pool:
            calls = [pool.submit(loop.warm_up, None if n else on_capture) for n, loop in enumerate(self.loops)]
        for call in calls:
            call.result()

    def forward_logits(self, token_ids: Any) -> NoReturn:
        """ValueError: the model is not in this process."""
        raise ValueError("forward_logits needs the model in this process: leave replicas out")

    def close(self) -> None:
        """As `LLM.close`, of all."""
        for end in self._ends:
            end()


class ProcessLLM(AsyncLLM):
    """As `AsyncLLM`, with the engine in a process of its own: arguments and errors are the same."""

    kind = RemoteLLM
