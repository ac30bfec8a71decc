"""The engine's side of `ProcessLLM`: an LLM in a process of its own, which ends with the one that made it. Chapter 5.

The engine's thread puts the rows that have news into a queue, and that is all it does for them. Another thread makes
messages of them.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError
from copy import copy
from itertools import chain
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, BinaryIO

from nanoinfer.async_llm import ServingLLM
from nanoinfer.config import Facts
from nanoinfer.engine.loop import Mailbox
from nanoinfer.serve.engine_link import Link, News, Start
from nanoinfer.serve.processes import Raised, die, pipes

if TYPE_CHECKING:
    from nanoinfer.engine.scores import Scored as Row
    from nanoinfer.llm import LLM
    from nanoinfer.requests import Request

REST = 4e-5  # seconds a row from one message to the next: where rows are many, each has several tokens in one
SWITCH = 1e-4  # seconds that a thread waits for another's turn to end: Python's own 5 ms are several steps
BEAT = 0.2  # seconds from one look at gauges and counters to the next, while there are rows


def main() -> None:
    """The process: as long as its pipe is open."""
    sys.setswitchinterval(SWITCH)  # while requests come in, steps go on
    source, target = pipes()
    EngineServer(os.fdopen(source, "rb"), os.fdopen(target, "wb")).run()


class EngineServer:
    """Takes commands from one pipe, and posts the engine's news to another."""

    def __init__(self, source: BinaryIO, target: BinaryIO) -> None:
        self.link = Link(source, target, die, self._pack, lambda: REST * len(self._told))
        self.llm: LLM | None = None
        self._mailbox = Mailbox(self.link.send)
        self._rows: dict[int, Row] = {}
        self._told: dict[Row, list[int]] = {}  # of each row, its number and how many of its tokens were told
        self._registering = Lock()  # a row may have news before its number is known

    def run(self) -> None:
        """Until the pipe is closed. Commands are obeyed in this thread, the model is loaded in another."""
        try:
            (start,) = self.link.receive()
            Thread(target=self._start, args=(start,), daemon=True).start()
            while True:
                for name, *arguments in self.link.receive():
                    getattr(self, f"_do_{name}")(*arguments)
        except EOFError:
            os._exit(0)  # at once, whatever runs: nobody will hear of it
        except BaseException as error:
            die(error)

    def _start(self, start: Start) -> None:
        try:
            llm = ServingLLM(start.model, revision=start.revision, **start.settings)
        except BaseException as error:
            self.link.send(Raised.of(error))
            return
        gc.collect()
        gc.freeze()  # what is there now stays: collections need not look at it again
        self.llm = llm
        llm.loop.on_idle = lambda: self.link.send([])  # stats and gauges
        self.link.send(llm.facts)
        while True:  # rows that are heard of at their end alone bring no news meanwhile
            time.sleep(BEAT)
            if self._told:
                self.link.send([])

    def _do_submit(
        self, first: int, requests: Sequence[Request], asked: float, every_token: bool, known: list[list[int]] | None
    ) -> None:
        assert self.llm
        with self._registering:
            try:
                rows = self.llm.loop.submit(requests, self._mailbox, asked, every_token, known)
            except Exception as error:  # of these requests: the others go on
                self.link.send(("refused", first, len(requests), repr(error)))
                return
            for number, row in enumerate(rows, first):
                told = len(known[number - first]) if known else 0
                self._rows[number], self._told[row] = row, [number, told]

    def _do_cancel(self, numbers: Sequence[int]) -> None:
        assert self.llm
        self.llm.loop.cancel([row for number in numbers if (row := self._rows.get(number))])

    def _do_pace(self, seconds: float) -> None:
        assert self.llm
        self.llm.loop.pace = seconds

    def _do_watch(self, watched: int | None, texts: bool) -> None:
        """watched: comes back with each event, so that those of an earlier watch can be told from later ones."""
        assert self.llm
        post = None if watched is None else lambda event: self.link.send(("event", watched, event))
        self.llm.loop.watch(post, texts)

    def _do_warm_up(self, call: int) -> None:
        Thread(target=self._warm_up, args=(call,), daemon=True).start()  # it takes long, and a cancel may come

    def _warm_up(self, call: int) -> None:
        assert self.llm
        try:
            self.llm.warm_up(lambda done, count: self.link.send(("progress", call, done, count)))
        except BaseException as error:
            self.link.send(("warm", call, (repr(error), "".join(traceback.format_exception(error)))))
        else:
            self.link.send(("warm", call, None))

    def _pack(self, sent: list[Any]) -> News | Facts | Raised:
        """The message of what was sent since the last one: lists of rows that have news, and tuples of anything."""
        if self.llm is None or isinstance(sent[0], Facts):
            first: Facts | Raised = sent[0]  # nothing is asked before it has come
            return first
        failure, news = self.llm.loop.failure, News()  # ahead of its rows
        with self._registering:
            self._fill(news, Counter(chain(*[each for each in sent if type(each) is list])))
        news.others = [each for each in sent if type(each) is tuple]
        if failure:
            news.failure = repr(failure), "".join(traceback.format_exception(failure))
        news.stats, news.gauges = copy(self.llm.stats), self.llm.loop.gauges  # behind its rows
        return news

    def _fill(self, news: News, posted: Counter[Row]) -> None:
        """Add what the rows have since the last time. A row was posted once a token, and once more if cancelled."""
        rows, numbers, counts, tokens, times = self._told, news.numbers, news.counts, news.tokens, news.times
        for row, count in posted.items():
            if not (told := rows.get(row)):  # its end was told ahead of this
                continue
            number, start = told
            ended, ids = row.ended, row.token_ids  # in this order: where it has ended, all of its tokens are there
            numbers.append(number)
            if not start:
                news.begun.append((number, row.began))
            if count == 1 and row.every_token and start < len(ids):  # nearly always
                end = start + 1
                tokens.append(ids[start])
                times.append(row.times[start])
            else:
                end = min(start + count, len(ids)) if row.every_token else len(ids)
                tokens.extend(ids[start:end])
                times.extend(row.times[start:end])
            counts.append(end - start)
            told[1] = end
            over = ended and end == len(ids)
            fault = over and not row.finish_reason and not isinstance(row.cancelled, CancelledError)
            if over or row.logprobs or (not start and row.prompt_logprobs):
                prompt, when = [] if start else row.prompt_logprobs, [] if ids else row.times
                reason = row.finish_reason if over else None
                cause = repr(row.cancelled) if fault else None
                news.extras.append((number, reason, cause, row.logprobs[start:end], prompt, when))
            if over:
                del rows[row], self._rows[number]
