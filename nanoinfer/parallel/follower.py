"""A rank's process: it makes its part of an `LLM`, and then does what the first rank says. Chapter 8.

It ends with the first rank, whatever runs here at that moment: a thread reads the orders, and the pipe's end is the
end. Where something fails here, the first rank is told before this process ends.
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from importlib import import_module
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from nanoinfer.parallel.ranks import HERE, Start
from nanoinfer.serve.processes import Raised, pipes

if TYPE_CHECKING:
    from nanoinfer.llm import LLM


def main() -> None:
    """The process."""
    given, taken = pipes()
    source, news = Connection(given, writable=False), Connection(taken, readable=False)
    orders: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_read, args=(source, orders), daemon=True).start()
    try:
        follow(orders, news)
    except BaseException as error:
        news.send(Raised.of(error))
        sys.stderr.flush()
        os._exit(1)


def _read(source: Connection, orders: SimpleQueue[Any]) -> None:
    """Until there are no more: then the first rank has ended, and nobody will hear of what runs here."""
    try:
        while True:
            orders.put(source.recv())
    except (EOFError, OSError):
        os._exit(0)


def follow(orders: SimpleQueue[Any], news: Connection) -> None:
    """Make this rank's part, and obey for ever."""
    start: Start = orders.get()
    import torch
    import torch.distributed as dist

    from nanoinfer.devices import choose_device
    from nanoinfer.parallel.rank import HOST, Rank, join

    news.send(HERE)
    config = start.config
    store: Any = dist.TCPStore(HOST, start.port, None, False)  # type: ignore[attr-defined]
    rank = join(store, start.rank, config.tensor_parallel, choose_device(config.device))
    torch.set_num_threads(rank.threads(config.threads))

    kind: Any = import_module("nanoinfer.llm").LLM  # by name: what it holds is a rank of this package

    class OneOfSeveral(kind):  # type: ignore[misc]
        def _join(self, *_: Any) -> Rank:
            return rank

    settings = {field.name: getattr(config, field.name) for field in fields(config)}
    llm: LLM = OneOfSeveral(start.model, revision=start.revision, **settings)
    with torch.inference_mode():
        while True:
            name, *told = orders.get()
            globals()[f"do_{name}"](llm, *told)


def do_launch(llm: LLM, step: Any) -> None:
    """A step; its tokens are the first rank's to read."""
    engine: Any = llm.core
    engine.launch(step)


def do_abandon(llm: LLM) -> None:
    """All rows are padding."""
    llm.core.abandon()


def do_warm_up(llm: LLM) -> None:
    """Captures, in the same order on all ranks."""
    llm.warm_up()


def do_plain_pass(llm: LLM, token_ids: list[list[int]]) -> None:
    """A pass over texts (B, T), beside the engine."""
    llm.forward_logits(token_ids)


def do_alike(llm: LLM) -> None:
    """The first rank asks whether all hold the same rows."""
    assert llm.rank
    llm.rank.alike(llm.core)
