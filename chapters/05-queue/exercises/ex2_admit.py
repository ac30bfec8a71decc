"""Exercise 5.2: which of the waiting requests may begin."""

from __future__ import annotations

from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call
from nanoinfer.engine.queue import Queued, QueueEngine


def admit(
    waiting: list[tuple[int, int]], running: list[tuple[int, int, int]], free: int, block_size: int, max_rows: int
) -> tuple[list[int], list[int]]:
    """The waiting requests that begin now, and those that are refused for ever; both in order of arrival.

    waiting: (prompt tokens, new tokens at most) of each request, in order of arrival. running: the same of the
    rows that run, and as a third number the blocks that each holds. free: the blocks that no row holds; a block holds
    `block_size` tokens. max_rows: the most rows that may run at once.
    A request begins only if its longest text, prompt and all new tokens, can be had to the last block: so every row
    that runs has a reservation, those blocks of its own longest text that it does not hold yet. They are among the free
    ones, and promised. No request overtakes one that must wait.
    A request is refused if the whole pool, the free blocks and the held ones, could not hold its longest text; then it
    holds up no other. No other request is refused.
    """
    available = free - sum(-(-(prompt + new) // block_size) - held for prompt, new, held in running)
    pool = free + sum(held for _, _, held in running)
    begin: list[int] = []
    refused: list[int] = []
    full = False
    for at, (prompt, new) in enumerate(waiting):
        blocks = -(-(prompt + new) // block_size)
        if blocks > pool:
            refused.append(at)
            continue
        full = full or blocks > available or len(running) + len(begin) == max_rows
        if not full:
            begin.append(at)
            available -= blocks
    return begin, refused


def swap(mine: Function) -> Places:
    """QueueEngine.admit_next asks it about the request that waits longest; its blocks are then reserved as ever."""
    admit_next = QueueEngine.admit_next

    def asked(self: Any) -> Queued | None:
        if self.blocks is None:
            return admit_next(self)
        running = [(*_text(s), len(self.blocks.owned[s.row])) for s in self.running]
        free, slots = len(self.blocks.free) + len(self.blocks.idle), len(self.running) + len(self.free)
        begin, refused = mine([_text(self.waiting[0])], running, free, self.blocks.block_size, slots)
        if refused:
            raise ValueError("a request is refused that the pool can hold")
        return admit_next(self) if begin else None

    return {"nanoinfer.engine.queue:QueueEngine.admit_next": asked}


def _text(s: Queued) -> tuple[int, int]:
    return len(s.request.prompt_token_ids), s.request.limit


EXERCISE = Spec(
    reference=admit,
    lines=15,
    example=lambda: call([(6, 4), (70, 10), (3, 2), (1, 1)], [(5, 8, 2)], 7, 4, 8),
    section="Who may start",
    axes=("list", "item"),
    typed=True,
    refuse=("nanoinfer.cache.blocks:BlockManager.reserve", "nanoinfer.engine.queue:QueueEngine.admit_next"),
    swap=swap,
)


def _running(case: Case, size: int, count: int, most: int = 4) -> list[tuple[int, int, int]]:
    """Rows that run, each with a prompt that is written, and maybe some new tokens."""
    rows = []
    for at in range(count):
        prompt, new = case.size(f"running prompt {at}", 1, most * size), case.size(f"running new {at}", 1, most * size)
        first, last = -(-prompt // size), -(-(prompt + new) // size)
        rows.append((prompt, new, case.choice(f"held {at}", range(first, last + 1))))
    return rows


def _reserved(running: list[tuple[int, int, int]], size: int) -> int:
    return sum(-(-(prompt + new) // size) - held for prompt, new, held in running)


def _cut(case: Case, name: str, tokens: int) -> tuple[int, int]:
    """A text of so many tokens, at least 2, as prompt and new ones."""
    prompt = 1 + case.choice(name, range(1000)) % (tokens - 1)
    return prompt, tokens - prompt


def by_blocks(case: Case) -> Call:
    """A longest text takes whole blocks, rounded up: one token more than the blocks hold is too many."""
    size, count = case.size("block size", 2, 5), case.size("requests", 1, 3)
    blocks = [case.size(f"blocks {at}", 1, 3) for at in range(count)]
    more = [case.choice(f"more {at}", (0, 0, 1, -1) if size > 2 else (0, 0, 1)) for at in range(count)]
    waiting = [_cut(case, f"cut {at}", max(2, blocks[at] * size + more[at])) for at in range(count)]
    return call(waiting, [], sum(blocks), size, 8)


def what_is_promised(case: Case) -> Call:
    """Of the free blocks those that running rows may still take are promised; those that they hold are not free."""
    size = case.size("block size", 1, 4)
    running = _running(case, size, case.size("running", 1, 3))
    wanted = case.size("blocks", 1, 3)
    waiting = [_cut(case, "cut", max(2, wanted * size)), (1, 1)]
    blocks = -(-sum(waiting[0]) // size)
    return call(waiting, running, _reserved(running, size) + blocks - case.turn((0, 1, 1)), size, 8)


def in_order(case: Case) -> Call:
    """Who waits keeps all behind waiting, however small they are; requests take from what those before have left."""
    size = case.size("block size", 1, 3)
    blocks = [case.size(f"first {at}", 2, 3) for at in range(case.size("first", 0, 2))]
    free = sum(blocks) + case.size("left", 2, 4)
    blocks += [free - sum(blocks) + 1, 2, free - sum(blocks)]
    texts = [_cut(case, f"cut {at}", n * size) for at, n in enumerate(blocks)]
    return call(texts, [], free, size, 8)


def a_row_for_each(case: Case) -> Call:
    """No more rows than max_rows run at once; those that run already count."""
    running = _running(case, 4, case.size("running", 0, 2), 2)
    waiting = [(1, 1)] * case.size("requests", 3, 5)
    return call(waiting, running, _reserved(running, 4) + 9, 4, len(running) + case.turn((1, 2, 0)))


def never(case: Case) -> Call:
    """What the whole pool cannot hold is refused, wherever it stands, and keeps nobody waiting; nobody else is."""
    size = case.size("block size", 1, 3)
    running = _running(case, size, 1 + case.size("running", 0, 1), 2)
    free = _reserved(running, size) + 2
    pool = free + sum(held for _, _, held in running)
    never = _cut(case, "cut", pool * size + 1 + case.size("more", 0, 2))
    later = _cut(case, "later", max(2, pool * size))  # on an idle engine it could run
    small = (1, 2 * size - 1) if size > 1 else (1, 1)
    shapes = ([never, small, small], [never, small, later, never], [later, never, small], [small, later, never, small])
    return call(case.turn(shapes), running, free, size, 8)


def any_queue(case: Case) -> Call:  # noqa: PLR0911  one for each kind
    """Nobody waits, nobody runs, no block or no row is left; many rows, many requests, pools of many blocks."""
    kind = case.turn(
        ("many", "many", "nobody", "no block", "no row", "large", "equal", "block of one", "fits", "does not")
    )
    if kind == "nobody":
        return call([], [(3, 4, 1)], 1, 4, 2)
    if kind == "no block":
        return call([(1, 1), (500, 500), (1, 1)], [(6, 2, 2)], 0, 4, 4)
    if kind in ("fits", "does not"):  # the same numbers, but for the prompts
        return call([(4, 4 + (kind != "fits")), (1, 1)], [(2, 2, 1)], 2, 4, 4)
    if kind == "no row":
        return call([(1, 1), (90, 1)], [(1, 1, 1)] * 3, 5, 2, 3)
    if kind == "large":
        return call([(90_000, 40_000), (150_000, 900_000), (70_000, 70_000)], [(65_000, 5_000, 4_100)], 17_000, 16, 256)
    if kind == "equal":
        return call([(5, 3)] * 6, [(5, 3, 1)] * 2, 2 + 2 * case.size("blocks", 1, 4), 4, 9)
    size = 1 if kind == "block of one" else case.size("block size", 2, 6)
    running = [(3 * size - 2, 2, 3 - at % 2) if size > 1 else (2, 1, 2) for at in range(70 if kind == "many" else 3)]
    waiting = [tuple(pair) for pair in case.ints("waiting", 1, 4 * size, 70, 2).tolist()]
    free = _reserved(running, size) + case.size("blocks", 60, 200)
    waiting.insert(case.choice("at", range(70)), (9000 * size, 1))
    return call(waiting, running, free, size, 128)


CHECKS = (
    Check(any_queue, 10, wide=True), Check(by_blocks, 6), Check(what_is_promised, 6), Check(in_order, 6),
    Check(a_row_for_each, 4), Check(never, 8),
)  # fmt: skip
