"""What is recorded of an engine over random histories: each event is valid, and together they are its state."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.queue import Queued
from nanoinfer.engine.recorder import Recorder
from nanoinfer.serve.events import Events
from nanoinfer.text.tokenizer import gpt2_tokenizer
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
    """A random history that is watched from some step on, and compared at every step."""

    def __init__(self, random: Random, texts: bool = False, **parts: Any) -> None:
        super().__init__(random, **parts)
        self.texts, self.since = texts, random.choice([0, 0, 5])
        self.replay, self.late, self.facts = Replay(), Replay(), list[dict[str, Any]]()
        self.recorder = Recorder(self.engine, self.facts.append, texts)
        self.events = Events(gpt2_tokenizer() if texts else None)
        self.known: dict[int, Queued] = {}
        self.counts: dict[Queued, int] = {}  # tokens that each sequence had a step ago
        self.begun: set[int] = set()
        self.ended: dict[int, str] = {}
        self.watch()

    def watch(self) -> None:
        """Watch from the next step on, if it is time."""
        if not self.since:
            self.engine.observer = SimpleNamespace(
                left=self.recorder.left, ended=self.recorder.ended, stepped=self.observe
            )

    def observe(self, settled: Sequence[Queued]) -> None:
        super().observe(list(settled))
        self.known |= {s.arrived: s for s in [*self.engine.open, *settled]}
        if self.since:
            self.since -= 1
            self.watch()
        else:
            self.recorder.stepped(settled)
            event = self.events.take(self.facts.pop())
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
            self.begun |= {*self.replay.rows}
            if event["kind"] == "step":
                ended = dict(event.get("ended", ()))
                assert not self.ended.keys() & ended.keys()
                self.ended |= ended
                assert sorted(event["decode"]) == sorted(s.arrived for s, *_ in self.engine.fed[: self.engine.decoded])
                self.check_times(event, settled)
        self.counts = {s: s.generated for s in self.known.values()}

    def compare(self, replay: Replay) -> None:
        engine = self.engine
        assert replay.waiting["ids"] == [s.arrived for s in engine.waiting]
        running = {s.arrived: s for s in engine.running}
        for id_, s in running.items():
            assert replay.rows[id_] == [s.cached, s.generated]
        for id_ in replay.rows.keys() - running.keys():  # their last tokens are on their way
            assert not self.known[id_].ended
            assert self.known[id_].row < 0
        if self.blocks:
            first = not self.captured  # else there is a null block
            tables = {id_: [block + first for block in self.blocks.owned[s.row]] for id_, s in running.items()}
            assert {id_: table for id_, table in replay.tables.items() if table} == tables
            assert replay.cached == {block + first for block in self.blocks.idle}

    def check_times(self, event: dict[str, Any], settled: Sequence[Queued]) -> None:
        """Each token is reported once, as a first one or a later one."""
        came = {s: s.generated - self.counts.get(s, 0) for s in settled}
        firsts = {s.arrived: s for s, count in came.items() if count and not self.counts.get(s)}
        assert {id_ for id_, _ in event["ttft"]} == firsts.keys()
        assert sum(count for _, count in event["itl"]) == sum(came.values()) - len(firsts)
        assert all(seconds >= 0 for _, seconds in event["ttft"])

    def go(self, rounds: int) -> None:
        super().go(rounds)
        self.step()  # in which those are told of that ended since the last one
        assert {id_: self.known[id_].finish_reason or "cancelled" for id_ in self.ended} == self.ended
        assert self.begun <= {*self.ended}


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.sampled_from([None, "here", "within"]))
def test_histories(random: Random, drafts: str | None) -> None:
    """Hypothesis looks for a short one."""
    Watched(random, texts=random.random() < 0.3, drafts=drafts).run(12)


def broken(seed: int, drafts: str | None) -> bool:
    try:
        Watched(Random(seed), texts=seed % 3 == 0, drafts=drafts).run(12)
    except (AssertionError, LookupError, ValueError, ValidationError):
        return True
    return False


MISTAKES: dict[str, tuple[str | None, Any]] = {
    "blocks that are given back go unnoticed": (None, edited(Recorder, "left", "self._owned(s)", "[]")),
    "a preempted row goes unnoticed": (None, edited(Recorder, "left", "not (s.decoding or s.ended)", "False")),
    "new tokens of a row that begins are counted twice": (None, edited(
        Recorder, "_step", "start + count if s.decoding else len(s.tokens)", "len(s.tokens)")),
    "a block that was given back is owned for ever": (None, edited(
        Events, "_move_blocks", "self._owners.subtract(known)", "pass")),
    "nobody sees the queue grow": (None, edited(
        Events, "_event", "new or self._waiting != waited", "new")),
    "texts are known after a failure": (None, edited(
        Events, "_move_blocks", 'len(after) != facts["idle"]', "False")),
    "accepted drafts were not fed": ("here", edited(Events, "_settle", "row.fed < now_fed", "False")),
    "tokens that come together are one": ("here", edited(Events, "_settle", "[id_] * count", "[id_]")),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    drafts, mutate = MISTAKES[name]
    assert not broken(0, drafts)
    mutate(monkeypatch)
    assert any(broken(seed, drafts) for seed in range(40))


@pytest.mark.parametrize("speculate", [None, "small"])
def test_texts_of_a_loop_that_is_watched(speculate: str | None) -> None:
    """By the front door: what is shown of a row is its own text. With drafts, a step may bring several tokens."""
    facts: list[Any] = []
    with LLM(engine="paged", device="cpu", speculate=speculate, adaptive_drafts=False) as llm:
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
    most = max(count for event in steps for count in Counter(event["tokens"]).values())
    assert most == (5 if speculate else 1)
