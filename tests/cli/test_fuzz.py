"""Damaged files, odd texts and wild command lines: one sentence or a right result, never a traceback and never a hang.

NANOINFER_FUZZ=2000 tries that many of each kind; by default there are a few, as for every other test.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from nanobook.text.marker_values import load as load_results
from nanocourse.checks.worker import Loaded, Worker
from nanocourse.exercises.outcomes import Crashed, Raised
from nanoinfer import LLM, SamplingParams
from nanoinfer.cli import run
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import WeightsError, load_model, random_model, save_model
from nanoinfer.text.stop import TextStream
from nanoinfer.text.tokenizer import gpt2_tokenizer

TRIES = int(os.environ.get("NANOINFER_FUZZ", "15"))
ROOT = Path(__file__).parents[2]
TINY = ModelConfig(n_layer=1, n_head=2, n_embd=8, n_positions=16, vocab_size=50)
CPU = torch.device("cpu")

tries = settings(
    max_examples=TRIES,
    deadline=None,
    derandomize=TRIES == 15,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Any code point, lone surrogates among them, and the characters that are most often mistaken for something else.
any_text = st.text(st.characters(categories=None) | st.sampled_from("\0\r\n\t\x1b\ufeff\u2028 '\"\\<|>🦊"), max_size=80)


@contextmanager
def bounded(megabytes: int) -> Iterator[None]:
    """AssertionError where Python's own memory grows by more than that on the way."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
    finally:
        tracemalloc.stop()


def one_sentence(error: Exception) -> None:
    """AssertionError where it says more than a person wants to read."""
    assert 0 < len(str(error)) < 1000
    assert "\n" not in str(error)


# Weights


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "model"
    save_model(random_model(TINY, seed=1, std=0.2), folder)
    return folder


def damage(data: bytes, rng: random.Random) -> bytes:
    """A weights file as disks, networks and enemies leave it."""
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    name = rng.choice([key for key in header if key != "__metadata__"])
    kind = rng.randrange(9)
    if kind == 0:  # cut off
        return data[: rng.randrange(len(data))]
    if kind == 1:  # a flipped byte in the header
        at = rng.randrange(8 + size)
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 2:  # a header that claims any length
        return struct.pack("<Q", rng.choice([0, 1, size - 1, size + 1, 1 << 31, 1 << 62, 2**64 - 1])) + data[8:]
    if kind == 3:
        header[name]["dtype"] = rng.choice(["I64", "F64", "BOOL", "F8_E4M3", "X", "", None, 3])
    elif kind == 4:
        header[name]["shape"] = rng.choice([[], [0], [-1, 8], [2**62, 2**62], [8, 50], "x", None, [1.5]])
    elif kind == 5:
        header[name]["data_offsets"] = rng.choice([[0, 0], [5, 1], [0, 2**63], [-4, 4], [len(body), len(body) + 8]])
    elif kind == 6:  # reordered: every tensor lies where another did
        offsets = [header[key]["data_offsets"] for key in header if key != "__metadata__"]
        rng.shuffle(offsets)
        for key, offset in zip([key for key in header if key != "__metadata__"], offsets, strict=True):
            header[key]["data_offsets"] = offset
    elif kind == 7:
        header[rng.choice(["h.7.ln_1.weight", "../../x", "", "wte.weight", "a" * 100_000])] = header.pop(name)
    else:  # many levels
        text = b'{"a":' * 20_000 + b"1" + b"}" * 20_000
        return struct.pack("<Q", len(text)) + text + body
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@given(seed=st.integers(0, 2**32))
@tries
def test_damaged_weights(saved: Path, tmp_path: Path, seed: int) -> None:
    """Either one sentence, or a model: and then one with the very numbers that the file's header promises."""
    rng = random.Random(seed)
    (tmp_path / "config.json").write_bytes((saved / "config.json").read_bytes())
    file = tmp_path / "model.safetensors"
    file.write_bytes(damage((saved / "model.safetensors").read_bytes(), rng))
    with bounded(16):
        try:
            model = load_model(tmp_path, CPU, torch.float32)
        except WeightsError as error:
            one_sentence(error)
            return
    for name, tensor in load_file(file).items():
        mine = model.state_dict()[name.removeprefix("transformer.")][: len(tensor)]
        assert torch.equal(mine, tensor) or (tensor.isnan().any() and torch.equal(mine.isnan(), tensor.isnan()))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(name=st.sampled_from(["n_layer", "n_head", "n_embd", "vocab_size", "model_type", "n_inner"]), value=json_values)
@tries
def test_damaged_configuration(saved: Path, tmp_path: Path, name: str, value: Any) -> None:
    data = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(data | {name: value}), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes((saved / "model.safetensors").read_bytes())
    with bounded(16):
        try:
            assert load_model(tmp_path, CPU, torch.float32).config == TINY
        except WeightsError as error:
            one_sentence(error)


# Text


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(device="cpu", max_batch=4)


@given(text=any_text)
@tries
def test_text_comes_back(text: str) -> None:
    tokenizer = gpt2_tokenizer()
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        with pytest.raises(ValueError, match="lone surrogate"):
            tokenizer.encode(text)
        return
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    stream = TextStream(tokenizer)
    assert "".join([*map(stream.push, ids), stream.finish()]) == text


