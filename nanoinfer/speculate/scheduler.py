"""How many drafts a row may bring to a step, and their room, which is given back. Chapter 7.

A row that brings k drafts is fed k + 1 tokens, of which one is certain: `Scheduler.launch` counts that one. The tokens
that were accepted are counted when they are known, and then blocks are as if tokens had come one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from nanoinfer.cache.blocks import BlockManager
from nanoinfer.engine.scheduler import Row, Scheduler, Step


class DraftScheduler(Scheduler):
    """A `Scheduler` that has room for drafts where nobody else wants it: a draft makes no row wait or leave."""

    _reservations: dict[Row, int]  # in blocks, of rows that took room for drafts, before they did

    def draft_limits(self, step: Step, most: int) -> list[int]:
        """How many drafts each row that goes on may bring, `most` at most.

        A row may accept all of them and choose one token more: that must not exceed its limit, nor the context. The
        step's budget is divided evenly.
        """
        left = self.max_batched_tokens - len(step.going) - sum(tokens for _, tokens in step.pieces)
        each = min(most, max(0, left) // max(1, len(step.going)))
        return [min(each, row.last - row.fed - 1) for row in step.going]

    def room_for(self, step: Step, drafts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """The drafts of the rows that go on, each as far as there are blocks for it; the rows have these now."""
        blocks, fitting = cast(BlockManager | None, self.blocks), list(drafts)
        self._reservations = {}
        for at, row in enumerate(step.going if blocks else ()):
            assert blocks
            count = len(drafts[at])
            while count and not blocks.can_grow(row.slot, row.fed + 1 + count):
                count -= 1
            fitting[at] = drafts[at][:count]
            if count:
                self._reservations[row] = blocks.reservation[row.slot]
                row.room = blocks.grow(row.slot, row.fed + 1 + count)
                row.due = min(row.room, row.last)
        return fitting

    def give_back(self, row: Row) -> None:
        """The room of drafts that were rejected. What was accepted has been counted in `row.fed`."""
        reservation = self._reservations.pop(row, None)
        if reservation is not None and row.slot >= 0:  # else it has ended, and has given all back
            blocks = cast(BlockManager, self.blocks)
            blocks.truncate(row.slot, row.fed)
            blocks.unreserve(row.slot, reservation)
            row.room = blocks.grow(row.slot, 0)
            row.due = min(row.room, row.last)
            if row.fed == row.room:
                self._full.append(row)
