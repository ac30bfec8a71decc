"""One queue before several engines, each in a process of its own. Chapter 8.

A request goes to the engine with the fewest rows; one that knows how the text begins may have a few more. An engine
that dies is taken out, and its rows go on elsewhere behind the tokens that they have: what a row says depends on its
prompt, parameters and seed alone, so nobody can tell. A row that has seen two engines die goes to no third.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from itertools import takewhile
from threading import RLock
from typing import TYPE_CHECKING, Any

from nanoinfer.engine.stats import Gauges

if TYPE_CHECKING:
    from nanoinfer.engine.loop import Mailbox
    from nanoinfer.requests import Request

WORTH = 4  # rows more that an engine may have, if it knows the whole prompt
BEGINNINGS = 1 << 14  # blocks of texts that are remembered of each engine


class Beginnings(OrderedDict[int, None]):
    """What an engine's cache may know: beginnings of the texts that it was sent last, by the names of their blocks."""

    def share(self, names: Sequence[int]) -> float:
        """How much of a text it may know, from 0 to 1."""
        return sum(1 for _ in takewhile(self.__contains__, names)) / max(1, len(names))

    def note(self, names: Sequence[int]) -> None:
        for name in names:
            self[name] = None
            self.move_to_end(name)
        while len(self) > BEGINNINGS:
            self.popitem(last=False)


def block_names(text: Sequence[int], block: int) -> list[int]:
    """A name for each whole block of a text, by all that stands up to its end; none where the cache has no blocks."""
    names, name = [], 0
    for end in range(block, len(text) + 1, block) if block else ():
        name = hash((name, *text[end - block : end]))
        names.append(name)
    return names


class ReplicaLoop:
    """As an `EngineLoop`, over those of several engines. failure and died: of the last one.

    block: tokens a block of the prompts that their caches keep, or 0.
    """

    def __init__(self, loops: Sequence[Any], block: int) -> None:
        self.loops = list(loops)  # that live
        self.failure: BaseException | None = None
        self.died: Future[BaseException] = Future()
        self._every, self._block = list(loops), block
        self._beginnings = {loop: Beginnings() for loop in loops}
        self._sent = dict.fromkeys(loops, 0)
        self._lock = RLock()  # requests come in any thread, and an engine's end in its own
        for loop in loops:
            loop.leave_behind = partial(self._go_on_elsewhere, loop)

    def submit(
        self, requests: Sequence[Request], mailbox: Mailbox, asked: float, every_token: bool = False
    ) -> list[Any]:
        """As `EngineLoop.submit`, each request to an engine of its own."""
        rows = []
        for request in requests:
            while True:
                loop = self._choose(request.prompt_token_ids)
                try:
                    rows += loop.submit([request], mailbox, asked, every_token)
                    break
                except RuntimeError:
                    if loop.closed:
                        raise
                    self._lost(loop)
        return rows

    def _choose(self, text: Sequence[int]) -> Any:
        """The engine with the fewest rows, hits counted; among equals the one that was sent the fewest."""
        names = block_names(text, self._block)
        with self._lock:
            if not self.loops:
                raise RuntimeError(f"the engine has died: {self.failure}") from self.failure

            def cost(loop: Any) -> tuple[float, int]:
                return loop.load - WORTH * self._beginnings[loop].share(names), self._sent[loop]

            best = min(self.loops, key=cost)
            self._beginnings[best].note(names)
            self._sent[best] += 1
            return best

    def _lost(self, loop: Any) -> None:
        """Take an engine out that has died, once."""
        with self._lock:
            if loop not in self.loops:
                return
            self.loops.remove(loop)
            if not self.loops:
                self.failure = loop.failure
                self.died.set_result(loop.failure)
        loop.link.close()  # where a step has failed the process is still there, and holds memory
        warnings.warn(f"an engine has died, {len(self.loops)} are left: {loop.failure}", RuntimeWarning, stacklevel=2)

    def _go_on_elsewhere(self, loop: Any, rows: list[Any]) -> list[Any]:
        """Rows of an engine that has died: those that go nowhere, in the thread that has heard of it."""
        self._lost(loop)
        left = []
        for row in rows:
            try:
                if row.moved:
                    raise RuntimeError
                row.moved = True
                other = self._choose([*row.request.prompt_token_ids, *row.token_ids])
                other.begin([row], row.asked, row.every_token)
            except RuntimeError:
                left.append(row)
            else:
                if row.cancelled:  # when it was in no engine, perhaps
                    other.cancel([row])
        return left

    def cancel(self, rows: Sequence[Any]) -> None:
        """As `EngineLoop.cancel`."""
        for row in rows:
            if not row.ended:
                row.cancelled = CancelledError("cancelled")  # ahead of the look: it may be on its way to another
        for loop in self._every:
            loop.cancel(rows)

    def leave(self, mailbox: Mailbox) -> None:
        """As `RemoteLoop.leave`."""

    def watch(self, post: Callable[[dict[str, Any]], object] | None, texts: bool) -> None:
        """One of the engines: a page has room for one."""
        for loop in self.loops[:1]:
            loop.watch(post, texts)

    @property
    def busy(self) -> bool:
        return any(loop.busy for loop in self.loops)

    @property
    def closed(self) -> bool:
        return all(loop.closed for loop in self._every)

    @property
    def gauges(self) -> Gauges:
        return Gauges(*map(sum, zip(*[loop.gauges for loop in self._every], strict=True)))

    def set_pace(self, seconds: float) -> None:
        """As `EngineLoop.set_pace`."""
        for loop in self.loops:
            loop.set_pace(seconds)


def devices(config: Any) -> list[dict[str, str]]:
    """The first device of each replica. ValueError where there are too few GPUs."""
    replicas = config.replicas
    if replicas == 1 or config.device == "cpu":
        return [{}] * replicas
    code = "import torch; print(torch.cuda.device_count())"  # elsewhere, since this process does without torch
    count = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    if not count and config.device is None:
        return [{}] * replicas
    first = int((config.device or "cuda").partition(":")[2] or 0)
    needed = first + replicas * config.tensor_parallel
    if count < needed:
        raise ValueError(f"replicas {replicas} need {needed} CUDA devices, but there are {count}")
    return [{"device": f"cuda:{first + n * config.tensor_parallel}"} for n in range(replicas)]
