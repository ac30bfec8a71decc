"""Several engines with the same model behind one queue, each in a process of its own. Chapter 8.

A request goes to the engine with the fewest rows; one that knows how the text begins may have a few more. An engine
that dies is taken out, and its rows go on elsewhere behind the tokens that they have: what a row says depends on its
prompt, parameters and seed alone, so nobody can tell. A row that has seen two engines die goes to no third.
"""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from nanoinfer.async_llm import AsyncLLM
from nanoinfer.config import EngineConfig
from nanoinfer.engine.loop import Mailbox
from nanoinfer.engine.scheduler import Row
from nanoinfer.engine.stats import Gauges, Stats
from nanoinfer.requests import check_int
from nanoinfer.serve.engine_link import Start
from nanoinfer.serve.engine_process import RemoteLLM, sendable

if TYPE_CHECKING:
    from nanoinfer.config import Facts
    from nanoinfer.requests import Request
    from nanoinfer.serve.engine_remote import RemoteLoop
    from nanoinfer.text.tokenizer import Tokenizer

NUMBERS = 1 << 40  # of rows, for each engine
WORTH = 4  # rows more that an engine may have, if it knows the whole prompt
BEGINNINGS = 1 << 14  # blocks of texts that are remembered of each engine
BLOCK = 16  # tokens, where the cache has no blocks


class Beginnings:
    """What an engine's cache may know: beginnings of the texts that it was sent last, by whole blocks."""

    def __init__(self, block: int) -> None:
        self._block, self._known = block, OrderedDict[int, None]()

    def share(self, text: Sequence[int]) -> float:
        """How much of a text it may know, from 0 to 1."""
        known = 0
        for known, name in enumerate(self._names(text)):  # noqa: B007
            if name not in self._known:
                break
        else:
            known = len(text) // self._block
        return known * self._block / len(text)

    def note(self, text: Sequence[int]) -> None:
        for name in self._names(text):
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > BEGINNINGS:
            self._known.popitem(last=False)

    def _names(self, text: Sequence[int]) -> list[int]:
        """Each block's, by all that stands up to its end."""
        names, name = [], 0
        for start in range(0, len(text) - self._block + 1, self._block):
            name = hash((name, *text[start : start + self._block]))
            names.append(name)
        return names


class ReplicaLoop:
    """As an `EngineLoop`, over those of several engines. failure and died: of the last one."""

    def __init__(self, loops: Sequence[RemoteLoop], block: int) -> None:
        self.loops = list(loops)  # that live
        self.failure: BaseException | None = None
        self.died: Future[BaseException] = Future()
        self._every = list(loops)
        self._beginnings = {loop: Beginnings(block) for loop in loops}
        self._sent = dict.fromkeys(loops, 0)
        self._mailboxes: dict[tuple[RemoteLoop, Callable[[list[Row]], object]], Mailbox] = {}
        self._moved: WeakSet[Row] = WeakSet()
        for loop in loops:
            loop.leave_behind = partial(self._go_on_elsewhere, loop)

    def submit(
        self, requests: Sequence[Request], mailbox: Mailbox, asked: float, every_token: bool = False
    ) -> list[Row]:
        """As `EngineLoop.submit`, each request to an engine of its own."""
        rows = []
        for request in requests:
            while True:
                loop = self._choose(request.prompt_token_ids)
                try:
                    rows += loop.submit([request], self._mailbox(loop, mailbox.post), asked, every_token)
                    break
                except RuntimeError:
                    if loop in self.loops and not self._lost(loop):  # it is closed
                        raise
        return rows

    def _choose(self, text: Sequence[int]) -> RemoteLoop:
        """The engine with the fewest rows, hits counted; among equals the one that was sent the fewest."""
        if not self.loops:
            raise RuntimeError(f"the engine has died: {self.failure}") from self.failure

        def cost(loop: RemoteLoop) -> tuple[float, int]:
            return loop.load - WORTH * self._beginnings[loop].share(text), self._sent[loop]

        best = min(self.loops, key=cost)
        self._beginnings[best].note(text)
        self._sent[best] += 1
        return best

    def _mailbox(self, loop: RemoteLoop, post: Callable[[list[Row]], object]) -> Mailbox:
        """Each engine's news have a thread of their own, and so a mailbox."""
        return self._mailboxes.setdefault((loop, post), Mailbox(post))

    def _lost(self, loop: RemoteLoop) -> bool:
        """Take an engine out that has died; whether it has."""
        if loop.failure is None or loop.closed:
            return False
        if loop in self.loops:
            self.loops.remove(loop)
            loop.link.close()  # where a step has failed the process is still there, and holds memory
        if not self.loops and not self.died.done():
            self.failure = loop.failure
            self.died.set_result(loop.failure)
        return True

    def _go_on_elsewhere(self, loop: RemoteLoop, rows: list[Row]) -> list[Row]:
        """Rows of an engine that has died: those that go nowhere, in the thread that has heard of it."""
        self._lost(loop)
        left = []
        posts = {box.news.append: post for (of, post), box in self._mailboxes.items() if of is loop}
        for row in rows:
            text = [*row.request.prompt_token_ids, *row.token_ids]
            try:
                if row in self._moved or row.listener not in posts:
                    raise RuntimeError
                self._moved.add(row)
                other = self._choose(text)
                other.go_on(row, self._mailbox(other, posts[row.listener]))
            except RuntimeError:
                left.append(row)
        return left

    def cancel(self, rows: Sequence[Row]) -> None:
        for loop in self._every:  # whose numbers are its own
            loop.cancel(rows)

    def leave(self, mailbox: Mailbox) -> None:
        for loop in self._every:
            if box := self._mailboxes.pop((loop, mailbox.post), None):
                loop.leave(box)

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

    @property
    def pace(self) -> float:
        return self._every[0].pace

    @pace.setter
    def pace(self, seconds: float) -> None:
        for loop in self.loops:
            loop.pace = seconds


