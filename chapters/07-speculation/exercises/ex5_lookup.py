"""Exercise 7.5: drafts from the text itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call
from nanoinfer.engine.queue import Queued
from nanoinfer.speculate.lookup import LONGEST


def look_up(text: list[int], longest: int, limit: int) -> list[int]:
    """Up to `limit` drafts: what followed the last time that the text went as it does now.

    text: token ids, prompt and new ones; it may be empty. longest: tokens of an n-gram at most, at least 1. limit: how
    many drafts are wanted at most; it may be 0.
    Take the n tokens that the text ends with, n as large as possible but `longest` at most, that stand earlier in the
    text as well. Earlier means that they end before the text's end; they may overlap with its last n tokens. Of several
    places that is the last one. The drafts are the tokens that follow there: `limit` of them, or fewer where the text
    ends before. If not even the last token stands earlier, there are no drafts.
    """
    for n in range(min(longest, len(text) - 1), 0, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[-n:]:
                return text[end : end + limit]
    return []


def swap(mine: Function) -> Places:
    """PromptLookup asks it, of each row's whole text; its own drafts would go on after the text's end."""

    def draft(self: Any, rows: Sequence[Queued], limits: Sequence[int]) -> list[list[int]]:
        drafts = [mine(list(row.tokens), LONGEST, limit) for row, limit in zip(rows, limits, strict=True)]
        if any(len(each) > limit for each, limit in zip(drafts, limits, strict=True)):
            raise ValueError("there are more drafts than were wanted")
        return drafts

    return {"nanoinfer.speculate.lookup:Repeats.draft": draft}


EXERCISE = Spec(
    reference=look_up,
    lines=6,
    example=lambda: call([1, 2, 3, 7, 2, 3, 9, 8, 2, 3], 3, 4),
    section="Prompt lookup",
    axes=("draft",),
    typed=True,
    swap=swap,
    refuse=("nanoinfer.speculate.lookup:look_up", "nanoinfer.speculate.lookup:Repeats.draft"),
)


def _tokens(case: Case, name: str, count: int, low: int = 100, high: int = 10_000) -> list[int]:
    """All of them different."""
    return case.sample(name, range(low, high), count)


def longest_first(case: Case) -> Call:
    """The longest n-gram that stands earlier decides, though a shorter one stands later; none is too long."""
    end, gap = _tokens(case, "end", 4), _tokens(case, "gap", 8, 10_000, 20_000)
    if case.turn((False, True, False)):
        return call([*end, gap[0], *end[1:], gap[1], *end[2:], gap[2], *end[3:], gap[3], *end], 4, 1)
    text = [*end[2:], gap[0], *end, gap[1], gap[2], *end[1:], gap[3], gap[4], *end[2:], gap[5], *end]
    return call(text, case.choice("longest", (2, 2, 3, 5)), 1)


def last_place(case: Case) -> Call:
    """Of several places the last one counts."""
    n, (first, often, last) = case.size("tokens", 1, 3), _tokens(case, "gap", 3, 10_000, 20_000)
    end = _tokens(case, "end", n)
    gaps = [first, *[often] * case.size("more", 0, 2), last]
    return call([token for gap in gaps for token in [*end, gap]] + end, n, case.choice("limit", (1, n + 2)))


def up_to_the_limit(case: Case) -> Call:
    """What follows is cut at the limit, or where the text ends; the text's own end is no earlier place."""
    end, rest = _tokens(case, "end", 2), _tokens(case, "rest", case.size("rest", 1, 3), 10_000, 20_000)
    return call([*end, *rest, *end], 2, case.turn((0, 1, len(rest) + 1, len(rest) + 2, len(rest) + 3)))


def overlapping(case: Case) -> Call:
    """An earlier place may overlap with the end: repeated tokens are found one token before."""
    again, (first, between) = _tokens(case, "again", 1), _tokens(case, "others", 2, 10_000, 20_000)
    times = case.size("times", 4, 6)
    text = [first, *again * times, between, *again * times]
    return call(text, case.size("longest", 2, 3), case.size("limit", 3, 4))


KINDS = (
    "empty", "one", "two", "new", "equal", "joined", "few ids", "few ids", "few ids", "few ids", "zeros", "large",
    "long", "many",
)  # fmt: skip


def any_text(case: Case) -> Call:  # noqa: PLR0911  one for each kind
    """No token, one, two equal ones, no earlier place; a long text, large ids, ids whose digits run together."""
    kind = case.turn(KINDS)
    if kind == "empty":
        return call([], 3, 4)
    if kind == "one":
        return call(_tokens(case, "one", 1), 1, 1)
    if kind == "two":
        return call(_tokens(case, "two", 1) * 2, case.choice("longest", (2, 3, 9)), case.choice("limit", (1, 3)))
    if kind == "new":
        return call(_tokens(case, "new", 9), 3, 4)
    if kind == "equal":
        return call([case.choice("id", range(1, 9))] * 9, 3, case.choice("limit", (1, 2, 5)))
    if kind == "large":
        text = _tokens(case, "large", 12, 70_000, 2**40)
        return call([*text, *[token + 65_536 for token in text[:3]], 7, *text[:3]], 3, 5)
    if kind == "joined":  # 1, 23 and 12, 3 have the same digits, and 1, 24 and 25, 0 the same sum
        return call([1, 23, 5, 6, 12, 3, 7, 8, 0, 24, 9, 1, 23], 2, 3)
    if kind == "zeros":
        return call([0, 5, 0, 0, 7, 0, 0], 3, 3)
    if kind == "long":
        text = case.ints("tokens", 0, 30_000, 400).tolist()
        return call([*text, *text[90:260]], case.choice("longest", (3, 100, 500)), 90)
    count, ids = (300, 3) if kind == "many" else (9, 2)
    return call(case.ints("tokens", 0, ids, count).tolist(), 3, 4)


CHECKS = (
    Check(any_text, len(KINDS), wide=True), Check(longest_first, 4), Check(last_place, 3), Check(up_to_the_limit, 5),
    Check(overlapping, 4),
)  # fmt: skip
