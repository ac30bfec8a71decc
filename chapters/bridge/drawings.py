"""The bridge's diagram: `python -m nanobook draw bridge`."""

from __future__ import annotations

from nanobench.report.figures.style import ACCENT, MUTED, PEERS, Drawing
from nanobook.figures.sketch import Sketch, sketched

HEADS, MODELS = 8, (("GPT-2: a key head for every query head", 8), ("Llama-3.1-8B: a key head for every four", 2))


def drawings() -> list[Drawing]:
    """The one diagram of the page."""
    return [groups()]


def groups() -> Drawing:
    """Eight query heads, and the key heads that they read, without groups and in groups of four."""

    @sketched(20, 4.6)
    def draw(on: Sketch) -> None:
        for side, (title, keys) in enumerate(MODELS):
            left, group = 0.4 + 10.1 * side, HEADS // keys
            on.write((left, 0.45), title, size=11.5)
            for head in range(HEADS):
                on.filled((left + 1.15 * head, 1.0), (0.95, 0.75), PEERS[0])
                on.write((left + 1.15 * head + 0.475, 1.38), f"q{head}", align="center")
                key = head // group
                x = left + 1.15 * (key * group + (group - 1) / 2) + 0.475
                on.arrow((left + 1.15 * head + 0.475, 1.8), (x, 2.72), MUTED)
                if head % group == 0:
                    on.filled((x - 0.475, 2.75), (0.95, 0.75), ACCENT)
                    on.write((x, 3.13), f"k{key} v{key}", size=8.5, align="center")
            on.write((left, 4.1), f"cached per token and layer: {2 * keys} vectors", MUTED)

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
