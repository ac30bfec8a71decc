"""Exercise 4.5: where padding rows of a recorded step write, and what they read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, beside, call
from nanoinfer.cache.captured import NULL, CapturedPaged
from nanoinfer.engine.step import Rows

scenes = beside(__file__, "scenes.py")
places = beside(__file__, "places.py")


def addresses(position: Tensor, live: Tensor, tables: Tensor, null: int, block_size: int) -> tuple[Tensor, ...]:
    """For each row of a decode step its slot (B,), how many tokens it reads (B,), and its table (B, width).

    position (B,) int64: where the row's new token stands in its text, below a million in a live row. live (B,) int64: 1
    for a row of a request, 0 for a padding row, which is in the step because the graph has more rows than there are
    requests; its position may be any number, and its table that of a request that has left. tables (B, width) int64:
    the blocks of each row, in the order of its text. The row's token is written to its slot: slot s is place s %
    block_size of block s // block_size. Then as many tokens of its table's blocks as you return are read, from the
    first, and averaged: one at least, and no more than the table has room for, of any row. Block `null` belongs to no
    request: any row may write to it, and what it holds adds up to a finite number, however often it is read. A slot may
    be any int64; B is 128 at most, width a thousand. The three tensors are the engine's, read-only. Recorded
    once, this runs in every replay.
    """
    nobody = live == 0
    tables = tables.masked_fill(nobody[:, None], null)
    position = position.masked_fill(nobody, 0)
    block = tables.gather(1, position[:, None] // block_size)[:, 0]  # (B,)
    return block * block_size + position % block_size, position + 1, tables


def swap(mine: Function) -> Places:
    """CapturedPaged.plan takes a decode step's slots, lengths and tables from it."""
    plan = CapturedPaged.plan

    def planned(self: Any, batch: Any) -> Any:
        made = plan(self, batch)
        if not isinstance(batch, Rows):
            return made
        live = (batch.row < len(self.tables) - 1).long()  # the last slot is the dummy
        slots, lengths, tables = mine(batch.positions, live, made.tables.long(), NULL, self.block_size)
        return made._replace(places=slots.long(), lengths=lengths.long(), tables=tables.int())

    return places.RECORDED | {"nanoinfer.cache.captured:CapturedPaged.plan": planned}


def _example() -> Call:
    batch = {
        "x": torch.tensor([4.0, 9.0]), "position": torch.tensor([2, 1]), "live": torch.tensor([1, 0]),
        "tables": torch.tensor([[1, 2], [2, 1]]),
    }  # fmt: skip
    return call(torch.tensor([[0.0, 0.0], [1.0, 1.0], [7.0, 7.0]]), 0, [batch], 2)


EXERCISE = Spec(
    reference=addresses,
    lines=6,
    example=_example,
    section="Padding rows",
    axes=("batch", "row"),
    tolerance=1e-5,
    imports=("import torch", "from torch import Tensor"),
    refuse=("nanoinfer.cache.captured:CapturedPaged.plan",),
    swap=swap,
    pure=False,  # what it is handed is written to
    scene=scenes.attended,
)


def _batches(case: Case, live: list[list[int]], stale: str, width: int = 2, size: int = 0, first: int = 0) -> Call:
    """Batches of these live rows. A padding row names blocks of live ones, or of no numbers, or stands anywhere."""
    rows, size = len(live[0]), size or case.size("block size", 2, 4)
    blocks = case.permutation("blocks", width * (rows + 1) + 1).tolist()
    null, owned, freed = blocks[0], torch.tensor(blocks[1:-width]).view(rows, width), torch.tensor(blocks[-width:])
    pool = case.floats("pool", len(blocks), size)
    pool[freed], pool[null] = case.choice("freed", (torch.nan, torch.inf)), case.choice("null", (0.0, -7.0))
    others = {"live": owned.roll(1, 0), "freed": freed.expand(rows, width), "anywhere": owned.roll(1, 0)}[stale]
    batches = []
    for at, now in enumerate(torch.tensor(live)):
        position = case.ints(f"position {at}", 0, width * size - 1, rows)
        if stale == "anywhere":
            position = torch.where(now == 1, position, case.turn((99999, -7, 2**40, -(2**62))))
        tables = torch.where(now[:, None] == 1, owned, others)
        batches.append({"x": case.floats(f"x {at}", rows) + 3, "position": position, "live": now, "tables": tables})
    return call(pool, null, batches, width, first)


def _live(case: Case) -> list[list[int]]:
    """Three batches: all rows, some of them, and all, or all but the first, again."""
    rows = case.size("rows", 2, 4)
    left = case.size("left", 1, rows - 1)
    return [[1] * rows, [1] * left + [0] * (rows - left), [case.choice("first", (0, 1))] + [1] * (rows - 1)]


def blocks_of_others(case: Case) -> Call:
    """Padding rows whose tables name the blocks of live rows write into none, wherever they stand."""
    return _batches(case, _live(case), case.turn(("live", "anywhere")))


def far_blocks(case: Case) -> Call:
    """Slots of a large pool are beyond 2^31, or 2^53, or below 0, and are told exactly."""
    return _batches(case, _live(case), "live", first=case.turn((2**30, 2**57 + 1, -(2**57))))


def blocks_of_no_numbers(case: Case) -> Call:
    """What padding rows read is finite, whatever lies in the blocks that they had."""
    return _batches(case, _live(case), "freed")


def any_rows(case: Case) -> Call:
    """Steps of padding alone, wide tables, blocks of one token, many rows, one that comes and goes, and long texts."""
    live = case.turn((
        [[1, 1], [0, 0], [0, 1]], [[0, 1, 1], [1, 0, 1], [1, 1, 0]], [[1], [0], [1]],
        [[1] * 128, [0, 1] * 64, [1, 0] * 64], [[1, 1], [1, 0]],
    ))  # fmt: skip
    width, size = case.turn(((1000, 2), (1, 1), (2, 3), (5, 107), (5, 2**14)))
    asked = _batches(case, live, case.turn(("anywhere", "freed", "live", "freed", "live")), width, size)
    if size > 1000:  # a long text
        asked.args[2][1]["position"][0] = width * size - 1
    if size == 107:  # 4 * 107 * (1 / 107) is less than 4
        asked.args[2][0]["position"] = torch.arange(128) % width * size
    return asked


CHECKS = (
    Check(blocks_of_others, 6), Check(blocks_of_no_numbers, 4), Check(far_blocks, 3), Check(any_rows, 5, wide=True),
)  # fmt: skip
