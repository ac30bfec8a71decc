"""What the engine's thread notes of each step for whoever watches: raw facts, as few as will do. Chapter 5.

Everything else is made of them elsewhere, by `nanoinfer.serve.events`: records, texts, JSON. Facts hold numbers alone,
so that they may go to another process, and only changes, so that they cost the same however large the pool is.
"""

from __future__ import annotations

import time
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nanoinfer.engine.engine import Engine
    from nanoinfer.engine.scheduler import Row, Step

QUEUE = 64  # requests that wait, by name; further ones are counted
PROMPT = 256  # tokens of a prompt at most whose text is shown
NUMBER = attrgetter("arrived")


class Recorder:
    """Facts of an engine's steps. To be called in the engine's thread after each step, and closed in it at the end.

    A request is known by the number of its arrival. texts: whether facts have token ids, of prompts too. It is told
    when rows leave and blocks are taken, and looks at no row to which nothing happened: which rows a step fed, and
    which tokens came back, follows from what it says of those that begin and end.
    """

    def __init__(self, engine: Engine, texts: bool = False) -> None:
        self.engine, self.texts, self.steps = engine, texts, 0
        self._late: set[Row] = set()  # that have left the batch, and whose last tokens are on their way
        self._out: set[Row] = set()  # that were preempted, and have not begun again
        self._queue: tuple[int, Row | None, Row | None] = 0, None, None
        self._lost = True  # whether what was said before no longer holds
        self._blocks: Any = engine.cache.blocks
        # With drafts a step gives a row several tokens or none: of each row, how many of them have been told.
        self._known: dict[Row, int] | None = {} if hasattr(engine, "drafter") else None
        # Of this step: rows that left, of these the preempted ones, what blocks they owned, and blocks that rows took.
        self._left: list[Row] = []
        self._preempted: list[Row] = []
        self._given: set[int] = set()
        self._taken: list[tuple[int, int]] = []
        self._cut: list[tuple[int, int]] = []  # that rows gave back and did not leave
        self._told = [
            self._tell(engine, "abandon", self._note_lost),
            self._tell(engine.scheduler, "remove", self._note_left),
            self._tell(engine.scheduler, "_preempt", self._preempted.append),
            self._tell(engine.cache, "update", self._note_taken),
        ]
        if self._blocks and self._known is not None:
            self._told.append(self._tell(self._blocks, "truncate", self._note_cut))

    def close(self) -> None:
        """Leave the engine as it was."""
        for owner, name in self._told:
            vars(owner).pop(name, None)

    def _tell(self, owner: Any, name: str, note: Callable[..., object]) -> tuple[Any, str]:
        """From now on `note` is called ahead of that method, with its arguments."""
        method = getattr(owner, name)

        def told(*arguments: Any) -> Any:
            note(*arguments)
            return method(*arguments)

        setattr(owner, name, told)
        return owner, name

    def _note_lost(self, cause: BaseException) -> None:
        """A step has failed: all rows end, and no block is known by its text."""
        self._lost = True

    def _note_left(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._left.append(row)
            if self._blocks:
                self._given.update(self._blocks.owned[row.slot])

    def _note_taken(self) -> None:
        """When tables on the device hear of new blocks, ahead of the step that writes them."""
        if self._blocks and self._blocks.begun:
            slots = self.engine.scheduler._slots
            self._taken += [(row.arrived, block) for slot, _, block in self._blocks.begun if (row := slots[slot])]

    def _note_cut(self, slot: int, length: int) -> None:
        """A row gives back the room of drafts, taken in this step or in one before. Of length 0 it leaves."""
        owned, size = self._blocks.owned[slot], self._blocks.block_size
        for block in owned[-(-length // size) :] if length else ():
            row = self.engine.scheduler._slots[slot]
            if row:
                self._given.add(block)  # it may have been kept for its text before
                each = (row.arrived, block)
                (self._taken.remove if each in self._taken else self._cut.append)(each)

    def step(self, step: Step, settled: list[Row]) -> dict[str, Any]:
        """The facts of the step that is over. The first ones, and those after a failure, hold the whole state."""
        facts: dict[str, Any] = {
            "step": self.steps,
            "time": time.perf_counter(),
            "in_flight": len(self.engine._in_flight),
            "decode": bool(step.going),
        }
        self.steps += 1
        if self.texts and self._known is None:
            facts["token_ids"] = [(row.arrived, row.token_ids[-1]) for row in settled]
        if step.pieces:
            facts["pieces"] = [
                (row.arrived, row.fed - tokens, tokens, row.fed == len(row.prompt) and row.limit > 0)
                for row, tokens in step.pieces
            ]
        if self._preempted:
            facts["preempted"] = list(map(NUMBER, self._preempted))
            self._out.update(self._preempted)
            for row in self._preempted:
                self._left.remove(row)
            self._preempted.clear()
        if step.begun:
            facts["begun"] = [self._begun(row, settled) for row in step.begun]
            self._out.difference_update(step.begun)
        if step.begun or self._queue_changed():
            self._wait(facts)
        if self._left:
            facts["left"] = list(map(NUMBER, self._left))
            self._late.update(self._left)
            self._left.clear()
        if self._blocks and (self._given or self._taken):
            idle = getattr(self._blocks.allocator, "idle", ())
            facts["taken"], facts["cached"] = self._taken, [block for block in self._given if block in idle]
            if self._known is not None:
                facts["given"], facts["cut"], self._cut = list(self._given), self._cut, []
            self._taken, self._given = [], set()
        if self._known is not None:
            self._count(facts, self._known, settled)
        if self._late or self._out:
            self._end(facts)
        if self._lost:
            facts["state"] = self._state()
        return facts

    def now(self) -> dict[str, Any]:
        """The whole state, between two steps."""
        return {"step": self.steps - 1, "time": time.perf_counter(), "state": self._state()}

    def _begun(self, row: Row, settled: Sequence[Row] = ()) -> tuple[int, int, float, int, Sequence[int]]:
        """Number, tokens of its prompt, when it was last heard of, its new tokens, and its text where texts are.

        settled: rows whose newest token comes after that.
        """
        prompt, new = row.request.prompt_token_ids, len(row.token_ids)
        new -= bool(new) and row in settled
        if self._known is not None:
            new = self._known.setdefault(row, new)
        since = row.times[new - 1] if new else row.asked
        return row.arrived, len(prompt), since, new, prompt[:PROMPT] if self.texts else ()

    def _count(self, facts: dict[str, Any], known: dict[Row, int], settled: Sequence[Row]) -> None:
        """How many tokens came to each row, and how many of its text it has been fed now."""
        runs, token_ids = [], []
        for row in dict.fromkeys((*self.engine.rows, *self._late, *self._out, *settled)):
            new = row.token_ids[known.get(row, len(row.token_ids)) :]
            known[row] = len(row.token_ids)
            if new:
                runs.append((row.arrived, len(new), row.fed))
                token_ids += [(row.arrived, token) for token in new]
            if row.ended:
                del known[row]
        facts["runs"] = runs
        if self.texts:
            facts["token_ids"] = token_ids

    def _end(self, facts: dict[str, Any]) -> None:
        if ended := [row for row in (*self._late, *self._out) if row.ended]:
            facts["ended"] = sorted((row.arrived, row.finish_reason or "cancelled") for row in ended)
            self._late.difference_update(ended)
            self._out.difference_update(ended)

    def _queue_changed(self) -> bool:
        """Requests come and go at the ends of the queue, or leave it from within, which makes it shorter."""
        waiting = self.engine.scheduler.waiting
        now = (len(waiting), waiting[0], waiting[-1]) if waiting else (0, None, None)
        if now == self._queue:
            return False
        self._queue = now
        return True

    def _wait(self, facts: dict[str, Any]) -> None:
        self._queue_changed()
        waiting = self.engine.scheduler.waiting
        facts["waiting"] = len(waiting), list(map(NUMBER, islice(waiting, QUEUE)))

    def _state(self) -> dict[str, Any]:
        """All of it, after the step: also what no fact of a step has said, since nobody watched."""
        engine, blocks, self._lost = self.engine, self._blocks, False
        scheduler, rows = engine.scheduler, engine.rows
        self._out = {row for row in scheduler.waiting if row.computed}
        self._late = {row for row in self._late if not row.ended}
        self._cut = []
        self._taken, self._given = [], set()
        if self._known is not None:
            self._known = {row: len(row.token_ids) for row in (*rows, *self._late, *self._out)}
        self._queue_changed()
        return {
            "engine": {
                "max_batch": engine.max_batch,
                "max_batched_tokens": scheduler.max_batched_tokens,
                "lag": engine.lag,
                "mixed": scheduler.mixed,
                "preemption": scheduler.preemption,
                "sharing": hasattr(blocks.allocator, "idle") if blocks else False,
                "blocks": blocks.allocator.blocks - 1 if blocks else 0,
                "block_size": blocks.block_size if blocks else 0,
            },
            "waiting": (len(scheduler.waiting), [row.arrived for row in islice(scheduler.waiting, QUEUE)]),
            "rows": [(*self._begun(row), row.fed) for row in (*rows, *self._late)],
            "going": [row.arrived for row in rows if row.going],
            "launched": [list(map(NUMBER, step.rows)) for step in engine._in_flight],
            "out": [self._begun(row) for row in self._out],
            "tables": {row.arrived: list(blocks.owned[row.slot]) for row in rows} if blocks else {},
            "cached": sorted(getattr(blocks.allocator, "idle", ())) if blocks else [],
        }
