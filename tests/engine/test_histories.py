"""Random histories of the engine: submit, cancel, step, generate, fail, abandon, with tokens that come steps late.

There is no model. A runner that knows its rows' texts as a device does, by slot, continues each of them by a rule; so
whatever the engine mixes up, forgets or does twice is seen in the tokens, the listeners' calls or the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoinfer.cache.blocks import BlockManager
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.scheduler import Row, Scheduler
from nanoinfer.engine.state import BatchState
from nanoinfer.model.batch import NEWEST, Chunk
from nanoinfer.requests import Request, SamplingParams
from tests.conftest import changed

PARAMS = SamplingParams()
LONGEST = 30


class Boom(Exception):
    pass


def follows(text: Sequence[int]) -> int:
    return (31 * text[-1] + 7 * len(text) + text[0]) % 50


class Device:
    """Cache and runner in one: the texts by slot, each with its newest token, and a step for all of them."""

    max_len = LONGEST

    def __init__(self, blocks: BlockManager | None, fails: Callable[[], bool]) -> None:
        self.blocks, self.fails = blocks, fails
        self.texts: dict[int, list[int]] = {}
        self.chosen: Counter[int] = Counter()  # tokens of each request, by its prompt's first id
        self.calls: Counter[str] = Counter()

    def over(self, model: object, cache: object, state: BatchState) -> Device:
        self.state = state
        return self

    def clear(self, rows: slice) -> None:
        self.fail()
        for slot in range(rows.start, rows.stop):
            assert self.state.seed[slot] > 0
            self.texts[slot] = []

    def free(self, rows: slice) -> None:
        """Padding rows are told by the state."""

    def update(self) -> None:
        self.fail()
        if self.blocks:
            self.blocks.begun.clear()

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self.texts[target] = self.texts.get(source, [])  # none, where clear has failed

    def prefill(self, chunks: Sequence[Chunk], sampler: object) -> Tensor:
        self.calls["prefill"] += 1
        self.fail()
        for row, start, token_ids, _ in chunks:
            text = self.texts[row]
            if list(token_ids) == [NEWEST]:
                assert start == len(text) - 1
            else:
                assert start == len(text)
                text.extend(token_ids)
        return self.choose([chunk.row for chunk in chunks if chunk.complete])

    def decode(self, batch: int, longest: int, sampler: object) -> Tensor:
        """All of these rows; those that are not live are padding."""
        self.calls["decode"] += 1
        self.fail()
        live = [slot for slot in range(batch) if self.state.live[slot]]
        assert longest == max(len(self.texts[slot]) for slot in live)
        tokens = torch.full((batch,), -99)
        tokens[live] = self.choose(live)
        return tokens

    def choose(self, slots: Sequence[int]) -> Tensor:
        for slot in slots:
            text = self.texts[slot]
            self.chosen[text[0]] += 1
            text.append(follows(text))
            self.state.integers[3, slot], self.state.integers[6, slot] = 1, slot
        return torch.tensor([self.texts[slot][-1] for slot in slots], dtype=torch.int64)

    def fail(self) -> None:
        if self.fails():
            raise Boom


class History:
    """One engine, and what its users are told."""

    def __init__(self, random: Random) -> None:
        self.random = random
        max_batch, size = random.randint(1, 4), random.choice([1, 4, 16])
        pool = -(-LONGEST // size) * random.randint(1, max_batch)
        blocks = BlockManager(1 + pool, size, max_batch) if random.random() < 0.7 else None
        self.fail_at = 0.02 * (random.random() < 0.4)
        self.device = Device(blocks, lambda: random.random() < self.fail_at)
        self.engine = Engine(
            SimpleNamespace(device=torch.device("cpu")), self.device, max_batch, runner=self.device.over,
            max_batched_tokens=max_batch + random.choice([0, 2, 20]), prefill_chunk=random.choice([None, 1, 5]),
            mixed=random.random() < 0.5, lag=random.randint(0, 3),
        )  # type: ignore[arg-type]  # fmt: skip
        self.told: dict[Row, list[tuple[int, bool]]] = {}  # each call of a listener: tokens so far, and whether gone
        self.numbers = self.failures = 0

    def request(self) -> Request:
        prompt = self.random.randint(1, 18)
        self.numbers = index = self.numbers + 1
        ids = (1000 + index, *(self.random.randrange(50) for _ in range(prompt - 1)))
        stop = frozenset(self.random.sample(range(50), self.random.choice([0, 0, 5])))
        return Request(index, ids, PARAMS, index, self.random.randint(1, 12), stop)

    def submit(self) -> None:
        def listener(row: Row) -> None:
            self.told[row].append((len(row.token_ids), row.cancelled is not None))

        row = self.engine.submit(self.request(), listener, every_token=self.random.random() < 0.5)
        self.told[row] = []

    def run(self, rounds: int = 20) -> None:
        for _ in range(rounds):
            while self.random.random() < 0.5:
                self.submit()
            if self.told and self.random.random() < 0.2:
                self.engine.cancel(self.random.choice(list(self.told)))
            try:
                if self.random.random() < 0.05:
                    self.generate()
                self.step()
            except Boom as boom:
                self.abandon(boom)
        self.fail_at = 0
        steps = 0
        while self.engine.busy:
            self.step()
            steps += 1
            assert steps < 50 * self.numbers
        self.check_all()

    def step(self) -> None:
        before = {row: len(row.token_ids) for row in self.told}
        settled = self.engine.step()
        assert {row for row, count in before.items() if len(row.token_ids) == count + 1} == {*settled} & {*self.told}
        assert len(set(settled)) == len(settled)
        self.check_state()

    def generate(self) -> None:
        """As a caller does who may not wait for the end."""
        requests = [self.request(), self.request()]
        got: dict[int, Row] = {}
        running = self.engine.generate(requests)
        for settled in running:
            got |= {row.request.index: row for row in settled if row.request in requests}
            if self.random.random() < 0.1:
                running.close()
        assert all(row.ended for row in got.values())
        assert not [row for row in self.engine.rows if row.request in requests]
        for row in got.values():
            self.check_tokens(row)

    def abandon(self, boom: Boom) -> None:
        """The engine is as new, and every user has been told."""
        left = [row for row in self.told if not row.ended]
        self.engine.abandon(boom)
        self.failures += 1
        assert not self.engine.busy
        assert all(row.cancelled is boom for row in left)
        self.check_state()

    def check_state(self) -> None:
        """What the device holds is what the host's rows say; all else is padding, and nobody owns a block of it."""
        state, rows, blocks = self.engine.state, self.engine.rows, self.device.blocks
        seeds = [row.request.seed for row in rows]
        live = [int(row.launched > 0) for row in rows]
        rest = [0] * (state.dummy + 1 - len(rows))
        assert state.seed.tolist() == seeds + rest
        assert state.live.tolist() == live + rest
        assert state.row.tolist() == [slot if live[slot] else state.dummy for slot in range(len(rows))] + [
            state.dummy for _ in rest
        ]
        if blocks:
            assert sum(map(bool, blocks.reservation)) == len(rows)

    def check_tokens(self, row: Row) -> None:
        text, stopped = list(row.request.prompt_token_ids), False
        expected: list[int] = []
        while len(expected) < row.request.limit and not stopped:
            expected.append(follows(text))
            text.append(expected[-1])
            stopped = expected[-1] in row.request.stop_ids
        chosen = self.device.chosen[row.request.prompt_token_ids[0]]
        assert chosen <= row.request.limit
        if row.cancelled:
            assert row.token_ids == expected[: len(row.token_ids)]
        else:
            assert row.token_ids == expected
            assert row.finish_reason == ("stop" if stopped else "length")
            assert chosen <= len(expected) + self.engine.lag  # a stop is seen late; a count is known ahead

    def check_all(self) -> None:
        for row, told in self.told.items():
            assert row.ended
            self.check_tokens(row)
            tokens = [(count, False) for count in range(1, len(row.token_ids) + 1)]
            if not row.every_token:
                tokens = [] if row.cancelled else tokens[-1:]
            assert told == tokens + [(len(row.token_ids), True)] * (row.cancelled is not None)
            assert row.finish_reason is None or row.cancelled is None
            assert row.cancelled is None or isinstance(row.cancelled, CancelledError | Boom)
        stats, device = self.engine.stats, self.device
        if not self.failures:
            assert stats.new_tokens + stats.dropped_tokens == device.chosen.total()
            assert (stats.prefill_steps, stats.decode_steps) == (device.calls["prefill"], device.calls["decode"])
        if device.blocks:
            assert device.blocks.allocator.free_blocks == device.blocks.allocator.blocks - 1
            assert device.blocks.reserved == 0


