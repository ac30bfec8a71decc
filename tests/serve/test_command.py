"""`nanoinfer serve` as a process: its address, its ends, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from nanoinfer.cli import run
from tests.cli.commands import ENVIRONMENT, run_without
from tests.serve.serving import PATH, command, joined, logged, parsed, until

REFUSED: list[tuple[list[str], str]] = [
    (["--stall-timeout", "0"], "--stall-timeout must be at least 0.001"),
    (["--replicas", "-1"], "--replicas must be at least"),
    (["--api-key", ""], "--api-key must be printable ASCII of at least one character"),
    ([], "NANOINFER_API_KEY is empty"),
    (["--watch-texts"], "--watch-texts needs --watch"),
    (["--classroom"], "--classroom needs --watch"),
    (["--watch", "--classroom", "--host", "0.0.0.0"], "--host must be 127.0.0.1"),
    (["--model", "no-such-model"], "no-such-model"),
    (["--host", "256.1.1.1", "--port", "0"], "cannot listen at 256.1.1.1, port 0"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_what_is_refused(arguments: list[str], sentence: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not arguments:
        monkeypatch.setenv("NANOINFER_API_KEY", "")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert run(["serve", *arguments]) == 2
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_package_is_one_sentence(package: str) -> None:
    ((code, _, told, _),) = run_without([package], ["serve"])
    what = f"`nanoinfer serve` needs {package}, which is not installed: pip install 'nanoinfer[serve]'"
    assert (code, told.strip()) == (2, f"nanoinfer: {what}")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_it_serves_until_it_is_told_to_stop_and_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    """It can be watched and slowed, and told to hurry in the middle of a step that would take seconds."""
    with command(tmp_path / "log", "--max-tokens", "250", "--name", "mine", "--watch", "--classroom") as served:
        served.ready()
        body = {"model": "mine", "prompt": "a", "seed": 1, "max_tokens": 9, "ignore_eos": True}
        with httpx.Client(base_url=served.url, timeout=60) as http:
            text = http.post(PATH, json=body).json()["choices"][0]["text"]
            assert joined(parsed(http.post(PATH, json=body | {"stream": True}).text)) == text
            assert http.post(PATH, json=body | {"max_tokens": 251}).status_code == 400
            with http.stream("GET", "/watch/events") as watch:
                events = (json.loads(line[6:]) for line in watch.iter_lines() if line.startswith("data: "))
                assert next(events)["classroom"] is True
                assert http.post("/watch/pace", json={"seconds": 5}).status_code == 200
                with http.stream("POST", PATH, json=body | {"stream": True}) as answer:
                    lines = answer.iter_lines()
                    next(lines)
                    assert http.post("/watch/pace", json={"seconds": 0}).status_code == 200
                    assert list(lines)[-2] == "data: [DONE]"
                first, *later = [next(events)["step"] for _ in range(9)]
                assert later == [first + n for n in range(1, 9)]
            body |= {"prompt": ["a"] * 100, "max_tokens": 250, "stream": True}
            with http.stream("POST", PATH, json=body) as answer:
                lines = answer.iter_lines()  # a stream whose iterator is dropped is closed
                assert next(lines)
                served.process.send_signal(signal.SIGINT)
                until(lambda: httpx.get(f"{served.url}/health").json()["status"] == "draining")
                served.process.send_signal(signal.SIGINT)
                assert served.process.wait(60) == 130
    events = [line["event"] for line in logged(tmp_path / "log")]
    assert events == ["listening", "ready", *["request"] * 4, "draining"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "DAMAGED"], "config.json"),
        (["--device", "cpu", "--tensor-parallel", "9"], "--tensor-parallel must be at most the model's 4 heads, not 9"),
        (["--device", "cpu", "--tensor-parallel", "9", "--replicas", "2"], "the model's 4 heads, not 9"),
        (["--device", "cuda", "--replicas", "99"], "--replicas 99 need 99 CUDA devices, but there are"),
    ],
)
def test_what_cannot_be_served_ends_it_with_2(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    """It listens by then; a person who waits for it reads one sentence."""
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    arguments = [str(tmp_path) if each == "DAMAGED" else each for each in arguments]
    line = [sys.executable, "-m", "nanoinfer", "serve", "--port", "0", "--model", "random:tiny", *arguments]
    done = subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr.splitlines()[-1]
    assert done.stderr.count("\n") == 2


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_server_that_is_told_to_stop_while_it_loads_ends_with_0(tmp_path: Path) -> None:
    with command(tmp_path / "log") as served:
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
