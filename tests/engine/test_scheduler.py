"""Random histories of the scheduler and its block managers, against what must hold whatever comes. No tensor is made.

The model of the test is what an engine and a device see: it launches what is scheduled, collects steps late, and keeps
its own count of every request, and of what is written in each slot of each block. Each thing that must hold is named;
mutants of the scheduler show that each name can come up.
"""

from __future__ import annotations

import ast
from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nanoinfer.cache.blocks import NULL, BlockAllocator, BlockManager
from nanoinfer.cache.prefix import PrefixBlocks, SharedAllocator
from nanoinfer.engine import scheduler as module
from nanoinfer.engine.scheduler import Row, Scheduler, Step, Work
from nanoinfer.requests import Request, SamplingParams
from tests.conftest import changed

PARAMS, SCORED = SamplingParams(), SamplingParams(max_tokens=0, prompt_logprobs=0)
LONGEST = 40  # tokens of a text at most
IN_FLIGHT = 3  # steps at most, but for stalls
STALL = 15  # steps of a stall at most


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
    text: list[int]  # its prompt, and all tokens chosen so far
    due: int  # the step by which it must have ended
    fed: int = 0  # tokens that launched steps were given, or that its blocks held when it began
    here: int = 0  # tokens that were collected
    begun: int = 0  # length of what it was to be fed when it began, or began again
    held: int = 0  # steps since it was last fed
    preempted: bool = False  # and waiting for a row again
    ended: str = ""
    blocks: list[int] = field(default_factory=list)
    past: tuple[int, int, int] = (-1, 0, 0)  # when it last gave way: tokens chosen, History.room, blocks shared

    def __post_init__(self) -> None:
        self.prefix = [0]  # after each of its tokens, one number for all tokens so far
        self.extend(self.text)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.prefix.append(hash((self.prefix[-1], token)))

    def choose(self, token: int) -> None:
        self.text.append(token)
        self.extend([token])

    @property
    def chosen(self) -> int:
        """Tokens that launched steps choose."""
        return len(self.text) - self.prompt

    @property
    def going(self) -> bool:
        """Whether what it was to be fed has been read, so that it goes on."""
        return self.fed >= self.begun

    @property
    def longest(self) -> int:
        return self.prompt + self.limit


