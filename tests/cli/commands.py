"""Command lines for tests: in this process, in one of their own, on a terminal, and without some packages."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nanoinfer.llm import LLM
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model

# What a person's environment is like: output is buffered, and so fails once more when the interpreter ends.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
TINY = ModelConfig(n_layer=2, n_head=2, n_embd=16, n_positions=128, vocab_size=50257)
PACKAGES = {"course": "nanocourse", "read": "nanobook", "bench": "nanobench", "rung": "nanobook"}

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals, pipes and byte arguments are POSIX's")


class Result(NamedTuple):
    code: int
    out: str
    err: str


def assert_refused(result: Result, *parts: str, code: int = 2) -> None:
    """One sentence on standard error, and nothing else anywhere."""
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("nanoinfer: ")
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1
    for part in parts:
        assert part in result.err


def start(*arguments: str | bytes, **more: object) -> subprocess.Popen[bytes]:
    """A real process."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT}
    return subprocess.Popen([sys.executable, *arguments], **(pipes | more))  # type: ignore[call-overload]


def ended(process: subprocess.Popen[bytes]) -> Result:
    """What a real process has written once it has ended."""
    out, err = process.communicate(timeout=120)
    return Result(process.returncode, out.decode() if out else "", err.decode())


def on_terminal(monkeypatch: pytest.MonkeyPatch, stream: str) -> io.StringIO:
    """What is written to "stdout" or "stderr" from now on, which says that it is a terminal."""
    shown = io.StringIO()
    shown.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, stream, shown)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return shown


def says(token: int) -> GPT2:
    """A model that says this token, whatever it is told."""
    model = random_model(TINY, 0)
    model.wte.weight[token] *= 10
    model.ln_f.weight.zero_()
    model.ln_f.bias.copy_(model.wte.weight[token])
    return model


def fail_at(monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException) -> None:
    """Let one step from now on fail, the next one being number 0."""
    forward, calls = GPT2.forward, iter(range(1_000_000))

    def failing(self: GPT2, *arguments: Any) -> Any:
        if next(calls) == step:
            raise error
        return forward(self, *arguments)

    monkeypatch.setattr(GPT2, "forward", failing)


def interrupt_after(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Let Ctrl-C come when the next call has that many tokens."""
    real = LLM.stream

    def stream(self: LLM, *arguments: Any) -> Iterator[Any]:
        monkeypatch.setattr(LLM, "stream", real)
        yield from islice(real(self, *arguments), tokens)
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "stream", stream)


# Runs command lines in one process, where some packages cannot be imported. Prints, for each, its exit code, what it
# wrote, and which of the packages that are asked about have been imported by then.
PROGRAM = """
import contextlib, io, json, sys
hidden, lines, packages = json.loads(sys.argv[1])
from nanoinfer import cli

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Finder())
for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
    del sys.modules[name]
results = []
for line in lines:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(line)
    results.append([code, out.getvalue(), err.getvalue(), [name for name in packages if name in sys.modules]])
print(json.dumps(results))
"""


def run_without(
    hidden: list[str], *lines: list[str], asked: Sequence[str] | None = None, path: str = ""
) -> list[tuple[int, str, str, list[str]]]:
    """What each line does where these packages are not installed: code, output, errors, imports of what is asked about.

    path: where modules are looked for ahead of all others.
    """
    environment = ENVIRONMENT | {"PYTHONPATH": f"{path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    done = ended(start("-c", PROGRAM, json.dumps([hidden, lines, asked or [*PACKAGES.values()]]), env=environment))
    assert done.code == 0, done.err
    return [tuple(result) for result in json.loads(done.out)]
