"""Exercise 5.4: correct variants, mutants that are none, two editions."""

from __future__ import annotations

from typing import Any

from nanocourse.exercises.exercise import edition

History = list[tuple[str, int, Any]]
Answer = tuple[list[list[int] | None], list[int], dict[str, int]]


def with_objects(blocks: int, history: History) -> Answer:
    """A record for each block, clocks in place of queues."""
    pool: list[dict[str, Any]] = [{"holders": 0, "key": None, "since": at - blocks} for at in range(blocks)]
    running: dict[int, tuple[list[int], list[Any]]] = {}
    given: list[list[int] | None] = []
    clock = 0
    for what, row, detail in history:
        where = {record["key"]: at for at, record in enumerate(pool) if record["key"] is not None}
        if what == "end":
            for block in running.pop(row, ([], []))[0][::-1]:
                clock += 1
                pool[block]["holders"] -= 1
                pool[block]["since"] = clock
        elif what == "written":
            for block, key in zip(*(part[:detail] for part in running.get(row, ([], []))), strict=True):
                if key is not None and key not in where:
                    pool[block]["key"] = key
        else:
            hits = []
            for key in detail:
                if where.get(key) is None:
                    break
                hits.append(where[key])
            spare = [at for at in range(blocks) if at not in hits and pool[at]["holders"] == 0]
            spare.sort(key=lambda at: (pool[at]["key"] is not None, pool[at]["since"]))
            own = hits + spare[: len(detail) - len(hits)]
            if len(own) < len(detail):
                given += [None]
                continue
            for block in own:
                pool[block]["holders"] += 1
            for block in own[len(hits) :]:
                pool[block]["key"] = None
            running[row] = own, detail
            given += [own]
    keys = {record["key"]: at for at, record in enumerate(pool) if record["key"] is not None}
    return given, [record["holders"] for record in pool], keys


def counted_at_the_end(blocks: int, history: History) -> Answer:
    """Nothing is counted: who holds what is asked of the running rows, each time."""
    order = list(range(blocks))
    known: dict[int, str] = {}
    rows: dict[int, list[tuple[int, Any]]] = {}
    given: list[list[int] | None] = []

    def held(block: int) -> int:
        return sum(block == other for pairs in rows.values() for other, _ in pairs)

    for what, row, detail in history:
        if what == "begin":
            hits = []
            for key in detail:
                match = [block for block, name in known.items() if name == key]
                if not match:
                    break
                hits += match
            spare = [block for block in order if not held(block) and block not in hits]
            spare = [block for block in spare if block not in known] + [block for block in spare if block in known]
            new = spare[: len(detail) - len(hits)]
            if len(hits) + len(new) < len(detail):
                given.append(None)
            else:
                known = {block: name for block, name in known.items() if block not in new}
                rows[row] = list(zip(hits + new, detail, strict=True))
                given.append(hits + new)
        elif what == "written":
            for block, key in rows.get(row, [])[:detail]:
                if key is not None and key not in known.values():
                    known[block] = key
        else:
            for block, _ in rows.pop(row, [])[::-1]:
                if not held(block):
                    order.remove(block)
                    order.append(block)
    return given, [held(block) for block in range(blocks)], {name: block for block, name in known.items()}


NAMED = {"begin": "keys", "written": "count", "end": "why"}


def _events(blocks: int, history: History) -> tuple[list[int], list[dict[str, Any]]]:
    return list(range(blocks)), [{"what": what, "row": row, NAMED[what]: detail} for what, row, detail in history]


def _history(pool: list[int], events: list[dict[str, Any]]) -> tuple[int, History]:
    return len(pool), [(one["what"], one["row"], one[NAMED[one["what"]]]) for one in events]


def _tables(result: Answer, blocks: int, history: History) -> dict[str, Any]:
    given, holders, found = result
    asked = [row for what, row, _ in history if what == "begin"]
    rows = [(row, own) for row, own in zip(asked, given, strict=True) if own is not None]
    pairs = sorted((key or "", block) for key, block in found.items())
    return {"rows": rows, "refused": given.count(None), "found": pairs, "holders": holders}


@edition(
    "tables",
    "events are dicts, and the answer is a dict that says what the pool is at the end",
    args=_events,
    back=_history,
    result=_tables,
    axes=("item",),
)
def tables(pool: list[int], events: list[dict[str, Any]]) -> dict[str, Any]:
    """What the pool is at the end: "rows", "refused", "found" and "holders".

    pool: the numbers of its blocks; at first all are free. events: what happens, one after the other; each has "what",
    "row", and one thing more:
    "begin" with "keys": a row of this number, which is not running, asks for a block for each of its keys. A key is
    what a full block will hold; None stands for a block that is not full, which is never shared. For its first keys, as
    far as all of them find a block, the row gets those blocks; for the others it gets blocks that no row holds. If
    there are too few of these, it is refused, and nothing else changes.
    "written" with "count": the first blocks of the row are written now. From now on their keys find them, but a key
    that finds a block already keeps that one.
    "end" with "why": the row gives all its blocks back, from the last one to the first; why makes no difference. Of a
    row that is not running, since it was refused or has ended, "written" and "end" change nothing.
    A block that no row holds is idle if its key finds it, and free if not. Those that a row gets in place of new ones
    are free ones, the one first that has been free for longest (at first in the order of `pool`). If no more are free,
    they are idle ones, the one first that has been idle for longest; its key finds nothing any more.
    "rows": each row that was ever given blocks and those it was given, in order, as pairs; "refused": how often that
    happened; "found": pairs (key, block), sorted; "holders": for each block of the pool how many rows hold it.
    """
    state: dict[int, list[Any]] = {block: [set(), None] for block in pool}  # rows, key
    queue, running, told = list(pool), dict[int, tuple[list[int], list[Any]]](), {"rows": [], "refused": 0}
    for event in events:
        row, find = event["row"], {key: block for block, (_, key) in state.items() if key is not None}
        if event["what"] == "begin":
            count = next((at for at, key in enumerate(event["keys"]) if key not in find), len(event["keys"]))
            own = [find[key] for key in event["keys"][:count]]
            spare = sorted((b for b in queue if b not in own), key=lambda block: state[block][1] is not None)
            if len(event["keys"]) - count > len(spare):
                told["refused"] += 1
                continue
            new = spare[: len(event["keys"]) - count]
            state |= {block: [set(), None] for block in new}
            queue = [block for block in queue if block not in own + new]
            for block in own + new:
                state[block][0].add(row)
            running[row] = own + new, event["keys"]
            told["rows"].append((row, own + new))
        elif event["what"] == "written":
            for block, key in list(zip(*running.get(row, ([], [])), strict=True))[: event["count"]]:
                if key is not None and key not in find:
                    state[block][1] = key
        else:
            for block in running.pop(row, ([], []))[0][::-1]:
                state[block][0].discard(row)
                queue += [] if state[block][0] else [block]
    found = sorted((key, block) for block, (_, key) in state.items() if key is not None)
    return told | {"found": found, "holders": [len(rows) for rows, _ in state.values()]}
