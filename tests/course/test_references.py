"""References that are held against the engine, and chapter 6's machine, which tries programs in every order."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nanocourse.exercises import answers, chapters
from nanoinfer.cache.none import NoCache
from nanoinfer.labs.one_kernel import phases
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model
from nanoinfer.parallel.shard import Shard


@pytest.mark.parametrize("length", [1, 9])
def test_1_7_counts_what_the_engine_does(length: int) -> None:
    """By torch's own counter of operations."""
    config = ModelConfig(n_layer=3, n_head=2, n_embd=32, n_positions=40, vocab_size=128)
    model = random_model(config, seed=0)
    text: Any = SimpleNamespace(tokens=[*range(length)], row=0)
    batch = Batch.of([(text, 0, length)], model.device)
    counted = answers.reference("1.7")({"n_layer": 3, "n_embd": 32, "vocab_size": 128}, length, 4)
    plain = sdpa_kernel(SDPBackend.MATH)  # the counter does not know a CPU's fused kernel
    with torch.no_grad(), plain, FlopCounterMode(display=False) as flops:
        model(batch, NoCache())
    assert flops.get_total_flops() == counted["flops"]
    unused = (config.n_positions - length) * config.n_embd
    assert counted["bytes"] == (config.parameters - unused) * 4


def test_6_6_counts_in_the_engines_words() -> None:
    values = torch.tensor([0.1, -0.1, 3.0, torch.nan, torch.inf, -torch.inf, 1e30, 2.0**-31, -1.7, -0.0])
    scene: Any = inspect.unwrap(chapters.exercise("6.6").spec.scene).__globals__  # type: ignore[arg-type]
    assert [scene["_units"](value) for value in values.tolist()] == phases.fixed(values).tolist()


def test_8_1_cuts_as_the_engine_does() -> None:
    """Where the engine does not cut at multiples of 64 columns."""
    config = ModelConfig(n_layer=1, n_head=5, n_embd=10, n_positions=4, vocab_size=30)
    cut = answers.reference("8.1")
    shapes = {"attn.c_attn.weight": (10, 30), "attn.c_proj.weight": (10, 10), "mlp.c_fc.bias": (40,)}
    for kind, shape in shapes.items():
        whole = torch.randn(shape)
        for rank in range(3):
            index = Shard(rank, 3).pieces(f"h.0.{kind}", config)
            mine = torch.cat([whole[one] for one in index], -1)
            assert cut(f"h.0.{kind}", whole, 5, rank, 3).equal(mine)


MACHINE: Any = inspect.unwrap(chapters.exercise("6.1").spec.scene).__globals__["MACHINE"]  # type: ignore[arg-type]


def tried(*programs: Any, judge: Any = lambda returned, held: "", **settings: Any) -> str:
    """What is found of programs over the words a, b and c, which hold 0."""
    told: str = MACHINE.tried(programs, {"a": 0, "b": 0, "c": 0}, judge, **settings)[0]
    return told


def does(*accesses: Any) -> Any:
    """A program that makes these accesses one after the other, and returns the last one's result."""

    def program() -> Any:
        told = None
        for access in accesses:
            told = yield access
        return told

    return program


def waits_for(word: str, least: int) -> tuple[Any, ...]:
    return "wait", word, lambda held: held >= least


def test_a_store_may_arrive_behind_a_later_one_and_a_fence_forbids_it() -> None:
    receiver = does(waits_for("b", 1), ("load", "a"))

    def judge(returned: list[Any], held: object) -> str:
        return "" if returned[1] == 7 else f"it has read {returned[1]}"

    fenced = does(("store", "a", 7), ("fence",), ("store", "b", 1))
    assert tried(fenced, receiver, judge=judge) == MACHINE.RIGHT
    told = tried(does(("store", "a", 7), ("store", "b", 1)), receiver, judge=judge)
    assert told.startswith("it has read 0. In this order: 0: store a = 7; 0: store b = 1; 0: b = 1 arrives;")


def test_every_order_of_accesses_is_met() -> None:
    """Of two additions; two stores to one word keep their order, and words come round."""

    def seen(*programs: Any, **settings: Any) -> set[Any]:
        found = set()
        judge = lambda returned, held: found.add((*returned, held["a"])) or ""  # noqa: E731
        assert tried(*programs, judge=judge, **settings) == MACHINE.RIGHT
        return found

    assert seen(*[does(("add", "a", 1))] * 2) == {(0, 1, 2), (1, 0, 2)}
    assert seen(does(("store", "a", 1), ("store", "a", 2), ("load", "a"))) == {(2, 2)}
    assert seen(does(("store", "a", 300), ("load", "a")), bits=8) == {(44, 44)}


def test_programs_that_wait_for_one_without_a_place_wait_for_ever() -> None:
    program = does(("add", "a", 1), waits_for("a", 2))
    assert tried(program, program) == MACHINE.RIGHT
    assert tried(program, program, resident=1).startswith("these wait for ever: program 0, at wait a; program 1")
