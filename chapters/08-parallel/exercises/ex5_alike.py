"""Exercise 8.5: what ranks must agree on, before they begin and at every step."""

from __future__ import annotations

from collections.abc import Generator
from copy import deepcopy
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Spec, beside, call

RANKS = beside(__file__, "ranks.py")
Ended = list[tuple[str, str]]


def serve(rank: int, mine: dict[str, Any], rows: list[dict[str, Any]]) -> Generator[Any, Any, list[tuple[str, str]]]:
    """A rank's program: it agrees with the others, steps until no row is left, and returns how all rows have ended.

    mine: what this rank has found out by itself, by these names: "settings", a str; "blocks", how many blocks of cache
    it has room for; "graphs", of how many rows the steps are that it has captured, a list in any order, or none.
    rows: the requests, the same on all ranks, one before the other: each a dict with "name", a str of its own;
    "blocks", what it holds while it runs, at least 1; "deadline", a number.
    A rank is a generator, and gathers and steps come in the same order on all ranks, with equal steps.
    each = yield ("gather", value) takes a plain value, with str keys where it is a dict, and gives every rank the list
    of all, in the order of ranks. ended = yield ("step", names, graph): all ranks run one step with these rows, a list
    in the order of `rows`, by that graph, and each is given those of these names that have ended, a list in any order.
    Ranks may be given different names, since they do not see the same; rank 0's count. now = yield ("clock",) is this
    rank's own time; it may ask whenever it likes, and the others need not. Clocks are not equal, and rank 0's counts;
    they only go on while a step runs.
    First: where not all settings are equal every rank raises ValueError, ahead of any step. Of blocks there are as many
    as the rank with the fewest has. Of graphs there are those that every rank has. A row that needs more blocks than
    there are is "refused". Then, ahead of each step: each row whose deadline is not after rank 0's now, running or not,
    is "late"; after that rows that wait begin, in their order, as long as the blocks of all that run then are not more
    than there are. The first that does not fit keeps all after it waiting. If none runs then, it is over. The graph of
    a step is the smallest that has at least as many rows, or 0 where there is none. A row that has ended in a step is
    "done". It returns (name, why) of all rows: first those refused; then, step by step, those late ahead of it and
    those done after it; each of these groups in the order of `rows`.
    """
    each = yield "gather", mine
    if any(one["settings"] != mine["settings"] for one in each):
        raise ValueError("ranks have other settings")
    blocks = min(one["blocks"] for one in each)
    graphs = sorted(set.intersection(*(set(one["graphs"]) for one in each)))
    told = [(row["name"], "refused") for row in rows if row["blocks"] > blocks]
    waiting = [row for row in rows if row["blocks"] <= blocks]
    running: list[dict[str, Any]] = []
    while True:
        now = (yield "gather", (yield ("clock",)))[0]
        told += [(row["name"], "late") for row in rows if row in running + waiting and row["deadline"] <= now]
        running, waiting = ([row for row in some if row["deadline"] > now] for some in (running, waiting))
        while waiting and sum(row["blocks"] for row in [*running, waiting[0]]) <= blocks:
            running.append(waiting.pop(0))
        if not running:
            return told
        names = [row["name"] for row in running]
        ended = yield "step", names, next((graph for graph in graphs if graph >= len(names)), 0)
        ended = (yield "gather", ended)[0]
        told += [(name, "done") for name in names if name in ended]
        running = [row for row in running if row["name"] not in ended]


def played(
    answer: Function, each: list[dict[str, Any]], rows: list[dict[str, Any]], lengths: list[list[int]],
    clocks: list[float], tick: float,
) -> Any:  # fmt: skip
    """Play a rank for each of `each`. lengths: after how many of its steps a row ends, for each rank. clocks: of each
    rank when it begins; a step takes `tick`."""
    had = {row["name"]: 0 for row in rows}
    steps: list[Any] = []
    size = len(each)

    def exchange(asked: list[Any]) -> list[Any]:
        if asked[0][0] == "gather":
            return [[deepcopy(one[1]) for one in asked] for _ in asked]
        names, graph = asked[0][1], asked[0][2]
        if not isinstance(names, list) or not names or any(name not in had for name in names):
            raise RANKS.LostError(f"a step of {str(names)[:200]}: no names of rows")
        steps.append([list(names), graph])
        for name in names:
            had[name] += 1
        at = {row["name"]: n for n, row in enumerate(rows)}
        return [[name for name in names[::-1] if had[name] >= lengths[rank][at[name]]] for rank in range(size)]

    def local(rank: Any) -> None:
        """Answer what is no collective, and look at what is one."""
        while not rank.over:
            says = f"rank {rank.number} yields {str(rank.asks)[:120]}"
            asks = rank.asks
            if not isinstance(asks, tuple | list) or not asks or asks[0] not in ("gather", "step", "clock"):
                raise RANKS.LostError(f"{says}: no gather, step or clock")
            if len(asks) != {"gather": 2, "step": 3, "clock": 1}[asks[0]]:
                raise RANKS.LostError(f"{says}: too much, or too little")
            if asks[0] != "clock":
                return
            rank.go(clocks[rank.number] + tick * len(steps))

    try:
        ranks = [RANKS.Rank(n, answer, (n, own, rows), "ValueError") for n, own in enumerate(each)]
        for _ in range(RANKS.STEPS):
            for rank in ranks:
                local(rank)
            if all(rank.over for rank in ranks):
                break
            _same_everywhere(ranks)
            for rank, told in zip(ranks, exchange([rank.asks for rank in ranks]), strict=True):
                rank.go(told)
        else:
            return "the ranks never end"
    except RANKS.LostError as error:
        return str(error)
    if any(rank.raised for rank in ranks):
        others = [rank.number for rank in ranks if not rank.raised]
        if others:
            return f"rank {others[0]} goes on, where others raise ValueError"
        return "all ranks raise ValueError" + (f", after {len(steps)} steps" if steps else "")
    for rank in ranks:
        if rank.returned != ranks[0].returned:
            return f"rank {rank.number} returns {rank.returned}, and rank 0 {ranks[0].returned}"
    return {"steps": steps, "ended": ranks[0].returned}


