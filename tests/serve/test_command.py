"""`nanoinfer serve` as a process: its address, its ends, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from nanoinfer.cli import run
from tests.cli.test_main import ENVIRONMENT
from tests.cli.test_plugins import run_without
from tests.serve.serving import PATH, parsed, until
from tests.serve.test_crowd import command

REFUSED: list[tuple[list[str], str]] = [
    (["--port", "70000"], "--port must be at most 65535, not 70000"),
    (["--queue", "-1"], "--queue must be at least 0, not -1"),
    (["--stall-timeout", "0"], "--stall-timeout must be more than 0 seconds"),
    (["--hang-timeout", "0"], "--hang-timeout must be more than 0 seconds"),
    *[([f"--{name}", "-1"], f"--{name} must be at least") for name in ("replicas", "max-rows", "max-stops")],
    (["--max-prompt-tokens", "0"], "--max-prompt-tokens must be at least 1, not 0"),
    (["--api-key", ""], "--api-key must have at least one character"),
    (["--watch-texts"], "--watch-texts needs --watch"),
    (["--classroom"], "--classroom needs --watch"),
    (["--watch", "--classroom", "--host", "0.0.0.0"], "--host must be 127.0.0.1"),
    (["--model", "no-such-model"], "no-such-model"),
    (["--host", "256.1.1.1", "--port", "0"], "cannot listen at 256.1.1.1, port 0"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_what_is_refused(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert run(["serve", *arguments]) == 2
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "httptools", "prometheus_client"])
def test_a_missing_package_is_one_sentence(package: str) -> None:
    ((code, _, told, _),) = run_without([package], ["serve"])
    what = f"`nanoinfer serve` needs {package}, which is not installed: pip install 'nanoinfer[serve]'"
    assert (code, told.strip()) == (2, f"nanoinfer: {what}")


def test_it_serves_and_ends_with_0(tmp_path: Path) -> None:
    """A folder's model goes by its last name, and the address is the first line that it prints."""
    log = tmp_path / "log"
    with command(log, "--model", "random:tiny", "--threads", "1", "--max-tokens", "9", "--name", "mine") as served:
        served.ready()
        with httpx.Client(base_url=served.url, timeout=60) as http:
            body = {"model": "mine", "prompt": "a", "seed": 1}
            whole = http.post(PATH, json=body).json()
            assert whole["usage"]["completion_tokens"] <= 9
            *events, end = parsed(http.post(PATH, json=body | {"stream": True}).text)
            assert end == "[DONE]"
            assert "".join(event["choices"][0]["text"] for event in events) == whole["choices"][0]["text"]
            assert http.post(PATH, json=body | {"max_tokens": 10}).status_code == 400
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert [line["event"] for line in lines] == ["listening", "ready", "request", "request", "request", "draining"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_an_engine_that_is_killed_ends_the_server_with_1(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with command(log, "--model", "random:tiny", "--threads", "1") as served:
        served.ready()
        (child,) = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        assert served.process.wait(60) == 1
    assert "nanoinfer: the engine has died" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    with command(tmp_path / "log", "--model", "random:tiny", "--threads", "1") as served:
        served.ready()
        with httpx.Client(base_url=served.url, timeout=60) as http:
            fields = {"model": "random:tiny", "prompt": ["a"] * 100, "max_tokens": 250, "ignore_eos": True}
            with http.stream("POST", PATH, json=fields | {"stream": True}) as answer:
                lines = answer.iter_lines()  # a stream whose iterator is dropped is closed
                assert next(lines)
                served.process.send_signal(signal.SIGINT)
                until(lambda: httpx.get(f"{served.url}/health").json()["status"] == "draining")
                served.process.send_signal(signal.SIGINT)
                assert served.process.wait(60) == 130


def test_a_model_that_is_not_there_ends_it(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    arguments = [sys.executable, "-m", "nanoinfer", "serve", "--port", "0", "-m", str(tmp_path)]
    done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "cpu", "--tensor-parallel", "9"], "--tensor-parallel must be at most the model's 4 heads, not 9"),
        (["--device", "cpu", "--tensor-parallel", "9", "--replicas", "2"], "the model's 4 heads, not 9"),
        (["--device", "cuda", "--tensor-parallel", "99"], "CUDA"),
        (["--device", "cuda", "--replicas", "99"], "--replicas 99 need 99 CUDA devices, but there are"),
    ],
)
def test_what_this_machine_or_this_model_cannot_do_ends_it_with_2(arguments: list[str], sentence: str) -> None:
    """It listens by then; who waits for it reads one sentence."""
    command = [sys.executable, "-m", "nanoinfer", "serve", "--port", "0", "-m", "random:tiny", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr.splitlines()[-1]
    assert done.stderr.count("\n") == 2


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_two_engines_of_two_ranks_each_of_which_one_is_killed(tmp_path: Path) -> None:
    """The rank takes its engine along; what ran there goes on in the other, and the server as if nothing had been."""
    arguments = ("--model", "random:tiny", "--device", "cpu", "--threads", "1", "--engine", "paged")
    log = tmp_path / "log"
    with command(log, *arguments, "--tensor-parallel", "2", "--replicas", "2") as served:
        served.ready()
        body = {
            "model": "random:tiny",
            "prompt": ["a", "b", "c", "d"],
            "seed": 1,
            "max_tokens": 200,
            "ignore_eos": True,
        }
        with httpx.Client(base_url=served.url, timeout=120) as http:
            expected = http.post(PATH, json=body).json()["choices"]
            engines = children(served.process.pid)
            assert [len(children(pid)) for pid in engines] == [1, 1]
            with http.stream("POST", PATH, json=body | {"stream": True}) as answer:
                lines = (line for line in answer.iter_lines() if line)
                got = [next(lines) for _ in range(8)]
                os.kill(children(engines[0])[0], signal.SIGKILL)
                got += lines
            *events, end = [line.removeprefix("data: ") for line in got]
            assert end == "[DONE]"
            texts = dict.fromkeys(range(4), "")
            for event in events:
                for choice in json.loads(event)["choices"]:
                    texts[choice["index"]] += choice["text"]
            assert texts == {choice["index"]: choice["text"] for choice in expected}
            until(lambda: children(served.process.pid) == engines[1:])
            assert http.get("/health").status_code == 200
            assert http.post(PATH, json=body).json()["choices"] == expected
    assert "an engine has died, 1 are left" in log.read_text()


def children(pid: int) -> list[int]:
    found = [task.read_text().split() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    return sorted(int(child) for task in found for child in task)
