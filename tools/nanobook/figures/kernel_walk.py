"""The paged kernel's walk through memory: which program reads which pages of the pool, on a ragged batch.

Nothing here is drawn by hand: a real block manager hands out the blocks of a short history of requests that come, grow
and go, and `choose_splits` says into how many parts a context is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nanobench.report.figures.style import GRID, GROUND, MUTED, PEERS, TEXT, WIDTH, Drawing, corner
from nanoinfer.cache.captured import NULL, NullBlocks
from nanoinfer.cache.paged import SPLIT_TOKENS, choose_splits

HEADS, HEAD_SIZE = 12, 64  # gpt2's
PAGE, MAX_LEN, BLOCKS, COLUMNS = 16, 256, 48, 16
LEFT = -3.0  # where names begin, left of the columns
TILE = SPLIT_TOKENS  # that a program of a split context reads at a time
PARTED = (200, 96, 144)  # texts that were there first, and are gone
GROWN = (230, 19, 70, 150)  # the ragged batch
STEPS = 10  # in which its rows grow side by side


@dataclass(frozen=True)
class Row:
    """A row of the batch: the pages of each program, in the text's order, with the programs' colours."""

    length: int
    splits: tuple[tuple[int, ...], ...]
    colors: tuple[str, ...]


def history() -> dict[int, list[int]]:
    """The pages of each row of the batch after some traffic, by its length: texts come and go, and others grow."""
    blocks = NullBlocks(BLOCKS - 1, PAGE, len(PARTED) + len(GROWN))
    for row, length in enumerate(PARTED):
        blocks.reserve(row, length)
        blocks.grow(row, length)
    blocks.release(1)
    rows = dict(enumerate(GROWN, start=len(PARTED)))
    for row, length in rows.items():
        blocks.reserved[row] = blocks.blocks_of(length)  # of more than is free now: rows 0 and 2 leave in time
    for step in range(1, STEPS + 1):
        if step == STEPS // 2:
            blocks.release(0)
            blocks.release(2)
            rows = dict([*rows.items()][2:]) | rows  # the last two take the first places
        for row, length in rows.items():
            blocks.grow(row, length * step // STEPS)
    return {length: blocks.owned[row] for row, length in rows.items()}


def batch(splits: int) -> list[Row]:
    """The rows, longest first, with what each program reads. Unsplit, a row is one program, of a colour of its own."""
    found = []
    for row, (length, pages) in enumerate(history().items()):
        parts = [tuple(pages[first // PAGE : -(-end // PAGE)]) for first, end in parted(length, splits)]
        found.append(Row(length, tuple(parts), PEERS[row : row + 1] if splits == 1 else PEERS[:splits]))
    return sorted(found, key=lambda row: -row.length)


def parted(length: int, splits: int) -> list[tuple[int, int]]:
    """First and end token of each split of a context, as the kernel computes them: whole tiles, the same for each."""
    tiles = math.ceil(length / TILE)
    per_split = math.ceil(tiles / splits) * TILE
    starts = [split * per_split for split in range(splits)]
    return [(start, max(start, min(start + per_split, length))) for start in starts]


def walk(split: bool) -> Drawing:
    """The drawing; its table has every program's pages. split: by the engine's choice, or a program reads a row."""
    splits = choose_splits(len(GROWN), HEADS, MAX_LEN) if split else 1
    rows = batch(splits)
    parts = f"{splits} splits of whole tiles of {TILE} tokens" if split else "not split"

    def draw() -> Figure:
        figure = Figure(figsize=(WIDTH, 6.75), layout=None)
        for make, bottom, height in ((_tables, 0.585, 0.405), (_pool, 0.2, 0.37), (_page, 0.055, 0.125)):
            ax = figure.add_axes((0.0, bottom, 1.0, height))
            ax.axis("off")
            ax.set_xlim(LEFT, COLUMNS + 0.2)
            make(ax, rows)
        corner(figure, f"blocks of {PAGE} tokens, {parts}, gpt2's heads")
        return figure

    header = ("row", "tokens", *(f"program s = {split} reads" for split in range(splits)))
    table = [
        (chr(65 + i), str(row.length), *(", ".join(map(str, pages)) or "nothing" for pages in row.splits))
        for i, row in enumerate(rows)
    ]
    colour = "a colour for each split s of a row" if split else "in the colour of the program that reads them"
    alt = (
        f"Above, the block tables of {len(rows)} rows of {', '.join(str(row.length) for row in rows)} tokens: each "
        f"row's pages in the order of its text, {colour}. Below, the same pages where they lie in the pool, out of "
        f"order. "
    )
    if split:
        alt += f"Each row and head has {splits} programs, and each reads up to {TILE // PAGE} pages; "
        alt += "those of short rows have nothing to read."
        name, title = "kernel-splits", "The same walk, split"
    else:
        alt += "Each row and head has one program, which reads all of the row's pages."
        name, title = "kernel-walk", "The paged kernel's walk through memory"
    return Drawing(f"03-paged-attention/{name}", title, alt, header, tuple(table), draw)


def _tables(ax: Axes, rows: list[Row]) -> None:
    """A row's block table a line, with the number of each page."""
    pitch = 1.3
    ax.set_ylim(pitch * len(rows), -0.95)
    colour = "a colour for each split s" if len(rows[0].splits) > 1 else "a colour for each row's program"
    title = f"Block tables: a row's pages in the order of its text; {colour}"
    ax.text(LEFT + 0.15, -0.6, title, fontsize=11, va="center")
    for i, row in enumerate(rows):
        y, at = pitch * i, 0
        ax.text(-0.25, y + 0.42, f"{chr(65 + i)}: {row.length} tokens", ha="right", va="center", fontsize=10.5)
        for split, pages in enumerate(row.splits):
            for page in pages:
                _cell(ax, at, y, str(page), row.colors[split])
                at += 1
            if pages and len(row.splits) > 1:
                middle = at - len(pages) / 2 - 0.04
                ax.text(middle, y + 0.98, f"s = {split}", ha="center", va="center", fontsize=9, color=MUTED)
        for empty in range(at, MAX_LEN // PAGE):
            _cell(ax, empty, y, str(NULL), GROUND, faint=True)


def _pool(ax: Axes, rows: list[Row]) -> None:
    """All blocks as they lie, and the walk of one program through them."""
    pitch, lines = 1.3, BLOCKS // COLUMNS
    ax.set_ylim(pitch * lines, -0.95)
    program = "program A, s = 0" if len(rows[0].splits) > 1 else "A's program"
    title = f"The pool: the same pages in memory; outlined and numbered, the walk of {program}"
    ax.text(LEFT + 0.15, -0.6, title, fontsize=11, va="center")
    owner = {page: (i, s) for i, row in enumerate(rows) for s, part in enumerate(row.splits) for page in part}
    walked = {page: f"{at}." for at, page in enumerate(rows[0].splits[0], 1)}
    for block in range(BLOCKS):
        x, y = block % COLUMNS, pitch * (block // COLUMNS)
        ax.text(x + 0.46, y + 0.98, str(block), ha="center", va="center", fontsize=8.5, color=MUTED)
        if block not in owner:
            _cell(ax, x, y, "null" if block == NULL else "free", GROUND, faint=True)
            continue
        row, split = owner[block]
        _cell(ax, x, y, walked.get(block, chr(65 + row)), rows[row].colors[split])
        if block in walked:
            ax.add_patch(Rectangle((x + 0.02, y + 0.02), 0.88, 0.76, fill=False, edgecolor=TEXT, linewidth=2.6))
    for y in range(lines):
        name = f"{y * COLUMNS} to {y * COLUMNS + COLUMNS - 1}"
        ax.text(-0.25, pitch * y + 0.42, name, ha="right", va="center", fontsize=10.5, color=MUTED)


def _page(ax: Axes, rows: list[Row]) -> None:
    """One page of the pool, head by head: what one program reads of it lies in one piece."""
    ax.set_ylim(1.05, -0.95)
    piece = f"a program reads {PAGE * HEAD_SIZE * 2:,} bytes in one piece"
    ax.text(LEFT + 0.15, -0.6, f"A page of keys, or of values, head by head: {piece}", fontsize=11, va="center")
    wide = COLUMNS / HEADS
    ax.text(-0.25, 0.42, f"page {rows[0].splits[0][0]}", ha="right", va="center", fontsize=10.5)
    for head in range(HEADS):
        chosen = head == 3
        _cell(ax, head * wide, 0, f"h = {head}", rows[0].colors[0] if chosen else GROUND,
              faint=not chosen, width=wide - 0.12)  # fmt: skip


def _cell(ax: Axes, x: float, y: float, text: str, color: str, *, faint: bool = False, width: float = 0.88) -> None:
    edge = GRID if faint else color
    ax.add_patch(Rectangle((x + 0.04, y + 0.04), width - 0.04, 0.72, facecolor=color, edgecolor=edge, linewidth=1.2))
    shade = MUTED if faint else GROUND
    ax.text(x + width / 2 + 0.02, y + 0.4, text, ha="center", va="center", fontsize=8.5 if faint else 10, color=shade)
