"""What must hold of every step that an engine plans, whatever comes: order, budget, turns, room and moves.

Each thing that must hold is named, and the table of mistakes shows that each name can come up.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from nanoinfer.engine.engine import Work
from tests.engine.fake_graphed import watch

if TYPE_CHECKING:
    from tests.engine.history import History


class Broken(BaseException):
    """Something that must hold does not. No Exception: the engine would take it for one request's own fault."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


ARRIVED = attrgetter("arrived")


class Audit:
    """Looks at an engine ahead of each step that it plans, and again when it is planned."""

    def __init__(self, history: History) -> None:
        self.engine: Any = history.engine
        self.blocks, self.shadow, self.ahead = history.blocks, history.shadow, history.ahead
        self.preemption, self.max_batch = history.preemption, history.max_batch
        self.chunk, self.budget = self.engine.chunk, self.engine.budget
        self.happened: Counter[str] = Counter()
        self.waits: Counter[Any] = Counter()  # of running sequences, steps since they were fed
        self.known: dict[Any, int] = {}  # of each, how many tokens it had when it was admitted
        self.drafts = history.drafts
        self.planned: list[Work] = []  # last, but for drafts
        self.gone: list[Any] = []  # those that this plan has preempted
        self.prompts_came = False  # in the step before
        self.plan, self.engine.schedule = self.engine.schedule, self.schedule
        watch(self.engine, "preempt", self.gone.append)
        if hasattr(history.cache, "rename"):
            watch(history.cache, "rename", self.moved)

    def moved(self, sources: list[int], targets: list[int]) -> None:
        self.happened["moved"] += len(sources)

    def schedule(self) -> list[Work]:
        engine, preempted = self.engine, self.engine.stats.preemptions
        waiting, running = self.waiting, sorted(engine.running, key=ARRIVED)
        must(waiting == sorted(waiting, key=ARRIVED), "rows: first come, first served")
        victims, decoding = self.victims(running), [s for s in engine.running if s.decoding]
        self.gone.clear()
        planned = self.plan()
        self.planned = work = engine.fed
        if self.drafts and not work and getattr(engine, "in_flight", ()):  # what is on its way must be known first
            assert not self.gone
            return planned
        gone = sorted(self.gone, key=ARRIVED)
        begun = [s for s in engine.running if s not in running or s in gone]
        self.known |= {s: len(s.tokens) for s in begun}
        must(gone == sorted(victims, key=ARRIVED), "the youngest give way to one that lacks a block")
        assert gone == running[max(1, len(running) - len(gone)) :] or not gone  # the youngest, and never the oldest
        must(engine.stats.preemptions == preempted + len(gone), "preemptions are counted")
        must([*begun, *self.waiting] == gone + waiting, "rows: first come, first served")
        self.decoding = [s for s in decoding if s not in gone]
        self.decoded, self.pieces = work[: engine.decoded], {s: count for s, _, count in work[engine.decoded :]}
        self.check_work(work)
        self.check_waits()
        self.check_causes()
        if self.blocks:
            self.check_room()
        self.happened["gave way in its prompt"] += len([s for s in gone if s not in decoding])
        self.happened["came back"] += sum(s.computed > 0 for s in begun)
        self.happened["came back to its blocks"] += sum(s.computed > 0 and s.cached > 0 for s in begun)
        return planned

    @property
    def waiting(self) -> list[Any]:
        """Those that wait; one that was preempted may end by a token that was on its way, and is taken out later."""
        return [s for s in self.engine.waiting if not s.ended]

    def victims(self, running: list[Any]) -> list[Any]:
        """Who must give way: the youngest, for each decoding one that lacks a block, the oldest first."""
        if not self.preemption:
            return []
        size, owned, reserved = self.blocks.block_size, self.blocks.owned, self.blocks.reserved
        holders = Counter(block for s in running for block in owned[s.row])
        available, victims, there = self.blocks.available, list[Any](), list(running)
        for s in running:
            full = s.cached == (len(owned[s.row]) + reserved[s.row]) * size
            if s not in there or not s.decoding or not full:
                continue
            while not available and s in there:
                victim = there.pop()
                victims.append(victim)
                theirs = owned[victim.row]
                holders.subtract(theirs)
                available += reserved[victim.row] + len([block for block in theirs if not holders[block]])
            available -= s in there
        return victims

    def check_work(self, work: list[Work]) -> None:
        engine, pieces = self.engine, work[self.engine.decoded :]
        tokens, left = [*self.pieces.values()], [len(s.tokens) - start for s, start, _ in pieces]
        must(len(self.decoded) + sum(tokens) <= self.budget, "the budget holds")
        own = all(start == s.cached for s, start, _ in work) and all(count == 1 for *_, count in self.decoded)
        own &= all(1 <= count <= most for count, most in zip(tokens, left, strict=True))
        must(own, "a row is fed its own text")
        must(max(tokens, default=1) <= self.chunk, "a piece is at most prefill_chunk")
        must([s for s, _, _ in self.decoded] in ([], self.decoding), "all rows that go on do, in order, or none")
        must(engine.mixed or not self.decoded or not pieces, "the two kinds of step take turns")
        in_prompt = sorted([s for s in engine.running if s not in self.decoding], key=ARRIVED)
        must([*self.pieces] == in_prompt[: len(tokens)], "pieces: first come, first served")
        whole = [min(most, self.chunk) for most in left]
        must(tokens[:-1] == whole[:-1], "only the last piece is cut")

    def check_waits(self) -> None:
        fed, running = {*self.pieces, *[s for s, _, _ in self.decoded]}, sorted(self.engine.running, key=ARRIVED)
        self.waits = Counter({s: self.waits[s] + 1 for s in running if s not in fed})
        patience = 0 if self.engine.mixed else 1
        must(not running or self.waits[running[0]] <= patience, "the oldest row goes on")
        must(all(self.waits[s] <= patience for s in self.decoding), "a row that goes on waits one step at most")

    def check_causes(self) -> None:
        """Whoever waits does so for the budget, a slot, room, its own tokens, or the other kind of step."""
        engine, head = self.engine, next(iter(self.waiting), None)
        awaited = head is not None and len(head.tokens) < head.awaited
        self.happened["waited for its tokens"] += awaited
        idle = not (self.waiting or engine.running)
        must(bool(self.decoded or self.pieces or awaited or idle), "no step is empty without a cause")
        turn = not engine.mixed and bool(self.decoded) and self.prompts_came
        self.prompts_came = bool(self.pieces)
        if turn or sum(self.pieces.values()) + len(self.decoding) * engine.mixed == self.budget:
            return
        for s in engine.running:
            due = min(len(s.tokens) - s.cached, self.chunk)
            must(s in self.decoding or self.pieces.get(s) == due, "no prompt waits without a cause")
        if head and not awaited and len(engine.running) < self.max_batch:
            must(self.shadow is not None, "nobody waits without a cause")
            assert self.shadow
            text = () if head.params.prompt_logprobs is not None else tuple(head.tokens)
            fits = self.shadow.fits(text, self.first_room(head, len(head.tokens)))[1]
            must(not fits, "nobody waits without a cause")

    def first_room(self, s: Any, length: int) -> int:
        """Tokens that a sequence which begins with so many reserves room for."""
        longest = len(s.request.prompt_token_ids) + s.request.limit
        return min(longest, length + self.ahead) if self.preemption else longest

    def check_room(self) -> None:
        blocks = self.blocks
        for s in self.engine.running:
            owned = len(blocks.owned[s.row])
            room = max(self.first_room(s, self.known[s]), s.cached + (s in self.decoding))
            has, text = owned + blocks.reserved[s.row], blocks.blocks_of(s.cached + self.pieces.get(s, 0))
            most = s.end if self.drafts else room
            must(blocks.blocks_of(room) <= has <= blocks.blocks_of(most), "room is reserved for what comes")
            must(text <= owned <= (has if self.drafts else text), "a text has its blocks, no more")
