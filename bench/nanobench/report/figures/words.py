"""Figures in words: the table, the picture's HTML and the page beside each. Needs no matplotlib."""

from __future__ import annotations

import re
from collections.abc import Sequence


def picture(name: str, alt: str) -> str:
    """HTML that shows the figure NAME.svg."""
    return f'<img src="{name}.svg" width="800" alt="{alt}">'


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table: columns of numbers to the right, words to the left."""
    numeric = [_mostly_numbers([row[i] for row in rows]) for i in range(len(header))]
    rule = ["---:" if n else "---" for n in numeric]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]


def _mostly_numbers(cells: Sequence[str]) -> bool:
    return sum(bool(re.match(r"[-−]?\d", cell)) for cell in cells) * 2 > len(cells)


def page(title: str, name: str, alt: str, lines: Sequence[str], notes: Sequence[str]) -> str:
    """The page that stands beside a figure."""
    text = [f"# {title}", "", picture(name, alt), "", f"Alt text: {alt}", "", *lines]
    if notes:
        text += ["", "Not in the figure:", "", *(f"- {note}" for note in notes)]
    return "\n".join(text) + "\n"
