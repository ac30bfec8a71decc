"""The page's routes: who may read them, what is hidden, and what becomes of a watcher who is slow or goes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from nanoinfer.cli import run
from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.events import Event
from nanoinfer.serve.page_files import read
from nanoinfer.serve.recorder import Recorder
from nanoinfer.serve.recording import LIMIT, as_html
from nanoinfer.serve.watch import FILES, WATCHERS, add_watch, is_loopback, knows_host
from nanoinfer.serve.watch_child import Records
from nanoinfer.serve.watch_hub import BEHIND, Watcher
from tests.serve.serving import Served, engine, serving, until
from tests.serve.test_recorder import Watched

VALID = Draft202012Validator(json.loads(files("nanoinfer.serve").joinpath("events.schema.json").read_text("utf-8")))
STREAM, SECRET = "/watch/events", "the secret harbour"


@contextmanager
def watched(**settings: Any) -> Iterator[Served]:
    llm = engine()
    with serving(llm, **settings) as served:
        add_watch(served.server.config.app, llm, served.service.config)  # type: ignore[arg-type]
        yield served


@contextmanager
def watching(served: Served, **headers: str) -> Iterator[Iterator[Event]]:
    """The records that one watcher is sent; the first are the settings."""
    with served.http.stream("GET", STREAM, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))


def observer(served: Served) -> Any:
    assert served.service.llm
    return served.service.llm.llm.core.observer


def source_of(served: Served) -> Any:
    """Where the records come from, while somebody watches."""
    source = served.server.config.app.state.watch._source  # type: ignore[union-attr]
    assert source
    return source


@pytest.fixture(scope="module")
def open_server() -> Iterator[Served]:
    with watched() as served:
        yield served


def test_without_the_option_there_is_no_page() -> None:
    with serving(engine()) as served:
        assert {served.http.get(path).status_code for path in (*FILES, STREAM, "/watch/pace")} == {404}


def test_the_page_may_load_nothing_from_elsewhere(open_server: Served) -> None:
    for path in FILES:
        answer = open_server.http.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert not re.findall(r"https?://", answer.text)
    assert not re.search(r"innerHTML|insertAdjacent|document\.write|outerHTML|eval\(", read("page.js"))
    assert "?key" not in read("page.js")


@pytest.mark.parametrize("path", [*FILES, STREAM])
def test_a_name_that_somebody_else_gave_this_machine_is_refused(open_server: Served, path: str) -> None:
    for headers in ({"host": "evil.example"}, {"host": "127.0.0.1.evil.example:80"}, {"origin": "http://evil.example"}):
        answer = open_server.http.get(path, headers=headers)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] in ("unknown_host", "other_origin")
    own = open_server.url.removeprefix("http://")
    assert open_server.http.get("/", headers={"host": own, "origin": open_server.url}).status_code == 200


def test_hosts() -> None:
    for known in ("localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]:8000", "192.168.1.7", "box:80"):
        assert knows_host(known, "box"), known
    for strange in ("", "evil.example", "localhost.evil.example", "127.0.0.1.nip.io:80", "box.evil.example"):
        assert not knows_host(strange, "box"), strange
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.168.1.7", "localhost.evil.example")] == [False] * 4


def test_the_stream_needs_the_key_and_the_page_does_not() -> None:
    with watched(api_key="right") as served:
        assert served.http.get("/").status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}):
            assert served.http.get(STREAM, headers=headers).status_code == 401
        assert served.http.get(f"{STREAM}?key=right&api_key=right").status_code == 401
        with watching(served, authorization="Bearer right") as records:
            assert next(records)["key"] is True
        assert "right" not in json.dumps(served.records)


def test_events_are_valid_and_say_nothing_of_texts(open_server: Served) -> None:
    found = follow(open_server)
    assert found[0]["texts"] is False
    for event in found[1:]:
        VALID.validate(event)
    assert [event["kind"] for event in found[1:3]] == ["keyframe", "step"]
    assert sum(len(event.get("tokens", ())) for event in found[2:]) >= 4
    said = json.dumps(found[1:])
    assert "harbour" not in said
    assert not re.search(r'"text"|"texts": \[|token_ids', said)


def test_texts_are_shown_where_the_server_was_told_so() -> None:
    with watched(watch_texts=True) as served, watching(served) as records:
        assert next(records)["texts"] is True
        assert served.post(SECRET, max_tokens=5, ignore_eos=True).status_code == 200
        assert SECRET in json.dumps(next(records)["rows"])
        texts = [event["texts"] for event in (next(records) for _ in range(3))]
        assert all(len(each) == 1 for each in texts)


def follow(served: Served) -> list[Event]:
    """The settings, and all events of one request."""
    with watching(served) as records:
        found = [next(records)]
        assert served.post(SECRET, max_tokens=6, ignore_eos=True).status_code == 200
        for event in records:
            found.append(event)
            if event.get("ended"):
                return found
    raise AssertionError("the request has no end")


def test_several_watch_and_who_is_left_alone_is_not_observed(open_server: Served) -> None:
    until(lambda: open_server.post(max_tokens=2).status_code == 200 and observer(open_server) is None)
    with watching(open_server) as one, httpx.Client(base_url=open_server.url, timeout=60) as client:
        next(one)
        open_server.post(max_tokens=2, ignore_eos=True)
        first = next(one)
        assert observer(open_server) is not None
        with client.stream("GET", STREAM) as answer:
            other = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
            next(other)
            late = next(other)
            assert (first["kind"], late["kind"]) == ("keyframe", "keyframe")
            assert late["step"] >= first["step"]
    until(lambda: open_server.post(max_tokens=2).status_code == 200 and observer(open_server) is None)


def test_watching_that_fails_ends_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def failing(self: Recorder, *step: object) -> None:
        raise ValueError("a mistake of the recorder's")

    monkeypatch.setattr(Recorder, "step", failing)
    llm = engine()
    with serving(llm) as server:
        llm.llm.loop.watch(lambda event: None, texts=False)
        assert server.post(max_tokens=3, ignore_eos=True).json()["usage"]["completion_tokens"] == 3
        assert llm.llm.core.observer is None
    assert caplog.text.count("watching the engine has failed") == 1


def test_who_watches_anew_without_a_step_between_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, close = [], Recorder.close
    monkeypatch.setattr(Recorder, "close", lambda self: (closed.append(self), close(self)))
    llm = engine()
    first: list[Event] = []
    second: list[Event] = []
    with serving(llm) as server:
        core, watch = llm.llm.core, llm.llm.loop.watch
        watch(first.append, texts=False)
        server.post(max_tokens=2, ignore_eos=True)
        told = len(first)
        watch(None, texts=False)
        watch(second.append, texts=False)
        server.post(max_tokens=2, ignore_eos=True)
        assert len(first) == told
        assert "state" in second[0]
        assert len(closed) == 1
        watch(None, texts=False)
        server.post(max_tokens=2, ignore_eos=True)
        assert len(closed) == 2
        assert core.observer is None
        assert "remove" not in vars(core.scheduler)


def test_no_more_watch_than_may(open_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.serve.watch.WATCHERS", 1)
    assert WATCHERS > 1
    with watching(open_server) as records:
        next(records)
        answer = httpx.get(open_server.url + STREAM)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_watchers")


class Asked:
    """In place of what makes records: it only notes who asks for a keyframe."""

    def __init__(self) -> None:
        self.made, self.asked = 0, list[tuple[int, int]]()

    def ask(self, number: int, read: int) -> None:
        self.asked.append((number, read))


def test_a_slow_watcher_holds_few_records_and_then_gets_a_keyframe() -> None:
    source: Any = Asked()

    async def run() -> list[bytes]:
        def push(line: bytes) -> None:
            source.made += 1
            watcher.push(line)

        watcher, got = Watcher(source, 5), []
        for _ in range(BEHIND):
            push(b"1")
        got.append(await watcher.next())
        for _ in range(BEHIND + 5):
            push(b"2")
            assert len(watcher._lines) <= BEHIND
        got.append(await watcher.next())
        got.append(await asyncio.wait_for(asyncio.shield(both(push, watcher)), 20))
        assert watcher._read == source.made
        return got

    async def both(push: Any, watcher: Watcher) -> bytes:
        waiting = asyncio.create_task(watcher.next())
        await asyncio.sleep(0)
        push(b"3")  # before the keyframe has come, which knows of it
        await asyncio.sleep(0)
        assert not waiting.done()
        watcher.push(b"keyframe", keyframe=True)
        push(b"4")
        return await waiting

    first, nothing, after = asyncio.run(run())
    assert first == b"1" * BEHIND
    assert nothing == b""
    assert source.asked == [(5, BEHIND)]
    assert after == b"keyframe4"


def test_how_many_records_a_watcher_missed() -> None:
    history = Watched(Random(3))
    facts: list[Any] = []
    history.engine.observer = lambda step, settled: facts.append(recorder.step(step, settled))
    recorder = Recorder(history.engine)
    history.run()
    records = Records(texts=False)
    made = records.answer([*facts, (7, len(facts) - 4)])
    assert [number for number, _ in made] == [None] * len(facts) + [7]
    keyframe = json.loads(made[-1][1][6:])
    assert (keyframe["kind"], keyframe["skipped"]) == ("keyframe", 4)


@pytest.mark.skipif(sys.platform == "win32", reason="no process can be stopped there")
def test_facts_that_nobody_turns_into_records_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the records is stopped for a while: then steps are left out, and the whole state follows."""
    monkeypatch.setattr("nanoinfer.serve.watch_hub.WAITING", 8)
    with watched() as served, watching(served) as records:
        next(records)
        served.post(max_tokens=3, ignore_eos=True)
        assert next(records)["kind"] == "keyframe"
        source = source_of(served)
        source._process.send_signal(signal.SIGSTOP)
        try:
            served.post(max_tokens=60, ignore_eos=True)
            assert source._sent - source.made <= 9
        finally:
            source._process.send_signal(signal.SIGCONT)
        until(lambda: source._sent == source.made)
        served.post(max_tokens=3, ignore_eos=True)
        until(lambda: served.post(max_tokens=3, ignore_eos=True).status_code == 200 and source._sent == source.made)
        kinds = [next(records)["kind"] for _ in range(source.made - 1)]
        assert "keyframe" in kinds


