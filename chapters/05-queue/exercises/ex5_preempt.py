"""Exercise 5.5: who gives blocks back when there are none, and how a row goes on that had to."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from nanocourse.exercises import Call, Case, Check, Spec, call

Row = dict[str, Any]


def step(
    rows: list[dict[str, Any]], free: int, block_size: int, next_token: Callable[[list[int], int, int], int]
) -> tuple[list[int], int, list[int], list[tuple[int, int]]]:
    """One step: each row's blocks after it, the free ones, who was preempted, and what is sent, (row, its new token).

    rows: in order of arrival. Each has "prompt", its token ids; "new", the tokens that it has been given and
    that have been sent; "seed"; "blocks", how many it holds, no more than its text needs. Those that hold blocks run;
    they come before all that hold none, which wait: they have not begun, or were preempted. free: the blocks that no
    row holds.
    First, the oldest row first, each that runs gets the blocks that it lacks to hold its text, prompt and new tokens,
    of which this step writes the newest. As long as too few are free for that, the youngest of all that run is
    preempted: it gives back all its blocks, and waits. That may be the row itself. List the preempted rows in that
    order.
    Then those that wait begin, or begin again, the oldest first, each with the blocks that its text needs: as long as
    there are enough. None overtakes a row that must wait. A row alone always finds room.
    Then each row that now runs gets one token, next_token(text, seed, step): its whole text so far, its own seed, and
    as step how many new tokens it has had. It is called once for each of these rows, in their order, and nothing else
    is sent. The caller puts the token into "new".
    """
    held = [row["blocks"] for row in rows]
    texts = [row["prompt"] + row["new"] for row in rows]
    needs = [-(-len(text) // block_size) for text in texts]
    preempted, sent = [], []
    for at in range(len(rows)):
        while 0 < held[at] < needs[at] and needs[at] - held[at] > free:
            youngest = max(other for other, blocks in enumerate(held) if blocks)
            free, held[youngest] = free + held[youngest], 0
            preempted.append(youngest)
        if 0 < held[at] < needs[at]:
            free, held[at] = free - needs[at] + held[at], needs[at]
    for at in range(len(rows)):
        if not held[at]:
            if needs[at] > free:
                break
            free, held[at] = free - needs[at], needs[at]
    for at, row in enumerate(rows):
        if held[at]:
            sent.append((at, next_token(texts[at], row["seed"], len(row["new"]))))
    return held, free, preempted, sent


def token(text: list[int], seed: int, at: int) -> int:
    """A token that depends on all that it may depend on."""
    return zlib.crc32(f"{text} {seed} {at}".encode()) % 1000


def _lent(rows: list[Row], free: int, size: int) -> Call:
    gives: list[tuple[object, int]] = []

    def next_token(text: list[int], seed: int, at: int) -> int:
        """a token below 1000 that depends on the text, the seed and the step"""
        whole = [text, seed, at]
        if not (isinstance(text, list) and all(type(number) is int for number in [*text, *whole[1:]])):
            raise TypeError("next_token takes a list of token ids and two whole numbers")
        gives.append(((list(text), seed, at), token(text, seed, at)))
        return gives[-1][1]

    next_token.gives = gives  # type: ignore[attr-defined]
    return call(rows, free, size, next_token, observe=lambda: {"asked of next_token": [_named(*a) for a, _ in gives]})


def _named(text: list[int], seed: int, at: int) -> dict[str, Any]:
    return {"text": text, "seed": seed, "step": at}


def _row(case: Case, at: int, prompt: int, new: int, blocks: int) -> Row:
    tokens = case.ints(f"tokens {at}", 1, 99, prompt + new).tolist()
    seed = int(case.ints(f"seed {at}", 0, 9999, 1))
    return {"prompt": tokens[:prompt], "new": tokens[prompt:], "seed": seed, "blocks": blocks}


def _example() -> Call:
    rows = [
        {"prompt": [5, 6, 7], "new": [8, 9], "seed": 1, "blocks": 2},
        {"prompt": [5, 6], "new": [3], "seed": 2, "blocks": 1},
        {"prompt": [4], "new": [1, 2], "seed": 3, "blocks": 2},
        {"prompt": [4, 4], "new": [], "seed": 4, "blocks": 0},
    ]
    return _lent(rows, 0, 2)


EXERCISE = Spec(
    reference=step,
    lines=22,
    example=_example,
    section="Reserve, or preempt",
    axes=(("blocks", "row"), ("free blocks",), ("preempted", "place"), ("sent", "place", ("row",), ("token",))),
    typed=True,
    refuse=("nanoinfer.engine.queue:QueueEngine.with_room", "nanoinfer.engine.queue:QueueEngine.preempt"),
)


def whom(case: Case) -> Call:
    """The youngest that runs gives its blocks back, another one if that is not enough, and the oldest never does."""
    size, count = case.size("block size", 1, 3), case.size("rows", 2, 4)
    rows = [_row(case, at, size * case.choice(f"blocks {at}", (1, 2, 3)), 0, 0) for at in range(count)]
    for row in rows:
        row["blocks"] = len(row["prompt"]) // size
    grows = case.size("grows", 1, count)  # so many rows need a block for their newest token
    for row in rows[:grows]:
        row["new"] = [row["prompt"][0]]
    return _lent(rows, case.size("free", 0, max(0, grows - 1)), size)


def several_blocks(case: Case) -> Call:
    """A row may lack several blocks, and several others may have to go for it; those that keep theirs keep all."""
    size = case.size("block size", 1, 3)
    old = _row(case, 0, 2, 4 * size + case.choice("more", (0, 1)), 1 if size > 1 else 2)
    others = [_row(case, at, size, 0, 1) for at in range(1, case.size("others", 4, 7))]
    return _lent([old, *others], case.size("free", 1, 2), size)


def itself(case: Case) -> Call:
    """Where no younger row runs, a row that finds no room is the one that waits."""
    size = case.size("block size", 1, 3)
    old = _row(case, 0, 2 * size, 0, 2)
    young = _row(case, 1, 3 * size, case.size("new", 1, 2), 3)
    return _lent([old, young, _row(case, 2, 1, 0, 0)][: case.size("rows", 2, 3)], 0, size)


def begins_again(case: Case) -> Call:
    """A row that begins again has its whole text in mind, and the next step's number; nothing is sent twice."""
    size = case.size("block size", 2, 4)
    old = _row(case, 0, size, 1, 1)  # it takes a block itself
    waiting = [_row(case, at, case.size(f"prompt {at}", 1, 4), case.size(f"new {at}", 1, 4), 0) for at in (1, 2)]
    return _lent([old, *waiting], 1 + sum(-(-(len(r["prompt"]) + len(r["new"])) // size) for r in waiting), size)


def in_order(case: Case) -> Call:
    """Who waits begins in order of arrival, with room for prompt and new tokens; nobody overtakes."""
    size = case.size("block size", 2, 3)
    new = case.size("new", 0, size + 1)
    waiting = [_row(case, 1, size, 0, 0), _row(case, 2, 2 * size, new, 0), _row(case, 3, 1, 0, 0)]
    needs = [-(-(len(row["prompt"]) + len(row["new"])) // size) for row in waiting]
    old = _row(case, 0, 1, 0, 1)
    return _lent([old, *waiting], needs[0] + needs[1] - case.turn((1, 0)), size)


def any_rows(case: Case) -> Call:
    """Nobody, one row, many; pools that are full to the last block; each state that a small engine comes into."""
    kind = case.turn(("nobody", "one", "small", "small", "many", "small", "small", "long", "one"))
    if kind == "nobody":
        return _lent([], 3, 4)
    if kind == "one":
        return _lent([_row(case, 0, 1, 0, 0)], 1, 1)
    if kind == "long":
        return _lent([_row(case, 0, 3000, 1, 750), _row(case, 1, 1000, 300, 325), _row(case, 2, 1000, 0, 0)], 0, 4)
    if kind == "many":
        rows = [_row(case, at, 1 + at % 3, at % 2, 1) for at in range(case.most("rows", 1, 90))]
        return _lent([*rows, _row(case, 99, 2, 2, 0)], case.size("free", 0, 9), 2)
    size = case.size("block size", 1, 3)
    pool = -(-12 // size) + case.size("more", 0, 2)
    rows = [_row(case, at, case.size(f"prompt {at}", 1, 4), 0, 0) for at in range(5)]
    free = pool
    for _ in range(case.size("steps", 2, 7)):  # no row of it has more than 4 + 7 tokens, so the oldest finds room
        held, free, _, sent = step(rows, free, size, token)
        for row, blocks in zip(rows, held, strict=True):
            row["blocks"] = blocks
        for at, new in sent:
            rows[at]["new"] = [*rows[at]["new"], new]
    return _lent(rows, free, size)


CHECKS = (
    Check(any_rows, 9, wide=True), Check(whom, 6), Check(several_blocks, 4), Check(itself, 2), Check(begins_again, 4),
    Check(in_order, 4),
)  # fmt: skip
