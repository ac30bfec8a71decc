"""How many drafts pay: of a row by what was accepted, of a batch by what steps take. No token goes by it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from nanoinfer.speculate.adaptive import EVERY, SELDOM, Acceptance, Adaptive, Trial

from nanoinfer import SamplingParams
from nanoinfer.engine import graphs
from nanoinfer.engine.scores import Scored as Row
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model
from nanoinfer.requests import Request
from tests.conftest import prompts_of
from tests.engine.drafting import FREE, Scripted, seen
from tests.engine.fake_graphed import Rerun, graph_llm, watch


def rows_of(*counts: int) -> list[Row]:
    """Rows of so many new tokens."""
    request = Request(0, (1,), SamplingParams(), 0, 99, frozenset())
    return [Row(request, 0.0, token_ids=[1] * count) for count in counts]


class Foresees(Scripted):
    """Every look finds so many right; of which rows it was asked."""

    def __init__(self, right: int) -> None:
        super().__init__({}, Random(1))
        self.count, self.asked = right, list[Row]()

    def foreseen(self, row: Row, most: int) -> int:
        self.asked.append(row)
        return self.count


def plain_steps(adaptive: Adaptive, drafter: Any, rows: list[Row]) -> int:
    """Steps until drafts are tried, 200 at most."""
    for step in range(200):
        if adaptive.pays(len(rows)):
            return step
        if not adaptive.rests():
            adaptive.look(drafter, rows, 4)
            adaptive.note_step(len(rows), 1.0, len(rows))
    return 200


def ways(trial: Trial, steps: int, drafts: tuple[float, float]) -> list[bool]:
    """How each step ran, where one with drafts takes so many seconds and gives so many tokens; a plain one, 1 and 1."""
    ran = []
    for _ in range(steps):
        ran.append(trial.drafts)
        trial.note(*(drafts if trial.drafts else (1.0, 1.0)))
    return ran


def test_a_row_brings_as_many_as_are_used() -> None:
    row = Acceptance()
    assert [row.worth(most) for most in (0, 1, 2, 64)] == [0, 1, 2, 3]  # 0.6 ** 3 is 0.216
    for _ in range(5):
        row.note(4, 0)
    assert row.share == pytest.approx(0.6 * 0.85**5)
    for _ in range(3):
        row.note(1, 0)
    assert [row.worth(4) for _ in range(17)] == [0] * 15 + [1, 1]  # one, until it has been seen to be wrong
    for _ in range(30):
        row.note(4, 4)
    assert row.worth(64) == 64
    row.note(4, 2)  # of the third it is known that it was wrong; the fourth says nothing
    assert row.share == pytest.approx(0.85, abs=1e-3)


class TestTrial:
    def test_the_faster_way_runs(self) -> None:
        for seconds, pays in ((2.7, True), (2.8, False)):
            assert ways(Trial(), 24 + 32, (seconds, 3.0)) == [False] * 8 + [True] * 16 + [pays] * 32

    def test_drafts_that_no_longer_pay_end(self) -> None:
        trial = Trial()
        ways(trial, 600, (2.0, 3.0))
        assert 10 < sum(ways(trial, 300, (2.0, 1.0))) < 32  # as soon as the mean of 32 steps has fallen below 2 tokens

    def test_drafts_that_pay_again_are_found(self) -> None:
        trial = Trial()
        ways(trial, 200, (2.0, 1.0))
        again = ways(trial, 400, (2.0, 3.0))
        assert again == sorted(again)
        assert sum(again) > 300

    @pytest.mark.parametrize("seconds", [1.02, 1.2, 1.5, 4.0])
    def test_trials_cost_little(self, seconds: float) -> None:
        """Steps that take half as long again for nothing, or a little longer."""
        ran = ways(Trial(), 4000, (seconds, 1.0))
        assert sum(seconds if drafts else 1.0 for drafts in ran) <= 4000 * 1.025


class TestBatch:
    def test_a_trial_begins_where_right_drafts_were_foreseen(self) -> None:
        """Of one row in turn, that has tokens enough; a drafter that foresees nothing is tried as it is."""
        rows, nothing = rows_of(4, 5, 6), Foresees(0)
        assert plain_steps(Adaptive(), nothing, rows) == 200
        assert nothing.asked == [rows[n % 3] for n in range(1, 200) if n % 3][: len(nothing.asked)]
        assert 2 / 3 * 200 / SELDOM <= len(nothing.asked) < 2 / 3 * 200 / EVERY
        assert plain_steps(Adaptive(), Foresees(4), rows[1:]) == 8
        assert 20 < plain_steps(Adaptive(), Foresees(1), rows[1:]) < 60
        assert plain_steps(Adaptive(), Scripted({}, Random(1)), rows) == 8

    @pytest.mark.parametrize("waiting", [False, True])
    def test_where_nobody_waits_the_slowest_row_counts(self, waiting: bool) -> None:
        """Three rows get four tokens a step with drafts, the last one gets one, and the batch waits for it."""
        adaptive, rows, drafted = Adaptive(), rows_of(0, 0, 0, 0), 0
        for _ in range(300):
            drafts = adaptive.pays(4)
            drafted += drafts
            for row in rows:
                row.token_ids += [1] * (4 if drafts and row is not rows[3] else 1)
            adaptive.note_step(4, 1.3 if drafts else 1.0, 13 if drafts else 4, () if waiting else rows)
        assert drafted > 280 if waiting else 8 <= drafted < 80

    def test_a_new_batch_begins_plain(self) -> None:
        adaptive, ran = Adaptive(), list[bool]()
        for step in range(52):
            if step == 40:
                adaptive.begin()
            ran.append(adaptive.pays(2))
            if not adaptive.rests():
                adaptive.note_step(2, 1.0, 8 if ran[-1] else 2)
        assert ran[39:] == [True] + [False] * 8 + [True] * 4

    def test_batches_are_told_apart_by_about_how_many_rows_they_have(self) -> None:
        adaptive = Adaptive()
        for _ in range(24):
            adaptive.note_step(64, 9.0 if adaptive.pays(64) else 1.0, 64)
            adaptive.note_step(1, 1.0, 4 if adaptive.pays(1) else 1)
        assert [adaptive.pays(rows) for rows in (1, 64, 100, 127)] == [True, False, False, False]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_that_repeats_itself_is_drafted_and_no_other(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    """Greedy text soon goes round. Steps take here what their kind takes, and not what the clock says."""
    monkeypatch.setattr(graphs.gc, "collect", int)
    noted = Adaptive.note_step
    monkeypatch.setattr(
        Adaptive, "note_step", lambda self, rows, _, *given: noted(self, rows, 1 + 0.3 * self.pays(rows), *given)
    )
    model = random_model(ModelConfig(n_layer=1, n_head=2, n_embd=16, n_positions=320, vocab_size=211), 1, std=0.1)
    settings = {"recorder": Rerun(), "max_batch": 4, "speculate": "lookup", "draft_tokens": 4}
    params = [SamplingParams(temperature=temperature, seed=n, max_tokens=300, **FREE) for n in range(4)]
    steps, texts = {}, []
    for adaptive in (False, True):
        llm, waits = graph_llm(model, "dense-graph", adaptive_drafts=adaptive, **settings), list[int]()
        watch(llm.core, "_take_one", lambda: waits.append(1))  # noqa: B023
        texts.append(seen(llm.generate(prompts_of([5] * 4), params)))
        steps[adaptive] = llm.stats.decode_steps
    assert texts[0] == texts[1]
    if temperature:
        assert llm.stats.verify_steps == 0
        assert len(waits) <= llm.core.lag  # when no row is left
    else:
        assert steps[True] < steps[False] + 50 < 150
