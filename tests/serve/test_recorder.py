"""What is recorded of an engine over random histories: each event is valid, and together they are its state."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.scheduler import Row, Step
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.serve.events import Events
from nanoinfer.serve.recorder import Recorder
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.conftest import changed
from tests.engine.drafting import edited
from tests.engine.history import History

SCHEMA = json.loads(files("nanoinfer.serve").joinpath("events.schema.json").read_text(encoding="utf-8"))
VALID = Draft202012Validator(SCHEMA)


class Replay:
    """The engine's state as one knows it who has nothing but events."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}  # fed, new
        self.tables: dict[int, list[int]] = {}
        self.cached: set[int] = set()
        self.waiting: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> None:
        if event["kind"] == "keyframe":
            blocks = event.get("blocks", {"tables": [], "cached": []})
            self.rows = {row["id"]: [row["fed"], row["new"]] for row in event["rows"]}
            self.tables = {id_: list(table) for id_, table in blocks["tables"]}
            self.cached, self.waiting = set(blocks["cached"]), event["waiting"]
            return
        for id_ in event.get("preempted", ()):
            del self.rows[id_]
        self.waiting = event.get("waiting", self.waiting)
        for row in event.get("begun", ()):
            assert row["id"] not in self.rows
            self.rows[row["id"]] = [row["cached"], row["new"]]
        for id_, start, tokens in event["pieces"]:
            assert self.rows[id_][0] == start
            self.rows[id_][0] += tokens
        for id_ in event["decode"]:
            self.rows[id_][0] += 1
        for id_, fed in event.get("fed", ()):
            assert fed > self.rows[id_][0]
            self.rows[id_][0] = fed
        for id_ in event["tokens"]:
            self.rows[id_][1] += 1
        self.move(event.get("blocks"))
        for id_, _ in event.get("ended", ()):
            self.rows.pop(id_, None)

    def move(self, blocks: dict[str, Any] | None) -> None:
        if blocks:
            for id_ in blocks["given"]:
                self.tables.pop(id_, None)
            for id_, taken in blocks["taken"]:
                self.tables.setdefault(id_, []).extend(taken)
                self.cached.difference_update(taken)
            self.cached.difference_update(blocks["free"])
            self.cached.update(blocks["cached"])


class Watched(History):
    """A history that is watched from some step on, and compared at every step."""

    def __init__(self, random: Random, texts: bool = False, **parts: Any) -> None:
        super().__init__(random, **parts)
        self.replay, self.late, self.texts, self.since = Replay(), Replay(), texts, random.choice([0, 0, 5])
        self.recorder: Recorder | None = None
        self.events = Events(gpt2_tokenizer() if texts else None)
        self.engine.observer = self.observe
        self.known: dict[int, Row] = {}
        self.counts: dict[Row, int] = {}  # tokens that each row had a step ago
        self.ended: list[int] = []

    def observe(self, step: Step, settled: list[Row]) -> None:
        self.since -= 1
        self.known |= {row.arrived: row for row in step.begun}
        if self.since >= 0:
            return
        if self.recorder is None:
            self.recorder = Recorder(self.engine, self.texts)
        followed = {*self.events._since, *[row.arrived for row in step.begun]}
        event = self.events.take(self.recorder.step(step, settled))
        VALID.validate(event)
        assert json.loads(json.dumps(event)) == event
        assert self.texts or '"text' not in json.dumps(event).replace('"texts": false', "")
        self.replay.take(event)
        self.compare(self.replay)
        if self.random.random() < 0.1:
            keyframe = self.events.keyframe()
            VALID.validate(keyframe)
            self.late.take(keyframe)
            self.compare(self.late)
        if event["kind"] == "step":
            self.ended += [id_ for id_, _ in event.get("ended", ())]
            assert {*event["decode"]} == {row.arrived for row in step.going}
            self.check_times(event, [row for row in settled if row.arrived in followed])
        self.counts = {row: len(row.token_ids) for row in self.known.values()}

    def compare(self, replay: Replay) -> None:
        scheduler, blocks = self.engine.scheduler, self.blocks
        assert replay.waiting["ids"] == [row.arrived for row in scheduler.waiting]
        rows = {row.arrived: row for row in self.engine.rows}
        for id_, row in rows.items():
            fed, new = replay.rows[id_]
            assert row.fed <= fed <= row.fed + row.ahead  # of drafts in flight it is not known how many they feed
            assert new == len(row.token_ids)
        for id_ in replay.rows.keys() - rows.keys():  # their last tokens are on their way
            assert not self.known[id_].ended
            assert self.known[id_].slot < 0
        if blocks:
            tables = {id_: blocks.owned[row.slot] for id_, row in rows.items() if blocks.owned[row.slot]}
            assert {id_: table for id_, table in replay.tables.items() if table} == tables
            assert replay.cached == set(getattr(blocks.allocator, "idle", ()))

    def check_times(self, event: dict[str, Any], settled: list[Row]) -> None:
        """Each token is reported once, as a first one or a later one."""
        came = {row: len(row.token_ids) - self.counts.get(row, 0) for row in settled}
        firsts = sum(self.counts.get(row, 0) == 0 for row in settled)
        assert len(event["ttft"]) == firsts
        assert sum(count for _, count in event["itl"]) == sum(came.values()) - firsts
        for id_, seconds in event["ttft"]:
            assert seconds == pytest.approx(self.known[id_].metrics().ttft_s, abs=0.2)

    def run(self, rounds: int = 12) -> Counter[str]:
        happened = super().run(rounds)
        assert len(self.ended) == len({*self.ended})
        return happened


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.sampled_from([None, "here", "within"]))
def test_histories(random: Random, drafts: str | None) -> None:
    Watched(random, texts=random.random() < 0.3, drafts=drafts).run()


def broken(seed: int, drafts: str | None) -> bool:
    try:
        Watched(Random(seed), texts=seed % 3 == 0, drafts=drafts).run()
    except (AssertionError, LookupError, ValueError, ValidationError):
        return True
    return False


MISTAKES: dict[str, tuple[str | None, Any]] = {
    "blocks that are given back go unnoticed": (None, edited(
        Recorder, "_note_left", "self._given.update(self._blocks.owned[row.slot])", "pass")),
    "new tokens of a row that begins are counted twice": (None, edited(
        Recorder, "_begun", "new -= bool(new) and row in settled", "pass")),
    "a block that was given back is owned for ever": (None, changed(
        Events, "_disown", lambda disown, self, id_: self._tables.pop(id_))),
    "nobody sees the queue grow": (None, edited(Recorder, "step", "or self._queue_changed()", "")),
    "room for drafts is kept": ("here", changed(Recorder, "_note_cut", lambda note, self, slot, length: None)),
    "accepted drafts were not fed": ("here", changed(Events, "_accept", lambda accept, self, runs: {})),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    drafts, mutate = MISTAKES[name]
    assert not broken(0, drafts)
    mutate(monkeypatch)
    assert any(broken(seed, drafts) for seed in range(40))


def test_the_engine_is_left_as_it_was(small_model: GPT2) -> None:
    core = LLM(small_model, engine="paged", speculate="lookup").core
    watched = core, core.scheduler, core.cache, core.cache.blocks
    before = [{*vars(each)} for each in watched]
    recorder = Recorder(core)
    names = [{"abandon"}, {"remove", "_preempt"}, {"update"}, {"truncate"}]
    assert [{*vars(each)} - there for each, there in zip(watched, before, strict=True)] == names
    recorder.close()
    assert [{*vars(each)} for each in watched] == before


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
