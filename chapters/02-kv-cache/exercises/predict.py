"""What to guess in chapter 2 before it is measured: with the small model, in a few seconds each."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from nanocourse.exercises import answers
from nanocourse.learner.predict import Prediction
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.none import NoCache
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import PRESETS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model

STEPS, REPEATS, SLOTS = 3, 3, 1024
CONFIG = PRESETS["small"]
SHAPE = {name: getattr(CONFIG, name) for name in ("n_layer", "n_embd", "vocab_size")}


def naive_flops(tokens: int) -> int:
    """Of one pass over so many tokens, by exercise 1.7."""
    return int(answers.reference("1.7")(SHAPE, tokens, 4)["flops"])


def cached_flops(context: int) -> int:
    """Of one new token whose query reads so many keys: the matrices of one token, and attention's two products."""
    return naive_flops(1) + 4 * CONFIG.n_layer * CONFIG.n_embd * (context - 1)


def read_bytes(rows: int, slots: int) -> int:
    """Of a decode step in float32: the weights once, and so many slots of every row."""
    return 4 * (CONFIG.parameters + rows * slots * CONFIG.kv_numbers)


def cache_of(model: GPT2, rows: int) -> DenseCache:
    """A cache of SLOTS slots a row."""
    return DenseCache(CONFIG, rows, SLOTS, model.device, model.dtype)


@torch.inference_mode()
def step_seconds(model: GPT2, cache: NoCache, rows: int, context: int, read: int = 0) -> float:
    """The median time of a decode step of rows that hold so many tokens already. read: slots at least."""
    found = []
    for _ in range(REPEATS + 1):
        _wait(model)
        start = time.perf_counter()
        for at in range(context, context + STEPS):
            first = at if isinstance(cache, DenseCache) else 0
            tokens = [464] * (at + 1)
            work: Any = [(SimpleNamespace(tokens=tokens, row=row), first, at + 1 - first) for row in range(rows)]
            batch = Batch.of(work, model.device)
            model(replace(batch, past=max(batch.past, read - 1)) if read else batch, cache).argmax(-1).tolist()
        _wait(model)
        found.append((time.perf_counter() - start) / STEPS)
    return statistics.median(found[1:])


def _wait(model: GPT2) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def model_on(device: torch.device) -> GPT2:
    """The small model in float32."""
    return load_model("small", device, torch.float32)


def with_and_without(device: torch.device) -> float:
    """A naive step over a cached one, after 500 tokens."""
    model = model_on(device)
    naive = step_seconds(model, NoCache(), 1, 500)
    return naive / step_seconds(model, cache_of(model, 1), 1, 500)


def longer_context(device: torch.device) -> float:
    """A cached step after 890 tokens over one after 50."""
    model = model_on(device)
    cache = cache_of(model, 1)
    return step_seconds(model, cache, 1, 890) / step_seconds(model, cache, 1, 50)


def everything_read(device: torch.device) -> float:
    """A step of 8 rows that reads all slots over one that reads as many as it needs."""
    model = model_on(device)
    cache = cache_of(model, 8)
    return step_seconds(model, cache, 8, 50, read=SLOTS) / step_seconds(model, cache, 8, 50)


def rows_as_large_as_the_weights(device: torch.device) -> float:
    """By the tensors themselves: how many rows of the cache the model's own memory would hold."""
    model = model_on(device)
    cache = cache_of(model, 1)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return weights / sum(held.numel() * held.element_size() for held in (cache.k, cache.v))


def _with(bound: float, measured: float) -> str:
    if measured < 0.7 * bound:
        return (
            "the cached step is not busy with arithmetic: launching its operations and reading the weights takes "
            "longer than computing one column, so most of what the cache saves cannot be seen"
        )
    return "arithmetic decides here, and the cache saves nearly all of it"


def _longer(bound: float, measured: float) -> str:
    return "attention reads more slots, under a mask; the matrices, the head and the launches stay what they were" + (
        ", and are most of the step" if measured < 2 else ""
    )


def _everything(bound: float, measured: float) -> str:
    if measured < 0.7 * bound:
        return "slots are only a part of the step: weights and launches cost the same, however many slots are read"
    return "what is hidden is read like all else: a mask saves no byte" + (
        ", and attention under a mask reads more slowly than the matrices are read" if measured > 1.3 * bound else ""
    )


def _rows(bound: float, measured: float) -> str:
    return (
        "a count of parameters against tensors in memory: the token embedding has some rows more there than the "
        "vocabulary, so that the head runs faster"
    )


PREDICTIONS = (
    Prediction(
        "with-and-without",
        "After 500 tokens of text, how many times as long does a step take without a cache as with one?",
        "times", lambda device: naive_flops(501) / cached_flops(501),
        "the ratio of their arithmetic: 501 columns against one that reads 501 keys", with_and_without, _with,
    ),
    Prediction(
        "longer-context",
        "With a cache: how many times as long does a step take after 890 tokens as after 50?", "times",
        lambda device: cached_flops(891) / cached_flops(51),
        "the ratio of their arithmetic", longer_context, _longer,
    ),
    Prediction(
        "everything-read",
        "Eight rows of 50 tokens in a cache of 1024 slots: how many times as long does a step take if all are read?",
        "times", lambda device: read_bytes(8, 1024) / read_bytes(8, 51),
        "the ratio of the bytes that are read: the weights, and slots of use or hidden", everything_read, _everything,
    ),
    Prediction(
        "rows-as-weights", "How many rows of 1024 slots take as much memory as the small model's weights?", "rows",
        lambda device: CONFIG.parameters / (SLOTS * CONFIG.kv_numbers),
        "parameters over a row's numbers, 2 * layers * width * slots", rows_as_large_as_the_weights, _rows,
    ),
)  # fmt: skip
