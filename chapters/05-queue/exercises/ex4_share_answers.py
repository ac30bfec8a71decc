"""Exercise 5.4: wrong answers and where they come from, correct variants, mutants that are none, two editions."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from nanocourse.exercises.exercise import Edition, Right, Wrong

History = list[tuple[str, int, Any]]
Answer = tuple[list[list[int] | None], list[int], dict[str, int]]

RUNS = "            running[row] = hits + taken, detail\n"
COUNTED = """            for block in hits + taken:
                holders[block] += 1
"""
IF_FOUND = "if key not in found:"
QUEUES = "(idle if block in found.values() else free).append(block)"
LAST = "if not holders[block]:"
WRONG = (
    Wrong.patch(
        "found-at-once", "A block can be found as soon as a row has it.", RUNS,
        RUNS + "            for block, key in zip(hits + taken, detail, strict=True):\n"
        "                if key is not None:\n"
        "                    found.setdefault(key, block)\n",
        "GeeeekExplorer/nano-vllm#208, #209; vllm-project/vllm#7822 says why a block must first be computed",
    ),
    Wrong.patch(
        "found-as-a-whole", "A row's blocks are written together.", "[:detail]", "",
        "an author's own slip: right for prompts that are read in one piece",
    ),
    Wrong.patch(
        "not-full-is-shared", "The last block holds the same tokens, so it can be shared like the others.",
        "    for what, row, detail in history:\n",
        "    for what, row, detail in history:\n"
        '        detail = [key or "not full" for key in detail] if what == "begin" else detail\n',
        "neuralmagic/nm-vllm#3: two rows that go on writing into one block",
    ),
    Wrong.patch(
        "freed-by-the-first", "A row that ends frees its blocks.",
        f"                {LAST}\n                    {QUEUES}",
        f"                if block not in free + idle:\n                    {QUEUES}",
        "a manager without counts: vLLM's first had them for copies, and sharing needs no more",
    ),
    Wrong.patch(
        "freed-twice", "Each end gives the row's blocks back.", "reversed(running.pop(row)[0])",
        "reversed(running[row][0])",
        "ModelEngine-Group/unified-cache-management#1053: one block twice in the free queue, after two paths freed it",
    ),
    Wrong.patch(
        "cancel-leaks", "A row that ends gives back what it has written.", 'elif what == "end" and row in running:',
        'elif what == "end" and row in running and detail != "cancelled":',
        "a plausible slip: the path of those that leave early, which nobody had run",
    ),
    Wrong.patch(
        "forgotten-at-the-end", "A block that nobody holds is free, and holds nothing.",
        f"                    {QUEUES}",
        "                    free.append(block)\n"
        "                    found = {key: other for key, other in found.items() if other != block}",
        "a cache that lives as long as its rows: each conversation is computed anew",
    ),
    Wrong.patch(
        "still-found", "Whoever gets a block writes it anew, and its new key is added then.",
        "            found = {key: block for key, block in found.items() if block not in taken}\n", "",
        "GeeeekExplorer/nano-vllm#163: the map points at a block that has another owner",
    ),
    Wrong.patch(
        "youngest-goes", "The block that became idle last is the first to go.",
        "taken, idle = (free + others)[:lacks], others[max(0, lacks - len(free)) :]",
        "taken, idle = (free + others[::-1])[:lacks], others[: len(others) - max(0, lacks - len(free))]",
        "an author's own slip: a stack, which is right for free blocks",
    ),
    Wrong.patch(
        "idle-ones-first", "What is idle is used first.",
        "taken, idle = (free + others)[:lacks], others[max(0, lacks - len(free)) :]\n            free = free[lacks:]",
        "taken, idle = (others + free)[:lacks], others[lacks:]\n            free = free[max(0, lacks - len(others)) :]",
        "an author's own slip: a cache that forgets while there is room",
    ),
    Wrong.patch(
        "beginning-goes-first", "Blocks are given back in the order in which they were taken.",
        "reversed(running.pop(row)[0])", "running.pop(row)[0]",
        "an author's own slip: without its first block a text's other blocks can never be found",
    ),
    Wrong.patch(
        "counted-before-room", "What is found is held at once.",
        "            if lacks > len(free) + len(others):\n                given.append(None)\n"
        "                continue\n",
        "            if lacks > len(free) + len(others):\n                given.append(None)\n"
        "                idle = others\n"
        "                for block in hits:\n                    holders[block] += 1\n                continue\n",
        "vllm-project/vllm#11562, #11565: counts that grew with each try, until nothing could begin",
    ),
    Wrong.patch(
        "hits-are-room", "Idle blocks are room, as free ones are.", "if lacks > len(free) + len(others):",
        "if lacks > len(free) + len(idle):",
        "vllm-project/vllm#11565, its discussion: 4 wanted, 5 free, and 2 of them are those that were found",
    ),
    Wrong.patch(
        "hits-are-given-away", "Any idle block can be given, one that the row has just found as well.",
        "others = len(detail) - len(hits), [block for block in idle if block not in hits]",
        "others = len(detail) - len(hits), list(idle)",
        "somebody who saw only stub and text: what was found stayed in the queue of idle blocks",
    ),
    Wrong.patch(
        "hits-run-out", "There is room if free and idle blocks are as many as the row lacks.",
        """            if lacks > len(free) + len(others):
                given.append(None)
                continue
