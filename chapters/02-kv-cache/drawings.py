"""The diagrams of chapter 2: `python -m nanobook draw 02-kv-cache`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes

from nanobench.report.figures.style import ACCENT, GREYS, GROUND, MUTED, Drawing
from nanobench.report.values import size
from nanobook.examples import load
from nanobook.figures.sketch import Sketch, charted, sketched
from nanobook.running import encode, word

here = Path(__file__).parent
run, cost = load(here / "running.py"), load(here / "cost.py")
naive = load(here.parent / "01-naive" / "cost.py")
boxes = load(here.parent / "01-naive" / "boxes.py")

PROMPT, NEW = boxes.PROMPT, boxes.NEW  # tokens of the staircase, chapter 1's
SLOTS = 6


def drawings() -> list[Drawing]:
    """All diagrams of the chapter."""
    return [columns(), slots(), masks(), memory()]


def columns() -> Drawing:
    """Chapter 1's staircase with a cache: what a step computes, and what it reads of earlier steps."""
    computed = naive.cached_columns(PROMPT, NEW)

    @sketched(12.5, 7.7)
    def draw(on: Sketch) -> None:
        boxes.staircase(on, "read", lambda step: "3 columns" if step == 0 else "1 column")
        boxes.legend(on, ((1.0, "new", f"computed: {computed}"), (6.0, "read", "keys and values read from the cache")))

    alt = (
        f"Generation of {NEW} tokens after a prompt of {PROMPT} with a cache: the first step computes {PROMPT} "
        f"columns, each later one a single column, and reads the keys and values of all positions before it. "
        f"{computed} columns are computed, where the naive engine computes {naive.columns(PROMPT, NEW)}."
    )
    rows = [(str(at), str(1 if at else PROMPT), str(PROMPT + at - 1 if at else 0)) for at in range(NEW)]
    return Drawing(
        "02-kv-cache/columns", "Each column once", alt, ("step", "computed", "read from the cache"), tuple(rows), draw
    )


def slots() -> Drawing:
    """The cache of the running example: after the prompts, and after two decode steps."""
    words = [[word(i) for i in run.text_ids(row, 2)] for row in range(2)]
    lengths = [len(encode(prompt)) for prompt in run.PROMPTS]

    @sketched(12.4, 5.75)
    def draw(on: Sketch) -> None:
        for panel, (title, extra) in enumerate((("after the prompts", 0), ("after two decode steps", 2))):
            top = 0.75 + 2.8 * panel
            on.write((0.1, top - 0.42), title, size=11)
            for slot in range(SLOTS):
                on.write((2.86 + 1.6 * slot, top), f"slot {slot}", MUTED, 9.5, "center")
            for row in range(2):
                y = top + 0.25 + 0.95 * row
                on.write((1.9, y + 0.39), f"row {row}", align="right")
                for slot in range(SLOTS):
                    filled = slot < lengths[row] + extra
                    new = filled and (panel == 0 or slot >= lengths[row])
                    on.square((2.1 + 1.6 * slot, y), "new" if new else "read" if filled else "empty", 1.52)
                    text = words[row][slot] if filled else ""
                    on.write((2.86 + 1.6 * slot, y + 0.39), text, GROUND if new else None, 10, "center")

    def held(row: int, extra: int) -> str:
        return " ".join(words[row][: lengths[row] + extra])

    alt = (
        f"A cache of two rows of {SLOTS} slots. After the prompts row 0 holds "
        f"{held(0, 0)} in slots 0 to 2 and row 1 {held(1, 0)} in slots 0 and 1. After two decode steps row 0 holds "
        f"{held(0, 2)} and row 1 {held(1, 2)}: each new token stands at its own position."
    ).replace('"', "'")
    rows = tuple(
        (f"row {row}", *(words[row][: lengths[row] + 2] + ["empty"] * SLOTS)[:SLOTS]) for row in range(2)
    )  # fmt: skip
    table = tuple(tuple(cell.replace('"', "'") for cell in row) for row in rows)
    header = ("after two decode steps", *(f"slot {slot}" for slot in range(SLOTS)))
    return Drawing("02-kv-cache/slots", "A slot is a position", alt, header, table, draw)