@given(ids=st.lists(st.integers(0, 50256), max_size=40), stop=st.lists(st.text(min_size=1, max_size=4), max_size=3))
@tries
def test_any_tokens_become_text(ids: list[int], stop: list[str]) -> None:
    """A stream gives what decoding all at once gives, up to the first stop string."""
    tokenizer = gpt2_tokenizer()
    stream = TextStream(tokenizer, stop)
    text = "".join([*map(stream.push, ids), stream.finish()])
    whole = tokenizer.decode(ids)
    ends = [at for word in stop if (at := whole.find(word)) >= 0]
    assert text == (whole[: min(ends)] if ends else whole)


@given(text=st.sampled_from([" ", "a", "\n", "🦊", "ab ", "\u0301", "\0", "'"]), size=st.sampled_from([10**4, 10**6]))
@settings(tries, max_examples=min(TRIES, 16))
def test_very_long_prompts(llm: LLM, text: str, size: int) -> None:
    with pytest.raises(ValueError, match="context"):
        llm.generate(text * (size // len(text)), SamplingParams(max_tokens=1))


@given(items=st.lists(json_values, max_size=4) | json_values)
@tries
def test_any_prompt(llm: LLM, items: Any) -> None:
    """What is no prompt is refused in one sentence; what is one gives its tokens."""
    try:
        done = llm.generate(items, SamplingParams(max_tokens=1, temperature=0))
    except ValueError as error:
        one_sentence(error)
        return
    assert all(len(completion.token_ids) == 1 for completion in done)


# Command lines

WORDS = """generate doctor course read bench start check hint 1 1.4 1.99 -1 9999999999999999999999 -- -n 3 --max-tokens
--temperature nan inf --top-p 0 --top-k --seed --json --plain --engine naive paged-graph --device cuda:99 cpu -m small
random:tiny random: ../.. --dtype int4 -f / /nonexistent --lines --mine --terminal --to -v --help -h"""
words = st.sampled_from(["", *re.split(r"\s", WORDS)]) | st.text(max_size=12)


@given(arguments=st.lists(words, max_size=7))
@tries
def test_any_command_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """A command ends with a code of its own, and where it refuses, with one sentence."""
    if {"read", "bench"} & set(arguments) and not {"--help", "-h"} & set(arguments):
        arguments = [*arguments, "--nix"]  # neither builds a site nor measures
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code = run([*arguments, "-n", "1"] if "generate" in arguments else arguments)
    said = capfd.readouterr().err
    assert code in {0, 1, 2}
    assert "Traceback" not in said
    if code == 2 and "bench" not in arguments:
        last = said.strip().rpartition("\n")[2]
        assert last.startswith("nanoinfer: ") or not last  # a group of commands alone prints its help


# Results files and learners' files


@given(seed=st.integers(0, 2**32), value=json_values)
@tries
def test_damaged_results(tmp_path: Path, seed: int, value: Any) -> None:
    """A results file is read whole, or refused."""
    rng, data = random.Random(seed), json.loads((ROOT / "bench" / "results" / "cpu.json").read_text(encoding="utf-8"))
    place: Any = data
    while isinstance(place, dict | list) and place:
        at = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        if rng.random() < 0.4 or not isinstance(place[at], dict | list) or not place[at]:
            place[at] = value
            break
        place = place[at]
    text = json.dumps(data)
    text = text[: rng.randrange(len(text))] if rng.random() < 0.2 else text
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with bounded(256):
        try:
            load_results("x", tmp_path)
        except ValueError as error:
            assert str(error)  # noqa: PT017  any of many


@pytest.fixture(scope="module")
def worker() -> Iterator[list[Worker]]:
    kept = [Worker()]
    yield kept
    kept[0].close()


LINES = """def attention(q, k, v, positions):
    return q
    raise SystemExit
import nanoinfer
# -*- coding: latin-1 -*-
attention = 3
class attention: pass
((((((((
lambda: (yield)
async def attention(): pass
from mine import *
é = 1
exit()
1/0
print('x' * 10**6)
del __builtins__
def attention(*a): raise BaseException(chr(0xdc80))
raise ValueError(chr(0xdc80))
x = 10**5000
\\
""".splitlines(keepends=True)
python = st.sampled_from([*LINES, "\0", "\ufeff", "'''", "\t\n  \r\n"]) | st.text(max_size=20)


@given(parts=st.lists(python, max_size=6))
@tries
def test_any_learner_s_file(worker: list[Worker], tmp_path: Path, parts: list[str]) -> None:
    """A worker says what is wrong with any file, and lives on to load a right one."""
    path = tmp_path / "ex1_attention.py"
    path.write_bytes("".join(parts).encode("utf-8", "surrogatepass"))
    found = within(60, lambda: worker[0].load(path, "attention"))
    assert found is None or isinstance(found, Loaded | Raised | Crashed)
    if not worker[0].alive:
        worker[0] = Worker()
    path.write_text("def attention():\n    return 1\n", encoding="utf-8")
    assert isinstance(worker[0].load(path, "attention"), Loaded)


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """What the call returns. AssertionError where it takes longer."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs"
    return found[0]
