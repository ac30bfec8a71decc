"""How many drafts pay: of a sequence by what was accepted, of a step by the clock. No token goes by it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from nanoinfer import SamplingParams
from nanoinfer.engine import graphs
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model
from nanoinfer.requests import Request
from nanoinfer.speculate.engine import Drafting
from nanoinfer.speculate.pays import COST, FIRST, LOOK, SOONEST, TIMED, TRIAL, Pays
from tests.conftest import prompts_of
from tests.engine.drafting import FREE, Scripted, seen
from tests.engine.fake_graphed import Rerun, graph_llm


def sequences(*counts: int) -> list[Drafting]:
    """Sequences of so many new tokens."""
    made = [Drafting(Request(0, (1,), SamplingParams(), 0, 9999, frozenset())) for _ in counts]
    for s, count in zip(made, counts, strict=True):
        s.tokens += [1] * count
    return made


def ran(
    pays: Pays, steps: int, cost: float, alphas: Sequence[float], *, alone: bool = True, running: Any = None
) -> tuple[list[bool], float]:
    """Which of the steps had drafts, and their time over that of plain decoding of the slowest sequence's tokens.

    cost: of a step with drafts, in plain ones. alphas: how often a draft of each sequence is right.
    """
    drafted, seconds, coin, most = list[bool](), 0.0, Random(1), 4
    running = running or sequences(*[0] * len(alphas))
    for _ in range(steps):
        drafted.append(pays.draft(running, most, alone))
        seconds += cost if drafted[-1] else 1
        for s, alpha in zip(running, alphas, strict=True):
            drafts = pays.most(s, most) if drafted[-1] else 0
            right = next((n for n in range(drafts) if coin.random() >= alpha), drafts)
            if drafts:
                pays.note(s, drafts, right)
            s.tokens += [1] * (right + 1)
        pays.note_step(len(running), cost if drafted[-1] else 1, drafted[-1])
    return drafted, seconds / min(s.generated for s in running)


def test_a_sequence_brings_as_many_as_are_used() -> None:
    pays, (s,) = Pays(), sequences(0)
    assert [pays.most(s, most) for most in (0, 1, 2, 64)] == [0, 1, 2, 3]  # 0.6 ** 3 is 0.216
    for _ in range(5):
        pays.note(s, 4, 0)
    assert s.share == pytest.approx(FIRST * 0.85**5)
    for _ in range(3):
        pays.note(s, 1, 0)
    assert pays.most(s, 4) == 0
    pays.left = TRIAL
    assert pays.most(s, 4) == 1  # a trial has something to try
    for _ in range(30):
        pays.note(s, 4, 4)
    assert pays.most(s, 64) == 64
    pays.note(s, 4, 2)  # of the third it is known that it was wrong; the fourth says nothing
    assert s.share == pytest.approx(0.85, abs=1e-3)


def test_drafts_that_pay_run_and_drafts_that_do_not_end_soon() -> None:
    always, _ = ran(Pays(), 300, 1.3, [1.0])
    assert always == [False] * TIMED + [True] * (300 - TIMED)
    never, _ = ran(Pays(), 300, 1.3, [0.0])
    assert sum(never[: TIMED + SOONEST]) <= 5
    assert sum(never[TIMED + SOONEST :]) <= 300 // SOONEST * TRIAL
    dear, _ = ran(Pays(), 300, 5.0, [0.9])
    assert sum(dear) <= TRIAL * 4


def test_drafts_that_pay_again_are_found() -> None:
    pays, (s,) = Pays(), sequences(0)
    ran(pays, 200, 1.3, [0.0], running=[s])
    assert s.share < 0.2
    again, _ = ran(pays, 600, 1.3, [1.0], running=[s])
    assert again[-100:] == [True] * 100


@pytest.mark.parametrize("cost", [1.02, 1.2, 1.5, 2.5, 4.0])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("steps", [256, 3000])
def test_trials_cost_little(cost: float, alpha: float, steps: int) -> None:
    """In a single text as well as in the long run."""
    assert ran(Pays(), steps, cost, [alpha])[1] < 1.03


@pytest.mark.parametrize("alone", [True, False])
def test_where_nobody_waits_the_slowest_sequence_counts(alone: bool) -> None:
    """Three sequences are always right, the last one never, and the batch waits for it."""
    drafted, _ = ran(Pays(), 300, 1.3, [1.0, 1.0, 1.0, 0.0], alone=alone)
    assert (sum(drafted) > 280) == (not alone)
    assert sum(drafted) > 280 or sum(drafted) < 40


def test_batches_are_told_apart_by_about_how_many_sequences_they_have() -> None:
    pays = Pays()
    for _ in range(TIMED):
        for count, cost in ((1, 1.1), (64, 9.0)):
            pays.note_step(count, 1.0, False)
            pays.note_step(count, cost, True)
    assert [pays.draft(sequences(*[9] * count), 4, True) for count in (1, 64, 100, 3)] == [True, False, False, False]
    assert pays.times[7].cost == 9.0
    assert pays.times[2].cost == COST


class Foresees(Scripted):
    """Every look finds so many right; of which sequences it was asked."""

    def __init__(self, right: int) -> None:
        super().__init__({}, Random(1))
        self.count, self.asked = right, list[Any]()

    def foreseen(self, s: Any, most: int) -> int:
        self.asked.append(s)
        return self.count


@pytest.mark.parametrize("right", [0, 4])
def test_looks_find_text_that_repeats(right: int) -> None:
    """Of one sequence in turn, that has tokens enough."""
    pays, drafter, running = Pays(), Foresees(right), sequences(4, 5, 6)
    for _ in range(12 * LOOK):
        pays.look(drafter, running, 4)
    assert {*drafter.asked} == {*running[1:]}
    assert (min(s.share for s in running[1:]) > FIRST) == (right == 4)
    assert running[0].share == FIRST


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_that_repeats_itself_is_drafted_and_no_other(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    """Greedy text soon goes round. Steps take here what their kind takes, and not what the clock says."""
    monkeypatch.setattr(graphs.gc, "collect", int)
    noted = Pays.note_step
    monkeypatch.setattr(Pays, "note_step", lambda self, rows, _, drafted: noted(self, rows, 1 + 0.3 * drafted, drafted))
    model = random_model(ModelConfig(n_layer=1, n_head=2, n_embd=16, n_positions=320, vocab_size=211), 1, std=0.1)
    settings = {"recorder": Rerun(), "max_batch": 4, "speculate": "lookup", "draft_tokens": 4}
    params = [SamplingParams(temperature=temperature, seed=n, max_tokens=300, **FREE) for n in range(4)]
    steps, texts = {}, []
    for adaptive in (False, True):
        llm = graph_llm(model, "dense-graph", adaptive_drafts=adaptive, **settings)
        core: Any = llm.core
        core.begin_with(core.drafter)  # now that there is a recorder
        texts.append(seen(llm.generate(prompts_of([5] * 4), params)))
        steps[adaptive] = llm.stats.decode_steps
    assert texts[0] == texts[1]
    if temperature:
        assert llm.stats.verify_steps < 40
    else:
        assert steps[True] < steps[False] + 50 < 150


def test_a_wait_counts_for_the_kind_of_step_that_is_waited_for() -> None:
    pays = Pays()
    for _ in range(TIMED):
        pays.note_step(1, 1.0, False)
        pays.note_step(1, 0.5, True)  # the host is done with it, the device is not
        pays.note_wait(2.0)
    assert pays.times[1].cost == 2.5
