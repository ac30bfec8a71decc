"""Exercise 5.4: blocks that rows share, counted, found again and given to others."""

from __future__ import annotations

from typing import Any

from nanocourse.exercises import Call, Case, Check, Spec, call

Given = list[list[int] | None]
Found = dict[str, int]
Running = dict[int, tuple[list[int], list[str]]]


def share(blocks: int, history: list[tuple[str, int, Any]]) -> tuple[list[list[int] | None], list[int], dict[str, int]]:
    """What each "begin" was given, how many rows hold each block at the end, and which keys find a block then.

    blocks: how many the pool has, numbered from 0; at first all are free. history: what happens, one after the other:
    ("begin", row, keys): a row of this number, which is not running, asks for a block for each of `keys`, which may be
    none. A key is what a full block will hold; None stands for a block that is not full, which is never shared. For its
    first keys, as far as all of them find a block, the last one included, the row gets those blocks; for the others it
    gets blocks that no row holds. If there are too few of these, it is given None, and nothing else changes.
    ("written", row, count): the first `count` of the row's blocks are written now. From now on their keys find them,
    but a key that finds a block already keeps that one.
    ("end", row, why): the row gives all its blocks back, from the last one to the first; `why` makes no difference.
    For a row that is not running, since it was refused or has ended, "written" and "end" change nothing.
    A block that no row holds is idle if its key finds it, and free if not. For keys that find nothing, a row gets free
    blocks, the one first that has been free for longest (at first in order of their numbers). If no more are free, it
    gets idle ones, the one first that has been idle for longest; its key finds nothing any more.
    """
    free, idle, holders = list(range(blocks)), list[int](), [0] * blocks
    found: Found = {}
    running: Running = {}
    given: Given = []
    for what, row, detail in history:
        if what == "begin":
            hits: list[int] = []
            for key in detail:
                if key not in found:
                    break
                hits.append(found[key])
            lacks, others = len(detail) - len(hits), [block for block in idle if block not in hits]
            if lacks > len(free) + len(others):
                given.append(None)
                continue
            taken, idle = (free + others)[:lacks], others[max(0, lacks - len(free)) :]
            free = free[lacks:]
            found = {key: block for key, block in found.items() if block not in taken}
            for block in hits + taken:
                holders[block] += 1
            running[row] = hits + taken, detail
            given.append(hits + taken)
        elif what == "written" and row in running:
            for block, key in list(zip(*running[row], strict=True))[:detail]:
                if key is not None:
                    found.setdefault(key, block)
        elif what == "end" and row in running:
            for block in reversed(running.pop(row)[0]):
                holders[block] -= 1
                if not holders[block]:
                    (idle if block in found.values() else free).append(block)
    return given, holders, found


def _example() -> Call:
    history = [
        ("begin", 0, ["a", "b", None]), ("written", 0, 2), ("begin", 1, ["a", "c"]), ("end", 0, "done"),
        ("begin", 2, ["a", "b", "d"]),
    ]  # fmt: skip
    return call(5, history)


EXERCISE = Spec(
    reference=share,
    lines=30,
    example=_example,
    section="Blocks that sequences share",
    axes=("result", "item", "block"),
    typed=True,
    refuse=("nanoinfer.cache.sharing:SharedBlocks.reserve", "nanoinfer.cache.sharing:SharedBlocks.give_back"),
)

History = list[tuple[str, int, Any]]


def _text(case: Case, name: str, length: int, letters: str = "ab", full: bool = False) -> list[str | None]:
    """Keys of a text: each names all before it, as chained ones do; often its last block is not full."""
    keys: list[str | None] = []
    for at in range(length):
        keys.append(f"{keys[-1] or ''}{case.choice(f'{name} {at}', letters)}" if keys else case.choice(name, letters))
    return [*keys, None] if not full and case.choice(f"{name} tail", (True, False)) else keys


def shared_while_held(case: Case) -> Call:
    """Rows that begin alike hold the same blocks, which nobody else gets as long as one of them runs."""
    text = _text(case, "text", case.size("blocks", 1, 3), full=True)
    rows = case.size("rows", 2, 3)
    history: History = [("begin", 0, text), ("written", 0, len(text))]
    history += [("begin", row, text) for row in range(1, rows)]
    order = case.permutation("order", rows).tolist()
    history += [("end", row, "done") for row in order[: case.size("end", 1, rows - 1)]]
    return call(len(text) + 1, [*history, ("begin", 8, ["x"]), ("begin", 9, ["y"])])


def behind_a_gap(case: Case) -> Call:
    """What is found behind a key that finds nothing is not used: another text's block would be in its place."""
    first: History = [("begin", 0, ["a", None]), ("begin", 1, ["a", "ab", "abc"]), ("written", 0, 1), ("written", 1, 3)]
    first += [("end", 0, "done")]  # its block of "a" is what was found
    again = ["a", "ab", "abc", None][: case.turn((3, 2, 4))]
    return call(5 + case.size("more", 0, 1) * 4, [*first, ("begin", 2, ["x", "y"]), ("begin", 3, again), ("end", 2, ""),
                    ("begin", 5, again), ("begin", 4, ["q", "ab"])])  # fmt: skip


