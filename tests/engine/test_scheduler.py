"""Random histories of the scheduler and the block manager, against what must hold whatever comes. No tensor is made.

The model of the test is what an engine sees: it launches what is scheduled, collects some steps late, and keeps its own
count of every request. Each thing that must hold is named; mutants of the scheduler show that each name can come up.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nanoinfer.cache.blocks import NULL, BlockAllocator, BlockManager
from nanoinfer.engine.scheduler import Row, Scheduler, Work
from nanoinfer.requests import Request, SamplingParams
from tests.conftest import changed

PARAMS = SamplingParams()
LONGEST = 40  # tokens of a text at most
IN_FLIGHT = 3  # steps at most


class Broken(AssertionError):
    """Something that must hold does not."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


@dataclass(eq=False)
class Known:
    """A request, as the model counts it."""

    row: Row
    prompt: int
    limit: int
    fed: int = 0  # tokens that launched steps were given
    chosen: int = 0  # tokens that launched steps choose
    here: int = 0  # of these, collected
    ended: str = ""
    blocks: list[int] = field(default_factory=list)

    @property
    def going(self) -> bool:
        """Whether its prompt has been read."""
        return self.chosen > 0


class History:
    """One engine's life: a scheduler with settings of all kinds, and requests that come and go at any time."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.max_batch = random.randint(1, 6)
        self.budget = self.max_batch + random.choice([0, 1, 5, 30])
        self.chunk = random.choice([None, 1, 3, 8])
        self.mixed = random.random() < 0.5
        self.blocks, size = None, random.choice([1, 4, 16])
        self.pool = -(-LONGEST // size) * random.randint(1, self.max_batch) + random.randint(0, 3)
        if random.random() < 0.8:
            self.blocks = BlockManager(1 + self.pool, size, self.max_batch)
        self.scheduler = Scheduler(self.blocks, self.max_batch, self.budget, self.chunk, self.mixed)
        self.waiting: list[Known] = []
        self.live: list[Known] = []  # in order of arrival
        self.gone: list[Known] = []
        self.device: dict[int, Known] = {}  # by slot, as the moves have it
        self.in_flight: deque[list[Known]] = deque()
        self.submitted = self.skipped = self.held = 0
        self.prompts_came = False  # in the step before

    def run(self, rounds: int = 25) -> None:
        """Rounds of whatever, then steps until all is done."""
        for _ in range(rounds):
            while self.random.random() < 0.4:
                self.submit()
            if self.random.random() < 0.15 and (there := [*self.waiting, *self.live, *self.leaving()]):
                self.cancel(self.random.choice(there))
            self.step(lag=self.random.randint(0, IN_FLIGHT))
        left = sum(known.prompt + known.limit for known in (*self.waiting, *self.live))
        for _ in range(left + IN_FLIGHT):
            self.step(lag=0)
        assert not self.live  # within that many steps: each of them computes a token
        must(len(self.gone) == self.submitted, "no request is lost")
        self.check_rows()
        self.check_blocks([])

    def submit(self) -> None:
        limit = self.random.randint(1, 10)
        prompt = self.random.randint(1, LONGEST - limit)
        request = Request(self.submitted, (0,) * prompt, PARAMS, 0, limit, frozenset())
        self.submitted += 1
        self.waiting.append(Known(Row(request, asked=0.0), prompt, limit))
        self.scheduler.submit(self.waiting[-1].row)

    def leaving(self) -> list[Known]:
        """Rows that left by their count, with tokens still on their way."""
        return [known for step in self.in_flight for known in step if known not in self.live and not known.ended]

    def cancel(self, known: Known) -> None:
        """Wherever it is: waiting, in its prompt, going on, or gone but for its last tokens."""
        known.ended = "cancelled"
        if known in self.waiting:
            self.scheduler.waiting.remove(known.row)
            self.waiting.remove(known)
        elif known in self.live:
            self.remove([known])
            return
        self.gone.append(known)

    def remove(self, leaving: list[Known]) -> None:
        """Take rows out of the batch; those that moved have the slots that the scheduler says."""
        before = len(self.live)
        sources, targets = self.scheduler.remove([known.row for known in leaving])
        must(len(sources) <= len(leaving) and not set(sources) & set(targets), "rows move only into gaps")
        for source, target in zip(sources, targets, strict=True):
            self.device[target] = self.device[source]
        for known in leaving:
            self.live.remove(known)
            if known.ended:
                self.gone.append(known)
        for slot in range(len(self.live), before):
            del self.device[slot]
        self.check_rows()

    def step(self, lag: int) -> None:
        begun, work = self.scheduler.schedule()
        self.check_begun(begun)
        self.check_work(work)
        self.check_rows()
        self.check_blocks(work)
        self.check_causes(work)
        self.launch(work)
        while len(self.in_flight) > (lag if self.live else 0):
            self.collect()

    def launch(self, work: Sequence[Work]) -> None:
        chosen = []
        for row, tokens in work:
            known = self.device[row.slot]
            known.fed += tokens
            if known.fed == known.prompt + known.chosen:
                known.chosen += 1
                chosen.append(known)
        complete = [part.row for part in work if part.complete]
        must(self.scheduler.launch(work) == complete, "a token follows a text that has been fed")
        must(complete == [known.row for known in chosen], "a token follows a text that has been fed")
        if work:
            self.in_flight.append(chosen)
        if ending := [known for known in chosen if known.chosen == known.limit]:
            self.remove(ending)

    def collect(self) -> None:
        """The oldest step's tokens are here; a row may stop at any."""
        stopped = []
        for known in self.in_flight.popleft():
            if known.ended:
                continue
            known.here += 1
            if known.here == known.limit:
                known.ended = "length"
                self.gone.append(known)
            elif self.random.random() < 0.1:
                known.ended = "stop"
                stopped.append(known)
        self.gone.extend(known for known in stopped if known not in self.live)
        if leaving := [known for known in stopped if known in self.live]:
            self.remove(leaving)

    def check_begun(self, begun: list[Row]) -> None:
        fresh = self.waiting[: len(begun)]
        must([known.row for known in fresh] == begun, "rows: first come, first served")
        del self.waiting[: len(begun)]
        for known in fresh:
            must(known.row.slot not in self.device, "the device's rows are the host's")
            self.device[known.row.slot] = known
        self.live += fresh
        must([known.row for known in self.waiting] == list(self.scheduler.waiting), "no request is lost")

    def check_rows(self) -> None:
        rows = self.scheduler.rows
        must([row.slot for row in rows] == list(range(len(rows))), "rows are slots 0..n-1")
        must(len(rows) <= self.max_batch, "no more rows than max_batch")
        must({row.request.index for row in rows} == {known.row.request.index for known in self.live},
             "no request is lost")  # fmt: skip
        must({slot: known.row for slot, known in self.device.items()} == dict(enumerate(rows)),
             "the device's rows are the host's")  # fmt: skip

    def check_work(self, work: list[Work]) -> None:
        parts = [(self.device[row.slot], tokens) for row, tokens in work]
        must(all(known.row is part.row for (known, _), part in zip(parts, work, strict=True)),
             "the device's rows are the host's")  # fmt: skip
        must(all(part.row.fed == known.fed for (known, _), part in zip(parts, work, strict=True)),
             "a row is fed its text in order")  # fmt: skip
        must(all(1 <= n <= known.prompt + known.chosen - known.fed for known, n in parts),
             "a row is fed its text in order")  # fmt: skip
        must(len({known.row for known, _ in parts}) == len(parts), "a row is fed its text in order")
        must(sum(tokens for _, tokens in parts) <= self.budget, "the budget holds")
        must(self.chunk is None or all(tokens <= self.chunk for _, tokens in parts), "a piece is at most prefill_chunk")
        going = [known for known, _ in parts if known.going]
        must([known for known, _ in parts[: len(going)]] == going, "rows that go on come first")
        must(
            [known.row.slot for known in going] == sorted(known.row.slot for known in going),
            "rows that go on are by slot",
        )
        all_going = [known for known in self.live if known.going]
        must(not going or len(going) == len(all_going), "all rows that go on do, or none")
        must(self.mixed or not going or len(going) == len(parts), "the two kinds of step take turns")
        self.skipped = self.skipped + 1 if all_going and not going else 0
        must(self.skipped <= (0 if self.mixed else 1), "a row that goes on waits for one step at most")
        prompts = [known for known, _ in parts if not known.going]
        in_prompt = [known for known in self.live if not known.going]
        must(prompts == in_prompt[: len(prompts)], "pieces: first come, first served")
        self.held = self.held + 1 if in_prompt and not prompts else 0
        must(self.held <= (0 if self.mixed else 1), "a prompt waits for one step at most")
        for known, tokens in parts[len(going) : -1]:  # but for the last, whom the budget may cut
            must(tokens == min(known.prompt - known.fed, self.chunk or LONGEST), "pieces: first come, first served")

    def check_causes(self, work: list[Work]) -> None:
        """Whoever waits does so for the budget, a row, room, or the other kind of step."""
        must(bool(work) or not (self.waiting or self.live), "no pause without a cause")
        pieces = {row: tokens for row, tokens in work if not self.device[row.slot].going}
        others = len(work) - len(pieces)
        if not self.mixed and others and self.prompts_came:
            self.prompts_came = False
            return
        self.prompts_came = bool(pieces)
        if sum(pieces.values()) + (others if self.mixed else 0) == self.budget:
            return
        for known in self.live:
            due = min(known.prompt - known.fed, self.chunk or LONGEST)
            must(known.going or pieces.get(known.row) == due, "no pause without a cause")
        if self.waiting and len(self.live) < self.max_batch:
            must(self.blocks is not None, "no pause without a cause")
            left = self.pool - sum(map(self.room_of, self.live))
            must(self.room_of(self.waiting[0]) > left, "no pause without a cause")

    def room_of(self, known: Known) -> int:
        assert self.blocks is not None
        return -(-(known.prompt + known.limit) // self.blocks.block_size)

    def check_blocks(self, work: list[Work]) -> None:
        blocks = self.blocks
        if blocks is None:
            return
        for slot, known in self.device.items():
            must(blocks.owned[slot][: len(known.blocks)] == known.blocks, "a row's blocks stay its own")
        every = [block for owned in blocks.owned for block in owned]
        must(len(set(every)) == len(every) and NULL not in every, "a block has one owner")
        must(len(every) + blocks.allocator.free_blocks == self.pool, "blocks are free or owned")
        must(blocks.reserved == sum(blocks.reservation) - len(every), "reserved is what is not taken yet")
        must(0 <= blocks.reserved <= blocks.allocator.free_blocks, "what is reserved is there")
        for slot in range(self.max_batch):
            known = self.device.get(slot)
            if known is None:
                must(not blocks.owned[slot] and not blocks.reservation[slot], "a free slot owns nothing")
                continue
            must(blocks.reservation[slot] == self.room_of(known), "room is reserved for the longest text")
            known.blocks = list(blocks.owned[slot])
        for row, tokens in work:
            known = self.device[row.slot]
            must(len(known.blocks) == -(-(known.fed + tokens) // blocks.block_size), "a text has its blocks, no more")
        blocks.begun.clear()


def outcome(seed: int) -> str:
    """What does not hold in the history of that seed; empty where all does."""
    try:
        History(Random(seed)).run()
    except Broken as broken:
        return str(broken)
    except (RuntimeError, ValueError, LookupError) as error:  # of the allocator, or where there is no such row
        return type(error).__name__
    return ""


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_histories(random: Random) -> None:
    """Hypothesis looks for a short one."""
    History(random).run()


@pytest.mark.long
def test_ten_thousand_histories() -> None:
    for seed in range(10_000):
        History(Random(seed)).run()


def reordered(self: Scheduler, key: Callable[[Row], int]) -> None:
    for number, row in enumerate(sorted((row for row in self.rows if not row.launched), key=key)):
        row.arrived = number


def late(submit: Any, self: Scheduler, row: Row) -> None:
    submit(self, row)
    self.waiting.rotate(1)


def newest_first(choose: Any, self: Scheduler) -> Any:
    reordered(self, lambda row: -row.request.index)
    return choose(self)


def without_rows_that_go_on(schedule: Any, self: Scheduler) -> Any:
    begun, work = schedule(self)
    prompts = [part for part in work if not part.row.launched]
    return begun, prompts or work


def one_of_those_that_go_on(schedule: Any, self: Scheduler) -> Any:
    begun, work = schedule(self)
    return begun, work[1:] if len(work) > 1 and work[1].row.launched else work


def prompts_first(schedule: Any, self: Scheduler) -> Any:
    begun, work = schedule(self)
    return begun, sorted(work, key=lambda part: part.row.launched > 0)


def never_in_turn(choose: Any, self: Scheduler) -> Any:
    self._decode_next = False
    return choose(self)


def decode_for_ever(choose: Any, self: Scheduler) -> Any:
    self._decode_next = True
    return choose(self)


def all_at_once(choose: Any, self: Scheduler) -> Any:
    mixed, self.mixed = self.mixed, True
    result = choose(self)
    self.mixed = mixed
    return result


def unchunked(self: Scheduler) -> Scheduler:
    self.prefill_chunk = LONGEST
    return self


def one_after_another(admit: Any, self: Scheduler, row: Row) -> Any:
    return not self.rows and admit(self, row)


def whoever_fits(choose: Any, self: Scheduler) -> Any:
    if self.blocks and self.waiting and len(self.rows) < self.max_batch:
        self.waiting = deque(sorted(self.waiting, key=lambda row: row.length + row.request.limit))
    return choose(self)


def dropped(choose: Any, self: Scheduler) -> Any:
    begun, work = choose(self)
    if not begun and len(self.waiting) > 3:
        self.waiting.popleft()
    return begun, work


def without_limit(admit: Any, self: Scheduler, row: Row) -> Any:
    limit, self.max_batch = self.max_batch, 99
    admitted = admit(self, row)
    self.max_batch = limit
    return admitted


def in_reverse(schedule: Any, self: Scheduler) -> Any:
    begun, work = schedule(self)
    return begun, sorted(work, key=lambda part: -part.row.slot if part.row.launched else 0)


def closed_up(remove: Any, self: Scheduler, rows: Sequence[Row]) -> Any:
    before = {row: row.slot for row in self.rows}
    remove(self, rows)
    self.rows.sort(key=lambda row: before[row])
    for slot, row in enumerate(self.rows):
        row.slot = slot
    moved = [row for row in self.rows if before[row] != row.slot]
    return [before[row] for row in moved], [row.slot for row in moved]


def unmoved(remove: Any, self: Scheduler, rows: Sequence[Row]) -> Any:
    slots = [row.slot for row in self.rows]
    result = remove(self, rows)
    for row in self.rows:
        row.slot = slots[-1] if row.slot in result[1] else row.slot
    return result


def crossed(remove: Any, self: Scheduler, rows: Sequence[Row]) -> Any:
    sources, targets = remove(self, rows)
    return sources[::-1], targets


def all_complete(launch: Any, self: Scheduler, work: list[Work]) -> Any:
    for part in work:
        part.row.length = part.row.fed + part.tokens
    return launch(self, work)


def never_fed(launch: Any, self: Scheduler, work: list[Work]) -> Any:
    complete = launch(self, work)
    for part in work:
        if not part.row.launched:
            part.row.fed -= part.tokens
    return complete


def in_use(allocate: Any, self: BlockAllocator) -> int:
    block = allocate(self)
    if block == 3:
        self._free.append(block)
    return block


def uncounted(grow: Any, self: BlockManager, row: int, length: int) -> Any:
    reserved = self.reserved
    room = grow(self, row, length)
    self.reserved = reserved
    return room


def half_released(release: Any, self: BlockManager, row: int, text: Sequence[int]) -> None:
    self.truncate(row, 0)


def kept(release: Any, self: BlockManager, row: int, text: Sequence[int]) -> None:
    self.owned[row], owned = [], self.owned[row]
    self.reserved += len(owned) - self.reservation[row]
    self.reservation[row] = 0


def overbooked(reserve: Any, self: BlockManager, row: int, tokens: int, text: Sequence[int]) -> bool:
    reserved, self.reserved = self.reserved, 0
    done = reserve(self, row, tokens)
    self.reserved += reserved
    return done


def for_too_few(reserve: Any, self: BlockManager, row: int, tokens: int, text: Sequence[int]) -> Any:
    return reserve(self, row, tokens - 1)


MUTANTS = {
    "the last to come is the first": (changed(Scheduler, "submit", late), "rows: first come, first served"),
    "whoever fits comes first": (changed(Scheduler, "_choose", whoever_fits), "rows: first come, first served"),
    "the newest prompt is fed first": (changed(Scheduler, "_choose", newest_first), "pieces: first come, first served"),
    "one row at a time": (changed(Scheduler, "_admit", one_after_another), "no pause without a cause"),
    "a step for nothing": (changed(Scheduler, "schedule", lambda schedule, self: ([], [])), "no pause without a cause"),
    "a request falls out": (changed(Scheduler, "_choose", dropped), "no request is lost"),
    "one token more than the budget": (
        changed(Scheduler, "_feed", lambda feed, self, row, left, work: feed(self, row, left + 1, work)),
        "the budget holds",
    ),
    "the budget is for prompts alone": (
        changed(Scheduler, "_feed", lambda feed, self, row, left, work: feed(self, row, left, work) and 0),
        "the budget holds",
    ),
    "whole prompts": (
        changed(Scheduler, "_feed", lambda feed, self, row, left, work: feed(unchunked(self), row, left, work)),
        "a piece is at most prefill_chunk",
    ),
    "prompts push rows out": (
        changed(Scheduler, "schedule", without_rows_that_go_on), "a row that goes on waits for one step at most",
    ),
    "one row is left out": (
        changed(Scheduler, "schedule", one_of_those_that_go_on), "all rows that go on do, or none",
    ),
    "prompts come first": (changed(Scheduler, "schedule", prompts_first), "rows that go on come first"),
    "prompts always have their turn": (
        changed(Scheduler, "_choose", never_in_turn), "a row that goes on waits for one step at most",
    ),
    "prompts never have their turn": (
        changed(Scheduler, "_choose", decode_for_ever), "a prompt waits for one step at most",
    ),
    "both kinds in one step": (changed(Scheduler, "_choose", all_at_once), "the two kinds of step take turns"),
    "more rows than there are": (changed(Scheduler, "_admit", without_limit), "no more rows than max_batch"),
    "rows in reverse": (changed(Scheduler, "schedule", in_reverse), "rows that go on are by slot"),
    "rows close up": (changed(Scheduler, "remove", closed_up), "rows move only into gaps"),
    "rows keep their slots": (changed(Scheduler, "remove", unmoved), "rows are slots 0..n-1"),
    "the moves are crossed": (changed(Scheduler, "remove", crossed), "the device's rows are the host's"),
    "a token after each piece": (
        changed(Scheduler, "launch", all_complete), "a token follows a text that has been fed",
    ),
    "the same piece again": (changed(Scheduler, "launch", never_fed), "a row is fed its text in order"),
    "a block for two": (changed(BlockAllocator, "allocate", in_use), "a block has one owner"),
    "blocks are kept": (changed(BlockManager, "release", lambda release, self, row: None), "a free slot owns nothing"),
    "the reservation is kept": (changed(BlockManager, "release", half_released), "a free slot owns nothing"),
    "blocks are forgotten": (changed(BlockManager, "release", kept), "blocks are free or owned"),
    "blocks stay where they are": (
        changed(BlockManager, "move", lambda move, self, sources, targets: None), "a row's blocks stay its own",
    ),
    "reservations are not counted": (changed(BlockManager, "reserve", overbooked), "what is reserved is there"),
    "one token too few is reserved": (
        changed(BlockManager, "reserve", for_too_few), "room is reserved for the longest text",
    ),
    "blocks come out of no reservation": (
        changed(BlockManager, "grow", uncounted), "reserved is what is not taken yet",
    ),
    "one token too few has room": (
        changed(BlockManager, "grow", lambda grow, self, row, length: grow(self, row, length - 1)),
        "a text has its blocks, no more",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_histories_tell(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each thing that must hold can fail, and its name comes up."""
    mutate, what = MUTANTS[name]
    mutate(monkeypatch)
    assert what in {outcome(seed) for seed in range(100)}


def test_each_thing_that_must_hold_has_a_mutant() -> None:
    calls = [node for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Call)]
    named = [call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "must"]
    assert {name.value for name in named if isinstance(name, ast.Constant)} == {what for _, what in MUTANTS.values()}


class Table(RuleBasedStateMachine):
    """A block manager alone, and a device's tables, which hear of blocks by `begun` and of moves."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(12, 4, 4)
        self.longest: dict[int, int] = {}  # by row, what it has reserved for
        self.length: dict[int, int] = {}
        self.tables = [[NULL] * 11 for _ in range(4)]

    def row(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.longest)))

    @precondition(lambda self: len(self.longest) < 4)
    @rule(data=st.data(), tokens=st.integers(1, 60))
    def reserve(self, data: st.DataObject, tokens: int) -> None:
        row = data.draw(st.sampled_from([row for row in range(4) if row not in self.longest]))
        left = 11 - sum(-(-longest // 4) for longest in self.longest.values())
        assert self.blocks.reserve(row, tokens) == (-(-tokens // 4) <= left)
        assert self.blocks.fits(tokens) == (tokens <= 44)
        if self.blocks.reservation[row]:
            self.longest[row], self.length[row] = tokens, 0

    @precondition(lambda self: self.longest)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        row = self.row(data)
        before = list(self.blocks.owned[row])
        self.length[row] = data.draw(st.integers(self.length[row], self.longest[row]))
        self.blocks.grow(row, self.length[row])
        assert self.blocks.owned[row][: len(before)] == before

    @precondition(lambda self: self.longest)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """To any length; one that is longer changes nothing."""
        row = self.row(data)
        length, before = data.draw(st.integers(0, 60)), list(self.blocks.owned[row])
        self.blocks.truncate(row, length)
        assert self.blocks.owned[row] == before[: -(-length // 4)]
        self.length[row] = min(length, self.length[row])

    @precondition(lambda self: self.longest)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = self.row(data)
        self.blocks.release(row)
        del self.longest[row], self.length[row]

    @precondition(lambda self: 0 < len(self.longest) < 4)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        source, target = self.row(data), next(row for row in range(4) if row not in self.longest)
        self.blocks.move([source], [target])
        self.tables[target] = list(self.tables[source])
        self.longest[target], self.length[target] = self.longest.pop(source), self.length.pop(source)

    @rule()
    def update(self) -> None:
        """What a device is told; it may take the entries in any order."""
        places = [(row, column) for row, column, _ in self.blocks.begun]
        assert len(set(places)) == len(places)
        for row, column, block in self.blocks.begun:
            self.tables[row][column] = block
        self.blocks.begun.clear()
        for row, owned in enumerate(self.blocks.owned):
            assert self.tables[row][: len(owned)] == owned

    @invariant()
    def accounts(self) -> None:
        every = [block for owned in self.blocks.owned for block in owned]
        assert len({*every, NULL}) == len(every) + 1
        assert len(every) + self.blocks.allocator.free_blocks == 11
        assert [len(owned) for owned in self.blocks.owned] == [-(-self.length.get(row, 0) // 4) for row in range(4)]
        assert self.blocks.reservation == [-(-self.longest.get(row, 0) // 4) for row in range(4)]
        assert self.blocks.reserved == sum(self.blocks.reservation) - len(every)


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=300, stateful_step_count=40, deadline=None, derandomize=True)
