"""The command as a whole: help, one-sentence errors, exit codes, closed pipes, locales."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nanoinfer
from tests.cli.commands import ENVIRONMENT, PACKAGES, assert_refused, ended, fail_at, posix, run_without, start


def test_version_and_help(invoke: Any) -> None:
    assert invoke("--version") == (0, f"nanoinfer {nanoinfer.__version__}\n", "")
    bare = invoke()
    assert bare == invoke("--help")
    assert (bare.code, "Examples" in bare.out) == (0, True)
    for command in ("generate", "batch", "shell", "doctor", "serve", "watch", "read"):
        assert command in bare.out
        assert f"nanoinfer {command}" in invoke(command, "--help").out.split("Examples")[1]


REFUSED: list[tuple[list[str], list[str]]] = [
    *[(["generate", *arguments], parts) for arguments, parts in (
        ([""], ["empty"]), (["two", "words"], ["quotes"]),
        (["--file", "nope.txt"], ["--file", "nope.txt"]), (["-", "--file", __file__], ["two prompts"]),
    )],
    *[(["generate", "x", *arguments], parts) for arguments, parts in (
        (["-n", "0"], ["--max-tokens must be"]), (["-n", "1.5"], ["--max-tokens"]), (["-n"], ["-n"]),
        (["--temperature", "nan"], ["--temperature must be", "not nan"]), (["--stop-token-id", "-1"], ["--stop-token"]),
        (["--greedy", "--temperature", "0.5"], ["--greedy", "contradicts"]), (["--stop", ""], ["--stop must"]),
        (["--engine", "warp"], ["--engine must be auto", "'warp'"]), (["--device", "tpu"], ["--device must be cpu"]),
        (["--max-batch", "0"], ["--max-batch must be"]),
        (["-m", "gtp2"], ["no model 'gtp2'", "gpt2?"]), (["-m", ""], ["--model"]), (["--revision", ""], ["--revision"]),
        (["-q", "-v"], ["--quiet", "--verbose"]), (["--bogus"], ["--bogus"]), (["--file", __file__], ["two prompts"]),
        (["--draft-tokens", "3"], ["--draft-tokens needs --speculate"]),
        (["--all-drafts"], ["--all-drafts needs --speculate"]), (["--speculate", "gtp2"], ["no model 'gtp2'", "gpt2?"]),
        (["--speculate", "lookup", "--draft-tokens", "65"], ["--draft-tokens must be", "from 1 to 64"]),
        (["--speculate", "lookup", "--tensor-parallel", "2"], ["--speculate works on one device alone"]),
        (["--show-steps", "--json"], ["--show-steps is for one text"]),
        (["--show-steps", "--lines"], ["leave out --lines"]),
    )],
    *[(["shell", *arguments], parts) for arguments, parts in (
        (["--top-k", "-1"], ["--top-k must be"]),
        (["--draft", "you"], ["--draft must be me, not 'you'"]),
        (["--draft", "me", "--speculate", "small"], ["--draft and --speculate contradict each other"]),
        (["--draft", "me", "--draft-tokens", "0"], ["--draft-tokens must be"]),
    )],
    *[(["watch", "-o", out], [f"'{out}' cannot be written"]) for out in ("", ".", f"{__file__}/x")],
    (["watch", "a", "-f", __file__], ["give one"]), (["watch", "--every", "-1"], ["--every must be"]),
    (["frobnicate"], ["frobnicate"]),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: " ".join(case[0])[:40])
def test_a_bad_argument_is_refused_in_one_sentence(case: tuple[list[str], list[str]], invoke: Any) -> None:
    arguments, parts = case
    assert_refused(invoke(*arguments), *parts)


WORDS = """generate doctor course read bench check 1 1.99 -1 9999999999999999999999 -- -n 3 --temperature nan --top-p
0 --seed --json --engine naive paged-graph --device cuda:99 cpu -m small random: ../.. -f / --lines --mine --to -h"""


@given(arguments=st.lists(st.sampled_from(["", *WORDS.split()]) | st.text(max_size=12), max_size=7))
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_command_line(tmp_path: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """A command ends with a code of its own, and where it refuses, with one sentence."""
    if {"read", "bench"} & set(arguments) and "-h" not in arguments:
        arguments = [*arguments, "--nix"]  # neither builds a site nor measures
    monkeypatch.chdir(tmp_path)
    code, _, told = invoke(*arguments, *["-n", "1"] * ("generate" in arguments), stdin=b"")
    assert code in {0, 1, 2}
    assert "Traceback" not in told
    if code == 2 and "bench" not in arguments:
        last = told.strip().rpartition("\n")[2]
        assert last.startswith("nanoinfer: ") or not last  # a group of commands alone prints its help


def test_nothing_heavy_is_imported_to_refuse() -> None:
    heavy = ["torch", "transformers", "prompt_toolkit", "triton", *PACKAGES.values()]
    told = run_without([], *(arguments for arguments, _ in REFUSED), asked=heavy)
    assert [(code, err.count("\n"), imported) for code, _, err, imported in told] == [(2, 1, [])] * len(REFUSED)


def test_what_the_user_typed_is_neither_markup_nor_control(invoke: Any) -> None:
    for option in ("--model", "--file"):
        result = invoke("generate", option, "./[bold]a\x1b[31m\n\u202e", *["x"] * (option == "--model"))
        assert_refused(result, "[bold]a")
        assert not set("\x1b\u202e") & set(result.err)


def test_a_warning_is_one_sentence() -> None:
    program = "import warnings; from nanoinfer import cli; cli.run = lambda _: warnings.warn('slow here'); cli.main()"
    assert ended(start("-c", program)) == (0, "", "nanoinfer: slow here\n")


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's."""