""", """            if lacks > len(free) + len(idle):
                given.append(None)
                continue
            [*free, *others][lacks - 1 if lacks else slice(0)]
""",
        "somebody who saw only stub and text: an IndexError at the block that had been found itself",
    ),
    Wrong.patch(
        "hits-are-wanted", "A row needs as many blocks as it has keys.", "if lacks > len(free) + len(others):",
        "if len(detail) > len(free) + len(idle):",
        "vllm-project/vllm#3378: room asked for blocks that were there already",
    ),
    Wrong.patch(
        "past-a-gap", "Each key that finds a block is a hit.",
        f"                {IF_FOUND}\n                    break\n                hits.append(found[key])\n",
        "                if key in found:\n                    hits.append(found[key])\n",
        "a reader's question in GeeeekExplorer/nano-vllm#20; the row's blocks are then in another order",
    ),
    Wrong.patch(
        "the-newest-is-found", "A key finds the block that was written last.", "found.setdefault(key, block)",
        "found[key] = block", "GeeeekExplorer/nano-vllm#219: two rows computed the same, and the later entry won",
    ),
    Wrong.patch(
        "not-counted", "A block that is found is held already.", "for block in hits + taken:", "for block in taken:",
        "an author's own slip: the first row that ends takes it from the others",
    ),
)  # fmt: skip


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


def with_sets_of_rows(blocks: int, history: History) -> Answer:  # noqa: PLR0912
    """Each block has the set of rows that hold it; one ordered dict says who is free, a second one who is idle."""
    rows_of: list[set[int]] = [set() for _ in range(blocks)]
    free = OrderedDict.fromkeys(range(blocks))
    idle: OrderedDict[int, None] = OrderedDict()
    find: dict[str, int] = {}
    key_of: dict[int, str] = {}
    texts: dict[int, list[Any]] = {}
    owned: dict[int, list[int]] = {}
    said: list[list[int] | None] = []
    for what, row, detail in history:
        if what == "begin":
            count = next((at for at, key in enumerate(detail) if key not in find), len(detail))
            mine = [find[key] for key in detail[:count]]
            room = len(free) + len(idle) - sum(block in idle for block in mine)
            if len(detail) - count > room:
                said.append(None)
                continue
            for block in mine:
                idle.pop(block, None)
            while len(mine) < len(detail):
                if free:
                    mine.append(free.popitem(last=False)[0])
                else:
                    oldest = idle.popitem(last=False)[0]
                    del find[key_of.pop(oldest)]
                    mine.append(oldest)
            for block in mine:
                rows_of[block].add(row)
            owned[row], texts[row] = mine, detail
            said.append(list(mine))
        elif what == "written":
            for block, key in zip(owned.get(row, []), texts.get(row, [])[:detail], strict=False):
                if key and key not in find:
                    find[key], key_of[block] = block, key
        elif row in owned:
            mine = owned.pop(row)
            while mine:
                block = mine.pop()
                rows_of[block].discard(row)
                if not rows_of[block]:
                    (idle if block in key_of else free)[block] = None
    return said, [len(rows) for rows in rows_of], find


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


RIGHT = (Right(with_objects), Right(with_sets_of_rows), Right(counted_at_the_end))
EQUIVALENT = {
    "for block, key in list(zip(*running[row], strict=False))[:detail]:": "a row has one block for each key",
    "taken, idle = ((free + others)[:lacks], others[max(lacks - len(free), 0):])": "the larger of two, in any order",
}


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


EDITIONS = (
    Edition(
        "tables", "events are dicts, and the answer is a dict that says what the pool is at the end", tables,
        args=_events, back=_history, result=_tables, axes=("item",),
    ),
)  # fmt: skip
