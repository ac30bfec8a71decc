"""`nanoinfer generate`: sources of prompts, order, seeds, JSON, Ctrl-C, terminals."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.cli import output, terminal
from nanoinfer.cli import prompts as prompt_sources
from nanoinfer.cli.options import BatchOptions
from nanoinfer.config import ENGINES
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model, save_model
from tests.cli.test_main import ENVIRONMENT, TINY, Result, assert_refused, invoke, posix, start, use_model

ESC = 215  # the token that is the one byte ESC

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def tiny() -> GPT2:
    return random_model(TINY, 0)


@pytest.fixture(scope="module")
def stubborn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that says ESC whatever it is told."""
    model = random_model(TINY, 0)
    model.wte.weight[ESC] *= 10
    model.ln_f.weight.zero_()
    model.ln_f.bias.copy_(model.wte.weight[ESC])
    folder = tmp_path_factory.mktemp("stubborn")
    save_model(model, folder)
    return folder


@pytest.fixture(autouse=True)
def _tiny_model(tiny: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    use_model(monkeypatch, tiny)


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def texts(model: GPT2, prompts: list[str], seeds: list[int], **params: Any) -> list[str]:
    """What the library gives, without the command."""
    each = [SamplingParams(**{"temperature": 0.8, "top_k": 40} | params, seed=seed) for seed in seeds]
    return [done.text for done in LLM(model).generate(prompts, each)]


def test_a_text_follows_its_prompt(tiny: GPT2, capsys: pytest.CaptureFixture[str]) -> None:
    result = invoke(capsys, "generate", "Once upon", "-n", "6", "--seed", "3", "--engine", "naive")
    assert result.code == 0
    assert result.out == "Once upon" + texts(tiny, ["Once upon"], [3], max_tokens=6)[0] + "\n"
    note, figures = result.err.splitlines()
    assert "-m gpt2" in note
    for part in ("TTFT", "tokens/s", "6 tokens", "naive", "cpu", "float32", "seed 3"):
        assert part in figures


def test_options_reach_the_sampler(tiny: GPT2, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--temperature", "1.5", "--top-k", "0", "--top-p", "0.9", "--seed", "8", "-n", "5"]
    result = invoke(capsys, "generate", "a", "--no-echo", "-q", *options)
    expected = texts(tiny, ["a"], [8], temperature=1.5, top_k=0, top_p=0.9, max_tokens=5)[0]
    assert result == (0, expected + "\n", "")


def test_greedy_is_temperature_0(tiny: GPT2, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--greedy"], ["--temperature", "0"], ["--greedy", "--temperature", "0"]):
        result = invoke(capsys, "generate", "a", "--no-echo", "-n", "5", *options)
        assert result.out == texts(tiny, ["a"], [0], temperature=0.0, max_tokens=5)[0] + "\n"
        assert "greedy" in result.err


def test_without_a_seed_texts_differ_and_the_seed_that_is_told_gives_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = (invoke(capsys, "generate", "a", "-n", "9") for _ in range(2))
    assert first.out != second.out
    seed = first.err.rsplit("seed ", 1)[1].strip()
    assert invoke(capsys, "generate", "a", "-n", "9", "--seed", seed).out == first.out


def test_stop_strings_and_tokens_end_the_text(tiny: GPT2, capsys: pytest.CaptureFixture[str]) -> None:
    whole = LLM(tiny).generate("a", SamplingParams(max_tokens=6, temperature=0))[0]
    word = LLM(tiny).tokenizer.decode(whole.token_ids[2:3])
    for option, value in (("--stop", word), ("--stop-token-id", str(whole.token_ids[2]))):
        result = invoke(capsys, "generate", "a", "--greedy", "-n", "6", "--json", "--stop", "never", option, value)
        record = json.loads(result.out)
        assert record["finish_reason"] == "stop"
        assert record["text"] == whole.text[: whole.text.index(word)]


def test_quiet_and_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(capsys, "generate", "a", "-n", "2", "-q").err == ""
    assert "decode_steps" in invoke(capsys, "generate", "a", "-n", "2", "-v").err


def test_ttft_has_no_import_of_the_progress_bar_in_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order, bar, stream = list[str](), output.progress_bar, LLM.stream
    monkeypatch.setattr(output, "progress_bar", lambda *given: (order.append("bar"), bar(*given))[1])
    monkeypatch.setattr(LLM, "stream", lambda *given: (order.append("clock"), stream(*given))[1])
    assert invoke(capsys, "generate", "a", "-n", "1").code == 0
    assert order == ["bar", "clock"]


def test_a_given_model_needs_no_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(capsys, "generate", "a", "-n", "2", "-m", "gpt2").err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["generate"], ["generate", "-"], ["generate", "--file", "-"]], ids=" ".join)
def test_standard_input(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, "eins\nzw\u00f6lf\n\n".encode())
    result = invoke(capsys, *arguments, "-n", "1", "--json")
    assert json.loads(result.out)["prompt"] == "eins\nzw\u00f6lf\n"


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        (b"a", "a"),
        (b"a\n", "a"),
        (b"a\n\n", "a\n"),
        (b"a\r\n", "a"),
        (b"\xef\xbb\xbfa", "a"),
        (b" a ", " a "),
        (b"a\r", "a\r"),
    ],
)
def test_a_file_is_one_prompt_less_one_newline(
    content: bytes, prompt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompt.txt").write_bytes(content)
    result = invoke(capsys, "generate", "--file", str(tmp_path / "prompt.txt"), "-n", "1", "--json")
    assert json.loads(result.out)["prompt"] == prompt


def test_lines_are_prompts_in_order_with_seeds_that_follow(
    tiny: GPT2, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["one two three", "four", "five\u2028six"]
    give_stdin(monkeypatch, "\r\n".join(prompts).encode())
    result = invoke(capsys, "generate", "--lines", "-n", "4", "--seed", "5", "--max-batch", "2")
    expected = texts(tiny, prompts, [5, 6, 7], max_tokens=4)
    parts = zip(prompts, expected, strict=True)
    assert result.out == "".join(f"==> {i} <==\n{p}{t}\n" for i, (p, t) in enumerate(parts, 1))
    assert "3 prompts" in result.err
    assert "seeds 5 to 7" in result.err


def test_rows_at_once_are_the_llms_own_choice_unless_given(tiny: GPT2) -> None:
    for given, rows in ((None, 64), (3, 3)):
        options = BatchOptions(engine="paged", max_batch=given)
        with options.load(tiny) as llm:
            assert (options.max_batch, llm.max_batch) == (given, rows)


def test_texts_come_in_order_also_where_a_later_one_ends_first(
    tiny: GPT2, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "a " * 120  # leaves room for more tokens than the second has
    give_stdin(monkeypatch, f"b\n{long}\nc\n".encode())
    result = invoke(capsys, "generate", "--lines", "-n", "70", "--json", "--seed", "0", "-q")
    records = [json.loads(line) for line in result.out.splitlines()]
    assert [record["index"] for record in records] == [0, 1, 2]
    assert len(records[1]["token_ids"]) < len(records[0]["token_ids"])


def test_a_seed_of_lines_gives_the_line_again_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"one\ntwo\n")
    second = json.loads(invoke(capsys, "generate", "--lines", "-n", "5", "--json").out.splitlines()[1])
    alone = invoke(capsys, "generate", "two", "-n", "5", "--json", "--seed", str(second["seed"]))
    assert json.loads(alone.out)["token_ids"] == second["token_ids"]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["empty"]),
        (b"\n", ["empty"]),
        (b"a\n\nb\n", ["line 2", "empty"]),
        (b"a\n\n", ["line 2", "empty"]),
        (b"a\n" + b"b " * 200, ["line 2", "context is 128"]),
        (b"a\xffb", ["not UTF-8", "byte 1", "0xff"]),
    ],
)
def test_bad_lines_are_refused_by_number(
    content: bytes, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines.txt").write_bytes(content)
    assert_refused(invoke(capsys, "generate", "--lines", "--file", str(tmp_path / "lines.txt")), *parts)


def test_a_folder_as_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(invoke(capsys, "generate", "--file", str(tmp_path)), "is a folder")


def test_too_much_input_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_sources, "LIMIT_MIB", 1)
    give_stdin(monkeypatch, b"x" * (1 << 20) + b"y")
    assert_refused(invoke(capsys, "generate"), "more than 1 MiB")
    give_stdin(monkeypatch, b"x" * (1 << 20))
    assert_refused(invoke(capsys, "generate"), "1,048,576 bytes")  # read, and too long for the model


