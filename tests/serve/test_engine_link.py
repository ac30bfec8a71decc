"""Messages between the two processes: they wait for nobody, and news that come too late are of no row."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from array import array
from dataclasses import replace

import pytest

from nanoinfer import SamplingParams
from nanoinfer.engine.loop import Mailbox
from nanoinfer.requests import Request
from nanoinfer.serve.engine_link import SIZE, Link, News
from nanoinfer.serve.engine_remote import RemoteLoop, Row
from nanoinfer.serve.processes import spawn

REQUEST = Request(0, (1, 2), SamplingParams(), 0, 12, frozenset())


@pytest.mark.parametrize("data", [b"", b"123", SIZE.pack(5) + b"1234"])
def test_a_message_that_is_cut_is_an_end(data: bytes) -> None:
    link = Link(io.BytesIO(data), io.BytesIO(), print)
    with pytest.raises(EOFError):
        link.receive()
    link.close()


def test_numbers_are_never_used_again_and_a_cancel_is_of_one_row() -> None:
    """News of a row that was cancelled here, and was not yet there, are news of no row."""
    code = "import sys; sys.stdin.buffer.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    loop, posted = RemoteLoop(process), list[Row]()
    mailbox = Mailbox(posted.extend)
    (first,) = loop.submit([REQUEST], mailbox, 0.0, True)
    loop.cancel([first])
    (second,) = loop.submit([REQUEST], mailbox, 0.0, True)
    numbers = array("Q", [first.arrived, second.arrived])
    news = News(numbers, array("I", [1, 1]), array("I", [3, 4]), array("d", [0.1, 0.2]))
    loop._take(replace(news, extras=[(first.arrived, "length", None, [], [], [])]))
    assert (first.token_ids, second.token_ids, posted) == ([], [4], [second])
    loop.cancel([first])
    loop._take(replace(news, extras=[(second.arrived, "length", None, [], [], [])]))
    loop.cancel([second])
    assert (second.token_ids, second.finish_reason, second.cancelled) == ([4, 4], "length", None)
    loop._take(news)
    assert posted == [second, second]
    loop.close()
    assert process.returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_closing_ends_a_process_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.serve.engine_remote.PATIENCE", 0.1)
    process = spawn()
    os.kill(process.pid, signal.SIGSTOP)
    RemoteLoop(process).close()
    assert process.returncode == -signal.SIGKILL
