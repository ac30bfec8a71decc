"""Messages between the two processes: they wait for nobody, and news that come too late are of no row."""

from __future__ import annotations

import os
import signal
from multiprocessing import Pipe
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.engine.loop import Mailbox
from nanoinfer.engine.stats import Gauges, Stats
from nanoinfer.parallel.processes import spawn
from nanoinfer.remote import loop as remote
from nanoinfer.remote.link import Call, Link, received
from nanoinfer.remote.loop import RemoteLoop, Row
from nanoinfer.requests import Request

REQUEST = Request(0, (1, 2), SamplingParams(), 0, 12, frozenset())


DEAF = "from nanoinfer.remote import link; link.obey = lambda connection, _: [*link.received(connection)]"


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> RemoteLoop:
    """Of a process that hears everything and does nothing."""
    monkeypatch.setattr(remote, "spawn", lambda module: spawn(module, DEAF))
    return RemoteLoop(print, None, None, {})


def test_what_is_sent_comes_in_order_and_ends_with_either_end() -> None:
    """A message that is cut is an end, too."""
    ours, theirs = Pipe()
    link = Link(ours, print)
    for each in range(100):
        link.call("hear", each)
    link.close()
    assert [*received(theirs)] == [Call("hear", (each,)) for each in range(100)]
    theirs.send([Call("hear", ())])
    os.write(theirs.fileno(), b"\x00\x00\x00\x05cut")
    theirs.close()
    assert list(received(ours)) == [Call("hear", ())]


def test_what_cannot_be_sent_is_told() -> None:
    """Else whoever waits for an answer would wait for ever."""
    ours, theirs = Pipe()
    told = list[Exception]()
    link = Link(ours, told.append)
    link.call("hear", lambda: None)
    link._thread.join(10)
    assert "lambda" in str(told)
    theirs.close()


def test_numbers_are_never_used_again_and_a_cancel_is_of_one_row(loop: RemoteLoop) -> None:
    """News of a row that was cancelled here, and was not yet there, are news of no row."""
    posted = list[Row]()
    mailbox = Mailbox(posted.extend)
    (first,) = loop.submit([REQUEST], mailbox, 0.0, True)
    loop.cancel([first])
    (second,) = loop.submit([REQUEST], mailbox, 0.0, True)

    def news(row: Row, token: int, reason: Any = None) -> Any:
        return row.number, [token], [0.1], 0.05, (), (), reason, None

    def take(*told: Any) -> None:
        loop.take(told, None, Stats(), Gauges())

    both = news(first, 3, "length"), news(second, 4)
    take(*both)
    assert (first.token_ids, second.token_ids, posted) == ([], [4], [second])
    loop.cancel([first])
    take(news(second, 4, "length"))
    loop.cancel([second])
    assert (second.token_ids, second.finish_reason, second.cancelled) == ([4, 4], "length", None)
    take(*both)
    assert posted == [second, second]
    loop.close()
    assert loop.process.returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_closing_ends_a_process_that_stands_still(loop: RemoteLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE", 0.1)
    os.kill(loop.process.pid, signal.SIGSTOP)
    loop.close()
    assert loop.process.returncode == -signal.SIGKILL