def _same_everywhere(ranks: list[Any]) -> None:
    """All ranks are at the same collective."""
    over = [rank for rank in ranks if rank.over]
    if over:
        waits = next(rank for rank in ranks if not rank.over)
        does = "by ValueError" if over[0].raised else "as if all were done"
        raise RANKS.LostError(
            f"of {len(ranks)} ranks {', '.join(str(rank.number) for rank in over)} end {does}, "
            f"and {waits.number} waits for ever"
        )
    for rank in ranks:
        one, other = ([asks[0], *(asks[1:] if asks[0] == "step" else [])] for asks in (ranks[0].asks, rank.asks))
        if one != other:
            raise RANKS.LostError(f"rank 0 is at {_short(one)}, and rank {rank.number} at {_short(other)}")


def _short(asks: list[Any]) -> str:
    return " ".join(map(str, asks))[:120]


def _row(name: str, blocks: int = 1, deadline: float = 1e9) -> dict[str, Any]:
    return {"name": name, "blocks": blocks, "deadline": deadline}


def _mine(blocks: int, graphs: list[int], settings: str = "small, float32") -> dict[str, Any]:
    return {"settings": settings, "blocks": blocks, "graphs": graphs}


EXERCISE = Spec(
    reference=serve,
    lines=20,
    example=lambda: call(
        [_mine(4, [1, 4, 2]), _mine(3, [4, 1])], [_row("a", 2, 9.0), _row("b", 1), _row("c", 1)],
        [[3, 1, 1], [2, 1, 2]], [0.0, 8.0], 1.0,
    ),
    section="Ranks that must agree",
    axes=("item",),
    typed=True,
    scene=played,
)  # fmt: skip


def _rows(case: Case, count: int, most: int = 3) -> list[dict[str, Any]]:
    names = case.sample("names", "abcdefghij", count)
    return [_row(name, case.choice(f"blocks {name}", range(1, most + 1))) for name in names]


def _lengths(case: Case, ranks: int, rows: int, apart: bool = False) -> list[list[int]]:
    first = [case.choice(f"length {row}", (1, 2, 3, 4)) for row in range(rows)]
    lengths = [first]
    for rank in range(1, ranks):
        others = [case.choice(f"apart {rank} {row}", (-1, 1, 3, 9)) if apart else 0 for row in range(rows)]
        lengths.append([max(1, length + other) for length, other in zip(first, others, strict=True)])
    return lengths


def measured(case: Case) -> Call:
    """Blocks are as many as the rank with the fewest has; who needs more is refused on all ranks."""
    ranks, rows = case.size("ranks", 2, 3), _rows(case, case.size("rows", 3, 5), 4)
    blocks = [case.choice(f"more {rank}", (4, 5, 9)) for rank in range(ranks)]
    blocks[case.turn((0, ranks - 1, 1, 1))] = 3
    return call([_mine(each, [1, 2, 8]) for each in blocks], rows, _lengths(case, ranks, len(rows)), [0.0] * ranks, 1.0)


def captured(case: Case) -> Call:
    """A step runs by a graph that every rank has, the smallest with room, or by none."""
    ranks, rows = case.size("ranks", 2, 3), _rows(case, case.size("rows", 3, 6), 1)
    graphs = [sorted(case.sample(f"graphs {rank}", range(1, 9), 5), key=str) for rank in range(ranks)]
    graphs = [[*own, 7, 3] if case.turn((True, False, True, True)) else own[:2] for own in graphs]
    graphs = [list(dict.fromkeys(own)) for own in graphs]
    each = [_mine(99, own[::-1] if rank % 2 else own) for rank, own in enumerate(graphs)]
    return call(each, rows, _lengths(case, ranks, len(rows)), [0.0] * ranks, 1.0)


