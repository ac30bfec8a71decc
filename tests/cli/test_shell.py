"""`nanoinfer shell`: continuations, settings that change, mistakes that change nothing, keys and history."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.cli import line_input, options
from nanoinfer.cli import shell as shell_command
from nanoinfer.config import ENGINES
from nanoinfer.llm import DEFAULT_MODEL
from nanoinfer.model.config import END_OF_TEXT
from nanoinfer.model.gpt2 import GPT2
from tests.cli.commands import Result, fail_at, interrupt_after, says


@pytest.fixture
def shell(use_model: Any, invoke: Any) -> Any:
    """Type lines into a shell, without a terminal."""

    def type_lines(*typed: str, options: tuple[str, ...] = ("-q", "-n", "3", "--seed", "1")) -> Result:
        return invoke("shell", *options, stdin="\n".join(typed).encode("utf-8", "surrogateescape"))

    return type_lines


def text(model: GPT2, prompt: str | list[int], **params: Any) -> str:
    chosen = {"temperature": 0.8, "top_k": 40, "max_tokens": 3, "seed": 1} | params
    return LLM(model).generate([prompt], SamplingParams(**chosen))[0].text


def test_a_line_is_continued(shell: Any, tiny: GPT2) -> None:
    """Two slashes begin a text with one; a line after /quit is not read."""
    result = shell("caf\u00e9", "", "b", "//quit", "/quit", "a")
    assert result == (0, "".join(f"{word}{text(tiny, word)}\n" for word in ("caf\u00e9", "b", "/quit")), "")


def test_settings_hold_from_the_next_line_on(shell: Any, tiny: GPT2) -> None:
    commands = ["/temperature 1.5", "/top-k 0", "/top-p 0.9", "/max-tokens 5", "/seed 9"]
    result = shell("a", *commands, "a", "/greedy", "a")
    changed = text(tiny, "a", temperature=1.5, top_k=0, top_p=0.9, max_tokens=5, seed=9)
    greedy = text(tiny, "a", temperature=0.0, max_tokens=5)
    assert result.out == f"a{text(tiny, 'a')}\na{changed}\na{greedy}\n"


def test_settings_and_figures_are_shown(shell: Any) -> None:
    shown = shell("/temperature 0.5", "/seed none", "/settings", "/top-k").err
    for part in ("temperature  0.5", "top-k        40", "seed         a new one", DEFAULT_MODEL):
        assert part in shown
    assert shown.endswith("top-k 40\n")
    assert "TTFT" in shell("a", options=("-n", "2", "-m", "gpt2")).err


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("/nonsense", ["no command /nonsense", "/help"]), ("/", ["no command"]), ("/more", ["no text yet"]),
        ("/temperature warm", ["/temperature must be a number", "'warm'"]), ("/top-p 0", ["/top-p must be"]),
        ("/top-k 1.5", ["/top-k must be a whole number", "1.5"]), ("/seed x", ["/seed must be a whole number", "'x'"]),
        ("/max-tokens 0", ["/max-tokens must be"]), ("/engine warp", ["/engine must be auto", "'warp'"]),
        ("/model gtp2", ["no model 'gtp2'"]), ("a " * 200, ["context is 128"]), ("a\udcff", ["surrogate"]),
        ("/model [bold]\x1b", ["[bold]\\x1b"]),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_changes_nothing(shell: Any, tiny: GPT2, line: str, parts: list[str]) -> None:
    result = shell(line, "a")
    assert (result.code, result.out) == (0, f"a{text(tiny, 'a')}\n")
    assert result.err.count("\n") == 1
    assert "\x1b" not in result.err
    for part in parts:
        assert part in result.err


def test_more_goes_on_from_the_very_tokens(shell: Any, tiny: GPT2) -> None:
    first = LLM(tiny).generate("a", SamplingParams(max_tokens=3, temperature=0.8, top_k=40, seed=1))[0]
    tokens = [*first.prompt_token_ids, *first.token_ids]
    assert shell("a", "/more").out == f"a{first.text}\n{text(tiny, tokens)}\n"


def test_more_goes_on_before_a_last_token(shell: Any, use_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use_model(says(END_OF_TEXT))
    asked, stream = list[Any](), LLM.stream
    monkeypatch.setattr(
        LLM, "stream", lambda self, given, params: (asked.append(given), stream(self, given, params))[1]
    )
    assert shell("a", "/more", options=("-q", "--greedy")).out == "a\n\n"
    assert asked[0] == asked[1]


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if not engine.endswith("-graph")])
def test_engines_share_weights(shell: Any, tiny: GPT2, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models, make = [], options.LLM
    monkeypatch.setattr(options, "LLM", lambda model, **more: (models.append(model), make(model, **more))[1])
    result = shell(f"/engine {engine}", "a", "/engine", options=("-q", "-n", "3", "--greedy", "--max-len", "50"))
    assert models == [None, tiny]
    assert result.out == f"a{text(tiny, 'a', temperature=0.0)}\n"
    assert result.err == f"engine {engine}\n" * 2


def test_another_model(shell: Any, tiny: GPT2) -> None:
    result = shell("/model random:gpt2", "a", "/model nope", "/model")
    assert result.out == f"a{text(tiny, 'a')}\n"
    assert result.err.splitlines()[::2] == ["model random:gpt2"] * 2


def test_ctrl_c_stops_a_continuation_and_not_the_shell(shell: Any, tiny: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    first = LLM(tiny).generate("a", SamplingParams(max_tokens=1, temperature=0))[0]
    rest = text(tiny, [*first.prompt_token_ids, *first.token_ids], temperature=0.0, max_tokens=2)
    interrupt_after(monkeypatch, 1)
    result = shell("a", "/more", options=("-q", "-n", "2", "--greedy"))
    assert result == (0, f"a{first.text}\n{rest}\n", "stopped by Ctrl-C: 1 token\n")


def test_a_bug_costs_one_line_and_not_the_shell(shell: Any, tiny: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = text(tiny, "b")
    fail_at(monkeypatch, 0, KeyError("a bug"))
    result = shell("a", "b")
    assert result.out == f"a\nb{expected}\n"
    assert result.err.count("\n") == 1
    assert "KeyError: 'a bug'" in result.err


def typed(keys: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a person types with these keys, the last of which is Ctrl-D."""
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys)
        return list(line_input.typed(shell_command.COMMANDS))


def test_keys_and_a_history_that_outlives_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "new" / "folder"
    lines = ["one", "two\nlines", "three"]
    assert typed("one\rtwo\x1b\rlines\rdropped\x03three\r\x04", state, monkeypatch) == lines
    assert (state / "nanoinfer" / "history").stat().st_mode & 0o077 == 0 or sys.platform == "win32"
    assert list(line_input.history().load_history_strings()) == lines[::-1]


def test_a_history_that_cannot_be_written_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")  # where a folder should be
    assert typed("a\r\x04", tmp_path / "file", monkeypatch) == ["a"]
