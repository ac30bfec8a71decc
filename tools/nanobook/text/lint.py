"""Finds numbers with a unit, and tables of numbers, that were typed by hand.

Not checked are code in backticks and in code fences, link targets, comments, what a marker has made, and what a comment
exempts with a reason: `<!-- exempt: the datasheet says so -->` exempts its line; on a line of its own, it exempts the
paragraph, table or fence that follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

UNIT = (
    r"(?:tok(?:ens?)?(?:/| per | a )s(?:ec(?:ond)?)?\b|tok/s|[GMTk]i?B/s|[GMTkK]i?B\b|GFLOPS?|TFLOPS?"
    r"|µs\b|μs\b|us\b|ms\b|ns\b|s\b|(?:micro|milli)?seconds?\b|%|percent\b"
    r"|×|x\b(?! ?\d)|-?fold\b|times (?=as|faster|slower))"
)
NUMBER = re.compile(
    rf"(?<![\w.])(?!(?:19|20)\d0s\b)\d[\d,]*(?:\.\d+)?[kM]?[ \u00a0]?-?{UNIT}"
    r"|(?<!\d )(?<!\w)[×x]\d[\d.]*"
)
EXEMPT = re.compile(r"<!-- exempt: *\S.* -->")
FENCE = re.compile(r"^\s*(```+|~~~+)\s*(\S*)")
GENERATED = re.compile(r"<!--\[\[\[cog.*?<!--\[\[\[end\]\]\]-->", re.S)
PROSE_FENCES = ("", "text", "console", "output")  # what a program printed, not code


def hand_typed(text: str, inline: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Line and fault of every number with a unit, and of every row of numbers, that has no marker."""
    text = GENERATED.sub(lambda m: "\n" * m[0].count("\n"), text)
    lines = [inline.sub(" ", line) for line in text.split("\n")]
    for at, line in _readable(lines):
        plain = _plain(line)
        for found in NUMBER.finditer(plain):
            yield at, f"a number typed by hand: {found[0].strip()!r}; give it a marker, or a reason to exempt it"
        if _figures(line):
            yield at, f"a table of figures without a marker: {line.strip()!r}"


def _readable(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The lines that are checked, with their numbers."""
    fence: tuple[str, str] | None = None
    exempt = False  # from a comment on a line of its own to the end of the paragraph, table or fence that follows
    begun = False  # whether that has begun: an empty line may stand before it
    for at, line in enumerate(lines, 1):
        opening = FENCE.match(line)
        if fence is not None:
            if opening and opening[1].startswith(fence[0]) and not opening[2]:
                fence, exempt = None, False
            elif not exempt and fence[1] in PROSE_FENCES and not EXEMPT.search(line):
                yield at, line
        elif opening:
            fence = (opening[1], opening[2].strip("{}").lower())
        elif EXEMPT.fullmatch(line.strip()):
            exempt, begun = True, False
        elif not line.strip():
            exempt = exempt and not begun
        elif exempt:
            begun = True
        elif not EXEMPT.search(line):
            yield at, line


def _plain(line: str) -> str:
    """The line without code, comments and link targets."""
    line = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", " ", line)
    line = re.sub(r"<!--.*?-->|<[^>]+>", " ", line)
    return re.sub(r"\]\([^)]*\)", "]", line)


def _figures(line: str) -> bool:
    """Whether a line is a row of a table with a bare number after its first column."""
    if not line.lstrip().startswith("|"):
        return False
    cells = [re.sub(r"[*`_ ]", "", cell) for cell in line.strip().strip("|").split("|")]
    return any(re.fullmatch(rf"[~≈<>]?[-−+]?\d[\d,]*(?:\.\d+)?{UNIT}?", cell) for cell in cells[1:])
