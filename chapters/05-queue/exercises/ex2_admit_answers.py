"""Exercise 5.2: wrong answers and where they come from, correct variants, mutants that are none, two editions."""

from __future__ import annotations

from itertools import accumulate

from nanocourse.exercises.exercise import Edition, Right, Wrong

Waiting = list[tuple[int, int]]
Running = list[tuple[int, int, int]]
Answer = tuple[list[int], list[int]]


def smallest_first(waiting: Waiting, running: Running, free: int, block_size: int, max_rows: int) -> Answer:
    """The smallest requests begin first, so that the most of them run."""
    available = free - sum(-(-(prompt + new) // block_size) - held for prompt, new, held in running)
    pool = free + sum(held for _, _, held in running)
    needs = [-(-(prompt + new) // block_size) for prompt, new in waiting]
    begin: list[int] = []
    for at in sorted(range(len(waiting)), key=lambda at: needs[at]):
        if needs[at] <= min(pool, available) and len(running) + len(begin) < max_rows:
            begin.append(at)
            available -= needs[at]
    return sorted(begin), [at for at, blocks in enumerate(needs) if blocks > pool]


def by_tokens(waiting: Waiting, running: Running, free: int, block_size: int, max_rows: int) -> Answer:
    """What counts is tokens: the longest texts together must not be more than the blocks hold."""
    used = sum(held * block_size for _, _, held in running)
    available = free * block_size - sum(prompt + new - held * block_size for prompt, new, held in running)
    begin: list[int] = []
    refused: list[int] = []
    full = False
    for at, (prompt, new) in enumerate(waiting):
        if prompt + new > free * block_size + used:
            refused.append(at)
            continue
        full = full or prompt + new > available or len(running) + len(begin) == max_rows
        if not full:
            begin.append(at)
            available -= prompt + new
    return begin, refused


BLOCKS = "blocks = -(-(prompt + new) // block_size)"
PROMISED = "sum(-(-(prompt + new) // block_size) - held for prompt, new, held in running)"
FULL = "full = full or blocks > available or len(running) + len(begin) == max_rows"
NEVER = """        if blocks > pool:
            refused.append(at)
            continue
"""
WRONG = (
    Wrong.patch(
        "rounded-down", "A text of n tokens takes n // block_size blocks.", BLOCKS,
        "blocks = (prompt + new) // block_size", "an author's own slip: -(-n // size) written without its two signs",
    ),
    Wrong(by_tokens, "an author's own slip: two texts in one block, where each row begins one of its own"),
    Wrong.patch(
        "prompt-alone", "A request begins where there is room for its prompt.", BLOCKS,
        "blocks = -(-prompt // block_size)",
        "admission without a reservation, right where rows may be preempted; vllm-project/vllm#25538 is what it costs",
    ),
    Wrong.patch(
        "what-is-free", "A block that nobody holds can be given to anybody.", f"free - {PROMISED}", "free",
        "a plausible slip: all go well until the running rows grow, and then none can",
    ),
    Wrong.patch(
        "promised-twice", "Each row that runs keeps the blocks of its longest text from the free ones.", PROMISED,
        PROMISED.replace(" - held", ""), "an author's own slip: what a row holds is not among the free blocks any more",
    ),
    Wrong.patch(
        "overtakes", "Who does not fit is passed over: the next one may.", FULL,
        "full = blocks > available or len(running) + len(begin) == max_rows",
        "vllm-project/vllm#35852 (closed): a loop that goes on where it ended; a long request may then wait for ever",
    ),
    Wrong(smallest_first, "shortest job first, of the textbooks"),
    Wrong.patch(
        "never-is-later", "What does not fit waits.", NEVER, "",
        "vllm-project/vllm#39734: a request larger than the pool, and all behind it wait for ever",
    ),
    Wrong.patch(
        "never-is-an-error", "A request that is larger than the pool is an error.",
        "refused.append(at)\n            continue",
        'raise ValueError("the pool cannot hold it")',
        "GeeeekExplorer/nano-vllm@bb823b3, an assert in its scheduler: one request ends all others",
    ),
    Wrong.patch(
        "refused-for-now", "A request that does not fit is refused.", "if blocks > pool:", "if blocks > available:",
        "an author's own slip: a full engine turns away what it could serve in a second",
    ),
    Wrong.patch(
        "larger-than-what-is-free", "The free blocks are the pool.",
        "pool = free + sum(held for _, _, held in running)", "pool = free",
        "an author's own slip: the answer depends on who happens to run",
    ),
    Wrong.patch(
        "refusal-ends-it", "Behind a request that cannot run nobody is looked at.", "continue", "break",
        "vllm-project/vllm#35570 (closed) says what a break at the head of the queue does",
    ),
    Wrong.patch(
        "refused-in-order", "A request is looked at when all before it have begun.", f"        {FULL}\n",
        f"        {FULL}\n        if full:\n            break\n",
        "an author's own slip: those behind a full engine hear of it only when it is their turn",
    ),
    Wrong.patch(
        "same-blocks-for-all", "Each request is measured by the available blocks.",
        "            available -= blocks\n", "", "an author's own slip: three requests promised the same blocks",
    ),
    Wrong.patch(
        "rows-begin-at-none", "max_rows is how many may begin.", "len(running) + len(begin)", "len(begin)",
        "an author's own slip: the limit of a batch, taken for a limit of a step",
    ),
    Wrong.patch(
        "one-a-step", "One request begins in a step.", FULL, f"{FULL.replace('full or', 'full or bool(begin) or')}",
        "engines that prefill one request at a time",
    ),
)  # fmt: skip


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


def by_two_loops(waiting: Waiting, running: Running, free: int, block_size: int, max_rows: int) -> Answer:
    """Refusals first; then the head of what is left begins, as long as it can."""
    held = 0
    promised = 0
    for prompt, new, own in running:
        held += own
        promised += (prompt + new + block_size - 1) // block_size
    refused = []
    queue = []
    for at, (prompt, new) in enumerate(waiting):
        if prompt + new > (free + held) * block_size:
            refused += [at]
        else:
            queue += [at]
    begin = []
    rows = len(running)
    while queue and rows < max_rows:
        prompt, new = waiting[queue[0]]
        promised += (prompt + new - 1) // block_size + 1
        if promised > free + held:
            break
        begin += [queue.pop(0)]
        rows += 1
    return begin, refused


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


RIGHT = (Right(by_accumulating), Right(by_two_loops), Right(one_by_one))
EQUIVALENT: dict[str, str] = {}


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


def _told(result: Answer, waiting: Waiting, *_: object) -> list[str]:
    begin, refused = result
    return ["begins" if at in begin else "refused" if at in refused else "waits" for at in range(len(waiting))]


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


EDITIONS = (
    Edition(
        "in-words", "longest texts are given, and the answer is a word for each request", told,
        args=lambda waiting, running, *rest: (
            [sum(text) for text in waiting], [(held, prompt + new) for prompt, new, held in running], *rest
        ),
        back=lambda waiting, running, *rest: (
            [(1, text - 1) for text in waiting], [(1, text - 1, held) for held, text in running], *rest
        ),
        result=_told, axes=("request",),
    ),
    Edition(
        "by-columns", "the arguments are columns, the pool is given whole, and the answer is a dict of three lists",
        counted, args=_columns, back=_rows, result=_counted, axes=("list", "item"),
    ),
)  # fmt: skip
