"""`bench load` as a command: what it refuses, what it writes, and what Ctrl-C leaves."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
from typer.testing import CliRunner

from nanobench.cli import app
from nanobench.load import choice as choices
from nanobench.load.drive import Ask
from nanobench.load.records import LoadReport
from nanobench.load.targets import EngineTarget, Server
from nanobench.report.figures.style import write
from nanobench.report.plot import drawings
from nanobench.report.schemas import schemas
from nanoinfer.requests import Completion, Metrics


class FakeLLM:
    """An `AsyncLLM` that answers at once; `on_call` is awaited first, with the number of the call."""

    def __init__(self, on_call: Any = None) -> None:
        self.on_call, self.calls, self.closed = on_call, 0, False

    async def warm_up(self) -> None: ...

    async def generate(self, prompt: list[int], params: Any) -> list[Completion]:
        self.calls += 1
        if self.on_call:
            await self.on_call(self.calls)
        new = params.max_tokens
        return [Completion(0, tuple(prompt), (1,) * new, "", "length", 0, Metrics(0.25, (0.5,) * (new - 1)))]

    def close(self) -> None:
        self.closed = True


async def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(60)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["load", "--device", "cpu", *arguments])


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    """In place of the engine that the command would make."""
    made = FakeLLM()
    monkeypatch.setitem(choices.LLMS, "engine", ("a fake", lambda **settings: made))
    return made


def test_times_are_of_the_engine_and_errors_are_counted() -> None:
    async def on_call(number: int) -> None:
        if number > 1:
            raise {2: ValueError("prompt is too long"), 3: RuntimeError("the engine has died")}[number]

    llm = FakeLLM(on_call)
    with EngineTarget("e", llm).opened() as target:
        [done] = target.run([Ask(n, 0.0, (n,), 3) for n in range(3)], None)
    ok, refused, failed = done.answers
    assert ok.gaps_s == pytest.approx([0.5, 0.5])
    assert ok.end == pytest.approx(ok.ttft_s + 1.0)
    assert (refused.reply.outcome, refused.reply.reason) == ("refused", "prompt is too long")
    assert (failed.reply.outcome, failed.reply.reason) == ("failed", "the engine has died")
    assert llm.closed


def test_it_writes_a_file_that_its_schema_takes_and_a_figure_is_drawn_of(llm: FakeLLM, tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    done = invoke("--requests", "6", "--rates", "200,400", "--shared", "0.5", "--out", str(out), "--itl", "600")
    assert done.exit_code == 0, done.output
    assert "attempted 6, ok 6, refused 0, failed 0, cancelled 0" in done.output
    jsonschema.validate(json.loads(out.read_text()), json.loads(schemas()["load.schema.json"]))
    report = LoadReport.load(out)
    assert [(run.asked_per_s, run.good) for run in report.runs] == [(200, 6), (400, 6)]
    assert report.mix.shared_share == 0.5
    [drawing] = drawings(out)
    assert [row[1] for row in drawing.rows] == ["200", "400"]
    assert all(file.is_file() for file in write(drawing, tmp_path))


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("--rates nan", "rates must be like"), ("--concurrency 0", "concurrency must be whole numbers"),
        ("--prompt 9,2", "prompt must be LOW,HIGH"), ("--shared 2", "shared-share must be from 0 to 1"),
        ("--extra [] --url http://a", "extra must be a JSON object"), ("--url a", "url must be like"),
        ("--url http://a --url http://a", "a name of its own"), ("--trace /no/such/file", "No such file"),
        ("--trace x.jsonl --seconds 3", "seconds cannot be"), ("--dtype int8", "dtype must"), ("--out .", "written"),
    ],
)  # fmt: skip
def test_what_it_refuses(llm: FakeLLM, tmp_path: Path, arguments: str, said: str) -> None:
    done = invoke("--out", str(tmp_path / "load.json"), *arguments.split())
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output
    assert not any(tmp_path.iterdir())


def test_ctrl_c_prints_what_was_measured_and_writes_nothing(llm: FakeLLM, tmp_path: Path) -> None:
    async def on_call(number: int) -> None:
        if number == 1 + 6 + 3:  # the one ahead, a whole run, and the third of the next
            await interrupt()

    llm.on_call = on_call
    done = invoke("--requests", "6", "--rates", "200,300,400", "--out", str(tmp_path / "load.json"))
    assert done.exit_code == 130
    for said in ("engine, arrivals at 200/s: ", "6 of 6 ok", "interrupted True", "no file is written"):
        assert said in done.output
    assert "at 400/s" not in done.output
    assert not any(tmp_path.iterdir())


def test_targets_by_their_names() -> None:
    settings = {"model": "m", "device": "cpu", "dtype": None, "engine": "paged", "max_batch": 4}
    http, urls = {"model": "m", "clients": 1, "timeout": 9.0}, ("peer=http://a:1/v1", "http://b:2")
    made = choices.targets(["serve"], urls, settings, http, "k", ("--queue", "9"), {"ignore_eos": True})
    serve, peer, other = made
    assert (serve.name, peer.name, other.name) == ("serve", "peer", "b:2")
    assert serve.what == "nanoinfer serve --model m --device cpu --engine paged --max-batch 4 --queue 9"
    with peer.opened() as target:
        body = cast("Server", target).body(Ask(0, 0.0, (1, 2), 5))
        assert (body["prompt"], body["temperature"], body["ignore_eos"]) == ((1, 2), 0, True)
