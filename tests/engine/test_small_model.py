"""The small model that ships: the very file, what it says, transformers' reading of it; and how it was trained."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nanoinfer
from nanoinfer.cache.none import forward_logits
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model

SMALL = Path(nanoinfer.__file__).parent / "data" / "small"
SHA256 = "ed53248970e198458d2312a6a1b71236669efc1e2fab2242c4c624bbe85a1b74"


@pytest.fixture(scope="module")
def model() -> GPT2:
    return load_model(SMALL, torch.device("cpu"), torch.float32)


def test_file_is_the_published_one(model: GPT2) -> None:
    data = (SMALL / "model.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == SHA256
    config = json.loads((SMALL / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["GPT2LMHeadModel"]
    assert (model.config.vocab_size, model.config.n_positions, model.config.inner) == (50257, 1024, 4 * 160)


@pytest.mark.long
def test_logits_equal_transformers(model: GPT2) -> None:
    """Over text that the model likes and over random tokens, past every power of two below 512."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(SMALL, dtype=torch.float32).eval()
    tokens = torch.randint(50257, (1, 520), generator=torch.Generator().manual_seed(0))
    tokens[0, :260] = tokens[0, :20].repeat(13)
    with torch.inference_mode():
        expected = theirs(tokens).logits
    torch.testing.assert_close(forward_logits(model, tokens), expected, rtol=0, atol=1e-4)


def training(name: str) -> Any:
    return pytest.importorskip(f"training.{name}", reason="the training scripts are not in the wheel")


def test_loss_counts_every_token_once(model: GPT2) -> None:
    evaluate, text = training("evaluate"), np.arange(1000, 1050, dtype=np.uint16)
    whole = torch.tensor([[50256, *text.tolist()]])  # (1, 51), end-of-text in front
    expected = F.cross_entropy(forward_logits(model, whole[:, :-1])[0], whole[0, 1:]).item()
    assert evaluate.loss_of(model, text, context=50) == pytest.approx(expected, rel=1e-5)
    parts = [evaluate.loss_of(model, text, context=20, stride=stride) for stride in (None, 10)]
    assert parts == pytest.approx([expected] * 2, rel=0.5)
    assert evaluate.windows_of(50, 20, 10)[-1] == (30, 50, 40)
    assert sum(end - new for _, end, new in evaluate.windows_of(47, 20, 10)) == 47


@pytest.mark.long
def test_training_learns(tmp_path: Path) -> None:
    text = np.tile(np.array([*range(30), 50256], np.uint16), 30)
    text.tofile(tmp_path / "tokens")
    training("train").main(
        tmp_path / "tokens", tmp_path / "tokens", tmp_path, layers=2, width=32, heads=2, context=16, batch=2, steps=12,
        dropout=0.0, evaluations=3, compile=False,
    )  # fmt: skip
    log = json.loads((tmp_path / "log.json").read_text(encoding="utf-8"))
    assert [point["step"] for point in log["curve"]] == [4, 8, 12]
    first, _, last = (point["heldout"] for point in log["curve"])
    assert last < first - 0.3
    model = load_model(tmp_path, torch.device("cpu"), torch.float32)
    assert training("evaluate").loss_of(model, text, context=16) == pytest.approx(last, abs=0.02)
