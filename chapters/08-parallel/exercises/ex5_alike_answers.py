"""Exercise 8.5: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]
Mine = dict[str, Any]
Rows = list[dict[str, Any]]

SETTINGS = 'if any(one["settings"] != mine["settings"] for one in each):'
BLOCKS = 'min(one["blocks"] for one in each)'
GRAPHS = 'sorted(set.intersection(*(set(one["graphs"]) for one in each)))'
CLOCK = 'now = (yield "gather", (yield ("clock",)))[0]'
ENDED = 'ended = (yield "gather", ended)[0]'
LATE = 'told += [(row["name"], "late") for row in rows if row in running + waiting and row["deadline"] <= now]'
LEAVE = 'running, waiting = ([row for row in some if row["deadline"] > now] for some in (running, waiting))'
BEGIN = """while waiting and sum(row["blocks"] for row in [*running, waiting[0]]) <= blocks:
            running.append(waiting.pop(0))"""
GRAPH = "next((graph for graph in graphs if graph >= len(names)), 0)"
OVER = "if not running:\n            return told"
DONE = 'running = [row for row in running if row["name"] not in ended]'
WRONG = (
    Wrong.patch(
        "own-blocks", "A rank has as many blocks as it has room for.", BLOCKS, 'mine["blocks"]',
        "GeeeekExplorer/nano-vllm#187, #215: 2111 blocks on one rank and 2055 on the other",
    ),
    Wrong.patch(
        "rank-0s-blocks", "Rank 0 has measured, and its number rules.", BLOCKS, 'each[0]["blocks"]',
        "GeeeekExplorer/nano-vllm#259: ids above the smaller cache were written out of range",
    ),
    Wrong.patch(
        "most-blocks", "There are as many blocks as anybody has.", BLOCKS, 'max(one["blocks"] for one in each)',
        "an author's own slip: the reduction that stands first in the list",
    ),
    Wrong.patch(
        "all-blocks", "Ranks put their blocks together.", BLOCKS, 'sum(one["blocks"] for one in each)',
        "an author's own slip: each block is on all ranks, which hold other heads of the same tokens",
    ),
    Wrong.patch(
        "own-graphs", "A rank replays what it has captured.", GRAPHS, 'sorted(mine["graphs"])',
        "vllm-project/vllm#25906: ranks chose graphs by what each of them knew",
    ),
    Wrong.patch(
        "rank-0s-graphs", "Rank 0 tells which graph is used.", GRAPHS, 'sorted(each[0]["graphs"])',
        "vllm-project/vllm#39791, of the same family: what one rank had recorded, others had not",
    ),
    Wrong.patch(
        "anybodys-graphs", "A graph that anybody has can be used.", GRAPHS,
        'sorted(set().union(*(one["graphs"] for one in each)))',
        "an author's own slip: | for &",
    ),
    Wrong.patch(
        "graphs-unsorted", "Graphs were captured from small to large.", GRAPHS,
        '[graph for graph in each[0]["graphs"] if all(graph in one["graphs"] for one in each)]',
        "an author's own slip: chapter 4 captures the largest first",
    ),
    Wrong.patch(
        "largest-graph", "A graph has to have room, and the largest has.", GRAPH,
        "next((graph for graph in graphs[::-1] if graph >= len(names)), 0)",
        "an author's own slip: right as long as the list is sorted the other way",
    ),
    Wrong.patch(
        "own-clock", "A deadline is looked at on the clock.", CLOCK, 'now = yield ("clock",)',
        "sgl-project/sglang#27221: a time-out that each rank evaluates for itself",
    ),
    Wrong.patch(
        "latest-clock", "It is as late as anybody's clock says.", CLOCK,
        'now = max((yield "gather", (yield ("clock",))))',
        "an author's own slip: ranks agree, on a clock that runs ahead",
    ),
    Wrong.patch(
        "clock-once", "Clocks are compared once, at the beginning.", "while True:\n        " + CLOCK,
        'now = (yield "gather", (yield ("clock",)))[0]\n    while True:',
        "an author's own slip: time goes on",
    ),
    Wrong.patch(
        "own-stops", "A step tells which rows have ended.", ENDED, "pass",
        "vllm-project/vllm#44954, #49027: what each rank sees for itself, and a collective that one of them skips",
    ),
    Wrong.patch(
        "anybodys-stop", "A row has ended when anybody says so.", ENDED,
        'ended = [name for told_by in (yield "gather", ended) for name in told_by]',
        "an author's own slip: ranks agree, and a row loses its last tokens",
    ),
    Wrong.patch(
        "everybodys-stop", "A row has ended when all say so.", ENDED,
        'every = yield "gather", ended\n        ended = [name for name in names if all(name in one for one in every)]',
        "an author's own slip: a rank that never says so keeps the row for ever",
    ),
    Wrong.patch(
        "gathered-where-needed", "Where no row has ended there is nothing to agree on.", ENDED,
        'ended = (yield "gather", ended)[0] if ended else []',
        "vllm-project/vllm#43547, sgl-project/sglang#27164: a collective behind a condition of the rank's own",
    ),
    Wrong.patch(
        "looked-at-where-late", "Clocks are compared where a deadline is near.", CLOCK,
        'now = yield ("clock",)\n'
        '        if any(row["deadline"] <= now for row in rows):\n            now = (yield "gather", now)[0]',
        "sgl-project/sglang#27221, a cure that is none: who is late by its own clock gathers alone",
    ),
    Wrong.patch(
        "odd-one-out", "The rank that has other settings ends.", SETTINGS,
        'if mine["settings"] != each[0]["settings"]:',
        "vllm-project/vllm#15000: the others wait for it in a collective, and nobody says why",
    ),
    Wrong.patch(
        "majority", "The setting of most ranks counts.", SETTINGS,
        'counts = [one["settings"] for one in each]\n'
        '    if mine["settings"] != max(counts, key=counts.count):',
        "an author's own slip: those who stay have lost a rank",
    ),
    Wrong.patch(
        "neighbours", "Equal to the next one, and so equal to all.", SETTINGS,
        'if mine["settings"] != each[(rank + 1) % len(each)]["settings"]:',
        "an author's own slip: two ranks find out, and the third does not",
    ),
    Wrong.patch(
        "settings-assumed", "All were started by the same command.", SETTINGS, "if False:",
        "vllm-gguf-plugin#103: shapes were right, nothing raised, and the numbers were wrong",
    ),
    Wrong.patch(
        "late-while-waiting", "Who runs is not late any more.", LATE + "\n        " + LEAVE,
        'told += [(row["name"], "late") for row in waiting if row["deadline"] <= now]\n'
        '        waiting = [row for row in waiting if row["deadline"] > now]',
        "an author's own slip: a queue's time-out, where the contract has a deadline",
    ),
    Wrong.patch(
        "smaller-ones-overtake", "Whoever fits begins.", BEGIN,
        'for row in list(waiting):\n            if sum(one["blocks"] for one in [*running, row]) <= blocks:\n'
        "                waiting.remove(row)\n                running.append(row)",
        "chapter 5: a long request waits for ever behind short ones",
    ),
    Wrong.patch(
        "late-ones-hold-on", "What a row held is free when the next step comes.", BEGIN,
        "held = running + [row for row in rows if (row['name'], 'late') in told]\n        " + BEGIN.replace(
            "*running, waiting[0]", "*held, waiting[0]").replace(
            "running.append(waiting.pop(0))", "held.append(waiting[0])\n            running.append(waiting.pop(0))"),
        "from the stub alone, by the author: given back where rows end, and these have not ended by a step",
    ),
    Wrong.patch(
        "late-at-once", "A row that waits is late when it could begin.", LATE + "\n        " + LEAVE,
        LATE.replace("running + waiting", "running + waiting[:1]") + "\n        gone = {name for name, _ in told}\n"
        '        running, waiting = ([row for row in some if row["name"] not in gone] for some in (running, waiting))',
        "from the stub alone, by the author: the queue is looked at where it is served",
    ),
    Wrong.patch(
        "refused-when-its-turn-comes", "A row is refused when it should begin.",
        'told = [(row["name"], "refused") for row in rows if row["blocks"] > blocks]\n'
        '    waiting = [row for row in rows if row["blocks"] <= blocks]',
        "told, waiting = [], list(rows)\n"
        '    while waiting and waiting[0]["blocks"] > blocks:\n'
        '        told.append((waiting.pop(0)["name"], "refused"))\n'
        '    last = [(row["name"], "refused") for row in waiting if row["blocks"] > blocks]\n'
        '    told, waiting = told + last[::-1], [row for row in waiting if row["blocks"] <= blocks]',
        "from the stub alone, by the author: another order among those that are refused",
    ),
    Wrong.patch(
        "late-ones-last", "First those who run, then those who wait.", LATE,
        'told += [(row["name"], "late") for row in waiting + running if row["deadline"] <= now]',
        "an author's own slip: another order than that of the rows",
    ),
)  # fmt: skip


def rank_0_plans(rank: int, mine: Mine, rows: Rows) -> Program:  # noqa: PLR0912
    """Rank 0 decides everything, and all others do what it says."""
    each = yield "gather", [mine["settings"], mine["blocks"], mine["graphs"]]
    if len({settings for settings, _, _ in each}) > 1:
        raise ValueError("they differ")
    blocks = min(most for _, most, _ in each)
    common = [graph for graph in mine["graphs"] if all(graph in graphs for _, _, graphs in each)]
    state = {row["name"]: "refused" if row["blocks"] > blocks else "waits" for row in rows}
    out = [(name, why) for name, why in state.items() if why == "refused"]
    while True:
        plan = None
        now = yield ("clock",)
        if rank == 0:
            late, names, used, stuck = [], [], 0, False
            for row in rows:
                if state[row["name"]] in ("runs", "waits") and row["deadline"] <= now:
                    late.append(row["name"])
            for row in rows:
                if state[row["name"]] == "runs" and row["name"] not in late:
                    names.append(row["name"])
                    used += row["blocks"]
            for row in rows:
                if state[row["name"]] == "waits" and row["name"] not in late and not stuck:
                    stuck = used + row["blocks"] > blocks
                    if not stuck:
                        names.append(row["name"])
                        used += row["blocks"]
            plan = {"late": late, "names": names}
        plan = (yield "gather", plan)[0]
        for name in plan["late"]:
            state[name] = "late"
            out.append((name, "late"))
        if not plan["names"]:
            return out
        for name in plan["names"]:
            state[name] = "runs"
        fits = [graph for graph in common if graph >= len(plan["names"])]
        seen = yield "step", plan["names"], min(fits) if fits else 0
        seen = yield "gather", {"seen": sorted(seen)} if rank == 0 else {}
        for row in rows:
            if row["name"] in seen[0]["seen"] and state[row["name"]] == "runs":
                state[row["name"]] = "done"
                out.append((row["name"], "done"))


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


RIGHT = (Right(rank_0_plans), Right(one_gather_a_step), Right(by_indices))
EQUIVALENT = {"running: list[dict[Any, str]] = []": "an annotation"}


def serve_columns(number: int, settings: str, blocks: int, graphs: list[int], rows: dict[str, list[Any]]) -> Program:
    """A rank's program: it agrees with the others, steps until no row is left, and returns how all rows have ended.

    number: the rank's, from 1. What this rank has found out by itself: settings; blocks, how many blocks of cache it
    has room for; graphs, of how many rows the steps are that it has captured, in any order, or none.
    rows: the requests, the same on all ranks, one before the other: three lists, one item for each: "name", a str of
    its own; "blocks", what it holds while it runs, at least 1; "deadline", a number.
    A rank is a generator, and gathers and steps come in the same order on all ranks, with equal steps.
    each = yield ("gather", value) takes a plain value, with str keys where it is a dict, and gives every rank the list
    of all, in the order of ranks. ended = yield ("step", names, graph): all ranks run one step with these rows, a list
    in the order of `rows`, by that graph, and each is given a list of those names that have ended by now, in any order.
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


def _columns(rank: int, mine: Mine, rows: Rows) -> tuple[Any, ...]:
    names = ("name", "blocks", "deadline")
    own = mine["settings"], mine["blocks"], mine["graphs"]
    return rank + 1, *own, {name: [row[name] for row in rows] for name in names}


def _played(answer: Function) -> Function:
    return Formed(answer, _columns, lambda program, *args: program)


EDITIONS = (
    Edition("in-columns", "requests come in columns, and ranks are counted from 1", serve_columns, played=_played),
)  # fmt: skip
