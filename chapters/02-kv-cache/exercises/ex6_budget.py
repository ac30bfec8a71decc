"""Exercise 2.6: what a cache takes, and how many rows fit."""

from __future__ import annotations

from typing import Any

import torch

from nanocourse.exercises import IMPORTS, Call, Case, Check, Function, Places, Spec, call
from nanoinfer.model.config import PRESETS, ModelConfig


def budget(shape: dict[str, int], memory: int, slots: int, bytes_per_number: int) -> dict[str, int]:
    """What a dense cache of this model takes, in bytes, and the largest batch that fits.

    shape: "n_layer", "n_head", "n_embd" (a multiple of n_head) and "parameters" (how many numbers the weights are).
    memory: bytes of the device. slots: of each row. bytes_per_number: of weights and cache alike.
    "token": one token in the cache, in all layers. "row": one row, used or not.
    "rows": the most rows that fit beside the weights. The cache has one row more, the dummy row. 0 where none fits.
    """
    token = 2 * shape["n_layer"] * shape["n_embd"] * bytes_per_number  # a key and a value, C numbers each
    row = slots * token
    free = memory - shape["parameters"] * bytes_per_number
    return {"token": token, "row": row, "rows": max(0, free // row - 1)}


def swap(mine: Function) -> Places:
    """DenseCache.bytes, by which a cache that does not fit is refused."""

    def bytes_of(config: ModelConfig, max_batch: int, max_len: int, dtype: torch.dtype) -> Any:
        return max_batch * mine(_shape(config), 0, max_len, dtype.itemsize)["row"]

    return {"nanoinfer.cache.dense:DenseCache.bytes": staticmethod(bytes_of)}


def _shape(config: ModelConfig) -> dict[str, int]:
    names = ("n_layer", "n_head", "n_embd", "parameters")
    return {name: getattr(config, name) for name in names}


EXERCISE = Spec(
    reference=budget,
    lines=5,
    example=lambda: call(_shape(PRESETS["gpt2"]), 16_000_000_000, 1024, 2),
    imports=IMPORTS,
    section="What a token costs in memory",
    typed=True,
    exact=True,
    refuse=("nanoinfer.cache.dense:DenseCache.bytes",),
    swap=swap,
)


def _shapes(case: Case, most_layers: int, most_heads: int) -> dict[str, int]:
    heads, size = case.size("n_head", 1, most_heads), case.choice("head size", (32, 64))
    layers, vocabulary = case.size("n_layer", 1, most_layers), case.size("vocabulary", 100, 9999)
    shape = _shape(ModelConfig(n_layer=layers, n_head=heads, n_embd=heads * size, vocab_size=vocabulary))
    return dict(reversed(shape.items())) if case.turn((False, True)) else shape


def token(case: Case) -> Call:
    """A token takes a key and a value of the model's width in every layer."""
    if case.turn((False, False, False, True)):  # more bits than a float has; not even
        return call({"n_layer": 101, "n_head": 3, "n_embd": 12_291, "parameters": 7}, 10**9, 1, 3**22)
    shape = _shapes(case, 48, 20)
    if case.turn((False, False, True, False)):
        shape |= {"n_layer": 201, "n_head": 301, "n_embd": 903}
    return call(shape, 10**9, 1, case.turn((1, 8, 4, 2)))


def row(case: Case) -> Call:
    """A row takes all of its slots, used or not, also where none fits."""
    slots = case.size("slots", 2, 1024) + case.turn((0, 1024, 100_000))
    return call(_shapes(case, 1, 1), case.turn((10**9, 0, 10**9)), slots, 4)


def rows(case: Case) -> Call:
    """The batch is what fits beside the weights, less the dummy row, and never negative."""
    if case.turn((False,) * 14 + (True,)):
        return call({"n_layer": 1, "n_head": 1, "n_embd": 32, "parameters": 0}, 0, 1, 4)
    shape = _shapes(case, 1, 1)
    if case.turn((False,) * 15 + (True,)):  # one byte short of a third row, in more bits than a float has
        slots = 2**50 + 1
        return call(shape, shape["parameters"] * 4 + 3 * slots * 8 * shape["n_embd"] - 1, slots, 4)
    count, beyond = case.turn((-2, 0, 1, 2, 20, 21, 5000, 2**21)), case.choice("beyond", (-1, 0, 1, 123))
    row_bytes = 2 * shape["n_embd"] * 4
    return call(shape, shape["parameters"] * 4 + count * row_bytes + beyond % row_bytes, 1, 4)


FIRST = {"n_layer": 3, "n_head": 5, "n_embd": 155, "parameters": 1001}, 2**20 + 5, 7, 1
ONE_AFTER_THE_OTHER = (  # each differs from the first in one number alone, but for a width that has to be a multiple
    FIRST, ({**FIRST[0], "n_layer": 1000}, *FIRST[1:]), ({**FIRST[0], "n_head": 31}, *FIRST[1:]),
    ({**FIRST[0], "n_embd": 5}, *FIRST[1:]), ({**FIRST[0], "parameters": 500_000}, *FIRST[1:]),
    (FIRST[0], 2**28 + 1, *FIRST[2:]), (*FIRST[:2], 9, 1), (*FIRST[:3], 2), (*FIRST[:3], 8), (*FIRST[:3], 4),
)  # fmt: skip


def one_number_alone(case: Case) -> Call:
    """Each number counts by itself, and all that is asked for goes by the same ones."""
    shape, *numbers = case.turn(ONE_AFTER_THE_OTHER)
    return call(dict(shape), *numbers)


def any_numbers(case: Case) -> Call:
    """Each number may be small, odd or large beside any other, and the memory a byte short, just enough, or more."""
    layers, heads, slots, size, parameters = case.small("layers heads slots bytes parameters")
    shape = {"parameters": (0, 1001, 2**32 + 7)[parameters - 1], "n_layer": (1, 3, 1001)[layers - 1], "n_head": heads}
    shape["n_embd"] = heads * case.turn((1, 1, 11, 96, 1))
    slots, size, count = (1, 3, 2**31 + 1)[slots - 1], (1, 3, 8)[size - 1], case.turn((0, 1, 2, 3, 2049, 4, -1))
    least = size * (shape["parameters"] + count * 2 * shape["n_layer"] * shape["n_embd"] * slots)
    return call(shape, max(0, least + case.turn((0, -1, 0, 1))), slots, size)


CHECKS = (
    Check(token, 4, part="token"), Check(row, 3, part="row"), Check(rows, 16, part="rows"),
    Check(one_number_alone, len(ONE_AFTER_THE_OTHER), wide=True), Check(any_numbers, 18, wide=True),
)  # fmt: skip