class Replicas:
    """What an `AsyncLLM` needs of an `LLM`, for several."""

    def __init__(self, starts: Sequence[Start], seed: int) -> None:
        with ThreadPoolExecutor(len(starts)) as pool:
            made = [pool.submit(RemoteLLM, start, seed, n * NUMBERS) for n, start in enumerate(starts)]
        if failed := next((each for each in made if each.exception()), None):
            for each in made:
                if not each.exception():
                    each.result().close()
            failed.result()
        self.llms = [each.result() for each in made]
        facts, count = self.llms[0].facts, len(self.llms)
        self.facts: Facts = replace(facts, max_batch=facts.max_batch * count, blocks=facts.blocks * count)
        self.tokenizer: Tokenizer = self.llms[0].tokenizer
        self.loop = ReplicaLoop([llm.loop for llm in self.llms], self.facts.block_size or BLOCK)

    @property
    def stats(self) -> Stats:
        """Sums over all, of what every engine counts."""
        names = [field.name for field in fields(Stats)]
        return Stats(*[sum(map(attrgetter(name), [llm.stats for llm in self.llms])) for name in names])

    def requests(self, prompts: Any, params: Any = None) -> list[Request]:
        return self.llms[0].requests(prompts, params)

    def warm_up(self, on_capture: Callable[[int, int], None] | None = None) -> None:
        """All at once; on_capture hears of the first one's captures."""
        with ThreadPoolExecutor(len(self.llms)) as pool:
            calls = [pool.submit(llm.warm_up, None if n else on_capture) for n, llm in enumerate(self.llms)]
        for call in calls:
            call.result()

    def close(self) -> None:
        for llm in self.llms:
            llm.close()


class ReplicatedLLM(AsyncLLM):
    """As `AsyncLLM`, over `replicas` engines, each in a process of its own; on GPUs each has its own ones.

    replicas: at least 1. Other arguments and errors are those of `ProcessLLM`; `llm` there is none.
    """

    def __init__(
        self, model: str | Path | None = None, *, replicas: int, revision: str | None = None, **settings: Any
    ) -> None:
        check_int("replicas", replicas, 1)
        config, settings = sendable(model, settings)
        each = [settings | device for device in devices(config, replicas)]
        self._served = Replicas([Start(model, revision, one) for one in each], config.seed)
        self._outlets = {}


def devices(config: EngineConfig, replicas: int) -> list[dict[str, str]]:
    """The first device of each replica. ValueError where there are too few GPUs."""
    if config.device == "cpu":
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
