"""An engine with drafts that is watched: several tokens a row a step, and blocks that come and go within one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import ValidationError

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.blocks import BlockManager
from nanoinfer.engine import graphs
from nanoinfer.engine.scheduler import Row, Step
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.serve.events import Events
from nanoinfer.serve.recorder import Recorder
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.conftest import STD, changed
from tests.engine.test_speculate import AHEAD, TINY, History, WithinHistory
from tests.serve.test_recorder import VALID, Replay


@pytest.fixture(scope="module")
def tiny_model() -> GPT2:
    return random_model(TINY, seed=2, std=STD)


@pytest.fixture(autouse=True)
def little_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanoinfer.engine.scheduler.AHEAD", AHEAD)  # as those histories have it


class Watched(History):
    """A history whose events, from some step on, are held against rows and blocks after every step."""

    def __init__(self, random: Random, model: GPT2, texts: bool = False) -> None:
        super().__init__(random, model)
        self.replay, self.late, self.came, self.shows = Replay(), Replay(), Counter[int](), texts
        self.recorder: Recorder | None = None
        self.told: dict[Row, int] = {}
        self.since = random.choice([0, 0, 4])
        self.events = Events(gpt2_tokenizer() if texts else None)
        self.seen: list[dict[str, Any]] = []
        self.llm.core.observer = self.observe

    def observe(self, step: Step, settled: list[Row]) -> None:
        self.since -= 1
        if self.since >= 0:
            return
        core = self.llm.core
        if self.recorder is None:
            self.recorder = Recorder(core, self.shows)
        event = self.events.take(self.recorder.step(step, settled))
        VALID.validate(event)
        self.seen.append(event)
        self.replay.take(event)
        self.compare(self.replay)
        if event["kind"] == "step":
            self.came.update(event["tokens"])
            late = sum(count for seconds, count in event["itl"]) + len(event["ttft"])
            out = sum(len(row.token_ids) - self.told.get(row, 0) for row in settled if row in self.recorder._out)
            assert late == len(event["tokens"]) + out  # there are fewer rows than lanes; preempted ones have none
            assert {*event["decode"]} == {row.arrived for row in step.going}
        self.told = {row: len(row.token_ids) for row in self.rows}
        if self.random.random() < 0.2:
            self.late.take(self.events.keyframe())
            self.compare(self.late)

    def compare(self, replay: Replay) -> None:
        core = self.llm.core
        for row in core.rows:
            fed, new = replay.rows[row.arrived]
            assert row.fed <= fed <= row.fed + row.ahead  # of steps in flight it is not known how many they feed
            assert new == len(row.token_ids)
        if isinstance(blocks := core.cache.blocks, BlockManager):
            tables = {row.arrived: blocks.owned[row.slot] for row in core.rows if blocks.owned[row.slot]}
            assert {id_: table for id_, table in replay.tables.items() if table} == tables
            assert replay.cached == set(getattr(blocks.allocator, "idle", ()))

    def run(self, rounds: int = 12) -> LLM:
        llm = super().run(rounds)
        self.ended = [id_ for event in self.seen for id_, _ in event.get("ended", ())]
        assert len(self.ended) == len({*self.ended})
        return llm


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_histories(tiny_model: GPT2, seed: int) -> None:
    Watched(Random(seed), tiny_model, texts=seed % 3 == 0).run()


class WatchedWithin(Watched, WithinHistory):
    """The same with drafts that are made within the steps: tokens come late, to rows that were preempted too."""


def test_histories_of_drafts_within_steps(tiny_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs.gc, "collect", int)  # at each capture, which takes longer than all else here
    preempted = 0
    for seed in range(25):
        preempted += WatchedWithin(Random(seed), tiny_model, texts=seed % 3 == 0).run().stats.preemptions
    assert preempted > 5


def broken(model: GPT2, seed: int) -> bool:
    try:
        Watched(Random(seed), model, texts=seed % 3 == 0).run()
    except (AssertionError, LookupError, ValidationError):
        return True
    return False


def one_token(original: Callable[..., None], self: Recorder, facts: dict[str, Any], *known: Any) -> None:
    original(self, facts, *known)
    facts["runs"] = [(id_, 1, fed) for id_, _, fed in facts["runs"]]


MUTANTS = {
    "a step gives a row one token": changed(Recorder, "_count", one_token),
    "room for drafts is kept": changed(Recorder, "_note_cut", lambda original, self, slot, length: None),
    "accepted drafts were not fed": changed(Events, "_accept", lambda original, self, runs: {}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_broken_is_seen(tiny_model: GPT2, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(broken(tiny_model, seed) for seed in range(3))
    MUTANTS[name](monkeypatch)
    assert any(broken(tiny_model, seed) for seed in range(30))


def test_texts_of_a_loop_that_is_watched() -> None:
    """By the front door: what is shown of a row is its own text, and some steps brought several of its tokens."""
    facts: list[Any] = []
    with LLM(engine="paged", device="cpu", speculate="small", adaptive_drafts=False) as llm:
        llm.loop.watch(facts.append, texts=True)
        llm.generate("A", SamplingParams(temperature=0, max_tokens=1))  # of which there is a keyframe alone
        prompts = ["Once upon a time", "The dog saw"]
        done = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    events = Events(gpt2_tokenizer())
    keyframe, *steps = [events.take(each) for each in facts]
    texts: dict[int, str] = {}
    for event in steps:
        texts |= {row["id"]: row["text"] for row in event.get("begun", ())}
        for id_, text in zip(event["tokens"], event["texts"], strict=True):
            texts[id_] += text
    assert keyframe["kind"] == "keyframe"
    assert sorted(texts.values()) == sorted(prompt + each.text for prompt, each in zip(prompts, done, strict=True))
    assert max(count for event in steps for count in Counter(event["tokens"]).values()) == 5