def test_no_process_is_left(open_server: Served) -> None:
    with watching(open_server) as records:
        next(records)
        source = source_of(open_server)
    until(lambda: source._process.poll() is not None)


def test_the_pace_is_the_classrooms_alone(open_server: Served) -> None:
    assert open_server.http.post("/watch/pace", json={"seconds": 1}).status_code == 404
    with watched(classroom=True) as served:
        llm = served.service.llm
        assert llm
        for wrong in (
            b"",
            b"{}",
            b"[]",
            b'{"seconds": -1}',
            b'{"seconds": 6}',
            b'{"seconds": "1"}',
            b'{"seconds": NaN}',
        ):
            assert served.http.post("/watch/pace", content=wrong).status_code == 400
        strange = served.http.post("/watch/pace", json={"seconds": 1}, headers={"origin": "http://evil.example"})
        assert strange.status_code == 403
        assert llm.llm.loop.pace == 0
        with watching(served) as records:
            next(records)
            assert served.http.post("/watch/pace", json={"seconds": 0.5}).json() == {"seconds": 0.5}
            assert llm.llm.loop.pace == 0.5
        until(lambda: llm.llm.loop.pace == 0)  # nobody watches any more


def test_a_classroom_off_the_loopback_is_refused(open_server: Served) -> None:
    llm: Any = open_server.service.llm
    for host in ("0.0.0.0", "192.168.1.7"):
        with pytest.raises(ValueError, match=f"host must be 127.0.0.1, not {host}"):
            add_watch(open_server.server.config.app, llm, ServeConfig(host=host, classroom=True))  # type: ignore[arg-type]


