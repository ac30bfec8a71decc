"""The bridge's diagram: `python -m nanobook draw bridge`."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from nanobench.report.figures.style import ACCENT, MUTED, PEERS, Drawing
from nanobook.examples import load

here = Path(__file__).parent
example, boxes = load(here / "example.py"), load(here.parent / "01-naive" / "boxes.py")
HEADS, MODELS = 8, (("GPT-2: a key head for every query head", 8), ("Llama-3.1-8B: a key head for every four", 2))


def drawings() -> list[Drawing]:
    """The one diagram of the page."""
    return [groups()]


def groups() -> Drawing:
    """Eight query heads, and the key heads that they read, without groups and in groups of four."""

    def draw() -> Figure:
        figure, ax = boxes.canvas(20, 4.6)
        for side, (title, keys) in enumerate(MODELS):
            left, group = 0.4 + 10.1 * side, HEADS // keys
            boxes.write(ax, (left, 0.45), title, size=11.5)
            for head in range(HEADS):
                boxes.filled(ax, (left + 1.15 * head, 1.0), (0.95, 0.75), PEERS[0])
                boxes.write(ax, (left + 1.15 * head + 0.475, 1.38), f"q{head}", align="center")
                key = head // group
                x = left + 1.15 * (key * group + (group - 1) / 2) + 0.475
                boxes.arrow(ax, (left + 1.15 * head + 0.475, 1.8), (x, 2.72), MUTED)
                if head % group == 0:
                    boxes.filled(ax, (x - 0.475, 2.75), (0.95, 0.75), ACCENT)
                    boxes.write(ax, (x, 3.13), f"k{key} v{key}", size=8.5, align="center")
            boxes.write(ax, (left, 4.1), f"cached per token and layer: {2 * keys} vectors", MUTED)
        return figure

    alt = (
        "Eight query heads twice. On the left each reads a key and value head of its own, so 16 vectors are cached for "
        "each token and layer. On the right query heads 0 to 3 read key and value head 0, and 4 to 7 read head 1: 4 "
        "vectors are cached."
    )
    rows = tuple(
        (f"q{head}", *(f"k{head // (HEADS // keys)}, v{head // (HEADS // keys)}" for _, keys in MODELS))
        for head in range(HEADS)
    )
    header = ("query head", "without groups", "in groups of four")
    return Drawing("bridge/groups", "Query heads in groups", alt, header, rows, draw)