def seen_apart(case: Case) -> Call:
    """A row has ended when rank 0 has been told so, whatever the others are told."""
    ranks, rows = case.size("ranks", 2, 3), _rows(case, case.size("rows", 2, 4), 2)
    each = [_mine(4, [4])] * ranks
    return call(each, rows, _lengths(case, ranks, len(rows), apart=True), [0.0] * ranks, 1.0)


def clocks_apart(case: Case) -> Call:
    """A row is late when it is so by rank 0's clock, whether it runs or waits."""
    ranks, rows = case.size("ranks", 2, 3), _rows(case, case.size("rows", 3, 5), 3)
    rows = [row | {"deadline": float(case.choice(f"deadline {row['name']}", (2, 3, 4, 5, 50)))} for row in rows]
    clocks = [
        case.choice("rank 0", (0.0, 1.0)),
        *(case.choice(f"rank {rank}", (-3.0, 2.0, 4.0)) for rank in range(1, ranks)),
    ]
    lengths = [[length + 2 for length in own] for own in _lengths(case, ranks, len(rows))]
    return call([_mine(4, [4])] * ranks, rows, lengths, clocks, 1.0)


def other_settings(case: Case) -> Call:
    """Where settings are not equal every rank raises ValueError, whichever it is that has others."""
    ranks = case.turn((2, 4, 3, 3))
    settings = ["small, float32"] * ranks
    settings[case.turn((ranks - 1, 0, 1, ranks - 1))] = case.choice(
        "other", ("small, float16", "", "xl, float32", "tiny, float64")
    )
    rows = [_row("a")] if case.turn((True, True, False, True)) else []
    return call([_mine(4, [1], one) for one in settings], rows, [[2] * len(rows)] * ranks, [0.0] * ranks, 1.0)


KINDS = ("nobody", "alone", "one", "many rows", "many ranks", "none late", "all late", "all refused", "large", "equal",
         "no graph", "all", "all", "names", "fits", "zeros", "half")  # fmt: skip


def any_ranks(case: Case) -> Call:
    """No rows, one rank, many of both; all rows late or refused; no graphs; everything apart at the same time."""
    kind = case.turn(KINDS)
    ranks = {"alone": 1, "many ranks": 9}.get(kind, 3)
    count = {"nobody": 0, "one": 1, "many rows": 70}.get(kind, 5)
    names = [f"row {at}" for at in case.permutation("names", count).tolist()]
    rows = [
        _row(name, case.choice(f"blocks {name}", (1, 2, 3)), case.choice(f"deadline {name}", (4.5, 6.0, 9.0, 1e9)))
        for name in names
    ]
    lengths, clocks = (
        _lengths(case, ranks, count, apart=True),
        [0.5, 5.0, -4.0, *[float(at) for at in range(6)]][:ranks],
    )
    each = [
        _mine(case.choice(f"own {rank}", (4, 6, 8)), case.sample(f"graphs {rank}", (1, 2, 3, 4, 5, 6), 4))
        for rank in range(ranks)
    ]
    if kind in ("none late", "equal"):
        rows = [row | {"deadline": 1e9} for row in rows]
    if kind == "all late":
        rows = [row | {"deadline": 0.5} for row in rows]
    if kind == "all refused":
        rows = [row | {"blocks": 7 + at} for at, row in enumerate(rows)]
        each[1]["blocks"] = 6
    if kind == "large":
        rows = [row | {"blocks": row["blocks"] * 2**31, "deadline": row["deadline"] + 2**53} for row in rows]
        each, clocks = [one | {"blocks": one["blocks"] * 2**31} for one in each], [clock + 2**53 for clock in clocks]
    if kind == "equal":
        rows, each = [row | {"blocks": 2} for row in rows], [_mine(4, [2, 1]) for _ in each]
        lengths = [[2] * count] * ranks
    if kind == "no graph":
        each = [one | {"graphs": [[], [1, 2, 3], [4]][rank]} for rank, one in enumerate(each)]
    if kind == "names":
        rows, each = [dict(reversed(row.items())) for row in rows], [dict(reversed(one.items())) for one in each]
    if kind == "many rows":
        each = [_mine(99 + rank, [8, 64, 32, 128][rank:]) for rank in range(ranks)]
    if kind == "fits":
        rows = [row | {"blocks": (2, 3, 5, 1, 4)[at], "deadline": 1e9} for at, row in enumerate(rows)]
        each[2]["blocks"], each[0]["blocks"], each[1]["blocks"] = 5, 5, 6
    if kind == "zeros":
        rows, clocks = [row | {"deadline": 0.0 if at % 2 else 1.0} for at, row in enumerate(rows)], [-1.0, 0.0, 0.0]
    return call(each, rows, lengths, clocks, 0.25 if kind == "half" else 1.0)


CHECKS = (
    Check(any_ranks, len(KINDS), wide=True), Check(measured, 4), Check(captured, 4), Check(seen_apart, 4),
    Check(clocks_apart, 5), Check(other_settings, 4),
)  # fmt: skip