@pytest.mark.parametrize(
    ("error", "part"),
    [(OutOfMemoryError("CUDA out of memory. Tried\nto allocate"), "out of memory (OutOfMemoryError: CUDA"),
     (KeyError(), "KeyError"),
     (ValueError("of torch's"), "ValueError: of torch's"),
     (RuntimeError("first line\nsecond line"), "RuntimeError: first line")],
)  # fmt: skip
@pytest.mark.usefixtures("use_model")
def test_a_failure_is_one_sentence(error: Any, part: str, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NANOINFER_TRACEBACK", raising=False)
    fail_at(monkeypatch, 0, error)
    assert_refused(invoke("generate", "x", "--json", "-m", "gpt2"), part, code=1)
    monkeypatch.setenv("NANOINFER_TRACEBACK", "1")
    fail_at(monkeypatch, 0, error)
    result = invoke("generate", "x", "-q")
    assert (result.out, "Traceback" in result.err) == ("x\n", True)


@posix
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--version"], 141), (["--help"], 1), pytest.param(["generate", "x", "-q"], 141, marks=pytest.mark.long)],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)  # fmt: skip
def test_a_closed_pipe_ends_silently(arguments: list[str], code: int) -> None:
    """Rich, which prints the help, has an exit code of its own."""
    process = start("-m", "nanoinfer", *arguments)
    assert process.stdout
    assert process.stderr
    process.stdout.close()  # before anything can have been written: the interpreter itself takes longer to start
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), err) == (code, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("case", [("--version", "", None), ("--help", "1", None), ("--help", "", lambda: os.close(1))])
def test_output_that_cannot_be_written_is_one_sentence(case: tuple[str, str, Any]) -> None:
    """On a full disk or closed, and whether typer or we write, buffered or not."""
    argument, unbuffered, at_start = case
    environment = ENVIRONMENT | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        result = ended(start("-m", "nanoinfer", argument, stdout=full, env=environment, preexec_fn=at_start))
    assert_refused(result, "nanoinfer: standard output cannot be written", code=1)


@posix
@pytest.mark.long
def test_output_is_utf8_where_the_locale_is_c() -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    prompt = "caf\u00e9 \u4e2d"
    process = start("-m", "nanoinfer", "generate", prompt.encode(), "-n", "1", "-q", env=ENVIRONMENT | ascii_only)
    result = ended(process)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(prompt)


@posix
def test_an_argument_that_is_no_utf8_is_refused() -> None:
    assert_refused(ended(start("-m", "nanoinfer", "generate", b"a\xff", "-q", stdout=subprocess.PIPE)), "UTF-8", "0xff")


def test_a_command_begins_without_what_it_may_not_need() -> None:
    heavy = "torch triton numpy safetensors huggingface_hub prompt_toolkit asyncio"
    code = f"import sys, nanoinfer.cli; print([name for name in {heavy.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
