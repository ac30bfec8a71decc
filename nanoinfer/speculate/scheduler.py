"""How many drafts a row may bring to a step, and their room, which is given back. Chapter 7.

A row that brings k drafts is fed up to k + 1 tokens. How many of them are of its text is known when the step's tokens
are here. Until then it has room for all, and for those of the steps that are launched meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from nanoinfer.cache.blocks import BlockManager
from nanoinfer.engine.scheduler import Row, Scheduler, Step


class DraftScheduler(Scheduler):
    """A `Scheduler` that has room for drafts where nobody else wants it: a draft makes no row wait or leave.

    short: whether a row may have no room for its next token, which is known when nothing is in flight.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.short = False
        self._reservations: dict[Row, int] = {}  # in blocks, of rows that took room for drafts, before they did

    @property
    def crowded(self) -> bool:
        """Whether a row may have to give its room back before the next step, so that this one begins rows again."""
        return bool(self._full) and cast(BlockManager, self.blocks).available < len(self._full)

    def draft_limit(self, step: Step, most: int) -> int:
        """How many drafts each row that goes on may bring, `most` at most: the step's budget is divided evenly."""
        left = self.max_batched_tokens - len(step.going) - sum(tokens for _, tokens in step.pieces)
        return min(most, max(0, left) // max(1, len(step.going)))

    def room_for(self, step: Step, counts: Sequence[int]) -> list[int]:
        """Of so many drafts, how many each row that goes on may bring; it has room for them now, where there is any.

        A row may accept all of them and choose one token more: that must not exceed its limit, nor the context. Where
        steps in flight may have fed it more than is known, that must be looked at again where it is known.
        """
        fitting = []
        for row, count in zip(step.going, counts, strict=True):
            certain = min(row.fed + row.ahead + 1, row.last)
            wanted = min(certain + count, row.last)
            if wanted > row.room:
                blocks = cast(BlockManager, self.blocks)
                while wanted > row.room and not blocks.can_grow(row.slot, wanted):
                    wanted -= 1
                self._reservations.setdefault(row, blocks.reservation[row.slot])
                row.room = blocks.grow(row.slot, wanted)
                self.short |= row.room < certain
            fitting.append(max(0, min(count, min(row.room, row.last) - row.fed - 1)))
        return fitting

    def launch_drafts(self, step: Step, counts: Sequence[int]) -> list[Row]:
        """As `launch`, of a step with so many drafts: what it feeds rows that go on is counted by `note`."""
        for row, count in zip(step.going, counts, strict=True):
            row.ahead += 1 + count
        return step.going + self.launch(step._replace(going=[]))

    def remove(self, rows: Sequence[Row]) -> None:
        """As the base's. Such a row gives back all that it has, for drafts too."""
        for row in rows:
            self._reservations.pop(row, None)
        super().remove(rows)

    def give_back(self) -> None:
        """Nothing is in flight: rows have the room of the tokens that they have, as if these had come one by one."""
        for row, reservation in self._reservations.items():
            blocks = cast(BlockManager, self.blocks)
            blocks.truncate(row.slot, row.fed)
            blocks.unreserve(row.slot, reservation)
            row.room = blocks.grow(row.slot, 0)
        self._reservations, self.short = {}, False
        going = [row for row in self.rows if row.going]
        for row in going:
            row.due = min(row.room, row.last)
        self._full = [row for row in going if row.fed == row.room]
