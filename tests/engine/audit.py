"""What must hold of every step that a scheduler plans, whatever comes: order, budget, turns, room and moves.

Each thing that must hold is named, and the table of mistakes shows that each name can come up.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nanoinfer.engine.scheduler import Row, Step

if TYPE_CHECKING:
    from tests.engine.history import History


class Broken(BaseException):
    """Something that must hold does not. No Exception: the engine would take it for one request's own fault."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def arrived(row: Row) -> int:
    return row.arrived


class Audit:
    """Looks at a scheduler ahead of each step that it plans, and again when it is planned."""

    def __init__(self, history: History) -> None:
        self.scheduler = history.engine.scheduler
        self.blocks, self.shadow, self.ahead = history.blocks, history.shadow, history.ahead
        self.certain = history.drafts != "within"  # whether the host knows how many tokens rows have been fed
        self.chunk = self.scheduler.prefill_chunk
        self.budget, self.max_batch = self.scheduler.max_batched_tokens, self.scheduler.max_batch
        self.happened: Counter[str] = Counter()
        self.waits: Counter[Row] = Counter()  # of live rows, steps since they were fed
        self.preempted = 0
        self.prompts_came = False  # in the step before
        self.plan, self.scheduler.schedule = self.scheduler.schedule, self.schedule  # type: ignore[method-assign]

    def schedule(self) -> Step:
        scheduler = self.scheduler
        waiting, live = list(scheduler.waiting), sorted(scheduler.rows, key=arrived)
        must(waiting == sorted(waiting, key=arrived), "rows: first come, first served")
        victims = self.victims(live)
        step = self.plan()
        gone = [row for row in live if row.slot < 0 or row in step.begun]
        if self.certain:
            must(set(gone) == set(victims), "the youngest give way to one that lacks a block")
        assert gone == live[max(1, len(live) - len(gone)) :] or not gone  # the youngest, and never the oldest
        self.preempted += len(gone)
        must(scheduler.preemptions == self.preempted, "preemptions are counted")
        must([*step.begun, *scheduler.waiting] == gone + waiting, "rows: first come, first served")
        self.check_work(step)
        self.check_waits(step)
        self.check_causes(step)
        if self.blocks and self.certain:
            self.check_room(step)
        self.happened["moved"] += len(step.sources)
        self.happened["gave way in its prompt"] += sum(not row.launched for row in gone)
        self.happened["came back"] += sum(row.computed > 0 for row in step.begun)
        self.happened["came back to its blocks"] += sum(row.computed > 0 and row.fed > 0 for row in step.begun)
        return step

    def victims(self, live: list[Row]) -> list[Row]:
        """Who must give way: the youngest, for each row that goes on and lacks a block, the oldest first."""
        if self.blocks is None or not self.scheduler.preemption:
            return []
        owned, reservation = self.blocks.owned, self.blocks.reservation
        holders = Counter(block for row in live for block in owned[row.slot])
        available, victims, there = self.blocks.available, list[Row](), list(live)
        for row in live:
            mine = len(owned[row.slot])
            if row not in there or not row.going or row.fed < mine * self.blocks.block_size:
                continue
            if reservation[row.slot] > mine:
                continue
            while not available and row in there:
                victim = there.pop()
                victims.append(victim)
                theirs = owned[victim.slot]
                holders.subtract(theirs)
                available += reservation[victim.slot] - len(theirs)
                available += len([block for block in theirs if not holders[block]])
            available -= row in there
        return victims

    def check_work(self, step: Step) -> None:
        rows, mixed = self.scheduler.rows, self.scheduler.mixed
        left = [len(row.prompt) - row.fed for row, _ in step.pieces]
        tokens = [count for _, count in step.pieces]
        must(len(step.going) + sum(tokens) <= self.budget, "the budget holds")
        must(all(1 <= count <= most for count, most in zip(tokens, left, strict=True)), "a row is fed its own text")
        must(max(tokens, default=1) <= self.chunk, "a piece is at most prefill_chunk")
        must(step.going in ([], [row for row in rows if row.going]), "all rows that go on do, by slot, or none")
        must(mixed or not step.going or not step.pieces, "the two kinds of step take turns")
        in_prompt = sorted([row for row in rows if not row.going], key=arrived)
        must([row for row, _ in step.pieces] == in_prompt[: len(tokens)], "pieces: first come, first served")
        whole = [min(most, self.chunk) for most in left]
        must(tokens[:-1] == whole[:-1], "only the last piece is cut")

    def check_waits(self, step: Step) -> None:
        fed, rows = {*step.going, *[row for row, _ in step.pieces]}, sorted(self.scheduler.rows, key=arrived)
        self.waits = Counter({row: self.waits[row] + 1 for row in rows if row not in fed})
        patience = 0 if self.scheduler.mixed else 1
        must(not rows or self.waits[rows[0]] <= patience, "the oldest row goes on")
        must(all(self.waits[row] <= patience for row in rows if row.going), "a row that goes on waits one step at most")

    def check_causes(self, step: Step) -> None:
        """Whoever waits does so for the budget, a row, room, its own tokens, or the other kind of step."""
        scheduler, pieces = self.scheduler, dict(step.pieces)
        head = scheduler.waiting[0] if scheduler.waiting else None
        awaited = head is not None and len(head.token_ids) < head.launched
        self.happened["waited for its tokens"] += awaited
        must(bool(step.going or pieces or awaited) or not scheduler.busy, "no step is empty without a cause")
        turn = not scheduler.mixed and bool(step.going) and self.prompts_came
        self.prompts_came = bool(pieces)
        used = sum(pieces.values()) + (len(step.going) if scheduler.mixed else 0)
        if turn or used == self.budget:
            return
        for row in scheduler.rows:
            due = min(len(row.prompt) - row.fed, self.chunk)
            must(row.going or pieces.get(row) == due, "no prompt waits without a cause")
        if head and not awaited and len(scheduler.rows) < self.max_batch:
            known = [*head.request.prompt_token_ids, *head.token_ids]
            must(self.shadow is not None, "nobody waits without a cause")
            assert self.shadow
            text = () if head.request.params.prompt_logprobs is not None else tuple(known)
            must(not self.shadow.fits(text, self.first_room(head, len(known)))[1], "nobody waits without a cause")

    def first_room(self, row: Row, length: int) -> int:
        """Tokens that a row which begins with so many reserves room for."""
        longest = len(row.request.prompt_token_ids) + row.request.limit
        return min(longest, length + self.ahead) if self.scheduler.preemption else longest

    def check_room(self, step: Step) -> None:
        assert self.blocks
        pieces = dict(step.pieces)
        for row in self.scheduler.rows:
            room = max(self.blocks.blocks_of(self.first_room(row, len(row.prompt))), len(self.blocks.owned[row.slot]))
            must(self.blocks.reservation[row.slot] == room, "room is reserved for what comes")
            end = row.fed + pieces.get(row, row.going)  # who goes on may have its next block a step early
            must(len(self.blocks.owned[row.slot]) == self.blocks.blocks_of(end), "a text has its blocks, no more")
