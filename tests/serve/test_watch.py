"""The page's routes: who may read them, what is hidden, and what becomes of a watcher who is slow or goes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from starlette.requests import Request

from nanoinfer import SamplingParams
from nanoinfer.cli import run
from nanoinfer.engine.recorder import Recorder
from nanoinfer.serve import watch_source
from nanoinfer.serve.app import App
from nanoinfer.serve.config import ServeConfig, is_loopback, knows_host
from nanoinfer.serve.errors import ApiError
from nanoinfer.serve.events import Event
from nanoinfer.serve.recording import LIMIT, as_html, read
from nanoinfer.serve.watch import FILES
from nanoinfer.serve.watch_source import KEPT, Records, Source, encoded
from tests.serve.serving import Served, engine, serving, serving_by_hypercorn, until

VALID = Draft202012Validator(json.loads(files("nanoinfer.serve").joinpath("events.schema.json").read_text("utf-8")))
STREAM, PACE, SECRET = "/watch/events", "/watch/pace", "the secret harbour"


@contextmanager
def watched(**settings: Any) -> Iterator[Served]:
    with serving(engine(), watch=True, **settings) as served:
        yield served


@contextmanager
def watching(served: Served, **headers: str) -> Iterator[Iterator[Event]]:
    """The records that one watcher is sent; the first are the settings."""
    with (
        httpx.Client(base_url=served.url, timeout=60) as client,
        client.stream("GET", STREAM, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))


def source_of(served: Served) -> Any:
    """What makes the records, while there is a watcher."""
    return served.server.config.app.watch.source  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def open_server() -> Iterator[Served]:
    with watched() as served:
        yield served


def test_without_the_option_there_is_no_page(server: Served, open_server: Served) -> None:
    assert {server.http.get(path).status_code for path in (*FILES, STREAM)} == {404}
    assert [one.http.post(PACE, json={"seconds": 1}).status_code for one in (server, open_server)] == [404] * 2


def test_the_page_may_load_nothing_from_elsewhere(open_server: Served) -> None:
    assert {open_server.http.head(path).status_code for path in (*FILES, STREAM)} == {200}
    for path in FILES:
        answer = open_server.http.get(path)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert not re.findall(r"https?://", answer.text)
    assert not re.search(r"innerHTML|insertAdjacent|document\.write|outerHTML|eval\(|\?key", read("page.js"))


@pytest.mark.parametrize("path", [*FILES, STREAM])
def test_a_name_that_somebody_else_gave_this_machine_is_refused(open_server: Served, path: str) -> None:
    for headers in ({"host": "127.0.0.1.evil.example:80"}, {"origin": "http://evil.example"}):
        answer = open_server.http.get(path, headers=headers)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] in ("unknown_host", "other_origin")
    own = open_server.url.removeprefix("http://")
    assert open_server.http.get("/", headers={"host": own, "origin": open_server.url}).status_code == 200


def test_hosts() -> None:
    known = ["localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]:8000", "192.168.1.7", "box:80"]
    strange = ["", "evil.example", "localhost.evil.example", "127.0.0.1.nip.io:80", "box.evil.example"]
    assert [host for host in known + strange if knows_host(host, "box")] == known
    loopback = ("127.0.0.1", "::1", "localhost", "127.8.8.8", "0.0.0.0", "::", "192.168.1.7", "localhost.evil.example")
    assert [host for host in loopback if is_loopback(host)] == [*loopback[:4]]


def test_events_are_valid_and_say_nothing_of_texts(open_server: Served) -> None:
    with watching(open_server) as records:
        assert next(records)["texts"] is False
        assert open_server.post(SECRET, max_tokens=6, ignore_eos=True).status_code == 200
        found = [next(records)]
        while not found[-1].get("ended"):
            found.append(next(records))
    for event in found:
        VALID.validate(event)
    assert [event["kind"] for event in found[:2]] == ["keyframe", "step"]
    assert sum(len(event.get("tokens", ())) for event in found[1:]) >= 4
    assert not re.search(r'harbour|"text"|"texts": \[|token_ids', json.dumps(found))


def test_the_stream_needs_the_key_and_shows_texts_where_the_server_was_told_so() -> None:
    with watched(api_key="right", watch_texts=True) as served:
        assert served.http.get("/").status_code == 200
        key = {"authorization": "Bearer right"}
        for headers in ({}, {"authorization": "Bearer wrong"}):
            assert served.http.get(STREAM, headers=headers).status_code == 401
        assert served.http.get(f"{STREAM}?key=right&api_key=right").status_code == 401
        with watching(served, **key) as records:
            told = next(records)
            assert (told["key"], told["texts"]) == (True, True)
            assert served.post(SECRET, headers=key, max_tokens=5, ignore_eos=True).status_code == 200
            assert SECRET in json.dumps(next(records)["rows"])
            assert [len(next(records)["texts"]) for _ in range(3)] == [1] * 3
        assert "right" not in json.dumps(served.records)


def test_an_engine_without_watchers_is_not_observed(open_server: Served) -> None:
    """No process is left then."""
    llm: Any = open_server.service.llm
    with watching(open_server) as one:
        next(one)
        open_server.post(max_tokens=2, ignore_eos=True)
        first, source = next(one), source_of(open_server)
        assert llm.llm.core.observer is not None
        with watching(open_server) as other:
            next(other)
            late = next(other)
            assert (first["kind"], late["kind"]) == ("keyframe", "keyframe")
            assert late["step"] >= first["step"]
    until(lambda: open_server.post(max_tokens=2).status_code == 200 and llm.llm.core.observer is None)
    until(lambda: source._process.poll() is not None)


def test_a_watcher_counts_once_admitted_and_leaves_with_the_engine_that_it_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nanoinfer.serve.watch.WATCHERS", 1)
    llm: Any = SimpleNamespace(engines=[1, 2], alive=True, watch=lambda *_, **__: None, pace=lambda _: None)
    llm.facts = SimpleNamespace(max_batch=1, model="tiny")
    app = App(llm, ServeConfig(watch=True))
    app.service.llm, app.service.phase = llm, "ready"
    ask = next(route.endpoint for route in app.router.routes if route.path == STREAM)  # type: ignore[attr-defined]
    request = Request({"type": "http", "method": "GET", "headers": [(b"host", b"localhost")]})

    async def main() -> None:
        first = await ask(request)
        with pytest.raises(ApiError, match="1 watch already"):
            await ask(request)
        assert b"settings" in await anext(first.body_iterator)
        del llm.engines[0]
        assert [line async for line in first.body_iterator] == []
        assert (await ask(request)).status_code == 200

    asyncio.run(main())


def test_another_server_has_the_page_too() -> None:
    pytest.importorskip("hypercorn")
    with serving_by_hypercorn(engine(), watch=True) as url:
        assert httpx.get(url).text == read("index.html")
        with httpx.stream("GET", f"{url}{STREAM}") as answer:
            assert next(line for line in answer.iter_lines() if line.startswith("data: ")).startswith('data: {"model":')


def test_watching_that_fails_ends_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def failing(self: Recorder) -> None:
        raise ValueError("a mistake of the recorder's")

    monkeypatch.setattr(Recorder, "_state", failing)
    llm = engine().llm
    llm.loop.watch(lambda event: None, texts=False)
    assert len(llm.generate("a", SamplingParams(3, ignore_eos=True))[0].token_ids) == 3
    assert llm.core.observer is None
    assert caplog.text.count("watching the engine has failed") == 1


def test_a_watcher_that_comes_without_a_step_between_is_alone() -> None:
    llm, first, second, two = engine().llm, list[Event](), list[Event](), SamplingParams(2, ignore_eos=True)
    llm.loop.watch(first.append, texts=False)
    llm.generate("a", two)
    told = len(first)
    llm.loop.watch(None, texts=False)
    llm.loop.watch(second.append, texts=False)
    llm.generate("a", two)
    llm.loop.watch(None, texts=False)
    llm.generate("a", two)
    assert len(first) == told > 0
    assert "engine" in second[0]
    assert llm.core.observer is None


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[Any, list[Any]]]]:
    """What makes a source without a process, and a list of what it lets the engine tell."""
    ours, _theirs = Pipe()
    monkeypatch.setattr(watch_source, "spawn", lambda module: (SimpleNamespace(wait=lambda: None), ours))
    posts = list[Any]()
    llm: Any = SimpleNamespace(engines=[1], alive=True, watch=lambda post, **_: posts.append(post))
    yield lambda: (Source(llm, texts=False), posts)
    ours.close()


def test_who_reads_slowly_gets_what_is_kept_or_a_keyframe(
    monkeypatch: pytest.MonkeyPatch, source: Callable[[], tuple[Any, list[Any]]]
) -> None:
    """Who has read all waits for the next record, and who comes late begins with a keyframe."""
    monkeypatch.setattr(watch_source, "BEAT_S", 0.01)

    async def main() -> None:
        made, _ = source()
        child: Any = Records(SimpleNamespace(call=lambda _, *record: made._take(*record)))  # type: ignore[arg-type]
        child._events = SimpleNamespace(take=int, keyframe=lambda: {"keyframe": made.made})

        def records(first: int, last: int) -> bytes:
            return b"".join(map(encoded, range(first, last + 1)))  # type: ignore[arg-type]

        assert await made.after(0) == b""
        waits = asyncio.ensure_future(made.after(0))
        await asyncio.sleep(0)
        for step in range(1, 2 * KEPT + 1):
            child.take(step)
        whole = made.made - 1  # the last one is not yet counted
        assert await waits == encoded({"keyframe": whole})
        for step in range(2 * KEPT + 1, 2 * KEPT + 4):
            child.take(step)
        last = 2 * KEPT + 3
        assert await made.after(last) == b""
        assert await made.after(last - 2) == records(last - 1, last)
        assert await made.after(last - KEPT) == records(last - KEPT + 1, last)
        since = records(2 * KEPT + 1, last)
        assert await made.after(0) == encoded({"keyframe": whole}) + since
        skipped = {"skipped": 2 * KEPT - 5, "keyframe": whole}
        assert await made.after(5) == encoded(skipped) + since
        made.close()

    asyncio.run(main())


def test_facts_that_would_wait_too_long_are_dropped_up_to_a_whole_state(
    monkeypatch: pytest.MonkeyPatch, source: Callable[[], tuple[Any, list[Any]]]
) -> None:
    monkeypatch.setattr(watch_source, "WAITING", 3)

    async def main() -> None:
        (made, posts), sent = source(), list[Event]()
        made.link.call = lambda _, facts: sent.append(facts)
        for step in range(9):
            posts[-1]({"step": step})
        assert [facts["step"] for facts in sent] == [0, 1, 2, 3]
        for _ in range(len(sent)):
            assert len(posts) == 1
            made._take(b"", "")
        assert len(posts) == 2  # what has come is made: the whole state is asked for
        for facts in ({"step": 9}, {"step": 10, "engine": {}}, {"step": 11}):
            posts[-1](facts)
        assert [facts["step"] for facts in sent[4:]] == [10, 11]
        made.close()

    asyncio.run(main())


def test_the_pace_is_the_classrooms_alone() -> None:
    with watched(classroom=True) as served:
        llm: Any = served.service.llm
        wrong = [
            b"",
            b"{}",
            b"[]",
            *(b'{"seconds": %s}' % each for each in (b"-1", b"6", b'"1"', b"NaN", b'1, "x": 1')),
        ]
        assert [served.http.post(PACE, content=each).status_code for each in wrong] == [400] * 8
        strange = served.http.post(PACE, json={"seconds": 1}, headers={"origin": "http://evil.example"})
        assert strange.status_code == 403
        assert served.http.post(PACE, json={"seconds": 1}).status_code == 409  # nobody watches
        assert llm.llm.loop.pace == 0
        with watching(served) as records:
            next(records)
            assert served.http.post(PACE, json={"seconds": 0.5}).json() == {"seconds": 0.5}
            assert llm.llm.loop.pace == 0.5
        until(lambda: llm.llm.loop.pace == 0)  # there is no watcher any more
        with pytest.raises(ValueError, match="host must be"):
            ServeConfig(host="0.0.0.0", classroom=True)


# A recording


def recorded(page: str) -> Any:
    return json.loads(page.partition('id="recording">')[2].partition("</script>")[0])


def test_texts_end_no_script() -> None:
    evil = "</script><script>alert(1)</script><!--\u2028\u2029&amp;"
    page = as_html([{"kind": "step", "text": evil}], evil)
    assert page.count("</script>") == 2
    assert recorded(page)["events"][0]["text"] == recorded(page)["title"] == evil
    assert not re.search("alert\\(1\\)</script>|\u2028", page)


def test_what_has_no_room_is_left_out_and_said() -> None:
    events = [{"kind": "step", "step": step, "text": "x" * 1000} for step in range(2000)]
    page = as_html(events, "long")
    assert LIMIT - 3000 < len(page.encode()) <= LIMIT
    found = recorded(page)
    assert found["events"] == events[: len(found["events"])]
    assert f"{2000 - len(found['events']):,} more steps" in found["note"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.html"
    options = ["-m", "random:tiny", "--engine", "paged", "--device", "cpu", "-n", "4", "--every", "2", "-o", str(out)]
    assert run(["watch", "Once upon a time", "<b>The fox</b>", *options]) == 0
    page = out.read_text("utf-8")
    for event in recorded(page)["events"]:
        VALID.validate(event)
    assert "fox" not in page
    assert sum(len(event.get("ended", ())) for event in recorded(page)["events"]) == 2
    assert "2 requests" in capsys.readouterr().err
