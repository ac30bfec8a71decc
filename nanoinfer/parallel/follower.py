"""A rank's process: it makes its part of an `LLM`, and then does what the first rank says. Chapter 8.

It ends with the first rank, whatever runs here at that moment: a thread reads the orders, and their end is the end.
Where something fails here, the first rank is told before this process ends.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

from nanoinfer.parallel.processes import Raised
from nanoinfer.parallel.ranks import HERE, Start


def main(connection: Connection) -> None:
    """The process."""
    orders: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_read, args=(connection, orders), daemon=True).start()
    try:
        follow(orders, connection)
    except BaseException as error:
        connection.send(Raised.of(error))
        sys.stderr.flush()
        os._exit(1)


def _read(connection: Connection, orders: SimpleQueue[Any]) -> None:
    """Until there are no more: then the first rank has ended, and nobody will hear of what runs here."""
    with suppress(EOFError, OSError):
        while order := connection.recv():
            orders.put(order)
    os._exit(0)


def follow(orders: SimpleQueue[Any], first: Connection) -> None:
    """Make this rank's part, and obey for ever."""
    start: Start = orders.get()
    import torch
    import torch.distributed as dist

    from nanoinfer.devices import choose_device
    from nanoinfer.parallel.rank import HOST, Rank, join

    first.send(HERE)
    settings = start.settings
    store: Any = dist.TCPStore(HOST, start.port, None, False)  # type: ignore[attr-defined]
    rank = join(store, start.rank, settings["tensor_parallel"], choose_device(settings.get("device")))
    torch.set_num_threads(rank.threads(settings.get("threads")))

    class OneOfSeveral(start.kind):  # type: ignore[name-defined, misc]
        def _join(self, *_: Any) -> Rank:
            return rank

    llm = OneOfSeveral(start.model, revision=start.revision, **settings)
    with torch.inference_mode():
        while True:
            name, *told = orders.get()
            globals()[f"do_{name}"](llm, *told)


def do_launch(llm: Any, step: Any) -> None:
    """A step; its tokens are the first rank's to read."""
    llm.core.launch(step)


def do_abandon(llm: Any) -> None:
    """All rows are padding."""
    llm.core.abandon()


def do_warm_up(llm: Any) -> None:
    """Captures, in the same order on all ranks."""
    llm.warm_up()


def do_plain_pass(llm: Any, token_ids: list[list[int]]) -> None:
    """A pass over texts (B, T), beside the engine."""
    llm.forward_logits(token_ids)


def do_alike(llm: Any) -> None:
    """The first rank asks whether all hold the same rows."""
    assert llm.rank
    llm.rank.alike(llm.core)