def visible(positions: list[int]) -> list[list[bool]]:
    """What the engine's own mask lets queries at these positions read, of SLOTS slots."""
    batch = replace(run.step((0, positions[0], positions)), past=SLOTS - len(positions))  # all slots are read
    table: list[list[bool]] = (run.new_cache(1, SLOTS).plan(batch).mask[0, 0] == 0).tolist()
    return table


def masks() -> Drawing:
    """Which slots a query reads: in a prefill, in a chunk, in a decode step, and by a triangle of columns."""
    panels = [
        ("prefill", [0, 1, 2], visible([0, 1, 2])), ("chunk", [3, 4], visible([3, 4])), ("decode", [5], visible([5])),
        ("decode, is_causal", [5], [[slot == 0 for slot in range(SLOTS)]]),
    ]  # fmt: skip

    @sketched(15.6, 7.2)
    def draw(on: Sketch) -> None:
        for at, (title, positions, table) in enumerate(panels):
            left, top = 1.75 + 7.4 * (at % 2), 0.75 + 3.95 * (at // 2)
            on.write((left, top - 0.45), title, size=11)
            for slot in range(SLOTS):
                on.write((left + 0.46 + slot, top), str(slot), MUTED, 9.5, "center")
            for line, (position, reads) in enumerate(zip(positions, table, strict=True)):
                y = top + 0.25 + 0.9 * line
                on.write((left - 0.15, y + 0.39), f"query {position}", align="right", size=9.5)
                for slot, seen in enumerate(reads):
                    written = slot <= max(positions)
                    on.square((left + slot, y), "new" if seen else "hidden" if written else "empty")
        shown = (1.75, "new", "read"), (5.0, "hidden", "hidden, though it is written"), (11.2, "empty", "empty")
        boxes.legend(on, shown, 6.3)

    def said(positions: list[int], table: list[list[bool]]) -> str:
        parts = []
        for position, reads in zip(positions, table, strict=True):
            seen = [slot for slot, is_read in enumerate(reads) if is_read]
            parts.append(f"query {position} reads slot{'s' if len(seen) > 1 else ''} {seen[0]}"
                         + (f" to {seen[-1]}" if len(seen) > 1 else ""))  # fmt: skip
        return ", ".join(parts)

    told = [(title, said(positions, table)) for title, positions, table in panels]
    alt = "Which of six slots a query reads. " + "; ".join(f"{title}: {text}" for title, text in told) + "."
    return Drawing("02-kv-cache/masks", "Masks by position", alt, ("step", "reads"), tuple(told), draw)


def memory() -> Drawing:
    """Weights of gpt2 beside caches of 1024 slots, with what 256 tokens a row fill of them."""
    used = 256
    bars = [("weights", cost.weight_bytes(), 0)]
    for rows in (8, 64, 256, 512):
        bars.append((f"{rows} rows", cost.cache_bytes(rows=rows), cost.cache_bytes(rows=rows, slots=used)))

    @charted(3.0, left=0.11, top=0.96, bottom=0.19)
    def draw(ax: Axes) -> None:
        names, whole, filled = zip(*bars, strict=True)
        at = range(len(bars))
        ax.barh(at, [b / 1e9 for b in whole], height=0.62, facecolor=GROUND, edgecolor=ACCENT, hatch="////")
        ax.barh(at, [b / 1e9 for b in filled], height=0.62, color=ACCENT)
        ax.barh([0], [whole[0] / 1e9], height=0.62, color=GREYS[0])
        for y, b in enumerate(whole):
            ax.text(b / 1e9, y, f"  {size(b)}", va="center", fontsize=10.5)
        ax.set_yticks(at, names)
        ax.set(ylim=(len(bars) - 0.4, -0.6), xlim=(0, 23))
        ax.set_xlabel(
            "GB in bfloat16; filled: what 256 tokens a row use, hatched: kept for tokens that may come", loc="left"
        )
        ax.grid(axis="y", visible=False)

    rows = tuple((name, size(whole), size(filled) if filled else "–") for name, whole, filled in bars)
    parts = [
        f"a cache of {name} takes {whole}, of which 256 tokens a row use {filled}" for name, whole, filled in rows[1:]
    ]
    alt = f"Memory of gpt2 in bfloat16 with 1024 slots a row: the weights take {rows[0][1]}; {'; '.join(parts)}."
    header = ("", "takes", "filled by 256 tokens a row")
    return Drawing("02-kv-cache/memory", "Weights and caches", alt, header, rows, draw)