def broken(seed: int) -> bool:
    try:
        History(Random(seed)).run()
    except (AssertionError, ValueError, LookupError, RuntimeError):
        return True
    return False


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_histories(random: Random) -> None:
    History(random).run()


@pytest.mark.long
def test_a_thousand_histories() -> None:
    for seed in range(1000):
        History(Random(seed)).run()


def seen_at_once(collect: Any, self: Engine, lag: int) -> Any:
    """Rows that have ended get what their steps in flight bring, too."""
    for row, _ in self._in_flight[0][0] if len(self._in_flight) > lag else ():
        row.finish_reason = None
    return collect(self, lag)


def unlucky(abandon: Any, self: Engine, cause: BaseException) -> None:
    in_flight = list(self._in_flight)
    abandon(self, cause)
    self._in_flight.extend(in_flight)


def late_slots(leave: Any, self: Engine, rows: Sequence[Row]) -> None:
    """Tokens are taken from where a row stands now."""
    leave(self, rows)
    for settles, _ in self._in_flight:
        settles[:] = [(row, row.slot if row in self.rows else at) for row, at in settles]


def stopped_in_time(leave: Any, self: Engine, rows: Sequence[Row]) -> None:
    """A row that ends by its count leaves when its last token is here."""
    leave(self, [row for row in rows if row.ended])


