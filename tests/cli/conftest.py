"""A model that is loaded once, and command lines that are run in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from nanoinfer import cli
from nanoinfer.cli import options
from nanoinfer.llm import LLM
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from tests.cli.commands import TINY, Result


@pytest.fixture(scope="session")
def tiny() -> GPT2:
    return random_model(TINY, 0)


@pytest.fixture
def use_model(tiny: GPT2, monkeypatch: pytest.MonkeyPatch) -> Callable[[GPT2], None]:
    """Every name of a model means the tiny one, until another is given."""
    unused = ("device", "dtype", "revision")

    def use(model: GPT2) -> None:
        def make(asked: object, **given: object) -> LLM:
            settings = {name: value for name, value in given.items() if name not in unused}
            return LLM(asked if isinstance(asked, GPT2) else model, **settings)  # type: ignore[arg-type]

        monkeypatch.setattr(options, "LLM", make)

    use(tiny)
    return use


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command line in this process, with these bytes as standard input."""

    def run(*arguments: str, stdin: bytes | None = None) -> Result:
        if stdin is not None:
            data: Any = io.BytesIO(stdin)
            data.name = "<stdin>"
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data, encoding="ascii"))
        capsys.readouterr()
        code = cli.run(arguments)
        return Result(code, *capsys.readouterr())

    return run
