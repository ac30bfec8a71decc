"""Exercise 8.5: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]
Mine = dict[str, Any]
Rows = list[dict[str, Any]]


def one_gather_a_step(rank: int, mine: Mine, rows: Rows) -> Program:
    """What was seen and the time are gathered together, behind each step."""
    time = yield ["clock"]
    each = yield ["gather", {"mine": mine, "now": time}]
    if [one["mine"]["settings"] for one in each] != [mine["settings"]] * len(each):
        raise ValueError
    blocks = sorted(one["mine"]["blocks"] for one in each)[0]
    graphs = set(mine["graphs"])
    for one in each:
        graphs &= set(one["mine"]["graphs"])
    ended = [(row["name"], "refused") for row in rows if row["blocks"] > blocks]
    left = {row["name"]: row for row in rows if row["blocks"] <= blocks}
    running, now = [], each[0]["now"]
    while left:
        late = [name for name, row in left.items() if not row["deadline"] > now]
        for name in late:
            ended.append((name, "late"))
            del left[name]
        running = [name for name in running if name in left]
        for name, row in left.items():
            if name not in running:
                if row["blocks"] > blocks - sum(left[one]["blocks"] for one in running):
                    break
                running += [name]
        if not running:
            break
        seen = yield ["step", list(running), min([graph for graph in graphs if graph >= len(running)], default=0)]
        time = yield ["clock"]
        both = yield ["gather", (seen, time)]
        seen, now = both[0]
        for name in [name for name in running if name in seen]:
            ended.append((name, "done"))
            del left[name]
        running = [name for name in running if name in left]
    return ended


def by_indices(rank: int, mine: Mine, rows: Rows) -> Program:  # noqa: PLR0912
    """Rows are numbers; a list says of each how it stands."""
    values = []
    for name in ("settings", "blocks", "graphs"):
        values.append((yield "gather", mine[name]))
    if any(one != values[0][0] for one in values[0]):
        raise ValueError("other settings")
    room, why = min(values[1]), [""] * len(rows)
    told = []
    for at, row in enumerate(rows):
        if row["blocks"] > room:
            why[at] = "refused"
            told.append(at)
    begun = [False] * len(rows)
    while "" in why:
        now = yield ("clock",)
        now, *_ = yield "gather", now
        for at, row in enumerate(rows):
            if not why[at] and row["deadline"] <= now:
                why[at] = "late"
                told.append(at)
        used = sum(row["blocks"] for at, row in enumerate(rows) if begun[at] and not why[at])
        for at, row in enumerate(rows):
            if not why[at] and not begun[at]:
                if used + row["blocks"] > room:
                    break
                begun[at], used = True, used + row["blocks"]
        now_in = [at for at in range(len(rows)) if begun[at] and not why[at]]
        if not now_in:
            continue
        common = [graph for graph in values[2][rank] if all(graph in own for own in values[2])]
        graph = min((graph for graph in common if graph >= len(now_in)), default=0)
        seen = yield "step", [rows[at]["name"] for at in now_in], graph
        seen, *_ = yield "gather", seen
        for at in now_in:
            if rows[at]["name"] in seen:
                why[at] = "done"
                told.append(at)
    return [(rows[at]["name"], why[at]) for at in told]


EQUIVALENT = {"running: list[dict[Any, str]] = []": "an annotation"}


def _columns(rank: int, mine: Mine, rows: Rows) -> tuple[Any, ...]:
    names = ("name", "blocks", "deadline")
    own = mine["settings"], mine["blocks"], mine["graphs"]
    return rank + 1, *own, {name: [row[name] for row in rows] for name in names}


def _played(answer: Function) -> Function:
    return Formed(answer, _columns, lambda program, *args: program)


@edition("in-columns", "requests come in columns, and ranks are counted from 1", played=_played)
def serve_columns(number: int, settings: str, blocks: int, graphs: list[int], rows: dict[str, list[Any]]) -> Program:
    """A rank's program: it agrees with the others, steps until no row is left, and returns how all rows have ended.

    number: the rank's, from 1. What this rank has found out by itself: settings; blocks, how many blocks of cache it
    has room for; graphs, of how many rows the steps are that it has captured, in any order, or none.
    rows: the requests, the same on all ranks, one before the other: three lists, one item for each: "name", a str of
    its own; "blocks", what it holds while it runs, at least 1; "deadline", a number.
    A rank is a generator, and gathers and steps come in the same order on all ranks, with equal steps.
    each = yield ("gather", value) takes a plain value, with str keys where it is a dict, and gives every rank the list
    of all, in the order of ranks. ended = yield ("step", names, graph): all ranks run one step with these rows, a list
    in the order of `rows`, by that graph, and each is given those of these names that have ended, a list in any order.
    Ranks may be given different names, since they do not see the same; rank 1's count. now = yield ("clock",) is this
    rank's own time; it may ask whenever it likes, and the others need not. Clocks are not equal, and rank 1's counts;
    they only go on while a step runs.
    First: where not all settings are equal every rank raises ValueError, ahead of any step. Of blocks there are as many
    as the rank with the fewest has. Of graphs there are those that every rank has. A row that needs more blocks than
    there are is "refused". Then, ahead of each step: each row whose deadline is not after rank 1's now, running or not,
    is "late"; after that rows that wait begin, in their order, as long as the blocks of all that run then are not more
    than there are. The first that does not fit keeps all after it waiting. If none runs then, it is over. The graph of
    a step is the smallest that has at least as many rows, or 0 where there is none. A row that has ended in a step is
    "done". It returns (name, why) of all rows: first those refused; then, step by step, those late ahead of it and
    those done after it; each of these groups in the order of `rows`.
    """
    each = yield "gather", (settings, blocks, graphs)
    if any(one[0] != settings for one in each):
        raise ValueError("ranks have other settings")
    room = min(one[1] for one in each)
    common = sorted(set(graphs).intersection(*(one[2] for one in each)))
    needs, deadline = (dict(zip(rows["name"], rows[of], strict=True)) for of in ("blocks", "deadline"))
    told = [(name, "refused") for name in needs if needs[name] > room]
    left = [name for name in needs if needs[name] <= room]
    running: list[str] = []
    while True:
        now = (yield "gather", (yield ("clock",)))[0]
        told += [(name, "late") for name in left if deadline[name] <= now]
        left = [name for name in left if deadline[name] > now]
        running = [name for name in running if name in left]
        for name in left:
            if name not in running:
                if sum(needs[one] for one in [*running, name]) > room:
                    break
                running.append(name)
        if not running:
            return told
        ended = yield "step", list(running), next((graph for graph in common if graph >= len(running)), 0)
        ended = (yield "gather", ended)[0]
        told += [(name, "done") for name in running if name in ended]
        left = [name for name in left if name not in ended]
