"""Random histories of the engine: submit, cancel, step, generate, fail, abandon, with tokens that come steps late.

There is no model. A runner that knows its blocks as a device does continues each text by a rule that takes in all that
it reads there; so whatever the engine mixes up, forgets or does twice is seen in the tokens, the listeners' calls or
the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoinfer.cache.blocks import BlockManager
from nanoinfer.cache.prefix import PrefixBlocks
from nanoinfer.engine import scheduler as scheduler_module
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.sampling import Samplers
from nanoinfer.engine.scheduler import Row, Scheduler
from nanoinfer.engine.state import BatchState, Fetch
from nanoinfer.model.batch import Chunk
from nanoinfer.requests import Request, SamplingParams
from tests.conftest import changed

PARAMS, SCORED = SamplingParams(), SamplingParams(max_tokens=0, prompt_logprobs=0)
LONGEST = 30


class Boom(Exception):
    pass


def key(before: int, token: int) -> int:
    """In place of a token's key and value: they depend on all tokens up to it."""
    return hash((before, token))


def follows(keys: Iterable[int], seed: int, step: int) -> int:
    """The token that a row chooses after all that it reads."""
    return hash((*keys, seed, step)) % 50


class Sampler:
    """A device as the scoring sampler, whose own move takes no table along."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        self.fail()


class Device:
    """Cache, runner and scoring sampler in one: the blocks that rows read by their tables, and a step for all of them.

    A dense cache is a block a row.
    """

    max_len = LONGEST

    def __init__(self, blocks: BlockManager | None, max_batch: int, fails: Callable[[], bool]) -> None:
        self.blocks, self.fails = blocks, fails
        self.size = blocks.block_size if blocks else LONGEST
        self.tables: dict[int, dict[int, int]] = {row: {} for row in range(max_batch)}
        self.keys: dict[int, list[int]] = {}  # of each block; a row writes them in order
        self.chosen: Counter[int] = Counter()  # tokens of each request, by its seed
        self.calls: Counter[str] = Counter()
        self.fed: Counter[int] = Counter()  # of each request, tokens that it was ever fed, or found
        self.fresh: set[int] = set()  # rows that have begun and were fed nothing

    def over(self, model: object, cache: object, state: BatchState) -> Device:
        self.state = state
        return self

    def clear(self, rows: Tensor) -> None:
        self.fail()
        for slot in rows.tolist():
            assert self.state.seed[slot] > 0
            self.tables[slot] = {} if self.blocks else {0: -slot}
            self.keys[-slot] = []
            self.fresh.add(slot)

    def free(self, rows: slice) -> None:
        for slot in range(rows.start, rows.stop):
            self.tables[slot] = {}

    def update(self) -> None:
        self.fail()
        if self.blocks:
            for row, column, block in self.blocks.begun:
                self.tables[row][column] = block
            self.blocks.begun.clear()

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Of the cache."""
        self.fail()
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self.tables[target] = dict(self.tables[source]) if self.blocks else {0: -target}
            self.keys[-target] = list(self.keys.get(-source, []))

    def admit(self, slot: int, request: Request, token_ids: Sequence[int]) -> None:
        """Of the sampler: it hears of what a row that comes back has generated."""
        assert self.state.seed[slot] == request.seed
        assert self.state.step[slot] == len(token_ids)

    def read(self, slot: int, tokens: int) -> list[int]:
        keys = [each for column in range(-(-tokens // self.size)) for each in self.keys[self.tables[slot][column]]]
        assert len(keys) >= tokens
        return keys[:tokens]

    def write(self, slot: int, start: int, token_ids: Iterable[int]) -> None:
        """The keys of a row's next tokens: a new block is begun, and an old one goes on where it ends."""
        seed = int(self.state.seed[slot])
        self.calls["cached"] += start if slot in self.fresh and not self.fed[seed] else 0
        self.fresh.discard(slot)
        before = self.read(slot, start)[-1] if start else 0
        for at, token in enumerate(token_ids, start):
            block = self.tables[slot][at // self.size]
            self.keys[block] = self.keys[block][: at % self.size] if at % self.size else []
            assert len(self.keys[block]) == at % self.size
            self.keys[block].append(before := key(before, token))
            self.calls["recomputed"] += at < self.fed[seed]
            self.fed[seed] = max(self.fed[seed], at + 1)

    def prefill(self, going: Sequence[int], chunks: Sequence[Chunk], sampler: object) -> Tensor:
        self.calls["prefill"] += 1
        self.fail()
        self.write_newest(going)
        for row, start, token_ids, _ in chunks:
            self.write(row, start, token_ids)
        ends = {chunk.row: chunk.start + len(chunk.token_ids) for chunk in chunks if chunk.complete}
        tokens = self.choose(going) + self.choose([*ends], ends)
        self.fail()
        return torch.tensor(tokens, dtype=torch.int64)

    def decode(self, batch: int, longest: int, sampler: object) -> Tensor:
        """All of these rows; those that are not live are padding."""
        self.calls["decode"] += 1
        self.fail()
        live = [slot for slot in range(batch) if self.state.live[slot]]
        assert longest == max(int(self.state.position[slot]) for slot in live) + 1
        self.write_newest(live)
        tokens = torch.full((batch,), -99)
        tokens[live] = torch.tensor(self.choose(live))
        return tokens

    def write_newest(self, slots: Sequence[int]) -> None:
        for slot in slots:
            assert self.state.live[slot]
            self.write(slot, int(self.state.position[slot]), [int(self.state.token[slot])])

    def choose(self, slots: Sequence[int], ends: dict[int, int] | None = None) -> list[int]:
        """The tokens that follow, and the state as they leave it. ends: of prompts, how many tokens they have."""
        tokens = []
        for slot in slots:
            _, position, step, _, seed, *_ = self.state.integers[:, slot].tolist()
            length = ends[slot] if ends else position + 1
            self.chosen[seed] += 1
            tokens.append(follows(self.read(slot, length), seed, step))
            self.state.integers[:4, slot] = torch.tensor([tokens[-1], length, step + 1, 1])
            self.state.integers[6, slot] = slot
        return tokens

    def score(
        self, runner: object, going: Sequence[int], chunks: Sequence[Chunk], following: dict[int, Any], sampler: object
    ) -> tuple[Tensor, SimpleNamespace]:
        """A step with prompts whose own tokens are scored: each place's value is the token that follows there."""
        values = [[float(token)] for chunk in chunks for token in following.get(chunk.row, ())]
        return self.prefill(going, chunks, sampler), SimpleNamespace(wait=lambda: values)

    def fail(self) -> None:
        if self.fails():
            raise Boom


class History:
    """One engine, and what its users are told."""

    def __init__(self, random: Random) -> None:
        self.random = random
        max_batch, size = random.randint(1, 6), random.choice([1, 4, 4, 16])
        preemption, self.ahead = random.random() < 0.6, random.choice([0, 0, 1, 4, 64])
        pool = 1 + -(-LONGEST // size) * (1 if preemption else random.randint(1, max_batch)) + random.randint(0, 2)
        blocks: BlockManager | None = random.choice([
            lambda: BlockManager(pool, size, max_batch), lambda: None,
            *[lambda: PrefixBlocks(pool, size, max_batch, b"a model")] * 3,
        ])()  # fmt: skip
        self.fail_at = random.choice([0, 0, 0.01, 0.05])
        self.device = Device(blocks, max_batch, lambda: random.random() < self.fail_at)
        self.engine = Engine(
            SimpleNamespace(device=torch.device("cpu")), self.device, max_batch, runner=self.device.over,
            samplers=Samplers(scoring=Sampler(self.device)), preemption=preemption,
            max_batched_tokens=max_batch + random.choice([0, 2, 20]), prefill_chunk=random.choice([None, 1, 5]),
            mixed=random.random() < 0.5, lag=random.randint(0, 3),
        )  # type: ignore[arg-type]  # fmt: skip
        self.contents = [[random.randrange(2) for _ in range(size)] for _ in range(2)]
        self.prompts, self.limit = random.choice([4, 10, 25]), random.choice([3, 12, 24])
        self.scored = random.choice([0, 0.1, 0.7])
        self.stops, self.early = random.choice([0, 0, 5]), random.choice([0, 0, 0.5])
        self.told: dict[Row, list[tuple[int, bool]]] = {}  # each call of a listener: tokens so far, and whether gone
        self.numbers = self.failures = 0

    def request(self) -> Request:
        """Of few contents, so that many begin alike."""
        ids: list[int] = []
        length = self.random.randint(1, self.prompts)
        while len(ids) < length:
            ids += self.random.choice(self.contents)
        self.numbers = index = self.numbers + 1
        stop = frozenset(self.random.sample(range(50), self.stops))
        params = SCORED if self.random.random() < self.scored else PARAMS
        none = params is SCORED and self.random.random() < 0.5
        limit = 0 if none else self.random.randint(1, min(self.limit, LONGEST - length))
        return Request(index, tuple(ids[:length]), params, index, limit, stop)

    def submit(self) -> None:
        def listener(row: Row) -> None:
            self.told[row].append((len(row.token_ids), row.cancelled is not None))

        row = self.engine.submit(self.request(), listener, every_token=self.random.random() < 0.5)
        self.told[row] = []

    def run(self, rounds: int = 20) -> Counter[str]:
        with ExitStack() as patches:
            patches.enter_context(patch.object(scheduler_module, "AHEAD", self.ahead))
            patches.enter_context(patch.object(Fetch, "arrived", property(lambda _: self.random.random() < self.early)))
            self.go(rounds)
        return Counter(
            preempted=self.engine.stats.preemptions, cached=self.engine.stats.cached_tokens,
            recomputed=self.engine.stats.recomputed_tokens, failures=self.failures, rows=len(self.told),
        )  # fmt: skip

    def go(self, rounds: int) -> None:
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
            assert steps < 2 * LONGEST * self.numbers
        self.check_all()

    def step(self) -> None:
        before = {row: len(row.token_ids) for row in self.told}
        settled = self.engine.step()
        assert {row for row, count in before.items() if len(row.token_ids) == count + 1} == {*settled} & {*self.told}
        assert len(set(settled)) == len(settled)
        assert self.engine.stats.preemptions == self.engine.scheduler.preemptions
        self.check_state()

    def generate(self) -> None:
        """As a caller does who may not wait for the end, or asks for what could never run."""
        requests = [self.request(), self.request()]
        blocks = self.device.blocks
        if blocks and self.random.random() < 0.2:
            left = [row for row in self.told if not row.ended]
            longest = Request(0, (1,) * blocks.block_size * blocks.allocator.blocks, PARAMS, 1, 1, frozenset())
            try:
                next(self.engine.generate([*requests, longest]))
                raise AssertionError("it can never run")
            except ValueError as error:
                self.refused = str(error)
            assert self.refused.startswith("prompt 0 may grow")
            assert not any(row.ended for row in left)
            return
        got: dict[int, Row] = {}
        running = self.engine.generate(requests)
        for steps, settled in enumerate(running):
            assert steps < 2 * LONGEST * self.numbers
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
        assert not any(self.device.tables.values())
        blocks = self.device.blocks
        if isinstance(blocks, PrefixBlocks):
            assert not blocks.allocator.known
            assert not blocks.allocator.idle
        self.check_state()
        self.check_free()

    def check_state(self) -> None:
        """What the device holds is what the host's rows say; all else is padding, and nobody owns a block of it."""
        state, slots, blocks = self.engine.state, self.engine.scheduler._slots, self.device.blocks
        seeds, lives, owns = state.seed.tolist(), state.live.tolist(), state.row.tolist()
        for slot in range(state.dummy + 1):
            row = slots[slot] if slot < len(slots) else None
            if row:
                assert row.slot == slot
                assert seeds[slot] == row.request.seed
            if row or slot >= len(slots):  # else a gap, which the next step fills, closes or frees
                assert lives[slot] == bool(row and row.going)
                assert owns[slot] == (slot if row and row.going else state.dummy)
            if slot >= len(slots):
                assert seeds[slot] == 0
        if blocks:
            assert sum(map(bool, blocks.reservation)) == len(self.engine.rows)

    def check_tokens(self, row: Row) -> None:
        keys, stopped = [0], False
        for token in row.request.prompt_token_ids:
            keys.append(key(keys[-1], token))
        expected: list[int] = []
        while len(expected) < row.request.limit and not stopped:
            expected.append(follows(keys[1:], row.request.seed, len(expected)))
            keys.append(key(keys[-1], expected[-1]))
            stopped = expected[-1] in row.request.stop_ids
        chosen = self.device.chosen[row.request.seed]
        assert chosen <= row.request.limit
        if row.cancelled:
            assert row.token_ids == expected[: len(row.token_ids)]
        else:
            assert row.token_ids == expected
            assert row.finish_reason == ("stop" if stopped else "length")
            assert chosen <= len(expected) + self.engine.lag  # a stop is seen late; a count is known ahead
            scored = row.request.prompt_token_ids[1:] if row.request.params is SCORED else ()
            assert row.prompt_logprobs == [[token] for token in scored]

    def check_all(self) -> None:
        for row, told in self.told.items():
            assert row.ended
            self.check_tokens(row)
            tokens = [(count, False) for count in range(1, len(row.token_ids) + 1)]
            if not row.every_token:
                tokens = [] if row.cancelled else tokens[-1:]
            if not row.request.limit and not row.cancelled:
                tokens = [(0, False)]
            assert told == tokens + [(len(row.token_ids), True)] * (row.cancelled is not None)
            assert row.finish_reason is None or row.cancelled is None
            assert row.cancelled is None or isinstance(row.cancelled, CancelledError | Boom)
        self.check_free()
        stats, device = self.engine.stats, self.device
        if not self.failures:
            assert stats.new_tokens + stats.dropped_tokens == device.chosen.total()
            assert (stats.prefill_steps, stats.decode_steps) == (device.calls["prefill"], device.calls["decode"])
            assert stats.requests == len(device.fed)
            assert stats.cached_tokens == device.calls["cached"]
            assert stats.recomputed_tokens == device.calls["recomputed"]

    def check_free(self) -> None:
        if blocks := self.device.blocks:
            assert blocks.allocator.free_blocks == blocks.allocator.blocks - 1
            assert blocks.reserved == 0
            assert not any(blocks.owned)
            assert not any(blocks.reservation)


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
    happened: Counter[str] = Counter()
    for seed in range(1000):
        happened += History(Random(seed)).run()
    assert min(happened[thing] for thing in ("preempted", "cached", "recomputed", "failures")) > 100


def seen_at_once(collect: Any, self: Engine, lag: int) -> Any:
    """Rows that have ended get what their steps in flight bring, too."""
    for row in self._in_flight[0].rows if len(self._in_flight) > lag else ():
        row.ended = False
    return collect(self, lag)


def unlucky(abandon: Any, self: Engine, cause: BaseException) -> None:
    in_flight = list(self._in_flight)
    abandon(self, cause)
    self._in_flight.extend(in_flight)


def late_slots(collect: Any, self: Engine, lag: int) -> Any:
    """Tokens are taken from where a row stands now."""
    if self._in_flight:
        step = self._in_flight[0]
        count, before = len(step.tokens._host), step.places or range(len(step.rows))
        now = [row.slot if 0 <= row.slot < count else at for row, at in zip(step.rows, before, strict=True)]
        self._in_flight[0] = step._replace(places=now)
    return collect(self, lag)


def dropped_too(collect: Any, self: Engine, lag: int) -> Any:
    """Tokens of preempted rows are dropped, though awaited."""
    if self._in_flight:
        step = self._in_flight[0]
        nobody = Row(Request(0, (1,), PARAMS, 0, 1, frozenset()), 0.0, ended=True)
        rows = [nobody if row in self.scheduler.waiting else row for row in step.rows]
        self._in_flight[0] = step._replace(rows=rows)
    return collect(self, lag)


def not_awaited(preempt: Any, self: Scheduler, row: Row) -> None:
    preempt(self, row)
    row.launched = len(row.token_ids)


def patient(collect: Any, self: Engine, lag: int) -> Any:
    """Nobody waits for tokens while rows wait for them."""
    return collect(self, self.lag if self.scheduler.busy else 0)


def untold(abandon: Any, self: Engine, cause: BaseException) -> None:
    """Who waits for no token is not told."""
    for at, step in enumerate(self._in_flight):
        self._in_flight[at] = step._replace(scored=[])
    abandon(self, cause)


def second_thoughts(check: Any, self: Engine, request: Request) -> None:
    """What is asked too much comes out when the others have been submitted."""
    seen = vars(self).setdefault("seen", set())
    if request in seen:
        check(self, request)
    seen.add(request)


def twice(count: Any, self: Engine, begun: list[Row]) -> None:
    count(self, begun)
    self.stats.requests += len([row for row in begun if row.computed])


def stopped_in_time(remove: Any, self: Scheduler, rows: Sequence[Row]) -> None:
    """A row that ends by its count leaves when its last token is here."""
    remove(self, [row for row in rows if row.ended or row.fed < row.last])


def told_twice(settle: Any, self: Engine, row: Row, *token: object) -> None:
    listener = row.listener
    settle(self, row, *token)
    if row.finish_reason == "stop" and listener:
        listener(row)


def spared(self: Engine, abandon: Callable[[], None]) -> None:
    """Only the slots that rows have are freed."""
    free, count = BatchState.free, len(self.scheduler._slots)
    with patch.object(BatchState, "free", lambda state, rows: free(state, slice(rows.start, min(rows.stop, count)))):
        abandon()


def forgetful(admit: Any, self: Scheduler, row: Row) -> bool:
    if len(row.token_ids) >= row.launched:
        row.launched = 0
    return bool(admit(self, row))


def crossed(close: Any, self: Scheduler) -> Any:
    sources, targets, freed = close(self)
    return sources[::-1], targets, freed


MUTANTS = {
    "tokens after the end": changed(Engine, "_collect", seen_at_once),
    "abandoned steps are collected": changed(Engine, "abandon", unlucky),
    "slots of now": changed(Engine, "_collect", late_slots),
    "rows that end by count stay": changed(Scheduler, "remove", stopped_in_time),
    "the last token is told twice": changed(Engine, "_settle", told_twice),
    "a cancelled row runs on": changed(Engine, "cancel", lambda cancel, self, row, *cause: None),
    "the cache moves nothing": changed(Device, "move", lambda move, self, sources, targets: None),
    "the state moves nothing": changed(BatchState, "move", lambda move, self, source, target: None),
    "rows that left are live": changed(BatchState, "free", lambda free, self, rows: None),
    "rows begin anywhere": changed(BatchState, "admit", lambda admit, self, rows, *requests: admit(
        self, range(len(rows)), *requests)),
    "the moves are crossed": changed(Scheduler, "_close_gaps", crossed),
    "reservations are kept": changed(BlockManager, "release", lambda release, self, row, *text: self.truncate(row, 0)),
    "a row comes back at step 0": changed(BatchState, "admit", lambda admit, self, rows, requests, steps: admit(
        self, rows, requests)),
    "a preempted row's tokens are dropped, and awaited": changed(Engine, "_collect", dropped_too),
    "a preempted row's tokens are kept, and not awaited": changed(Scheduler, "_preempt", not_awaited),
    "what a row waits for is never collected": changed(Engine, "_collect", patient),
    "blocks of a failed step are found": changed(PrefixBlocks, "clear", lambda clear, self: BlockManager.clear(self)),
    "slots that a failed step should free are not": changed(
        Engine, "abandon", lambda abandon, self, cause: spared(self, lambda: abandon(self, cause))),
    "who waits for no token is not told of a failure": changed(Engine, "abandon", untold),
    "one who asks too much ends all": changed(Engine, "check", second_thoughts),
    "rows that come back are new ones": changed(Engine, "_count", twice),
    "what is computed again is not counted": changed(Scheduler, "_preempt", lambda preempt, self, row: (
        preempt(self, row), vars(row).update(computed=1))),
    "a hit includes the last token": changed(PrefixBlocks, "reserve", lambda reserve, self, row, tokens, text: reserve(
        self, row, tokens, [*text, 0])),
    "a row that comes back has lost its tokens": changed(Scheduler, "_admit", forgetful),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_histories_tell(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    MUTANTS[name](monkeypatch)
    assert any(broken(seed) for seed in range(300))