def test_no_standard_input_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert_refused(invoke(capsys, "generate"), "standard input is closed")


def test_json_is_what_its_schema_says(
    tiny: GPT2, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = json.loads(files("nanoinfer").joinpath("data/generate.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    give_stdin(monkeypatch, "eins\n\u4e2d\x1b\u202e\x85".encode())
    result = invoke(capsys, "generate", "--lines", "--json", "-n", "3", "--seed", "1")
    assert "TTFT" not in result.err
    assert result.out.isascii()
    assert "\x1b" not in result.out
    records = [json.loads(line) for line in result.out.splitlines()]
    for index, record in enumerate(records):
        jsonschema.validate(record, schema, cls=jsonschema.Draft202012Validator)
        assert (record["index"], record["seed"]) == (index, 1 + index)
        assert record["engine"] in ENGINES
        assert len(record["metrics"]["itl_s"]) == len(record["token_ids"]) - 1 == 2
    assert records[1]["prompt"] == "\u4e2d\x1b\u202e\x85"
    assert [record["text"] for record in records] == texts(tiny, ["eins", records[1]["prompt"]], [1, 2], max_tokens=3)


def interrupt_after(monkeypatch: pytest.MonkeyPatch, tokens: int) -> list[LLM]:
    """Ctrl-C comes when that many tokens have; returns the LLMs that were used."""
    real, used = LLM.stream, []

    def stream(self: LLM, *arguments: Any) -> Iterator[Any]:
        used.append(self)
        pieces = real(self, *arguments)

        def until() -> Iterator[Any]:
            for count, piece in enumerate(pieces):
                if count == tokens:
                    raise KeyboardInterrupt
                yield piece

        return until()

    monkeypatch.setattr(LLM, "stream", stream)
    return used


def test_ctrl_c_leaves_the_text_so_far(
    tiny: GPT2, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = texts(tiny, ["a"], [1], max_tokens=3)[0]
    interrupt_after(monkeypatch, 3)
    result = invoke(capsys, "generate", "a", "-n", "50", "--seed", "1", "-q")
    assert result == (130, f"a{expected}\n", "nanoinfer: stopped by Ctrl-C: 3 tokens\n")


def test_ctrl_c_before_the_first_token(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(monkeypatch, 0)
    assert invoke(capsys, "generate", "a", "-q").out == "a\n"


def test_ctrl_c_among_several_leaves_the_finished_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, 30)  # the second prompt leaves room for 7 tokens, so it ends; the first does not
    lines = b"b\n" + b"a " * 120 + b"\n"
    give_stdin(monkeypatch, lines)
    result = invoke(capsys, "generate", "--lines", "-n", "70", "--json", "--seed", "0", "-q")
    assert [json.loads(line)["index"] for line in result.out.splitlines()] == [1]
    assert (result.code, result.err) == (130, "nanoinfer: stopped by Ctrl-C: 1 of 2 prompts are finished\n")
    give_stdin(monkeypatch, lines)
    result = invoke(capsys, "generate", "--lines", "-n", "70", "--seed", "0", "-q")
    assert result.out.startswith("==> 1 <==\nb")
    assert "\n==> 2 <==\na a" in result.out


@posix
def test_ctrl_c_in_a_real_process() -> None:
    """A process that would go on for ever after its first text, and is sent SIGINT once that has been read."""
    program = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background begins without one
        "from nanoinfer import LLM, cli\n"
        "real = LLM.stream\n"
        "def stream(self, *arguments):\n"
        "    for piece in real(self, *arguments):\n"
        "        yield piece\n"
        "        signal.pause()\n"
        "LLM.stream = stream\n"
        "cli.main()\n"
    )
    process = start("-c", program, "generate", "a", "-q", "--greedy")
    assert process.stdout is not None
    first = process.stdout.read(2)  # the prompt and some of the first token
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (130, b"nanoinfer: stopped by Ctrl-C: 1 token\n")
    assert (first + out).endswith(b"\n")


def on_terminal(arguments: list[str], stdout: bool, stderr: bool) -> tuple[Result, bytes]:
    """Run with the given streams on a pseudo-terminal; also what appeared there."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    streams = {"stdout": slave if stdout else subprocess.PIPE, "stderr": slave if stderr else subprocess.PIPE}
    environment = ENVIRONMENT | {"TERM": "xterm", "COLUMNS": "80"}
    process = start("-m", "nanoinfer", *arguments, env=environment, **streams)
    os.close(slave)
    seen = b""
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:  # Linux's way to say that the other side is closed
            break
        if not data:
            break
        seen += data
    os.close(master)
    out, err = process.communicate()
    return Result(process.returncode, (out or b"").decode(), (err or b"").decode()), seen


def test_a_terminal_shows_control_characters_and_a_pipe_gets_them(stubborn: Path) -> None:
    arguments = ["generate", "[bold]\x07\t\u202e", "-n", "2", "--greedy", "-q", "-m", str(stubborn)]
    result, seen = on_terminal(arguments, stdout=True, stderr=False)
    assert (result.code, result.err) == (0, "")
    assert seen == b"[bold]\\x07\t\\u202e\\x1b\\x1b\r\n"
    result, _ = on_terminal(arguments, stdout=False, stderr=True)
    assert result.out == "[bold]\x07\t\u202e\x1b\x1b\n"


def test_the_bar_is_on_standard_error_alone(stubborn: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\nb\nc\n")
    arguments = [
        "generate",
        "--lines",
        "--file",
        str(tmp_path / "lines.txt"),
        "-n",
        "2",
        "--greedy",
        "-m",
        str(stubborn),
    ]
    result, seen = on_terminal(arguments, stdout=False, stderr=True)
    assert result.out == "".join(f"==> {i} <==\n{p}\x1b\x1b\n" for i, p in enumerate("abc", 1))
    assert b"/3" in seen
    _, seen = on_terminal([*arguments, "-q"], stdout=False, stderr=True)
    assert seen == b""


def test_visible_escapes_what_a_terminal_obeys() -> None:
    assert terminal.visible("a\tb\nc\x1b\x07\r\x7f\x9b\u202e\u2028") == (
        "a\tb\nc\\x1b\\x07\\x0d\\x7f\\x9b\\u202e\\u2028"
    )
    assert terminal.visible("caf\u00e9 \u4e2d \U0001f600") == "caf\u00e9 \u4e2d \U0001f600"
