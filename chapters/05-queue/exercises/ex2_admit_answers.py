"""Exercise 5.2: correct variants, mutants that are none, two editions."""

from __future__ import annotations

from itertools import accumulate

from nanocourse.exercises.exercise import edition

Waiting = list[tuple[int, int]]
Running = list[tuple[int, int, int]]
Answer = tuple[list[int], list[int]]


def by_accumulating(waiting: Waiting, running: Running, free: int, block_size: int, max_rows: int) -> Answer:
    """Running totals of what could run; as many begin as totals stay within."""

    def blocks(tokens: int) -> int:
        return (tokens + block_size - 1) // block_size

    pool = free + sum(row[2] for row in running)
    needs = [blocks(sum(text)) for text in waiting]
    refused = [at for at in range(len(waiting)) if needs[at] > pool]
    queue = [at for at in range(len(waiting)) if needs[at] <= pool]
    longest = sum(blocks(prompt + new) for prompt, new, _ in running)
    totals = accumulate((needs[at] for at in queue), initial=longest)
    count = sum(total <= pool for total in list(totals)[1:])
    return queue[: max(0, min(count, max_rows - len(running)))], refused


def one_by_one(waiting: Waiting, running: Running, free: int, block_size: int, max_rows: int) -> Answer:
    """Recursion: the first one begins, and then runs with no block, beside those that do."""
    pool = free + sum(held for *_, held in running)
    able = [at for at, text in enumerate(waiting) if sum(text) <= pool * block_size]
    refused = sorted({*range(len(waiting))}.difference(able))
    left = free - sum((prompt + new + block_size - 1) // block_size - held for prompt, new, held in running)
    if not able or len(running) >= max_rows or sum(waiting[able[0]]) > left * block_size:
        return [], refused
    begins = able[0]
    rest = waiting[begins + 1 :]
    more, _ = one_by_one(rest, [*running, (*waiting[begins], 0)], free, block_size, max_rows)
    return [begins, *(begins + 1 + at for at in more)], refused


EQUIVALENT: dict[str, str] = {}


def _told(result: Answer, waiting: Waiting, *_: object) -> list[str]:
    begin, refused = result
    return ["begins" if at in begin else "refused" if at in refused else "waits" for at in range(len(waiting))]


def _columns(waiting: Waiting, running: Running, free: int, *rest: int) -> tuple[object, ...]:
    requests = {"prompt": [p for p, _ in waiting], "new": [n for _, n in waiting]}
    rows = {"prompt": [p for p, _, _ in running], "new": [n for _, n, _ in running], "held": [h for *_, h in running]}
    return requests, rows, free + sum(rows["held"]), *rest


def _rows(requests: dict[str, list[int]], rows: dict[str, list[int]], pool: int, *rest: int) -> tuple[object, ...]:
    running = list(zip(rows["prompt"], rows["new"], rows["held"], strict=True))
    return list(zip(requests["prompt"], requests["new"], strict=True)), running, pool - sum(rows["held"]), *rest


def _counted(result: Answer, waiting: Waiting, *_: object) -> dict[str, list[int]]:
    begin, refused = result
    return {"begin": begin, "wait": [at for at in range(len(waiting)) if at not in begin + refused], "refused": refused}


@edition(
    "in-words",
    "longest texts are given, and the answer is a word for each request",
    args=lambda waiting, running, *rest: (
        [sum(text) for text in waiting],
        [(held, prompt + new) for prompt, new, held in running],
        *rest,
    ),
    back=lambda waiting, running, *rest: (
        [(1, text - 1) for text in waiting],
        [(1, text - 1, held) for held, text in running],
        *rest,
    ),
    result=_told,
    axes=("request",),
)
def told(waiting: list[int], running: list[tuple[int, int]], free: int, block_size: int, max_rows: int) -> list[str]:
    """What becomes of each waiting request: "begins", "waits" or "refused".

    waiting: the longest text of each request, prompt and all new tokens, in order of arrival. running: of each
    row that runs (the blocks that it holds, its longest text). free: the blocks that no row holds; a block holds
    `block_size` tokens. max_rows: the most rows that may run at once.
    A request begins only if its longest text can be had to the last block: so every row that runs has a reservation,
    those blocks of its own longest text that it does not hold yet. They are among the free ones, and promised. No
    request overtakes one that must wait.
    A request is refused if the whole pool, the free blocks and the held ones, could not hold its longest text; then it
    holds up no other. No other request is refused.
    """
    pool = free + sum(held for held, _ in running)
    left, rows, ends = pool - sum(-(-text // block_size) for _, text in running), max_rows - len(running), False
    said = []
    for text in waiting:
        blocks = -(-text // block_size)
        ends = ends or (blocks <= pool and (blocks > left or rows == 0))
        said.append("refused" if blocks > pool else "waits" if ends else "begins")
        if said[-1] == "begins":
            left, rows = left - blocks, rows - 1
    return said


@edition(
    "by-columns",
    "the arguments are columns, the pool is given whole, and the answer is a dict of three lists",
    args=_columns,
    back=_rows,
    result=_counted,
    axes=("list", "item"),
)
def counted(
    requests: dict[str, list[int]], rows: dict[str, list[int]], pool: int, block_size: int, max_rows: int
) -> dict[str, list[int]]:
    """The waiting requests that "begin" now, those that "wait", and those that are "refused" for ever; each rising.

    requests: "prompt" and "new", for each waiting request the tokens of its prompt and the most new ones; who came
    first stands first. rows: the same of the rows that run, and "held", the blocks that each of them holds. pool: all
    blocks, held or free; a block holds `block_size` tokens. max_rows: the most rows that may run at once.
    A request begins only if its longest text, prompt and all new tokens, can be had to the last block: so every row
    that runs has a reservation, those blocks of its own longest text that it does not hold yet. They are among the free
    ones, and promised. No request overtakes one that must wait.
    A request is refused if the whole pool could not hold its longest text; then it holds up no other. No other
    request is refused.
    """
    left = pool - sum(-(-(p + n) // block_size) for p, n in zip(rows["prompt"], rows["new"], strict=True))
    needs = [-(-(p + n) // block_size) for p, n in zip(requests["prompt"], requests["new"], strict=True)]
    said: dict[str, list[int]] = {"begin": [], "wait": [], "refused": []}
    for at, blocks in enumerate(needs):
        runs = len(rows["held"]) + len(said["begin"])
        fits = not said["wait"] and blocks <= left and runs < max_rows
        said["refused" if blocks > pool else "begin" if fits else "wait"].append(at)
        left -= blocks if said["begin"][-1:] == [at] else 0
    return said