def told_twice(settle: Any, self: Engine, row: Row, *token: object) -> None:
    listener = row.listener
    settle(self, row, *token)
    if row.finish_reason == "stop" and listener:
        listener(row)


def crossed(remove: Any, self: Scheduler, rows: Sequence[Row]) -> Any:
    sources, targets = remove(self, rows)
    return sources[::-1], targets


MUTANTS = {
    "tokens after the end": changed(Engine, "_collect", seen_at_once),
    "abandoned steps are collected": changed(Engine, "abandon", unlucky),
    "slots of now": changed(Engine, "_leave", late_slots),
    "rows that end by count stay": changed(Engine, "_leave", stopped_in_time),
    "the last token is told twice": changed(Engine, "_settle", told_twice),
    "a cancelled row runs on": changed(Engine, "cancel", lambda cancel, self, row, *cause: None),
    "the cache moves nothing": changed(Device, "move", lambda move, self, sources, targets: None),
    "the state moves nothing": changed(BatchState, "move", lambda move, self, source, target: None),
    "rows that left are live": changed(BatchState, "free", lambda free, self, rows: None),
    "rows begin anywhere": changed(BatchState, "admit", lambda admit, self, rows, requests: admit(
        self, slice(0, len(requests)), requests)),
    "the moves are crossed": changed(Scheduler, "remove", crossed),
    "reservations are kept": changed(BlockManager, "release", lambda release, self, row: self.truncate(row, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_histories_tell(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    MUTANTS[name](monkeypatch)
    assert any(broken(seed) for seed in range(40))