class History:
    """One engine's life: a scheduler with settings of all kinds, and requests that come and go at any time."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.max_batch = random.randint(1, 6)
        self.budget = self.max_batch + random.choice([0, 1, 5, 30])
        self.chunk = random.choice([None, 1, 3, 8])
        self.mixed = random.random() < 0.5
        self.preemption = random.random() < 0.6
        self.ahead = random.choice([0, 0, 1, 4, 64])
        self.size = random.choice([1, 4, 4, 16])
        self.limit, self.prompts = random.choice([3, 20, 36]), random.choice([4, 10, LONGEST])
        self.stops = random.choice([0, 0.02, 0.1])
        self.pool = -(-LONGEST // self.size) * (1 if self.preemption else random.randint(1, self.max_batch))
        self.pool += random.randint(0, 3)
        self.blocks: BlockManager | None = random.choice([self.managed, self.shared, self.shared, lambda: None])()
        self.scheduler = Scheduler(
            self.blocks, self.max_batch, self.budget, self.chunk, self.mixed, self.preemption
        )  # fmt: skip
        self.contents = [[random.randrange(2) for _ in range(self.size)] for _ in range(2)]
        self.texts: list[list[int]] = []  # of rows that have ended
        self.waiting: list[Known] = []
        self.live: list[Known] = []  # in order of arrival
        self.gone: list[Known] = []
        self.device: dict[int, Known] = {}  # by slot, as the moves have it
        self.stale: set[int] = set()  # slots that rows have left, and that the device was not told of
        self.tables: dict[int, dict[int, int]] = {}  # by slot
        self.written: dict[int, list[int | None]] = {}  # in each block, what each slot holds the key and value of
        self.in_flight: deque[list[Known]] = deque()
        self.submitted = self.steps = self.held = self.stall = 0
        self.room = 0  # how often there was room for others since a row left, or shared more than before
        self.prompts_came = False  # in the step before
        self.happened: Counter[str] = Counter()

    def managed(self) -> BlockManager:
        return self.watched(BlockManager(1 + self.pool, self.size, self.max_batch))

    def shared(self) -> BlockManager:
        return self.watched(PrefixBlocks(1 + self.pool, self.size, self.max_batch, b"a model"))

    def watched(self, blocks: BlockManager) -> BlockManager:
        """Whoever gets a block finds nothing in it."""
        allocate = blocks.allocator.allocate

        def empty() -> int:
            block = allocate()
            self.written[block] = [None] * self.size
            return block

        blocks.allocator.allocate = empty  # type: ignore[method-assign]
        return blocks

    def run(self, rounds: int = 25) -> Counter[str]:
        """Rounds of whatever, then steps until all is done: how often which thing happened."""
        with patch.object(module, "AHEAD", self.ahead):
            for _ in range(rounds):
                while self.random.random() < 0.35:
                    self.submit()
                if self.random.random() < 0.15 and (there := self.somebody()):
                    self.cancel(self.random.choice(there))
                if self.random.random() < 0.05:
                    self.stall = self.random.randint(IN_FLIGHT, STALL)
                self.step(lag=max(self.random.randint(0, IN_FLIGHT), self.stall))
                self.stall -= self.stall > 0
            left = sum(known.longest for known in (*self.waiting, *self.live))
            for _ in range(left * (1 + self.preemption) + IN_FLIGHT):
                if self.scheduler.busy or self.in_flight:
                    self.step(lag=0)
        assert not self.live  # within that many steps: each computes a token of the oldest row, or the next one does
        must(len(self.gone) == self.submitted, "no request is lost")
        self.check_rows()
        self.check_blocks(Step([], [], [], [], [], slice(0)))
        if isinstance(self.blocks, PrefixBlocks):
            self.happened["evicted"] = self.blocks.evictions
        return self.happened

    def submit(self) -> None:
        """Another request, or several samples of one prompt."""
        limit = self.random.randint(1, self.limit)
        prompt = self.prompt(self.random.randint(1, min(self.prompts, LONGEST - limit)))
        params = SCORED if self.random.random() < 0.05 else PARAMS
        if params is SCORED and self.random.random() < 0.5:
            limit = 0
        for sample in range(self.random.choice([1, 1, 1, 1, 2, 4])):
            request = Request(self.submitted, tuple(prompt), params, 0, limit, frozenset(), sample)
            self.submitted += 1
            ahead = sum(2 * known.longest + 2 for known in (*self.live, *self.waiting))
            due = self.steps + ahead + 2 * (len(prompt) + limit) + 2
            self.waiting.append(Known(Row(request, asked=0.0), len(prompt), limit, list(prompt), due))
            self.scheduler.submit(self.waiting[-1].row)

    def prompt(self, length: int) -> list[int]:
        """Of few contents, or how a text goes on that has been there."""
        text = list(self.random.choice(self.texts)) if self.texts and self.random.random() < 0.3 else []
        while len(text) < length:
            text += self.random.choice(self.contents)
        return text[:length]

    def somebody(self) -> list[Known]:
        """Of one kind: rows that were preempted, that wait, that run, or that left by their count, tokens in flight."""
        there = {*self.live, *self.waiting}
        leaving = [known for step in self.in_flight for known in step if known not in there and not known.ended]
        preempted = [known for known in self.waiting if known.preempted]
        return self.random.choice([kind for kind in (preempted, self.waiting, self.live, leaving) if kind] or [[]])

    def cancel(self, known: Known) -> None:
        """Wherever it is: waiting, in its prompt, going on, preempted, or gone but for its last tokens."""
        self.happened["cancelled while preempted"] += known.preempted
        self.end(known, "cancelled")

    def end(self, known: Known, how: str) -> None:
        """Nothing more comes of this request."""
        known.ended = how
        self.scheduler.drop(known.row)
        if known in self.waiting:
            self.waiting.remove(known)
            self.room += known.preempted  # others may have what it would get
        elif known in self.live:
            self.leave(known)
        self.gone.append(known)
        self.texts.append(known.text[: known.prompt + known.here])
        self.check_rows()

    def leave(self, known: Known) -> None:
        """Its slot is a gap."""
        self.live.remove(known)
        slot = next(slot for slot, each in self.device.items() if each is known)
        del self.device[slot]
        self.stale.add(slot)
        self.room += 1

    def step(self, lag: int) -> None:
        self.steps += 1
        lacking = self.expected_victims()
        step = self.scheduler.schedule()
        self.check_preempted(step, lacking)
        self.check_arranged(step)
        self.check_work(step)
        self.check_rows()
        self.check_blocks(step)
        self.check_reserved()
        self.compute(step)
        self.check_causes(step)
        self.check_progress(step)
        self.launch(step)
        while len(self.in_flight) > (lag if step.going or step.pieces else 0):
            self.collect()

    def launch(self, step: Step) -> None:
        chosen, ending = [], []
        for known, tokens in self.parts(step):
            known.fed += tokens
            if known.fed == len(known.text):
                if known.chosen < known.limit:
                    known.choose(self.random.randrange(3))
                    chosen.append(known)
                if known.chosen == known.limit:
                    ending.append(known)
        must(self.scheduler.launch(step) == [known.row for known in chosen], "a token follows a text that has been fed")
        if step.going or step.pieces:
            self.in_flight.append(chosen)
        for known in ending:
            self.leave(known)
            if not known.limit:
                known.ended = "nothing was to be chosen"
                self.gone.append(known)

    def parts(self, step: Step) -> list[tuple[Known, int]]:
        """Each row's tokens in this step."""
        return [(self.device[row.slot], tokens) for row, tokens in [*[(row, 1) for row in step.going], *step.pieces]]

    def collect(self) -> None:
        """The oldest step's tokens are here; a row may stop at any."""
        for known in self.in_flight.popleft():
            if known.ended:
                continue
            known.row.token_ids.append(known.text[known.prompt + known.here])
            known.here += 1
            if known.here == known.limit:
                self.end(known, "length")
            elif self.random.random() < self.stops:
                self.happened["stopped while preempted"] += known.preempted
                self.end(known, "stop")

    def expected_victims(self) -> list[Known]:
        """Who must give way: the youngest, for each row that goes on and lacks a block, the oldest first."""
        if self.blocks is None or not self.preemption:
            return []
        owned = [self.blocks.owned[known.row.slot] for known in self.live]
        holders = Counter(block for each in owned for block in each)
        available, victims, there = self.blocks.available, [], list(self.live)
        for known in self.live:
            slot = known.row.slot
            if known not in there or not known.going or known.fed < len(self.blocks.owned[slot]) * self.size:
                continue
            if self.blocks.reservation[slot] > len(self.blocks.owned[slot]):
                continue
            while not available and known in there:
                victim = there.pop()
                victims.append(victim)
                mine = self.blocks.owned[victim.row.slot]
                available += self.blocks.reservation[victim.row.slot] - len(mine)
                holders.subtract(mine)
                available += len([block for block in mine if not holders[block]])
            available -= known in there
        return victims

    def check_preempted(self, step: Step, lacking: list[Known]) -> None:
        """Who has given way, and waits again ahead of all others."""
        preempted = [known for known in self.live if known.row.slot < 0 or known.row in step.begun]
        must(self.live[:1] != preempted[:1] or not preempted, "the oldest row never gives way")
        must(preempted == self.live[len(self.live) - len(preempted) :], "the youngest rows give way")
        must(preempted == lacking[::-1], "rows give way to one that lacks a block")
        must(self.scheduler.preemptions == self.happened["preempted"] + len(preempted), "preemptions are counted")
        for known in preempted:
            further = known.past[0] < known.chosen or known.past[1] < self.room
            must(further, "a row that gives way twice got further, or others did")
            known.past = known.chosen, self.room, self.older(known)
            self.happened["preempted"] += 1
            self.happened["preempted in its prompt"] += not known.going
            self.leave(known)
            self.room -= 1  # others have it
            known.fed, known.preempted, known.blocks, known.held = 0, True, [], 0
        self.waiting[:0] = preempted
        head = self.waiting[0] if self.waiting else None
        self.happened["waited for its tokens"] += bool(head and head.preempted and head.here < head.chosen)

    def older(self, known: Known) -> int:
        """How many of its blocks older rows hold as well."""
        others = [each.blocks for each in self.live if each.row.arrived < known.row.arrived]
        return len({*known.blocks} & {block for blocks in others for block in blocks})

    def check_arranged(self, step: Step) -> None:
        """Rows begin, in gaps if there are some; the last ones move into gaps that are left."""
        fresh = self.waiting[: len(step.begun)]
        must([known.row for known in fresh] == step.begun, "rows: first come, first served")
        del self.waiting[: len(fresh)]
        must([known.row for known in self.waiting] == list(self.scheduler.waiting), "no request is lost")
        begun = {known.row.slot for known in fresh}
        must(len(begun) == len(fresh) and not begun & {*self.device}, "rows begin where nobody is")
        self.happened["gaps filled"] += len(begun & self.stale)
        count, gaps = len(self.device) + len(fresh), self.stale - begun
        there = range(count + len(gaps))
        must(set(step.sources) == {slot for slot in self.device if slot >= count}, "rows move only into gaps")
        must(set(step.targets) == {slot for slot in gaps if slot < count}, "rows move only into gaps")
        must(gaps | begun | {*self.device} == {*there}, "slots without a row are freed")
        for source, target in zip(step.sources, step.targets, strict=True):
            self.device[target] = self.device.pop(source)
            self.tables[target] = dict(self.tables[source])
        self.happened["moved"] += len(step.sources)
        must(list(there)[step.freed] == list(there)[count:], "slots without a row are freed")
        self.stale.clear()
        for known in fresh:
            self.device[known.row.slot], self.tables[known.row.slot] = known, {}
            self.check_begun(known)
        self.live += fresh
        must(len(self.device) == len(self.live), "rows begin where nobody is")

    def check_begun(self, known: Known) -> None:
        """What it is to be fed, and how much of that its blocks hold."""
        must(known.here == known.chosen, "a row comes back once its tokens are here")
        must(known.row.prompt == array("q", known.text), "a row comes back with its tokens")
        fed, last = known.row.fed, len(known.text) - 1
        must(fed % self.size == 0 and fed <= last, "a hit ends before the last token")
        must(not fed or known.row.request.params is not SCORED, "a prompt whose logits are asked for is computed")
        self.happened["hits"] += fed > 0
        self.happened["came back"] += known.preempted
        self.happened["came back to its blocks"] += known.preempted and fed > 0
        known.preempted, known.fed, known.begun = False, fed, len(known.text)

    def check_rows(self) -> None:
        rows = self.scheduler.rows
        slots = [row.slot for row in rows]
        must(slots == sorted(slots) and (bool(self.stale) or slots == list(range(len(rows)))), "rows are slots 0..n-1")
        must(len(rows) <= self.max_batch, "no more rows than max_batch")
        must({row.request.index for row in rows} == {known.row.request.index for known in self.live},
             "no request is lost")  # fmt: skip
        must({slot: known.row for slot, known in self.device.items()} == dict(zip(slots, rows, strict=True)),
             "the device's rows are the host's")  # fmt: skip
        must(self.scheduler.busy == bool(self.live or self.waiting), "no request is lost")

    def check_work(self, step: Step) -> None:
        must(all(self.device[row.slot].row is row for row in [*step.going, *[row for row, _ in step.pieces]]),
             "the device's rows are the host's")  # fmt: skip
        going = [self.device[row.slot] for row in step.going]
        pieces = [(self.device[row.slot], tokens) for row, tokens in step.pieces]
        parts = [(known, 1) for known in going] + pieces
        must(all(known.row.fed == known.fed for known, _ in parts), "a row is fed its text in order")
        must(all(1 <= n <= len(known.text) - known.fed for known, n in parts), "a row is fed its text in order")
        must(len({known.row for known, _ in parts}) == len(parts), "a row is fed its text in order")
        must(all(known.going for known in going) and not any(known.going for known, _ in pieces),
             "rows that go on bring one token, prompts pieces")  # fmt: skip
        must(sum(tokens for _, tokens in parts) <= self.budget, "the budget holds")
        must(self.chunk is None or all(tokens <= self.chunk for _, tokens in parts), "a piece is at most prefill_chunk")
        must(
            [known.row.slot for known in going] == sorted(known.row.slot for known in going),
            "rows that go on are by slot",
        )
        all_going = [known for known in self.live if known.going]
        must(not going or len(going) == len(all_going), "all rows that go on do, or none")
        must(self.mixed or not going or not pieces, "the two kinds of step take turns")
        prompts = [known for known, _ in pieces]
        in_prompt = [known for known in self.live if not known.going]
        must(prompts == in_prompt[: len(prompts)], "pieces: first come, first served")
        self.held = self.held + 1 if in_prompt and not prompts else 0
        must(self.held <= (0 if self.mixed else 1), "a prompt waits for one step at most")
        for known, tokens in pieces[:-1]:  # but for the last, whom the budget may cut
            must(tokens == min(known.begun - known.fed, self.chunk or LONGEST), "pieces: first come, first served")

    def check_progress(self, step: Step) -> None:
        """Bounds of how long anybody waits."""
        fed, patience = {known for known, _ in self.parts(step)}, 0 if self.mixed else 1
        for known in self.live:
            known.held = 0 if known in fed else known.held + 1
        must(not self.live or self.live[0].held <= patience, "the oldest row goes on")
        must(all(known.held <= patience for known in self.live if known.going),
             "a row that goes on waits for one step at most")  # fmt: skip
        must(all(known.due >= self.steps for known in (*self.live, *self.waiting)), "nobody starves")

    def check_causes(self, step: Step) -> None:
        """Whoever waits does so for the budget, a row, room, its own tokens, or the other kind of step."""
        head = self.waiting[0] if self.waiting else None
        awaited = head is not None and head.here < head.chosen
        must(bool(step.going or step.pieces or awaited) or not (self.waiting or self.live), "no pause without a cause")
        pieces = {self.device[row.slot]: tokens for row, tokens in step.pieces}
        if not self.mixed and step.going and self.prompts_came:
            self.prompts_came = False
            return
        self.prompts_came = bool(pieces)
        if sum(pieces.values()) + (len(step.going) if self.mixed else 0) == self.budget:
            return
        for known in self.live:
            due = min(known.begun - known.fed, self.chunk or LONGEST)
            must(known.going or pieces.get(known) == due, "no pause without a cause")
        if head and not awaited and len(self.live) < self.max_batch:
            must(self.blocks is not None, "no pause without a cause")
            hits, idle = self.hits(head)
            left = self.pool - len({block for known in self.live for block in known.blocks}) - idle
            left -= sum(self.room_of(known) - len(known.blocks) for known in self.live)
            must(self.wanted(head) - hits > left, "no pause without a cause")

    def hits(self, known: Known) -> tuple[int, int]:
        """Blocks that hold what this text begins with, and how many of them nobody holds."""
        if not isinstance(self.blocks, PrefixBlocks) or known.row.request.params is SCORED:
            return 0, 0
        found = {self.written[block][-1]: block for block in self.blocks.allocator.known.values()}
        blocks: list[int] = []
        for end in range(self.size, len(known.text), self.size):
            if known.prefix[end] not in found:
                break
            blocks.append(found[known.prefix[end]])
        return len(blocks), len([block for block in blocks if not self.blocks.allocator.owned[block]])

    def wanted(self, known: Known) -> int:
        """Blocks that it has, or may take, when it begins with its present text."""
        tokens = min(known.longest, len(known.text) + self.ahead) if self.preemption else known.longest
        return -(-tokens // self.size)

    def room_of(self, known: Known) -> int:
        """Blocks that it has, or may take, whatever others do."""
        tokens = min(known.longest, known.begun + self.ahead) if self.preemption else known.longest
        return max(-(-tokens // self.size), len(known.blocks))

    def check_blocks(self, step: Step) -> None:
        """The books of who holds what, with this step planned."""
        blocks = self.blocks
        if blocks is None:
            return
        for slot, known in self.device.items():
            must(blocks.owned[slot][: len(known.blocks)] == known.blocks, "a row's blocks stay its own")
        references = Counter(block for owned in blocks.owned for block in owned)
        must(NULL not in references, "a block has one owner, or is shared")
        must(all(count == 1 for count in references.values()) or isinstance(blocks, PrefixBlocks),
             "a block has one owner, or is shared")  # fmt: skip
        allocator, idle = blocks.allocator, list(getattr(blocks.allocator, "idle", ()))
        must(sorted([*references, *idle, *allocator._free]) == list(range(1, self.pool + 1)),
             "a block is free, idle or owned")  # fmt: skip
        must(allocator.free_blocks == len(idle) + len(allocator._free), "a block is free, idle or owned")
        must([references[block] for block in range(self.pool + 1)] == allocator.owned, "holders are counted")
        must(blocks.reserved == sum(blocks.reservation) - references.total(), "reserved is what is not taken yet")
        must(0 <= blocks.reserved <= allocator.free_blocks, "what is reserved is there")
        for slot in range(self.max_batch):
            known = self.device.get(slot)
            if known is None:
                must(not blocks.owned[slot] and not blocks.reservation[slot], "a free slot owns nothing")
                continue
            known.blocks = list(blocks.owned[slot])
        for known in self.device.values():
            if known.row in step.begun and known.past[0] >= 0:
                self.room += self.older(known) > known.past[2]  # it found now what it had computed itself

    def check_reserved(self) -> None:
        for slot, known in self.device.items() if self.blocks else ():
            must(self.blocks.reservation[slot] == self.room_of(known), "room is reserved for what comes")

    def compute(self, step: Step) -> None:
        """What a device does: tables follow, every row's new tokens are written, and every row reads its text."""
        blocks = self.blocks
        if blocks is None:
            return
        for slot, column, block in blocks.begun:
            self.tables[slot][column] = block
        blocks.begun.clear()
        for slot, known in self.device.items():
            must([self.tables[slot].get(column) for column in range(len(known.blocks))] == known.blocks,
                 "the device's tables are the host's")  # fmt: skip
        parts = self.parts(step)
        fed = dict(parts)
        for known in self.live:
            end = known.fed + fed.get(known, known.going)  # who goes on may have its next block a step early
            must(len(known.blocks) == -(-end // self.size), "a text has its blocks, no more")
        for known, tokens in parts:
            for at in range(known.fed, known.fed + tokens):
                written = self.written[known.blocks[at // self.size]]
                must(written[at % self.size] is None, "a slot is written once")
                written[at % self.size] = known.prefix[at + 1]
        for known, tokens in parts:
            read = [each for block in known.blocks for each in self.written[block]]
            end = known.fed + tokens
            must(read[:end] == known.prefix[1 : end + 1], "a row reads its own text")
        self.check_known()

    def check_known(self) -> None:
        """Whoever finds a block finds it written."""
        if isinstance(self.blocks, PrefixBlocks):
            for block in self.blocks.allocator.known.values():
                must(None not in self.written[block], "a block that can be found is written")


def outcome(seed: int) -> str:
    """What does not hold in the history of that seed; empty where all does."""
    try:
        History(Random(seed)).run()
    except Broken as broken:
        return str(broken)
    except (RuntimeError, ValueError, LookupError) as error:  # of the allocator, or where there is no such row
        return type(error).__name__
    return ""


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_histories(random: Random) -> None:
    """Hypothesis looks for a short one."""
    History(random).run()


def test_nobody_starves() -> None:
    """Long ones, in which requests never stop coming."""
    for seed in range(8):
        History(Random(seed)).run(rounds=150)


THINGS = (
    "preempted", "preempted in its prompt", "came back", "came back to its blocks", "waited for its tokens",
    "hits", "evicted", "moved", "gaps filled", "cancelled while preempted", "stopped while preempted",
)  # fmt: skip


@pytest.mark.long
def test_ten_thousand_histories() -> None:
    happened: Counter[str] = Counter()
    for seed in range(10_000):
        happened += History(Random(seed)).run()
    assert all(happened[thing] > (1000 if "while" not in thing else 50) for thing in THINGS)


def rows_in_prompts(self: Scheduler) -> list[Row]:
    return [row for row in self.rows if not row.going]


def late(submit: Any, self: Scheduler, row: Row) -> None:
    submit(self, row)
    self.waiting.rotate(1)


def newest_first(schedule: Any, self: Scheduler) -> Step:
    for number, row in enumerate(sorted(rows_in_prompts(self), key=lambda row: -row.request.index)):
        row.arrived = number
    return schedule(self)


def without_rows_that_go_on(schedule: Any, self: Scheduler) -> Step:
    step = schedule(self)
    return step._replace(going=[]) if step.pieces else step


def prompts_eat_first(schedule: Any, self: Scheduler) -> Step:
    budget, going = self.max_batched_tokens, [row for row in self.rows if row.going]
    self.max_batched_tokens += len(going)
    step = schedule(self)
    self.max_batched_tokens = budget
    return step._replace(going=step.going[: max(0, budget - sum(tokens for _, tokens in step.pieces))])


def one_of_those_that_go_on(schedule: Any, self: Scheduler) -> Step:
    step = schedule(self)
    return step._replace(going=step.going[1:])


def as_pieces(schedule: Any, self: Scheduler) -> Step:
    step = schedule(self)
    return step._replace(going=[], pieces=[*[Work(row, 1) for row in step.going], *step.pieces])


def set_first(**values: object) -> Any:
    """A method that finds these attributes changed."""

    def call(method: Any, self: Any, *args: object) -> Any:
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        result = method(self, *args)
        if not {*values} & {"_decode_next"}:
            vars(self).update(before)
        return result

    return call


def one_after_another(admit: Any, self: Scheduler, row: Row) -> bool:
    return not self.rows and admit(self, row)


def whoever_fits(schedule: Any, self: Scheduler) -> Step:
    self.waiting = deque(sorted(self.waiting, key=lambda row: row.last))
    return schedule(self)


def dropped(schedule: Any, self: Scheduler) -> Step:
    step = schedule(self)
    if not step.begun and len(self.waiting) > 3:
        self.waiting.popleft()
    return step


def in_reverse(schedule: Any, self: Scheduler) -> Step:
    step = schedule(self)
    return step._replace(going=step.going[::-1])


def closed_up(close: Any, self: Scheduler) -> Any:
    """Every row moves down by the gaps before it."""
    sources = [slot for slot, row in enumerate(self._slots) if row and None in self._slots[:slot]]
    before, rows = len(self._slots), self.rows
    for slot, row in enumerate(rows):
        row.slot = slot
    targets = [rows.index(self._slots[source]) for source in sources]  # type: ignore[arg-type]
    for source, target in zip(sources, targets, strict=True):
        if self.blocks:
            self.blocks.move([source], [target])
    self._slots = list(rows)
    return sources, targets, slice(len(rows), before)


def unmoved(close: Any, self: Scheduler) -> Any:
    slots = {row: row.slot for row in self.rows}
    result = close(self)
    for row in self.rows:
        row.slot = slots[row]
    return result


def never_closed(close: Any, self: Scheduler) -> Any:
    return [], [], slice(0, 0)


def crossed(close: Any, self: Scheduler) -> Any:
    sources, targets, freed = close(self)
    return sources[::-1], targets, freed


def forgotten(close: Any, self: Scheduler) -> Any:
    sources, targets, freed = close(self)
    return sources[1:], targets[1:], freed


def freed_too_few(close: Any, self: Scheduler) -> Any:
    sources, targets, freed = close(self)
    return sources, targets, slice(freed.start + 1, freed.stop)


def twice(admit: Any, self: Scheduler, row: Row) -> bool:
    """The gap that this row fills is still one."""
    admitted: bool = admit(self, row)
    if admitted and row.slot < len(self._slots) - 1:
        self._slots[row.slot] = None
    return admitted


def all_complete(launch: Any, self: Scheduler, step: Step) -> Any:
    for row, tokens in step.pieces:
        row.prompt = row.prompt[: row.fed + tokens]
    return launch(self, step)


def never_fed(launch: Any, self: Scheduler, step: Step) -> Any:
    complete = launch(self, step)
    for row, tokens in step.pieces:
        if not row.going and row.slot >= 0:
            row.fed -= tokens
    return complete


def to_the_oldest(preempt: Any, self: Scheduler, row: Row) -> None:
    preempt(self, min(self.rows, key=lambda row: row.arrived))


def to_the_second(preempt: Any, self: Scheduler, row: Row) -> None:
    preempt(self, sorted(self.rows, key=lambda row: row.arrived)[:2][-1])


def ahead_of_need(make_room: Any, self: Scheduler) -> None:
    """A row gives way whenever one comes to the end of its blocks."""
    if self._full and len(self.rows) > 1:
        self._preempt(max(self.rows, key=lambda row: row.arrived))
    make_room(self)


def last_in_line(preempt: Any, self: Scheduler, row: Row) -> None:
    preempt(self, row)
    self.waiting.rotate(-1)


def uncounted_preemption(preempt: Any, self: Scheduler, row: Row) -> None:
    preempt(self, row)
    self.preemptions -= 1


def freed_twice(preempt: Any, self: Scheduler, row: Row) -> None:
    assert self.blocks
    owned = list(self.blocks.owned[row.slot])  # type: ignore[attr-defined]
    preempt(self, row)
    self.blocks.allocator._free.extend(owned[-1:])  # type: ignore[attr-defined]


def impatient(admit: Any, self: Scheduler, row: Row) -> bool:
    row.launched = min(row.launched, len(row.token_ids))
    return bool(admit(self, row))


def prompt_alone(admit: Any, self: Scheduler, row: Row) -> bool:
    row.launched, launched = 0, row.launched
    if len(row.token_ids) < launched:
        row.launched = launched
    return bool(admit(self, row))


def to_little_room(admit: Any, self: Scheduler, row: Row) -> bool:
    """All of it but a block is there."""
    blocks = self.blocks
    if not row.computed or not isinstance(blocks, BlockManager):
        return bool(admit(self, row))
    reserve = blocks.reserve
    blocks.reserve = lambda row, tokens, text: reserve(row, tokens - blocks.block_size, text)  # type: ignore[method-assign]
    admitted = bool(admit(self, row))
    del blocks.reserve  # type: ignore[method-assign]
    return admitted


def one_step_back(admit: Any, self: Scheduler, row: Row) -> bool:
    """The last token that its blocks hold is fed again, into them."""
    admitted: bool = admit(self, row)
    row.fed -= admitted and row.fed > 0
    return admitted


def left_waiting(drop: Any, self: Scheduler, row: Row) -> None:
    """A preempted row that is cancelled stays in line."""
    if row.slot >= 0 or not row.launched:
        drop(self, row)


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


def half_released(release: Any, self: BlockManager, row: int, *text: Sequence[int]) -> None:
    self.truncate(row, 0)


def kept(release: Any, self: BlockManager, row: int, *text: Sequence[int]) -> None:
    self.owned[row], owned = [], self.owned[row]
    self.reserved += len(owned) - self.reservation[row]
    self.reservation[row] = 0


def overbooked(reserve: Any, self: BlockManager, row: int, tokens: int, *text: Sequence[int]) -> bool:
    reserved, self.reserved = self.reserved, 0
    done: bool = reserve(self, row, tokens, *text)
    self.reserved += reserved
    return done


def for_too_few(reserve: Any, self: BlockManager, row: int, tokens: int, *text: Sequence[int]) -> Any:
    return reserve(self, row, tokens - 1, *text)


def to_the_end(reserve: Any, self: PrefixBlocks, row: int, tokens: int, text: Sequence[int]) -> Any:
    """A hit may include the last token."""
    return reserve(self, row, tokens, [*text, 0])


def ahead_of_the_step(grow: Any, self: PrefixBlocks, row: int, length: int) -> int:
    """Blocks are found as soon as a row owns them."""
    room: int = grow(self, row, length)
    self._publish(row, len(self.owned[row]))
    return room


def without_news(move: Any, self: BlockManager, sources: Sequence[int], targets: Sequence[int]) -> None:
    begun = list(self.begun)
    move(self, sources, targets)
    self.begun = begun


def still_known(forget: Any, self: SharedAllocator) -> None:
    block, _ = self.idle.popitem(last=False)
    self._free.append(block)


def found_all_the_same(reserve: Any, self: PrefixBlocks, row: int, tokens: int, text: Sequence[int]) -> Any:
    """Texts that asked for no hit get one, of the text before."""
    vars(self)["last"] = text or vars(self).get("last", ())
    return reserve(self, row, tokens, vars(self)["last"])


def tokens_alone(extend: Any, self: PrefixBlocks, keys: list[bytes], data: bytes) -> Any:
    """Keys do not know what was before."""
    size = 8 * self.block_size
    return [*keys, *[data[start : start + size] for start in range(0, len(data) - size + 1, size)]]


def before_it_is_fed(text: Any, self: Row) -> Any:
    """What is not written yet is known all the same."""
    return array("q", [*text(self), *[0, 0, 0, 0]])


def unseen(name: str, mutate: Any) -> Any:
    """A mutant for which the history looks away in one place, so that another has to see it."""

    def both(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(History, name, lambda *args: None)
        mutate(patch)

    return both


def nothing(*args: object) -> None:
    """In place of a method that should do something."""


STOPPED = changed(Scheduler, "schedule", lambda schedule, self: Step([], [], [], [], [], slice(0)))
MUTANTS = {
    "the last to come is the first": (changed(Scheduler, "submit", late), "rows: first come, first served"),
    "whoever fits comes first": (changed(Scheduler, "schedule", whoever_fits), "rows: first come, first served"),
    "the newest prompt is fed first": (
        changed(Scheduler, "schedule", newest_first), "pieces: first come, first served",
    ),
    "one row at a time": (changed(Scheduler, "_admit", one_after_another), "no pause without a cause"),
    "a step for nothing": (STOPPED, "no pause without a cause"),
    "no step at all": (unseen("check_causes", STOPPED), "nobody starves"),
    "a request falls out": (changed(Scheduler, "schedule", dropped), "no request is lost"),
    "one token more than the budget": (
        changed(Scheduler, "_feed", lambda feed, self, row, left, pieces: feed(self, row, left + 1, pieces)),
        "the budget holds",
    ),
    "the budget is for prompts alone": (
        changed(Scheduler, "_feed", lambda feed, self, row, left, pieces: feed(self, row, left, pieces) and 0),
        "the budget holds",
    ),
    "whole prompts": (
        changed(Scheduler, "_feed", set_first(prefill_chunk=LONGEST)), "a piece is at most prefill_chunk",
    ),
    "prompts push rows out": (
        changed(Scheduler, "schedule", without_rows_that_go_on), "a row that goes on waits for one step at most",
    ),
    "prompts push the oldest row out": (
        changed(Scheduler, "schedule", without_rows_that_go_on), "the oldest row goes on",
    ),
    "prompts eat the budget first": (changed(Scheduler, "schedule", prompts_eat_first), "the oldest row goes on"),
    "one row is left out": (
        changed(Scheduler, "schedule", one_of_those_that_go_on), "all rows that go on do, or none",
    ),
    "rows go on as prompts": (
        changed(Scheduler, "schedule", as_pieces), "rows that go on bring one token, prompts pieces",
    ),
    "prompts always have their turn": (
        changed(Scheduler, "schedule", set_first(_decode_next=False)), "a row that goes on waits for one step at most",
    ),
    "prompts never have their turn": (
        changed(Scheduler, "schedule", set_first(_decode_next=True)), "a prompt waits for one step at most",
    ),
    "both kinds in one step": (
        changed(Scheduler, "schedule", set_first(mixed=True)), "the two kinds of step take turns",
    ),
    "more rows than there are": (changed(Scheduler, "_admit", set_first(max_batch=99)), "no more rows than max_batch"),
    "rows in reverse": (changed(Scheduler, "schedule", in_reverse), "rows that go on are by slot"),
    "rows close up": (changed(Scheduler, "_close_gaps", closed_up), "rows move only into gaps"),
    "gaps stay": (changed(Scheduler, "_close_gaps", never_closed), "rows move only into gaps"),
    "a moved row is forgotten": (changed(Scheduler, "_close_gaps", forgotten), "rows move only into gaps"),
    "rows keep their slots": (changed(Scheduler, "_close_gaps", unmoved), "rows are slots 0..n-1"),
    "the moves are crossed": (changed(Scheduler, "_close_gaps", crossed), "the device's rows are the host's"),
    "a slot is not freed": (changed(Scheduler, "_close_gaps", freed_too_few), "slots without a row are freed"),
    "a gap is filled twice": (changed(Scheduler, "_admit", twice), "rows begin where nobody is"),
    "a token after each piece": (
        changed(Scheduler, "launch", all_complete), "a token follows a text that has been fed",
    ),
    "the same piece again": (changed(Scheduler, "launch", never_fed), "a row is fed its text in order"),
    "the oldest gives way": (changed(Scheduler, "_preempt", to_the_oldest), "the oldest row never gives way"),
    "the second gives way": (changed(Scheduler, "_preempt", to_the_second), "the youngest rows give way"),
    "a row gives way ahead of need": (
        changed(Scheduler, "_make_room", ahead_of_need), "rows give way to one that lacks a block",
    ),
    "a preemption is not counted": (changed(Scheduler, "_preempt", uncounted_preemption), "preemptions are counted"),
    "preempted rows wait behind the others": (
        changed(Scheduler, "_preempt", last_in_line), "rows: first come, first served",
    ),
    "preempted rows come back ahead of their tokens": (
        changed(Scheduler, "_admit", impatient), "a row comes back once its tokens are here",
    ),
    "preempted rows come back without their tokens": (
        changed(Scheduler, "_admit", prompt_alone), "a row comes back with its tokens",
    ),
    "preempted rows come back to too little room": (
        unseen("check_reserved", changed(Scheduler, "_admit", to_little_room)),
        "a row that gives way twice got further, or others did",
    ),
    "preempted rows give a block back twice": (
        changed(Scheduler, "_preempt", freed_twice), "a block is free, idle or owned",
    ),
    "a preempted row that is cancelled stays in line": (
        changed(Scheduler, "drop", left_waiting), "no request is lost",
    ),
    "a block for two": (changed(BlockAllocator, "allocate", in_use), "a block has one owner, or is shared"),
    "who shares a block is not counted": (
        changed(SharedAllocator, "share", lambda share, self, block: self.idle.pop(block, None)),
        "holders are counted",
    ),
    "blocks are kept": (changed(BlockManager, "release", nothing), "a free slot owns nothing"),
    "the reservation is kept": (changed(BlockManager, "release", half_released), "a free slot owns nothing"),
    "blocks are forgotten": (changed(BlockManager, "release", kept), "a block is free, idle or owned"),
    "blocks stay where they are": (changed(BlockManager, "move", nothing), "a row's blocks stay its own"),
    "news of a block goes to where its row was": (
        changed(BlockManager, "move", without_news), "the device's tables are the host's",
    ),
    "reservations are not counted": (changed(BlockManager, "reserve", overbooked), "what is reserved is there"),
    "one token too few is reserved": (
        changed(BlockManager, "reserve", for_too_few), "room is reserved for what comes",
    ),
    "one token too few is reserved where blocks are shared": (
        changed(PrefixBlocks, "reserve", for_too_few), "room is reserved for what comes",
    ),
    "blocks come out of no reservation": (
        changed(BlockManager, "grow", uncounted), "reserved is what is not taken yet",
    ),
    "one token too few has room": (
        changed(BlockManager, "grow", lambda grow, self, row, length: grow(self, row, length - 1)),
        "a text has its blocks, no more",
    ),
    "a hit includes the last token": (changed(PrefixBlocks, "reserve", to_the_end), "a hit ends before the last token"),
    "a hit in a prompt whose logits are asked for": (
        changed(PrefixBlocks, "reserve", found_all_the_same), "a prompt whose logits are asked for is computed",
    ),
    "a block is found ahead of the step that fills it": (
        changed(PrefixBlocks, "grow", ahead_of_the_step), "a block that can be found is written",
    ),
    "a text is known before it is fed": (
        changed(Row, "text", before_it_is_fed), "a block that can be found is written",
    ),
    "a block with a new owner is found": (
        changed(SharedAllocator, "forget", still_known), "a block that can be found is written",
    ),
    "a key is the block's tokens alone": (changed(PrefixBlocks, "_extend", tokens_alone), "a row reads its own text"),
    "the last token of a hit is fed again": (changed(Scheduler, "_admit", one_step_back), "a slot is written once"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_histories_tell(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each thing that must hold can fail, and its name comes up."""
    mutate, what = MUTANTS[name]
    mutate(monkeypatch)
    assert any(outcome(seed) == what for seed in range(200))


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
