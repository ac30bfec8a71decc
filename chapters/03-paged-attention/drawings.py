"""The diagrams of chapter 3, drawn from its running example: `python -m nanobook draw 03-paged-attention`.

The kernel's walk through memory is drawn by the book's own tools, from a real cache.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from nanobench.report.figures.style import ACCENT, MUTED, PEERS, TEXT, Drawing
from nanobook.examples import load
from nanobook.figures.kernel_walk import walk
from nanobook.figures.sketch import Sketch, charted, sketched
from nanobook.running import word

here = Path(__file__).parent
run = load(here / "running.py")
ROOM = 1024  # slots of a row in the dense cache


def drawings() -> list[Drawing]:
    """All diagrams of the chapter."""
    return [pool(), room(), walk(split=False), walk(split=True)]


def pool() -> Drawing:
    """The tables of the running example, and its pool with the tokens that each block holds."""
    held = run.pool()
    owner = {block: (row, at) for row, table in enumerate(held.tables) for at, block in enumerate(table)}
    inside = {
        block: [word(i).strip('" ') or "'" for i in held.texts[row][at * run.BLOCK : (at + 1) * run.BLOCK]]
        for block, (row, at) in owner.items()
    }

    @sketched(16, 10)
    def draw(on: Sketch) -> None:
        colors = (ACCENT, *PEERS[:2])
        on.ax.text(0.2, 0.45, "tables", fontsize=11.5)
        for row, table in enumerate(held.tables):
            y = 0.85 + 0.85 * row
            on.ax.text(0.2, y + 0.35, f"row {row}", va="center", color=MUTED)
            for at in range(4):
                taken = at < len(table)
                on.filled((1.4 + 0.9 * at, y), (0.8, 0.7), colors[row] if taken else None)
                if taken:
                    on.ax.text(1.8 + 0.9 * at, y + 0.36, str(table[at]), ha="center", va="center")
        on.ax.text(0.2, 3.9, f"the pool: {run.BLOCKS} blocks of {run.BLOCK} tokens", fontsize=11.5)
        for block in range(run.BLOCKS):
            x, y = 0.2 + 3.95 * (block % 4), 4.25 + 1.42 * (block // 4)
            row = owner[block][0] if block in owner else None
            on.filled((x, y), (3.75, 1.2), colors[row] if row is not None else None)
            label = f"{block}: row {row}" if row is not None else f"{block}: free"
            on.ax.text(x + 0.12, y + 0.3, label, fontsize=9, va="center", color=MUTED if row is None else TEXT)
            for at, name in enumerate(inside.get(block, ())):
                on.ax.text(x + 0.12 + 0.9 * at, y + 0.82, name, fontsize=8, va="center")

    told = "; ".join(f"row {row}: {', '.join(map(str, table))}" for row, table in enumerate(held.tables))
    alt = (
        f"Three tables above a pool of {run.BLOCKS} blocks of {run.BLOCK} tokens. The rows' blocks in the order of "
        f"their texts are {told}. In the pool they lie mixed; blocks {len(owner)} to {run.BLOCKS - 1} are free."
    )
    rows = tuple((str(b), f"row {owner[b][0]}", " ".join(inside[b])) for b in sorted(owner))
    return Drawing("03-paged-attention/pool", "Blocks and tables", alt, ("block", "owner", "tokens"), rows, draw)


def room() -> Drawing:
    """Four rows in both caches: slots with a token, and slots without."""
    lengths = run.RAGGED
    paged = [-(-length // 16) * 16 for length in lengths]

    @charted(2.7, 1, 2, share="y", left=0.12, top=0.88, bottom=0.21, wspace=0.07)
    def draw(*axes: Axes) -> None:
        for ax, taken, title in zip(
            axes, ([ROOM] * 4, paged), ("dense: 1024 slots a row", "paged: blocks of 16"),
            strict=True,
        ):  # fmt: skip
            ax.barh(range(4), taken, height=0.62, color="none", edgecolor=MUTED, hatch="////", linewidth=1.0)
            ax.barh(range(4), lengths, height=0.62, color=ACCENT)
            ax.set_yticks(range(4), [f"{length} tokens" for length in lengths])
            ax.grid(axis="y", visible=False)
            ax.set(
                title=title, xlim=(0, ROOM * 1.02), ylim=(3.6, -0.6), xlabel="slots; hatched: taken, without a token"
            )

    alt = (
        f"Four rows of {', '.join(map(str, lengths))} tokens in two caches. The dense one takes {ROOM} slots for each, "
        f"nearly all of them empty; the paged one takes {', '.join(map(str, paged))}, so that hardly any are."
    )
    rows = tuple((str(n), str(ROOM), str(ROOM - n), str(p), str(p - n)) for n, p in zip(lengths, paged, strict=True))
    header = ("tokens", "dense slots", "empty", "paged slots", "empty")
    return Drawing("03-paged-attention/room", "Room in both caches", alt, header, rows, draw)
