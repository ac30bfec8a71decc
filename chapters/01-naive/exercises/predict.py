"""What to guess in chapter 1 before it is measured: all of it with the small model, in a few seconds."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import torch

from nanocourse.exercises import answers
from nanocourse.learner.predict import Prediction, seconds
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.none import NoCache
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import PRESETS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model

SHAPE = {name: getattr(PRESETS["small"], name) for name in ("n_layer", "n_embd", "vocab_size")}


def flops(tokens: int) -> int:
    """Of one pass over so many tokens, by exercise 1.7."""
    return int(answers.reference("1.7")(SHAPE, tokens, 4)["flops"])


def model_on(device: torch.device) -> GPT2:
    """The small model in float32."""
    return load_model("small", device, torch.float32)


@torch.inference_mode()
def pass_seconds(model: GPT2, tokens: int, rows: int = 1) -> float:
    """One pass of the model over rows of so many tokens."""
    work: Any = [(SimpleNamespace(tokens=[464] * tokens, row=row), 0, tokens) for row in range(rows)]
    batch = Batch.of(work, model.device)
    return seconds(lambda: model(batch, NoCache()), model.device)


def longer_pass(device: torch.device) -> float:
    """A pass over 512 tokens over one of 64."""
    model = model_on(device)
    return pass_seconds(model, 512) / pass_seconds(model, 64)


def longer_text(device: torch.device) -> float:
    """128 new tokens over 32."""
    with LLM(model_on(device), engine="naive") as llm:
        took = {}
        for new in (4, 32, 128):  # the first is not counted
            params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True)
            start = time.perf_counter()
            llm.generate([[464]], params)
            took[new] = time.perf_counter() - start
    return took[128] / took[32]


def more_rows(device: torch.device) -> float:
    """Tokens a second of eight rows over those of one."""
    model = model_on(device)
    return 8 * pass_seconds(model, 64) / pass_seconds(model, 64, rows=8)


def speed(device: torch.device) -> float:
    """Tokens a second after 128 tokens."""
    return 1 / pass_seconds(model_on(device), 128)


def arithmetic_speed(device: torch.device) -> float:
    """Passes over 128 tokens a second, if this device did nothing but multiply large matrices."""
    a = torch.randn(1024, 1024, device=device)
    return 2 * 1024**3 / seconds(lambda: a @ a, device) / flops(128)


def _launches(bound: float, measured: float) -> str:
    if measured < 0.7 * bound:
        return (
            "the shorter run is not busy with arithmetic alone: launching operations and reading weights takes time "
            "that does not grow with the tokens, and the longer run pays no more for it"
        )
    return "arithmetic decides here: quadratic work shows as quadratic time" + (
        ", and large matrices lose something besides" if measured > 1.3 * bound else ""
    )


def _rows(bound: float, measured: float) -> str:
    if measured > 0.7 * bound:
        return "one row left most of the device idle: its time went into launches, and eight rows share them"
    busy = "all but" if measured > 1.5 else "already"
    return f"one row of 64 tokens kept this device {busy} busy: eight rows take {8 / measured:.1f} times as long"


def _speed(bound: float, measured: float) -> str:
    return (
        f"{measured / bound:.0%} of what large products reach: these are smaller, and between them stand launches, "
        "LayerNorms and sums, which move bytes and do hardly any arithmetic"
        + ("; or the machine is busy: try again" if measured < 0.15 * bound else "")
    )


PREDICTIONS = (
    Prediction(
        "longer-pass", "How many times as long does a pass over 512 tokens take as one over 64?", "times",
        lambda device: flops(512) / flops(64), "the ratio of their arithmetic, attention's square included",
        longer_pass, _launches,
    ),
    Prediction(
        "longer-text", "How many times as long does the naive engine take for 128 tokens as for 32?", "times",
        lambda device: sum(map(flops, range(1, 129))) / sum(map(flops, range(1, 33))),
        "the ratio of the arithmetic of all their passes: for long texts it tends to 16, four times the tokens squared",
        longer_text, _launches,
    ),
    Prediction(
        "more-rows", "How many times as many tokens a second do eight rows make as one, at 64 tokens each?", "times",
        lambda device: 8.0, "eight times the rows in the same time", more_rows, _rows,
    ),
    Prediction(
        "speed", "How many tokens a second does the naive engine make here with `small`, after 128 tokens?", "tokens/s",
        arithmetic_speed,
        "a pass's arithmetic at the speed of a product of two matrices of 1024 by 1024, measured here",
        speed, _speed,
    ),
)  # fmt: skip
