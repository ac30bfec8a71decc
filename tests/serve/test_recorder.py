"""What is recorded of an engine over random histories: each event is valid, and together they are its state."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import torch
from jsonschema import Draft202012Validator, ValidationError

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.captured import CapturedDense
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.ragged import CapturedRagged, RaggedPaged
from nanoinfer.engine.penalties import AllSamplers, PenaltySampler
from nanoinfer.engine.queue import Queued
from nanoinfer.engine.recorder import Recorder
from nanoinfer.engine.samplers import SAMPLERS
from nanoinfer.engine.state import Fetch
from nanoinfer.make import EagerQueue, GraphQueue
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.requests import Request
from nanoinfer.serve.events import Events
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.conftest import changed
from tests.engine.drafting import edited

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


LONGEST, ROWS, BLOCKS, SIZE = 40, 4, 12, 4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The steps are so small that threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def tiny() -> GPT2:
    return random_model(ModelConfig(n_layer=1, n_head=2, n_embd=8, n_positions=LONGEST, vocab_size=13), seed=1, std=0.5)


class Boom(Exception):
    pass


def engine_of(random: Random, paged: bool, late: bool) -> Any:
    """Rows and blocks are few, so that requests wait, share and are preempted."""
    model, sharing = tiny(), random.random() < 0.7
    kind: tuple[Any, ...] = model.config, ROWS, LONGEST
    where = model.device, model.dtype
    dense: Any = CapturedDense if late else DenseCache
    cache = dense(*kind, *where)
    if paged:
        more: dict[str, Any] = {"preemption": random.random() < 0.8, "identity": b"model" if sharing else None}
        cache = (CapturedRagged if late else RaggedPaged)(*kind, BLOCKS, SIZE, *where, **more)
    limits: dict[str, Any] = {
        "budget": random.choice([5, 20]),
        "chunk": random.choice([3, None]),
        "mixed": paged and random.random() < 0.5,
    }
    if not late:
        return EagerQueue(model, cache, ROWS, **limits)
    scoring = PenaltySampler(ROWS, model.config.vocab_size, model.device, SAMPLERS.filtered)
    late_by: dict[str, Any] = {"lag": random.randint(0, 3), "samplers": AllSamplers(*SAMPLERS, scoring)}
    return GraphQueue(model, cache, ROWS, recorder=None, max_rows=ROWS, **late_by, **limits)


class Watched:
    """A random history of an engine that is watched from some step on, and compared at every step."""

    def __init__(self, random: Random, texts: bool = False, paged: bool = True, late: bool = True) -> None:
        self.random, self.texts, self.engine = random, texts, engine_of(random, paged, late)
        self.facts: list[dict[str, Any]] = []
        self.recorder = Recorder(self.engine, self.facts.append, texts)
        self.events = Events(gpt2_tokenizer() if texts else None)
        self.replay, self.late, self.since = Replay(), Replay(), random.choice([0, 0, 5])
        self.all: list[Queued] = []
        self.begun: set[int] = set()
        self.ended: dict[int, str] = {}
        self.happened: Counter[str] = Counter()
        self.fails, plan = 0.01, self.engine.cache.plan

        def failing(batch: Any) -> Any:
            if random.random() < self.fails:
                raise Boom
            return plan(batch)

        self.engine.cache.plan = failing

    def request(self) -> Request:
        """Many begin alike."""
        random, ids = self.random, list[int]()
        length, number = random.randint(1, 16), len(self.all)
        while len(ids) < length:
            ids += random.choice([[1, 2, 3, 4] * 2, [5], [6, 7]])
        scores = random.random() < 0.1
        params = SamplingParams(prompt_logprobs=0) if scores else SamplingParams(temperature=0.8)
        limit = 0 if scores else random.randint(1, LONGEST - length)
        stop = frozenset(random.sample(range(13), random.choice([0, 0, 1])))
        return Request(number, tuple(ids[:length]), params, number, limit, stop)

    def run(self, rounds: int = 40) -> Counter[str]:
        early = property(lambda _: self.random.random() < 0.5)
        with patch("nanoinfer.cache.sharing.AHEAD", 2), patch.object(Fetch, "arrived", early):
            for _ in range(rounds):
                self.round()
            self.fails = 0
            for _ in range(1000):
                self.step()
                if not self.engine.busy:
                    break
        assert not self.engine.busy
        by_id = {s.arrived: s for s in self.all}
        assert {id_: by_id[id_].finish_reason or "cancelled" for id_ in self.ended} == self.ended
        assert self.begun <= {*self.ended}
        self.happened["preempted"] = self.engine.stats.preemptions
        return self.happened

    def round(self) -> None:
        while self.random.random() < 0.3:
            self.all.append(self.engine.submit(self.request()))
        if self.all and self.random.random() < 0.2:
            self.engine.cancel(self.random.choice(self.all))
        try:
            self.step()
            if self.random.random() < 0.03:
                self.generate()
        except Boom as boom:
            self.happened["failed"] += 1
            self.engine.abandon(boom)

    def step(self) -> None:
        before = {s: len(s.token_ids) for s in self.all}
        self.watch()
        self.check(self.engine.step(), before)

    def generate(self) -> None:
        """As a caller does who may not wait for the end."""
        running = self.engine.generate([self.request()])
        self.watch()
        before = {s: len(s.token_ids) for s in self.all}
        for settled in running:
            self.all += {*self.engine.open, *settled}.difference(self.all)
            self.check(settled, {s: before.get(s, 0) for s in self.all})
            before = {s: len(s.token_ids) for s in self.all}
            if self.random.random() < 0.1:
                running.close()

    def watch(self) -> None:
        self.since -= 1
        if self.since < 0 and not self.engine.observer:
            self.engine.observer = self.recorder
            self.since = 1000

    def check(self, settled: Sequence[Queued], before: dict[Queued, int]) -> None:
        """before: how many tokens each sequence had a step ago."""
        if not self.engine.observer:
            assert self.since < 1000
            return
        (facts,) = self.facts
        self.facts.clear()
        event = self.events.take(facts)
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
            assert sorted(event["decode"]) == sorted(s.arrived for s, _, _ in self.engine.fed[: self.engine.decoded])
            self.check_times(event, {s: len(s.token_ids) - before[s] for s in settled}, before)

    def compare(self, replay: Replay) -> None:
        engine, blocks = self.engine, self.engine.blocks
        assert replay.waiting["ids"] == [s.arrived for s in engine.waiting]
        running, known = {s.arrived: s for s in engine.running}, {s.arrived: s for s in self.all}
        for id_, s in running.items():
            assert replay.rows[id_] == [s.cached, s.generated]
        for id_ in replay.rows.keys() - running.keys():  # their last tokens are on their way
            assert not known[id_].ended
            assert known[id_].slot < 0
        if blocks:
            first = not isinstance(engine, GraphQueue)  # which has a null block
            tables = {id_: [block + first for block in blocks.owned[s.slot]] for id_, s in running.items()}
            assert {id_: table for id_, table in replay.tables.items() if table} == tables
            assert replay.cached == {block + first for block in blocks.idle}

    def check_times(self, event: dict[str, Any], came: dict[Queued, int], before: dict[Queued, int]) -> None:
        """Each token is reported once, as a first one or a later one."""
        firsts = {s.arrived: s for s, count in came.items() if count and not before[s]}
        assert {id_ for id_, _ in event["ttft"]} == firsts.keys()
        assert sum(count for _, count in event["itl"]) == sum(came.values()) - len(firsts)
        for id_, seconds in event["ttft"]:
            assert seconds == pytest.approx(firsts[id_].metrics().ttft_s, abs=0.2)


@pytest.mark.parametrize("seed", range(30))
def test_histories(seed: int) -> None:
    Watched(Random(seed), texts=seed % 4 == 0, paged=seed % 3 > 0, late=seed % 2 > 0).run()


def test_histories_have_what_is_to_be_seen() -> None:
    happened = sum((Watched(Random(seed)).run() for seed in range(8)), Counter[str]())
    assert happened["preempted"] > 8
    assert happened["failed"] > 1


def broken(seed: int, late: bool) -> bool:
    try:
        Watched(Random(seed), late=late).run()
    except (AssertionError, LookupError, ValueError, ValidationError):
        return True
    return False


MISTAKES: dict[str, Any] = {
    "blocks that are given back go unnoticed": edited(Recorder, "left", "self._owned(s)", "[]"),
    "a preempted row goes unnoticed": edited(Recorder, "left", "not (s.decoding or s.ended)", "False"),
    "new tokens of a row that begins are counted twice": edited(
        Recorder, "_step", "start + count if s.decoding else len(s.tokens)", "len(s.tokens)"),
    "a block that was given back is owned for ever": changed(Events, "_disown", lambda disown, self, row: []),
    "nobody sees the queue grow": edited(Events, "_event", 'new or facts["waiting"] != waited', "new"),
    "texts are known after a failure": edited(
        Events, "_move_blocks", 'self._kept if not facts["idle"] else set()', "set()"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert not broken(0, False)
    MISTAKES[name](monkeypatch)
    assert any(broken(seed, late) for seed in range(20) for late in (False, True))


def test_a_step_that_brings_several_tokens() -> None:
    """As with drafts: what came, and what was fed beyond the newest token, shows by comparison."""
    engine = engine_of(Random(0), paged=False, late=False)
    found: list[Any] = []
    engine.observer = Recorder(engine, found.append)
    s = engine.submit(Request(0, (1, 2, 3), SamplingParams(temperature=0), 0, 20, frozenset()))
    engine.step()
    engine.step()
    s.tokens += [1, 2]
    s.cached += 2
    engine.observer.stepped([s])
    events = Events()
    assert events.take(found[0])["rows"] == [{"id": 0, "lane": 0, "prompt": 3, "fed": 3, "new": 1}]
    assert events.take(found[1])["tokens"] == [0]
    event = events.take(found[2])
    assert (event["tokens"], event["fed"], [count for _, count in event["itl"]]) == ([0, 0], [[0, 6]], [1, 1])
    assert events.keyframe()["rows"][0]["new"] == 4


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
