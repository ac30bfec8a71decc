"""What the engine's thread notes of each step for whoever watches: raw facts, as few as will do. Chapter 5.

Everything else is made of them elsewhere, by `nanoinfer.serve.events`: records, texts, JSON. Facts hold numbers alone,
so that they may go to another process, and only changes, so that they cost the same however large the pool is.
"""

from __future__ import annotations

import time
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from nanoinfer.engine.engine import Engine
    from nanoinfer.engine.scheduler import Row, Step

QUEUE = 64  # requests that wait, by name; further ones are counted
PROMPT = 256  # tokens of a prompt at most whose text is shown


class _Touched(list[int]):
    """How many rows own each block, as the allocator keeps it; it remembers which entries were written."""

    def __init__(self, owned: Sequence[int]) -> None:
        super().__init__(owned)
        self.blocks: set[int] = set()

    def __setitem__(self, block: SupportsIndex | slice, owners: Any) -> None:
        super().__setitem__(block, owners)
        self.blocks.add(block)  # type: ignore[arg-type]


class _Manager(Protocol):
    """What is looked at of a block manager."""

    allocator: Any
    owned: list[list[int]]
    block_size: int


class Recorder:
    """Facts of an engine's steps. To be called in the engine's thread after each step, and closed in it at the end.

    A request is known by the number of its arrival. texts: whether facts have token ids, of prompts too. Between two
    steps it holds what it knows of the requests that run, and of the blocks: nothing grows with time.
    """

    def __init__(self, engine: Engine, texts: bool = False) -> None:
        if hasattr(engine, "drafter"):
            raise ValueError("steps with drafts cannot be watched yet: leave speculate out")
        self.engine, self.texts, self.steps = engine, texts, 0
        self._live: dict[Row, None] = {}  # rows that run, in order
        self._late: set[Row] = set()  # that have left the batch, and whose last tokens are on their way
        self._out: set[Row] = set()  # that were preempted, and have not begun again
        self._queue: tuple[int, Row | None, Row | None] = 0, None, None
        self._preemptions, self._told = 0, False
        self._rows: list[list[Row]] = [[], []]  # those that went on, and that got a token, in the step before
        self._ids: list[list[int]] = [[], []]
        self._cached: set[int] = set()
        blocks: Any = engine.cache.blocks
        self._blocks: _Manager | None = blocks
        self._touched = _Touched(blocks.allocator.owned if blocks else [])
        self._taken: list[tuple[Row, int]] = []  # blocks that rows took for this step
        if blocks:
            blocks.allocator.owned = self._touched
            self._update = engine.cache.update
            engine.cache.update = self._note_taken  # type: ignore[method-assign]

    def close(self) -> None:
        """Leave the engine as it was."""
        if self._blocks and self._blocks.allocator.owned is self._touched:
            self._blocks.allocator.owned = list(self._touched)
            del self.engine.cache.update

    def _note_taken(self) -> None:
        """When tables on the device hear of new blocks, ahead of the step that writes them."""
        blocks: Any = self._blocks
        slots = self.engine.scheduler._slots
        self._taken = [(row, block) for slot, _, block in blocks.begun if (row := slots[slot])]
        self._update()

    def step(self, step: Step, settled: list[Row]) -> dict[str, Any]:
        """The facts of the step that is over. The first ones, and those after a failure, hold the whole state."""
        engine, live = self.engine, self._live
        facts: dict[str, Any] = {
            "step": self.steps,
            "time": time.perf_counter(),
            "in_flight": len(engine._in_flight),
            "decode": self._same(0, step.going),
            "got": self._same(1, settled),
        }
        self.steps += 1
        if self.texts:
            facts["token_ids"] = [row.token_ids[-1] for row in settled]
        if step.pieces:
            facts["pieces"] = [(row.arrived, row.fed - tokens, tokens) for row, tokens in step.pieces]
        if engine.scheduler.preemptions != self._preemptions:
            self._preempted(step, facts)
        if step.begun:
            facts["begun"] = [self._begun(row, settled) for row in step.begun]
            live.update(dict.fromkeys(step.begun))
            self._out.difference_update(step.begun)
        if step.begun or self._queue_changed():
            self._wait(facts)
        left = [row for row in live if row.slot < 0]
        for row in left:
            del live[row]
        self._late.update(left)
        if self._blocks and self._touched.blocks:
            self._move(facts, self._blocks, left)
        if self._late or self._out:
            self._end(facts)
        if not self._told or "lost" in facts:
            facts["state"] = self._state()
        return facts

    def now(self) -> dict[str, Any]:
        """The whole state, between two steps."""
        return {"step": self.steps - 1, "time": time.perf_counter(), "state": self._state()}

    def _same(self, which: int, rows: list[Row]) -> list[int]:
        """The numbers of these rows: most often they are those of the step before."""
        if rows != self._rows[which]:
            self._rows[which], self._ids[which] = rows, [row.arrived for row in rows]
        return self._ids[which]

    def _begun(self, row: Row, settled: Sequence[Row] = ()) -> tuple[int, int, float, int, Sequence[int]]:
        """Number, tokens of its prompt, when it was last heard of, its new tokens, and its text where texts are.

        settled: rows whose newest token comes after that.
        """
        prompt, new = row.request.prompt_token_ids, len(row.token_ids) - (row in settled)
        since = row.times[new - 1] if new else row.asked
        return row.arrived, len(prompt), since, new, prompt[:PROMPT] if self.texts else ()

    def _preempted(self, step: Step, facts: dict[str, Any]) -> None:
        """Those that gave their room back wait ahead of all others, or have begun again in this very step."""
        self._preemptions = self.engine.scheduler.preemptions
        waiting = takewhile(lambda row: row in self._live or row in self._out, self.engine.scheduler.waiting)
        rows = [row for row in (*waiting, *step.begun) if row in self._live]
        facts["preempted"] = [row.arrived for row in rows]
        for row in rows:
            del self._live[row]
        self._out.update(rows)

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
        facts["waiting"] = len(waiting), [row.arrived for row in islice(waiting, QUEUE)]

    def _move(self, facts: dict[str, Any], blocks: _Manager, left: Sequence[Row]) -> None:
        """Who gave its blocks back, who took which, and which of those that nobody owns are kept for their text."""
        touched, idle = self._touched.blocks, getattr(blocks.allocator, "idle", ())
        self._touched.blocks = set()
        cached = [block for block in touched if block in idle]
        self._cached -= touched
        self._cached.update(cached)
        facts["given"] = [*facts.get("preempted", ()), *[row.arrived for row in left]]
        facts["taken"] = [(row.arrived, block) for row, block in self._taken if row.slot >= 0]
        facts["touched"], facts["cached"], self._taken = list(touched), cached, []
        if len(self._cached) != len(idle):  # all of them were forgotten at once, after a failure
            self._cached = set(idle)
            facts["lost"] = True

    def _state(self) -> dict[str, Any]:
        """All of it, after the step: also what no fact of a step has said, since nobody watched."""
        engine, blocks, self._told = self.engine, self._blocks, True
        scheduler = engine.scheduler
        self._out = {row for row in scheduler.waiting if row.computed}
        self._live = dict.fromkeys(engine.rows)
        self._late = {row for row in self._late if not row.ended}
        tables = {}
        if blocks:
            tables = {row.arrived: list(blocks.owned[row.slot]) for row in self._live}
            self._cached = set(getattr(blocks.allocator, "idle", ()))
            self._touched.blocks, self._taken = set(), []
        self._preemptions = scheduler.preemptions
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
            "rows": [(*self._begun(row), row.fed) for row in (*self._live, *self._late)],
            "out": [self._begun(row) for row in self._out],
            "tables": tables,
            "cached": sorted(self._cached),
        }