def not_yet_written(case: Case) -> Call:
    """A block is found once it is written, and not before; the first one that was written is the one that is found."""
    text = _text(case, "text", case.size("blocks", 2, 3), full=True)
    part = case.size("written", 0, len(text) - 1)
    history: History = [("begin", 8, ["i"]), ("written", 8, 1), ("end", 8, "done")]
    history += [("begin", 0, text), ("written", 0, part), ("begin", 1, text)]
    ends = case.turn(((), (), (0,), (0,), (1,), (1,), (0, 1), (0, 1)))  # the first to write, or the other one
    for nth, row in enumerate(case.turn(((0, 1), (1, 0)))):
        history += [("written", row, len(text)), *[("end", row, "done")] * (nth in ends)]
    history += [("begin", 2, text), *[("begin", 3 + at, [None]) for at in range(len(text))], ("end", 2, "done")]
    return call(2 * len(text) + 1, [*history, ("begin", 9, text)])


def not_full(case: Case) -> Call:
    """A block that is not full is no one else's, whatever it holds."""
    text = _text(case, "text", case.turn((1, 0, 2)), full=True)
    history: History = [("begin", 0, [*text, None]), ("written", 0, len(text) + 1), ("begin", 1, [*text, None])]
    return call(8, [*history, ("end", 0, "done"), ("begin", 2, [*text, None])])


def given_back(case: Case) -> Call:
    """A row gives back all its blocks, written or not, and once: whoever ends it, and however often."""
    text = _text(case, "text", case.size("blocks", 2, 3))
    why = case.turn(("done", "cancelled", "preempted"))
    history: History = [("begin", 0, text), ("written", 0, case.size("written", 0, 1)), ("end", 0, why)]
    history += [("end", case.choice("again", (0, 5)), "cancelled")] * case.turn((1, 0, 2))
    others = [("begin", row, [f"{row}x{at}" for at in range(2)]) for row in range(1, 1 + case.size("others", 2, 3))]
    return call(len(text) + 3, [*history, *others])


def the_oldest_goes(case: Case) -> Call:
    """New blocks are free ones as long as there are any; then the longest idle one is forgotten."""
    blocks = case.size("blocks", 2, 3)
    history: History = []
    for row, letter in enumerate(case.sample("letters", "abcd", 2)):
        history += [("begin", row, [letter * (at + 1) for at in range(blocks)]), ("written", row, blocks)]
    history += [("end", row, "done") for row in case.turn(((0, 1), (1, 0)))]
    history.append(("begin", 5, [None]))  # for which nobody has to go
    wanted = [None] * (case.size("free", 0, 1) + case.size("evicted", 1, blocks + 1))
    first = [key for _, row, keys in history[:1] for key in keys]
    return call(2 * blocks + 2, [*history, ("begin", 6, wanted), ("begin", 7, first)])


def no_room(case: Case) -> Call:
    """A row that does not find room changes nothing; the idle blocks that it has found are no room for the rest."""
    text = _text(case, "text", 2, full=True)
    history: History = [("begin", 0, text), ("written", 0, 2), ("begin", 1, ["x"]), ("written", 1, 1)]
    ended = case.turn(((0,), (0,), (), (0, 1), (1, 0)))  # row 1's block lies behind those that row 2 finds, or ahead
    history += [("end", row, "done") for row in ended]
    more = case.size("more", 1, 3)
    history.append(("begin", 2, [*text, *[None] * (more + (1 in ended))]))
    history += [("end", 1, "done"), ("begin", 3, ["y", None]), ("begin", 4, [None]), ("begin", 5, text[:1])]
    return call(3 + more - case.turn((1, 0, 0, 1, 1)), history)


def any_history(case: Case) -> Call:
    """Many rows that begin alike or not, write in parts, end in any order, twice, or are refused, in any pool."""
    kind = case.turn(("nothing", "one block", "small", "small", "large", "many rows", "small", "large", "again"))
    if kind == "nothing":
        return call(0, [("begin", 0, ["a"]), *[("end", at, "cancelled") for at in (4, 0)]])
    if kind == "one block":
        return call(1, [("begin", 0, []), ("begin", 1, ["a"]), ("written", 1, 1), ("end", 1, ""),
                        ("begin", 2, ["a", "b"]), ("begin", 3, ["a"]), ("end", 0, ""),
                        ("end", 3, ""), ("begin", 4, ["b"])])  # fmt: skip
    if kind == "again":  # row 1's block of "a" was the one that was found, and went to row 2
        first: History = [
            ("begin", 0, ["a"]),
            ("begin", 1, ["a"]),
            ("written", 1, 1),
            ("written", 0, 1),
            ("end", 1, ""),
        ]
        return call(3, [*first, ("begin", 2, ["x", "y"]), ("written", 0, 1), ("begin", 3, ["a"])])
    pool, steps, most = {"small": (9, 60, 3), "large": (24, 120, 8), "many rows": (200, 420, 60)}[kind]
    history: History = []
    for at in range(case.most("events", 1, steps)):
        what, row = case.choice(f"what {at}", ("begin", "written", "written", "end", "end")), at
        if what == "begin":
            detail: Any = _text(case, f"text {at}", case.choice(f"length {at}", (1, 2, 3, 4)))
        else:
            row = case.choice(f"row {at}", [row for kind, row, _ in history if kind == "begin"][-most:] or [0])
            detail = case.choice(f"count {at}", range(5)) if what == "written" else "cancelled" if at % 2 else "done"
        history.append((what, row, detail))
    return call(pool, history)


CHECKS = (
    Check(any_history, 9, wide=True), Check(shared_while_held, 4), Check(behind_a_gap, 3), Check(not_yet_written, 8),
    Check(not_full, 3),
    Check(given_back, 6), Check(the_oldest_goes, 6), Check(no_room, 10),
)  # fmt: skip
