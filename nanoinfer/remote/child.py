"""The engine's process: it makes an LLM, obeys what it is told, and tells what is new. It ends with its parent.

The engine's thread puts the rows that have news into a queue, and that is all it does for them. Another thread makes
messages of them.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from concurrent.futures import CancelledError
from functools import partial
from itertools import chain
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any
from weakref import WeakValueDictionary

from nanoinfer.engine.loop import Mailbox
from nanoinfer.parallel.processes import Raised, die
from nanoinfer.remote.link import drained, received
from nanoinfer.remote.messages import Cancel, News, Pace, RowNews, Start, Submit, Told, WarmUp, Watch

REST = 4e-5  # seconds a row from one message to the next: where rows are many, each has several tokens in one
SWITCH = 1e-4  # seconds that a thread waits for another's turn to end: Python's own 5 ms are several steps
BEAT = 0.2  # seconds from one look at gauges and counters to the next, while there are rows


def main(connection: Connection) -> None:
    """The process: as long as its parent has not closed the connection."""
    sys.setswitchinterval(SWITCH)  # while requests come in, steps go on
    engine = RemoteEngine(connection)
    try:
        for order in received(connection):
            engine.obey(order)
    except BaseException as error:
        die(error)
    os._exit(0)  # at once, whatever runs: nobody will hear of it


class RemoteEngine:
    """An LLM that is told what to do in one thread, and tells what is new in another."""

    llm: Any

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.outbox: SimpleQueue[Any] = SimpleQueue()  # lists of rows that have news, and messages
        self.mailbox = Mailbox(self.outbox.put)
        self.rows: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by number, for who cancels one
        self.told: dict[int, int] = {}  # of each row whose end was not told: how many of its tokens were

    def obey(self, order: Any) -> None:
        """Do what the parent asks for. Nothing is asked for before it has heard that the LLM is there."""
        match order:
            case Start():
                Thread(target=self.serve, args=(order,), daemon=True).start()
            case Submit():
                self.submit(order)
            case Cancel(numbers):
                self.llm.loop.cancel([row for number in numbers if (row := self.rows.get(number))])
            case Pace(seconds):
                self.llm.loop.set_pace(seconds)
            case Watch(listener, texts):
                self.llm.loop.watch(partial(self.tell, listener) if listener is not None else None, texts)
            case WarmUp(listener):  # it takes long, and a cancel may come
                Thread(target=self.warm_up, args=(listener,), daemon=True).start()

    def submit(self, order: Submit) -> None:
        """Let requests run. What is wrong with them ends them, and the others go on."""
        numbers = [request.index for request in order.requests]
        self.told |= {number: len(known) for number, known in zip(numbers, order.known, strict=True)}
        try:
            rows = self.llm.loop.submit(order.requests, self.mailbox, order.asked, order.every_token, order.known)
            self.rows.update(zip(numbers, rows, strict=True))
        except Exception as error:
            self.outbox.put(self.news([(number, [], [], 0.0, (), (), None, repr(error)) for number in numbers]))
            for number in numbers:
                del self.told[number]

    def warm_up(self, listener: int) -> None:
        """In a thread: capture, and tell of it."""
        end = None
        try:
            self.llm.warm_up(lambda *progress: self.tell(listener, progress))
        except BaseException as error:
            end = Raised.of(error)
        self.tell(listener, end)

    def tell(self, listener: int, what: Any) -> None:
        """Let a listener of the parent's hear something."""
        self.outbox.put(Told(listener, what))

    def serve(self, start: Start) -> None:
        """In a thread: make the LLM, and then tell what is new, for ever."""
        try:
            self.llm = start.kind(start.model, revision=start.revision, **start.settings)
        except BaseException as error:
            self.connection.send([Raised.of(error)])
            return
        gc.collect()
        gc.freeze()  # what is there now stays: collections need not look at it again
        self.llm.loop.on_idle = partial(self.outbox.put, [])  # stats and gauges
        try:
            self.connection.send([self.llm.facts])
            while True:  # rows that are heard of at their end alone bring no news meanwhile
                if (posted := drained(self.outbox, BEAT)) or self.told:
                    self.connection.send(self.packed(posted))
                    time.sleep(REST * len(self.told))
        except OSError:  # the parent is gone
            os._exit(0)
        except BaseException as error:
            die(error)

    def packed(self, posted: list[Any]) -> list[Any]:
        """The news of all rows that were posted since the last time, and the messages behind them."""
        failure = self.llm.loop.failure  # ahead of the rows: those that have ended before it are told with it
        counts = Counter(chain.from_iterable(each for each in posted if type(each) is list))
        rows = [news for row, count in counts.items() if (news := self.news_of(row, count))]
        return [self.news(rows, failure and Raised.of(failure)), *[each for each in posted if type(each) is not list]]

    def news(self, rows: list[RowNews], failure: Raised | None = None) -> News:
        """These, and what the engine counts behind them."""
        return News(rows, failure, self.llm.stats, self.llm.loop.gauges)

    def news_of(self, row: Any, count: int) -> RowNews | None:
        """What is new of a row that was posted so many times, once a token; nothing if its end was told before."""
        number, ended = row.request.index, row.ended  # in this order: where it has ended, all of it is there
        if (told := self.told.get(number)) is None:
            return None
        prompt, end, error = len(row.request.prompt_token_ids), told + count, None
        if ended:
            end = len(row.times)
            if not (row.finish_reason or isinstance(row.cancelled, CancelledError) or self.llm.loop.failure):
                error = repr(row.cancelled)
            del self.told[number]
        else:
            self.told[number] = end
        return (
            number,
            row.tokens[prompt + told : prompt + end],
            row.times[told:end],
            row.began,
            row.logprobs[told:end] or (),
            () if told else row.prompt_logprobs or (),
            row.finish_reason if ended else None,
            error,
        )
