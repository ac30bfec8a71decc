"""A rank's process: it makes its part of an `LLM`, and then does what the first rank says. Chapter 8.

It ends with the first rank, whatever runs here at that moment: a thread reads the orders, and their end is the end.
Where something fails here, the first rank is told before this process ends.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from operator import attrgetter
from queue import SimpleQueue
from threading import Thread
from typing import Any

from nanoinfer.parallel.processes import Raised
from nanoinfer.parallel.rank import HERE, Rank, Start


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
    """Make this rank's part, and call for ever what the first rank calls there: an order names a method of the LLM."""
    start: Start = orders.get()
    import torch
    import torch.distributed as dist

    from nanoinfer.devices import choose_device
    from nanoinfer.parallel.meeting import HOST, join

    first.send(HERE)
    settings = start.settings
    store: Any = dist.TCPStore(HOST, start.port, None, False)  # type: ignore[attr-defined]
    join(rank := Rank([]), store, start.rank, settings["tensor_parallel"], choose_device(settings.get("device")))
    torch.set_num_threads(rank.threads(settings.get("threads")))

    llm = start.kind(start.model, revision=start.revision, rank=rank, **settings)
    with torch.inference_mode():
        while True:
            name, *told = orders.get()
            attrgetter(name)(llm)(*told)
