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

from nanoinfer.engine.scheduler import Row, Step
from nanoinfer.serve.events import Events
from nanoinfer.serve.recorder import Recorder
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.conftest import changed
from tests.engine.test_histories import History

SCHEMA = json.loads(files("nanoinfer.serve").joinpath("events.schema.json").read_text(encoding="utf-8"))
VALID = Draft202012Validator(SCHEMA)


class Replay:
    """The engine's state as one knows it who has nothing but events."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}  # fed, new
        self.tables: dict[int, list[int]] = {}
        self.cached: set[int] = set()
        self.waiting: dict[str, Any] = {}
        self.cells: dict[int, list[int]] = {}
        self.preempted: set[int] = set()

    def take(self, event: dict[str, Any]) -> None:
        if event["kind"] == "keyframe":
            blocks = event.get("blocks", {"tables": [], "cached": []})
            self.rows = {row["id"]: [row["fed"], row["new"]] for row in event["rows"]}
            self.tables = {id_: list(table) for id_, table in blocks["tables"]}
            self.cached, self.waiting = set(blocks["cached"]), event["waiting"]
            self.cells = {cell: rest for cell, *rest in event.get("cells", ())}
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
        self.cells |= {cell: rest for cell, *rest in event.get("cells", ())}
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

    def __init__(self, random: Random, texts: bool = False) -> None:
        super().__init__(random)
        self.replay, self.late, self.seen = Replay(), Replay(), Counter[str]()
        self.texts, self.since = texts, random.choice([0, 0, 5])
        self.recorder: Recorder | None = None
        self.events = Events(gpt2_tokenizer() if texts else None)
        self.engine.observer = self.observe
        self.known: dict[int, Row] = {}

    def observe(self, step: Step, settled: list[Row]) -> None:
        self.since -= 1
        for row in step.begun:
            self.known[row.arrived] = row
        if self.since >= 0:
            return
        if self.recorder is None:
            self.recorder = Recorder(self.engine, self.texts)
        self.followed = {*self.events._since, *[row.arrived for row in step.begun]}
        event = self.events.take(self.recorder.step(step, settled))
        VALID.validate(event)
        assert json.loads(json.dumps(event)) == event
        if not self.texts:
            assert '"text' not in json.dumps(event).replace('"texts": false', "")
        self.replay.take(event)
        self.seen.update([event["kind"], *(key for key in ("preempted", "ended", "blocks") if key in event)])
        self.compare(self.replay)
        if self.random.random() < 0.1:
            keyframe = self.events.keyframe()
            VALID.validate(keyframe)
            self.late.take(keyframe)
            self.compare(self.late)
        if event["kind"] == "step":
            self.check_times(event, settled)
            assert {*event["decode"]} == {row.arrived for row in step.going}

    def compare(self, replay: Replay) -> None:
        scheduler, blocks = self.engine.scheduler, self.device.blocks
        assert replay.waiting["ids"] == [row.arrived for row in scheduler.waiting]
        running = {row.arrived: [row.fed, len(row.token_ids)] for row in self.engine.rows}
        assert {id_: replay.rows[id_] for id_ in running} == running
        for id_ in replay.rows.keys() - running.keys():  # their last tokens are on their way
            assert not self.known[id_].ended
            assert self.known[id_].slot < 0
        if blocks:
            tables = {row.arrived: blocks.owned[row.slot] for row in self.engine.rows if blocks.owned[row.slot]}
            assert {id_: table for id_, table in replay.tables.items() if table} == tables
            assert replay.cached == set(getattr(blocks.allocator, "idle", ()))

    def check_times(self, event: dict[str, Any], settled: list[Row]) -> None:
        """Reports of a first token and of later ones are those of the rows themselves, but for some microseconds."""
        settled = [row for row in settled if row.arrived in self.followed]
        assert len(event["ttft"]) == sum(len(row.token_ids) == 1 for row in settled)
        assert sum(count for _, count in event["itl"]) == sum(len(row.token_ids) > 1 for row in settled)
        for id_, seconds in event["ttft"]:
            assert seconds == pytest.approx(self.known[id_].metrics().ttft_s, abs=0.2)


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_histories(random: Random) -> None:
    Watched(random, texts=random.random() < 0.3).run()


def broken(seed: int) -> bool:
    try:
        Watched(Random(seed), texts=seed % 3 == 0).run()
    except (AssertionError, LookupError, ValidationError):
        return True
    return False


def only_rows(original: Any, self: Recorder, rows: Any) -> None:
    self._left += rows


def begun_late(original: Any, self: Recorder, row: Row, settled: Any = ()) -> Any:
    return original(self, row)


def kept(original: Any, self: Events, id_: int) -> list[int]:
    blocks = self._tables[id_]
    self._tables[id_] = []
    return blocks


def stays(original: Any, self: Recorder, step: Step, settled: Any) -> Any:
    """A preempted row is no longer told of."""
    facts = original(self, step, settled)
    facts.pop("preempted", None)
    return facts


def in_any_case(original: Any, self: Recorder) -> bool:
    """The queue is looked at only where a request begins."""
    original(self)
    return False


MUTANTS = {
    "blocks that are given back go unnoticed": changed(Recorder, "_note_left", only_rows),
    "blocks that are taken go unnoticed": changed(Recorder, "_note_taken", lambda original, self: None),
    "a failure goes unnoticed": changed(Recorder, "_note_lost", lambda original, self, cause: None),
    "new tokens of a row that begins are counted twice": changed(Recorder, "_begun", begun_late),
    "a block that was given back is owned for ever": changed(Events, "_disown", kept),
    "preempted rows run on": changed(Recorder, "step", stays),
    "nobody sees the queue grow": changed(Recorder, "_queue_changed", in_any_case),
    "ends are not told": changed(Recorder, "_end", lambda original, self, facts: None),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_broken_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not broken(0)
    MUTANTS[name](monkeypatch)
    assert any(broken(seed) for seed in range(40))


def test_the_engine_is_left_as_it_was() -> None:
    history = Watched(Random(2))
    blocks = history.device.blocks
    assert blocks is not None
    recorder = Recorder(history.engine)
    watched = history.engine, history.engine.scheduler, history.device
    names = "abandon", "remove", "_preempt", "update"
    assert {name for each in watched for name in names if name in vars(each)} == {*names}
    recorder.close()
    assert not [name for each in watched for name in names if name in vars(each)]
