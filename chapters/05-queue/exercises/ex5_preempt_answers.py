"""Exercise 5.5: correct variants, mutants that are none, two editions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanocourse.exercises.exercise import edition

Row = dict[str, Any]
Next = Callable[[list[int], int, int], int]
Answer = tuple[list[int], int, list[int], list[tuple[int, int]]]


def with_stacks(rows: list[Row], free: int, block_size: int, next_token: Next) -> Answer:
    """A queue of those that are not served yet, whose last element is the victim."""

    def blocks_of(row: Row) -> int:
        tokens = len(row["prompt"]) + len(row["new"])
        return tokens // block_size + (tokens % block_size > 0)

    running = [at for at, row in enumerate(rows) if row["blocks"] > 0]
    waiting = [at for at in range(len(rows)) if at not in running]
    own = {at: row["blocks"] for at, row in enumerate(rows)}
    gone: list[int] = []
    served: list[int] = []
    while running:
        first = running[0]
        lacks = max(0, blocks_of(rows[first]) - own[first])
        if lacks <= free:
            free -= lacks
            own[first] += lacks
            served.append(running.pop(0))
        else:
            victim = running.pop()
            free += own[victim]
            own[victim] = 0
            gone += [victim]
            waiting.insert(0, victim)
    while waiting and blocks_of(rows[waiting[0]]) <= free:
        first = waiting.pop(0)
        own[first] = blocks_of(rows[first])
        free -= own[first]
        served.append(first)
    told = [
        (at, next_token(rows[at]["prompt"] + rows[at]["new"], rows[at]["seed"], len(rows[at]["new"]))) for at in served
    ]
    return list(own.values()), free, gone, told


def by_recursion(rows: list[Row], free: int, block_size: int, next_token: Next) -> Answer:
    """One lack is mended, and the same question asked of rows that hold other blocks."""
    held = [row["blocks"] for row in rows]
    lacks = [-(-(len(row["prompt"]) + len(row["new"])) // block_size) - row["blocks"] for row in rows]
    change = next((at for at, n in enumerate(lacks) if held[at] and n > 0), None)
    if change is None:
        change = next((at for at, n in enumerate(held) if not n and lacks[at] <= free and all(held[:at])), None)
        if change is None:
            asked = [(row["prompt"] + row["new"], row["seed"], len(row["new"])) for row in rows]
            return held, free, [], [(at, next_token(*asked[at])) for at in range(len(rows)) if held[at]]
    given = lacks[change]
    if given > free:
        change = max(at for at in range(len(rows)) if held[at])
        given = -held[change]
    after = [{**row, "blocks": row["blocks"] + given * (at == change)} for at, row in enumerate(rows)]
    blocks, left, gone, sent = by_recursion(after, free - given, block_size, next_token)
    return blocks, left, [change] * (given < 0) + gone, sent


EQUIVALENT = {
    "while 0 < held[at] <= needs[at] and needs[at] - held[at] > free:": "a row that lacks nothing finds room",
    "if 0 < held[at] <= needs[at]:": "where a row lacks nothing, it is given nothing",
}


def _turned(next_token: Callable[..., int], *places: int) -> Callable[..., int]:
    """The lent function with its arguments in another order; what it gave is shown all the same."""

    def turned(*args: object) -> int:
        """a token below 1000 that depends on the text, the seed and the step"""
        return next_token(*(args[place] for place in places))

    turned.gives = getattr(next_token, "gives", [])  # type: ignore[attr-defined]
    return turned


def _tick(rows: list[Row], free: int, block_size: int, next_token: Next) -> tuple[object, ...]:
    told = [(row["prompt"] + row["new"], len(row["prompt"]), row["seed"], row["blocks"]) for row in rows]
    pool = free + sum(row["blocks"] for row in rows)
    waiting = [row[:3] for row in told if not row[3]]
    return [row for row in told if row[3]], waiting, pool, block_size, _turned(next_token, 2, 0, 1)


def _rows(
    running: list[tuple[list[int], int, int, int]],
    waiting: list[tuple[list[int], int, int]],
    pool: int,
    block_size: int,
    next_token: Callable[..., int],
) -> tuple[object, ...]:
    rows = [
        {"prompt": text[:prompt], "new": text[prompt:], "seed": seed, "blocks": blocks}
        for text, prompt, seed, blocks in [*running, *((*row, 0) for row in waiting)]
    ]
    return rows, pool - sum(row[3] for row in running), block_size, _turned(next_token, 1, 2, 0)


def _ticked(result: Answer, rows: list[Row], *_: object) -> dict[str, Any]:
    held, free, preempted, sent = result
    runs, told = [blocks for blocks in held if blocks], {"free": free, "tokens": [new for _, new in sent]}
    return {"running": runs, "waiting": len(held) - len(runs), "preempted": len(preempted), **told}


@edition(
    "tick",
    "running and waiting rows are two lists of tuples, and the answer is a dict",
    args=_tick,
    back=_rows,
    result=_ticked,
    axes=("row",),
)
def tick(
    running: list[tuple[list[int], int, int, int]],
    waiting: list[tuple[list[int], int, int]],
    pool: int,
    block_size: int,
    next_token: Callable[[int, int, list[int]], int],
) -> dict[str, Any]:
    """One step: "running", the blocks of each row that now runs; "waiting", how many; "preempted"; "free"; "tokens".

    running: (text, prompt tokens, seed, blocks held) of those that hold blocks, no more than the text needs; who came
    first stands first. waiting: the same, without blocks, of those that hold none: they have not begun, or were
    preempted; all came later than those that run, and who came first stands first. A text is the prompt and behind it
    the new tokens, which have been sent.
    pool: all blocks, free or held.
    First, the oldest row first, each that runs gets the blocks that it lacks to hold its text: the step writes its
    newest token. As long as too few are free for that, the youngest of all that run is preempted: it gives back all its
    blocks, and waits, before all others that do. That may be the row itself. "preempted": how many were.
    Then those that wait begin, or begin again, the oldest first, each with the blocks that its text needs: as long as
    there are enough. None overtakes a row that must wait. A row alone always finds room.
    "tokens": for each row that now runs, the oldest first, next_token(seed, step, text): its own seed, as step how many
    new tokens it has had, and its whole text so far. It is called once for each of these rows, in their order, and
    nothing else is sent.
    """
    queue = [row[:3] for row in running] + waiting
    blocks, left, tokens = list[int](), pool, list[int]()
    for text, _, _ in queue:
        if -(-len(text) // block_size) > left:
            break
        blocks.append(-(-len(text) // block_size))
        left -= blocks[-1]
    for text, prompt, seed in queue[: len(blocks)]:
        tokens.append(next_token(seed, len(text) - prompt, text))
    gone = max(0, len(running) - len(blocks))
    return {"running": blocks, "waiting": len(queue) - len(blocks), "preempted": gone, "free": left, "tokens": tokens}
