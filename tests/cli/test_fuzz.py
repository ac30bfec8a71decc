"""Damaged weights and wild command lines: one sentence or a right result, never a traceback or a hang.

NANOINFER_FUZZ=2000 tries that many of each kind; by default there are a few, as for every other test.
"""

from __future__ import annotations

import io
import json
import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from nanoinfer.cli import run
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import WeightsError, load_model, random_model, save_model

TRIES = int(os.environ.get("NANOINFER_FUZZ", "15"))
TINY = ModelConfig(n_layer=1, n_head=2, n_embd=8, n_positions=16, vocab_size=50)

tries = settings(
    max_examples=TRIES,
    deadline=None,
    derandomize=TRIES == 15,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "model"
    save_model(random_model(TINY, seed=1, std=0.2), folder)
    return folder


WRONG: dict[str, list[Any]] = {
    "dtype": ["I64", "F64", "BOOL", "F8_E4M3", "X", "", None, 3],
    "shape": [[], [0], [-1, 8], [2**62, 2**62], [8, 50], "x", None, [1.5]],
    "data_offsets": [[0, 0], [5, 1], [0, 2**63], [-4, 4], [2**20, 2**20 + 8]],
    "name": ["h.7.ln_1.weight", "../../x", "", "wte.weight", "a" * 100_000],
    "size": [0, 1, 1 << 31, 1 << 62, 2**64 - 1],
}


def damage(data: bytes, rng: random.Random) -> bytes:
    """A weights file as disks, networks and enemies leave it."""
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    names = [key for key in header if key != "__metadata__"]
    name, at, kind = rng.choice(names), rng.randrange(8 + size), rng.choice([*WRONG, "cut", "flip", "deep", "order"])
    if kind == "cut":
        return data[: rng.randrange(len(data))]
    if kind == "flip":
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == "size":
        return struct.pack("<Q", rng.choice([*WRONG["size"], size - 1, size + 1])) + data[8:]
    if kind == "order":  # every tensor lies where another did
        other = header[rng.choice(names)]
        header[name]["data_offsets"], other["data_offsets"] = other["data_offsets"], header[name]["data_offsets"]
    elif kind == "name":
        header[rng.choice(WRONG["name"])] = header.pop(name)
    elif kind != "deep":
        header[name][kind] = rng.choice(WRONG[kind])
    text = b'{"a":' * 20_000 + b"1" + b"}" * 20_000 if kind == "deep" else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@given(seed=st.integers(0, 2**32))
@tries
def test_damaged_weights(saved: Path, tmp_path: Path, seed: int) -> None:
    """Either one sentence, or a model: and then one with the very numbers that the file's header promises.

    Python's own memory does not grow by much on the way.
    """
    (tmp_path / "config.json").write_bytes((saved / "config.json").read_bytes())
    file = tmp_path / "model.safetensors"
    file.write_bytes(damage((saved / "model.safetensors").read_bytes(), random.Random(seed)))
    tracemalloc.start()
    try:
        model = load_model(tmp_path, torch.device("cpu"), torch.float32)
    except WeightsError as error:
        model = None
        assert len(str(error).splitlines()) == 1  # noqa: PT017  any of many
        assert len(str(error)) < 1000  # noqa: PT017
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20
    for name, tensor in load_file(file).items() if model else ():
        mine = model.state_dict()[name.removeprefix("transformer.")][: len(tensor)]
        torch.testing.assert_close(mine, tensor, rtol=0, atol=0, equal_nan=True)


WORDS = """generate doctor course read bench start check hint 1 1.4 1.99 -1 9999999999999999999999 -- -n 3 --max-tokens
--temperature nan inf --top-p 0 --top-k --seed --json --plain --engine naive paged-graph --device cuda:99 cpu -m small
random:tiny random: ../.. --dtype int4 -f / /nonexistent --lines --mine --terminal --to -v --help -h"""


@given(arguments=st.lists(st.sampled_from(["", *WORDS.split()]) | st.text(max_size=12), max_size=7))
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
