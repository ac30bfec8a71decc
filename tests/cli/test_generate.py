"""`nanoinfer generate`: sources of prompts, order, seeds, JSON, Ctrl-C, terminals."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.cli import terminal
from nanoinfer.config import ENGINES
from nanoinfer.model.gpt2 import GPT2
from tests.cli.commands import assert_refused, interrupt_after, on_terminal, says

ESC = 215  # the token that is the one byte ESC
TWO_LINES = b"b\n" + b"a " * 120 + b"\n"  # the second leaves room for 7 tokens, so it ends first

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("use_model")]


def texts(model: GPT2, prompts: list[str], seeds: list[int], **params: Any) -> list[str]:
    """What the library gives, without the command."""
    each = [SamplingParams(**{"temperature": 0.8, "top_k": 40} | params, seed=seed) for seed in seeds]
    return [done.text for done in LLM(model).generate(prompts, each)]


def test_a_text_follows_its_prompt(tiny: GPT2, invoke: Any) -> None:
    result = invoke("generate", "Once upon", "-n", "6", "--seed", "3", "--engine", "naive")
    assert result.code == 0
    assert result.out == "Once upon" + texts(tiny, ["Once upon"], [3], max_tokens=6)[0] + "\n"
    note, figures = result.err.splitlines()
    assert "-m gpt2" in note
    for part in ("TTFT", "tokens/s", "6 tokens", "naive", "cpu", "float32", "seed 3"):
        assert part in figures


def test_remarks_are_as_many_as_asked_for(invoke: Any) -> None:
    assert invoke("generate", "a", "-n", "2", "-m", "gpt2").err.count("\n") == 1  # a given model needs no note
    assert invoke("generate", "a", "-n", "2", "-q").err == ""
    assert "decode_steps" in invoke("generate", "a", "-n", "2", "-v").err


@pytest.mark.parametrize(
    ("options", "params"),
    [
        (["--temperature", "1.5", "--top-k", "0", "--top-p", "0.9"], {"temperature": 1.5, "top_k": 0, "top_p": 0.9}),
        (["--greedy"], {"temperature": 0.0}),
    ],
)
def test_options_reach_the_sampler(options: list[str], params: dict[str, Any], tiny: GPT2, invoke: Any) -> None:
    result = invoke("generate", "a", "--no-echo", "--seed", "8", "-n", "5", *options)
    assert result.out == texts(tiny, ["a"], [8], **params, max_tokens=5)[0] + "\n"
    assert ("greedy" in result.err) == ("--greedy" in options)


def test_without_a_seed_texts_differ_and_the_seed_that_is_told_gives_the_same(invoke: Any) -> None:
    first, second = (invoke("generate", "a", "-n", "9") for _ in range(2))
    assert first.out != second.out
    seed = first.err.rsplit("seed ", 1)[1].strip()
    assert invoke("generate", "a", "-n", "9", "--seed", seed).out == first.out


def test_stop_strings_and_tokens_end_the_text(tiny: GPT2, invoke: Any) -> None:
    whole = LLM(tiny).generate("a", SamplingParams(max_tokens=6, temperature=0))[0]
    word = LLM(tiny).tokenizer.decode(whole.token_ids[2:3])
    for option, value in (("--stop", word), ("--stop-token-id", str(whole.token_ids[2]))):
        result = invoke("generate", "a", "--greedy", "-n", "6", "--json", "--stop", "never", option, value)
        record = json.loads(result.out)
        assert (record["finish_reason"], record["text"]) == ("stop", whole.text[: whole.text.index(word)])


@pytest.mark.parametrize("arguments", [["generate"], ["generate", "-"], ["generate", "--file", "-"]], ids=" ".join)
def test_standard_input(arguments: list[str], invoke: Any) -> None:
    result = invoke(*arguments, "-n", "1", "--json", stdin="eins\nzw\u00f6lf\n\n".encode())
    assert json.loads(result.out)["prompt"] == "eins\nzw\u00f6lf\n"


def test_a_file_is_one_prompt_less_one_newline(tmp_path: Path, invoke: Any) -> None:
    file = tmp_path / "prompt.txt"
    for content, prompt in ((b"a", "a"), (b"a\n", "a"), (b"a\n\n", "a\n"), (b"a\r\n", "a"), (b"\xef\xbb\xbfa", "a"),
                            (b" a ", " a "), (b"a\r", "a\r")):  # fmt: skip
        file.write_bytes(content)
        assert json.loads(invoke("generate", "--file", str(file), "-n", "1", "--json").out)["prompt"] == prompt


def test_lines_are_prompts_in_order_with_seeds_that_follow(tiny: GPT2, invoke: Any) -> None:
    """Also where a later one ends first, for want of context."""
    prompts = ["one two three", "a " * 120, "five\u2028six"]
    lines = ["generate", "--lines", "-n", "9", "--seed", "5", "--max-batch", "2"]
    result = invoke(*lines, stdin="\r\n".join(prompts).encode())
    parts = zip(prompts, texts(tiny, prompts, [5, 6, 7], max_tokens=9), strict=True)
    assert result.out == "".join(f"==> {i} <==\n{p}{t}\n" for i, (p, t) in enumerate(parts, 1))
    assert "3 prompts" in result.err
    assert "seeds 5 to 7" in result.err


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["empty"]), (b"\n", ["empty"]), (b"a\n\nb\n", ["line 2", "empty"]), (b"a\n\n", ["line 2", "empty"]),
        (b"a\n" + b"b " * 200, ["line 2", "context is 128"]), (b"a\xffb", ["not UTF-8", "byte 1", "0xff"]),
    ],
)  # fmt: skip
def test_bad_lines_are_refused_by_number(content: bytes, parts: list[str], tmp_path: Path, invoke: Any) -> None:
    (tmp_path / "lines.txt").write_bytes(content)
    assert_refused(invoke("generate", "--lines", "--file", str(tmp_path / "lines.txt")), *parts)


def test_bad_sources_are_refused(tmp_path: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(invoke("generate", "--file", str(tmp_path)), "Is a directory")
    monkeypatch.setattr(terminal, "LIMIT_MIB", 1)
    assert_refused(invoke("generate", stdin=b"x" * (1 << 20) + b"y"), "more than 1 MiB")
    assert_refused(invoke("generate", stdin=b"x" * (1 << 20)), "1,048,576 bytes")  # read, and too long for the model


def test_json_is_what_its_schema_says(tiny: GPT2, invoke: Any) -> None:
    """A line's seed gives it again alone."""
    schema = json.loads(files("nanoinfer").joinpath("data/generate.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    odd = "\u4e2d\x1b\u202e\x85"
    result = invoke("generate", "--lines", "--json", "-n", "3", "--seed", "1", stdin=f"eins\n{odd}".encode())
    assert "TTFT" not in result.err
    assert result.out.isascii()
    records = [json.loads(line) for line in result.out.splitlines()]
    for index, record in enumerate(records):
        jsonschema.validate(record, schema, cls=jsonschema.Draft202012Validator)
        assert (record["index"], record["seed"]) == (index, 1 + index)
        assert record["engine"] in ENGINES
        assert len(record["metrics"]["itl_s"]) == len(record["token_ids"]) - 1 == 2
    assert records[1]["prompt"] == odd
    assert [record["text"] for record in records] == texts(tiny, ["eins", odd], [1, 2], max_tokens=3)


def test_ctrl_c_leaves_the_text_so_far(tiny: GPT2, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = texts(tiny, ["a"], [1], max_tokens=3)[0]
    for tokens, text in ((3, f"a{expected}\n"), (0, "a\n")):
        interrupt_after(monkeypatch, tokens)
        result = invoke("generate", "a", "-n", "50", "--seed", "1", "-q")
        assert result == (130, text, f"nanoinfer: stopped by Ctrl-C: {tokens} tokens\n")


def test_ctrl_c_among_several_leaves_the_finished_ones(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(monkeypatch, 30)
    result = invoke("generate", "--lines", "-n", "70", "--seed", "0", "-q", "--json", stdin=TWO_LINES)
    assert [json.loads(line)["index"] for line in result.out.splitlines()] == [1]
    assert (result.code, result.err) == (130, "nanoinfer: stopped by Ctrl-C: 1 of 2 prompts are finished\n")


def test_a_terminal_shows_control_characters(invoke: Any, use_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Escaped; a pipe gets them as they are."""
    use_model(says(ESC))
    prompt = "[bold]\x07\t\r\x7f\x9b\u202e\u2028caf\u00e9"
    arguments = ["generate", prompt, "-n", "2", "--greedy", "-q"]
    assert invoke(*arguments).out == f"{prompt}\x1b\x1b\n"
    seen = on_terminal(monkeypatch, "stdout")
    assert invoke(*arguments).code == 0
    assert seen.getvalue() == "[bold]\\x07\t\\r\\x7f\\x9b\\u202e\\u2028caf\u00e9\\x1b\\x1b\n"


def test_the_bar_is_on_standard_error_alone(invoke: Any, use_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use_model(says(ESC))
    arguments = ["generate", "--lines", "-n", "2", "--greedy"]
    for more, shown in (([], True), (["-q"], False)):
        seen = on_terminal(monkeypatch, "stderr")
        result = invoke(*arguments, *more, stdin=b"a\nb\nc\n")
        assert result.out == "".join(f"==> {i} <==\n{p}\x1b\x1b\n" for i, p in enumerate("abc", 1))
        assert ("/3" in seen.getvalue()) == bool(seen.getvalue()) == shown
