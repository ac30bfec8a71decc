"""The engine's process: it makes an LLM, obeys what it is told, and tells what is new. It ends with its parent.

The engine's thread puts the rows that have news into a queue, and that is all it does for them. Another thread makes
messages of them.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any
from weakref import WeakValueDictionary

from nanoinfer.engine.loop import Mailbox
from nanoinfer.parallel.processes import Raised, die
from nanoinfer.remote.link import Call, drained, live
from nanoinfer.requests import Request

REST = 4e-5  # seconds a row from one message to the next: where rows are many, each has several tokens in one
SWITCH = 1e-4  # seconds that a thread waits for another's turn to end: Python's own 5 ms are several steps
BEAT = 0.2  # seconds from one look at gauges and counters to the next, while there are rows


def main(connection: Connection) -> None:
    """The process: as long as its parent has not closed the connection."""
    sys.setswitchinterval(SWITCH)  # while requests come in, steps go on
    live(connection, RemoteEngine)


class RemoteEngine:
    """An LLM that is told what to do in one thread, and tells what is new in another.

    A `RemoteLoop` calls the methods below; none but `serve` before it has heard that the LLM is there.
    """

    llm: Any

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.outbox: SimpleQueue[Any] = SimpleQueue()  # lists of rows that have news, and calls
        self.mailbox = Mailbox(self.outbox.put)
        self.rows: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by number, for who cancels one
        self.told: dict[int, int] = {}  # of each row whose end was not told: how many of its tokens were

    def in_thread(self, method: str, *args: Any) -> None:
        """Call a method that takes long in a thread of its own: others may come meanwhile."""
        Thread(target=getattr(self, method), args=args, daemon=True).start()

    def submit(self, requests: Sequence[Request], known: Any, asked: float, every_token: bool) -> None:
        """Let requests run; the index of each is its row's number. known: tokens that another engine has made of it.

        What is wrong with them ends them, and the others go on.
        """
        numbers = [request.index for request in requests]
        self.told |= {number: len(tokens) for number, tokens in zip(numbers, known, strict=True)}
        try:
            rows = self.llm.loop.submit(requests, self.mailbox, asked, every_token, known)
            self.rows.update(zip(numbers, rows, strict=True))
        except Exception as error:
            self.outbox.put(self.news([(number, [], [], 0.0, (), (), None, repr(error)) for number in numbers]))
            for number in numbers:
                del self.told[number]

    def cancel(self, numbers: Sequence[int]) -> None:
        """Let rows leave."""
        self.llm.loop.cancel([row for number in numbers if (row := self.rows.get(number))])

    def set_pace(self, seconds: float) -> None:
        """As `EngineLoop.set_pace`."""
        self.llm.loop.set_pace(seconds)

    def watch(self, listener: int | None, texts: bool) -> None:
        """Tell this listener what each step does; None ends it."""
        self.llm.loop.watch(None if listener is None else partial(self.tell, listener), texts)

    def warm_up(self, listener: int) -> None:
        """Tell this listener how many steps of how many are captured, and at the end None or what was raised."""
        end = None
        try:
            self.llm.warm_up(lambda *progress: self.tell(listener, progress))
        except BaseException as error:
            end = Raised.of(error)
        self.tell(listener, end)

    def tell(self, listener: int, what: Any) -> None:
        """Let a listener of the parent's hear something."""
        self.outbox.put(Call("hear", (listener, what)))

    def serve(self, kind: Callable[..., Any], model: Any, revision: str | None, settings: dict[str, Any]) -> None:
        """Make the LLM, and then tell what is new, for ever."""
        try:
            self.llm = kind(model, revision=revision, **settings)
        except BaseException as error:
            self.connection.send([Call("made", (Raised.of(error),))])
            return
        gc.collect()
        gc.freeze()  # what is there now stays: collections need not look at it again
        self.llm.loop.on_idle = partial(self.outbox.put, [])  # stats and gauges
        try:
            self.connection.send([Call("made", (self.llm.facts,))])
            while True:  # rows that are heard of at their end alone bring no news meanwhile
                if (posted := drained(self.outbox, BEAT)) or self.told:
                    self.connection.send(self.packed(posted))
                    time.sleep(REST * len(self.told))
        except OSError:  # the parent is gone
            os._exit(0)
        except BaseException as error:
            die(error)

    def packed(self, posted: list[Any]) -> list[Call]:
        """The news of all rows that were posted since the last time, and the calls behind them."""
        failure = self.llm.loop.failure  # ahead of the rows: those that have ended before it are told with it
        rows = dict.fromkeys(chain.from_iterable(each for each in posted if type(each) is list))
        news = self.news([told for row in rows if (told := self.news_of(row))], failure and Raised.of(failure))
        return [news, *[each for each in posted if type(each) is not list]]

    def news(self, rows: list[Any], failure: Raised | None = None) -> Call:
        """These, and what the engine counts behind them. failure: of a step, which has ended them all."""
        return Call("take", (rows, failure, self.llm.stats, self.llm.loop.gauges))

    def news_of(self, row: Any) -> Any:
        """What is new of a row; nothing if its end was told before.

        Its number, its new tokens, when each came, when it got a row, their logprobs and, the first time, its prompt's;
        why it has ended, or what failed in it alone. A plain tuple, since each step brings one of every row: a
        NamedTuple takes pickle four times as long, and a dataclass five times.
        """
        number, ended = row.request.index, row.ended  # in this order: where it has ended, all of it is there
        if (told := self.told.pop(number, None)) is None:
            return None
        prompt, error = len(row.request.prompt_token_ids), None
        end = len(row.times) if ended else len(row.tokens) - prompt  # a token is the last of all that comes with it
        if not ended:
            self.told[number] = end
        elif not (row.finish_reason or self.llm.loop.failure):  # of one that was cancelled nobody there hears
            error = repr(row.cancelled)
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