class TestARecording:
    def test_texts_end_no_script(self) -> None:
        evil = "</script><script>alert(1)</script><!--\u2028\u2029&amp;"
        page = as_html([{"kind": "step", "text": evil}], evil)
        assert page.count("</script>") == 2
        assert "alert(1)</script>" not in page
        found = json.loads(page.partition('id="recording">')[2].partition("</script>")[0])
        assert found["events"][0]["text"] == found["title"] == evil
        assert "\u2028" not in page

    def test_what_has_no_room_is_left_out_and_said(self) -> None:
        events = [{"kind": "step", "step": step, "text": "x" * 1000} for step in range(2000)]
        page = as_html(events, "long")
        assert LIMIT - 3000 < len(page.encode()) <= LIMIT
        found = json.loads(page.partition('id="recording">')[2].partition("</script>")[0])
        kept = len(found["events"])
        assert found["events"] == events[:kept]
        assert f"{2000 - kept:,} more steps" in found["note"]

    def test_the_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "run.html"
        options = ["--engine", "paged", "--device", "cpu", "-n", "4", "--every", "2", "-o", str(out)]
        assert run(["watch", "Once upon a time", "<b>The fox</b>", *options]) == 0
        page = out.read_text("utf-8")
        found = json.loads(page.partition('id="recording">')[2].partition("</script>")[0])
        for event in found["events"]:
            VALID.validate(event)
        assert "fox" not in page
        assert sum(len(event.get("ended", ())) for event in found["events"]) == 2
        assert "2 requests" in capsys.readouterr().err

    @pytest.mark.parametrize("wrong", [["a", "-f", "b"], ["--every", "-1"], ["-f", "/no/such/file"], ["a", "-n", "0"]])
    def test_the_command_refuses(self, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["watch", *wrong]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
