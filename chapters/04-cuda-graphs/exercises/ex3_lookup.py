"""Exercise 4.3: the dict of graphs: what its key is, which graph goes when it is full, and when all of them go."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, beside, call
from nanoinfer.engine import graphs

places = beside(__file__, "places.py")


def replayed(steps: list[dict[str, Any]], room: int) -> list[int]:
    """For each step the number of the step at which the graph was captured that it replays; its own, if it captures.

    A step: how many rows and columns its inputs have, how many of the tokens in them are no padding (tokens),
    its cache's address, how much of a context it reads (read), how long the longest context is (length), sampler
    ("greedy", "sampled" or "filtered"), and temperature. Rows, columns, read and sampler are Python values in the code;
    tokens, length and temperature are known by tensors. A graph is replayed wherever it does what the step would; else
    the step is captured, and kept. At most `room` graphs are kept, of 1 to 256: where there is one too many the least
    recently used one goes. When the cache has another address than at the step before, all graphs go.
    """
    graphs, address, found = {}, None, []  # key -> number, the least recently used first
    for number, step in enumerate(steps):
        if step["address"] != address:
            graphs, address = {}, step["address"]
        key = step["rows"], step["columns"], step["read"], step["sampler"]
        graphs[key] = graphs.pop(key, number)
        if len(graphs) > room:
            del graphs[next(iter(graphs))]
        found.append(graphs[key])
    return found


def swap(mine: Function) -> Places:
    """The engine replays the graph that it names, out of all that were ever captured."""
    lookup = graphs.GraphEngine._captured

    def captured(self: Any, key: Any, why_not: Any, all_layers: bool = False) -> Any:
        if self.recorder is None or why_not is not None:
            return lookup(self, key, why_not, all_layers)
        asked, taken = self.__dict__.setdefault("_lookups", ([], {}))
        asked.append({
            "rows": key.rows, "columns": key.columns, "tokens": key.rows, "address": hash(self._current_addresses()),
            "read": key.longest, "length": key.longest, "sampler": getattr(key.sampler, "__name__", "penalties"),
            "temperature": 1.0,
        })  # fmt: skip
        number = mine([dict(step) for step in asked], graphs.KEPT)[-1]
        if number == len(asked) - 1:
            self.graphs.pop(key, None)
            self._capture([key])
            taken[number] = self.graphs.get(key)
        return taken[number]

    return places.RECORDED | {"nanoinfer.engine.graphs:GraphEngine._captured": captured}


NAMES = ("rows", "columns", "tokens", "address", "read", "length", "sampler", "temperature")


def _step(*values: Any) -> dict[str, Any]:
    return dict(zip(NAMES, values, strict=True))


def _example() -> Call:
    first, second = _step(4, 1, 4, 4096, 128, 77, "greedy", 0.0), _step(2, 1, 2, 4096, 128, 78, "greedy", 0.0)
    return call([first, second, dict(first, tokens=3, length=79)], 8)


EXERCISE = Spec(
    reference=replayed,
    lines=10,
    example=_example,
    section="The key",
    axes=("step",),
    typed=True,
    exact=True,
    refuse=("nanoinfer.engine.graphs:GraphEngine._captured",),
    swap=swap,
)


def _of(case: Case, kinds: list[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    """Steps of a few kinds in random order, decode of one row but where a kind says so; what tensors hold differs."""
    plain = _step(1, 1, 1, 4096, 128, 0, "greedy", 0.0)
    order = case.ints("order", 0, len(kinds) - 1, steps).tolist()
    length, real = case.ints("length", 1, 128, steps).tolist(), case.ints("tokens", 1, 4, steps).tolist()
    return [
        plain | kinds[kind] | {"tokens": real[n], "length": length[n], "temperature": [0.0, 0.7, 1.0][length[n] % 3]}
        for n, kind in enumerate(order)
    ]


def keys(case: Case) -> Call:
    """A graph serves steps of its own rows, columns, read length and sampler, and no others."""
    other = case.choice("other", ({"rows": 2}, {"read": 256}, {"sampler": "sampled"}))
    more = case.choice("more", ({"columns": 16}, {"sampler": "filtered"}))
    kinds = [{}, other, {"sampler": "filtered"}, {"columns": 16}, {"columns": 32}, more | other]
    return call(_of(case, kinds, case.size("steps", 2, 12)), 9)


def a_full_dict(case: Case) -> Call:
    """The graph that was not used for the longest time goes, however often it was used before."""
    room = case.size("room", 1, case.turn((1, 2, 3)))
    others = [("greedy", 1), ("filtered", 16), ("sampled", 1)]
    kinds = [dict(zip(("rows", "sampler", "columns"), (n, *others[n % 3]), strict=True)) for n in range(1, room + 3)]
    return call(_of(case, kinds, case.size("steps", 2, 14)), room)


def a_new_cache(case: Case) -> Call:
    """With other tensors all graphs go, also where the address is one that was there before."""
    steps = _of(case, [{}, {"rows": 2}], case.size("steps", 2, 9))
    moves = case.ints("moves", 0, 1, len(steps)).cumsum(0).tolist()
    addresses = case.turn(((4096, 8192), (4096, 4160), (4096, 8192, 12288), (8192, 4096)))
    return call([dict(step, address=addresses[at % len(addresses)]) for step, at in zip(steps, moves, strict=True)], 9)


def _alike(kind: str) -> list[dict[str, Any]]:
    """Kinds of steps whose keys are alike packed, added or multiplied, or that are many."""
    by_rows = [{"rows": 16 * n} for n in range(1, 7)]
    kinds: dict[str, list[dict[str, Any]]] = {
        "shapes": [
            *({"columns": n, "rows": 64 // n, "read": read} for n in (16, 32) for read in (64, 256)),
            *(dict(zip(("rows", "columns", "read"), one, strict=True)) for one in permutations((1, 11, 111))),
        ],
        # as a float, or by a hash, one number
        "many rows": [*by_rows, {"rows": 2**53}, {"rows": 2**53 + 1}, {"rows": 16 + 2**61 - 1}],
        # what makes one difference makes it beside every other one
        "all": [
            {"rows": rows, "columns": columns, "read": read, "sampler": sampler}
            for rows in (1, 2) for columns in (1, 32) for read in (128, 512)
            for sampler in ("greedy", "sampled", "filtered")
        ],
        # whose digits are the same, end to end
        "digits": [
            {"rows": 1, "columns": 11}, {"rows": 11, "columns": 1}, {"columns": 12, "read": 128}, {"read": 2128},
        ],
        # whose sum is the same, were each given ten or sixteen bits of a number
        "bits": [{"columns": columns, "read": read} for columns in (2, 3, 4) for read in (1024, 65_536, 131_072)],
        "many graphs": [{"rows": n} for n in range(1, 281)],
        # the same number in fewer bits, as a float, by its hash, or rounded
        "narrow": [
            {name: number}
            for name in ("rows", "columns", "read")
            for number in (*range(1, 20), 127, 128, 129, 2**61, *(1 + 2**n for n in range(5, 64)), 2**53)
        ],
    }  # fmt: skip
    return kinds.get(kind, by_rows)


def _walk(case: Case, count: int) -> list[dict[str, Any]]:
    """Steps of which each is the one before it, or has one or two other values; the last two are equal."""
    names = dict.fromkeys(("rows", "columns", "read", "tokens", "length"), (1, 2, 9, 64, 128, 1000, 2**20))
    values: dict[str, Any] = names | {"sampler": ("greedy", "sampled", "filtered"), "temperature": (0.0, 0.7, 1.0)}
    (step,), found = _of(case, [{}], 1), []
    for name, which, again in case.ints("walk", 0, 2**20, count, 3).tolist():
        found.append(step)
        part = [*values, "sampler", "rows"][name % 9]
        changed = step | {part: values[part][which % len(values[part])]}
        step = found[-2] if again % 4 == 0 and len(found) > 1 else changed if again % 4 else step
    return [*found, found[-1]]


def any_steps(case: Case) -> Call:
    """Keys that are alike packed, added or multiplied, many rows, a room for many graphs, and a cache that is back."""
    kind = case.turn((
        "shapes", "bits", "many rows", "many graphs", "comes back", "radix", "digits", "alike", "none", "moves", "all",
        "narrow", "addresses", "one part",
    ))  # fmt: skip
    kinds, room = _alike(kind), {"many graphs": 256, "all": 20, "narrow": 900}.get(kind, 40)
    if kind == "radix":  # a number in place of a key: one part less 1 is another part more by any base
        kinds = [{"rows": 2, "columns": 2, "read": 2}, {"rows": 1, "columns": 2, "read": 2}]
        for base in (7, 10, 31, 100, 256, 1000, 1024, 4096, 10_000, 65_536, 10**6, 2**20):
            kinds += [{"rows": 1, "columns": 2 + base, "read": 2}, {"rows": 2, "columns": 1, "read": 2 + base}]
            kinds += [{"rows": 1 + base, "columns": 3, "read": 2}]  # as its bits exclude one another's
        order = [kinds[at] for turn in range(2) for at in case.permutation(f"order {turn}", len(kinds)).tolist()]
        return call([step | one for step, one in zip(_of(case, [{}], len(order)), order, strict=True)], len(kinds))
    many = {"many graphs": 700, "none": 0, "all": 300, "comes back": 150, "narrow": len(kinds), "addresses": 130}
    steps = _of(case, kinds, many.get(kind, 24))
    if kind in ("many graphs", "narrow"):  # all of them, and then any
        order = case.permutation("all", len(kinds)).tolist()
        steps[: len(kinds)] = [step | kinds[at] for step, at in zip(_of(case, [{}], len(kinds)), order, strict=True)]
    if kind == "addresses":  # equal in fewer bits, as floats, or by hash
        others = [4096 + 2 ** (n // 2) * (n % 2) for n in range(128)] + [4096, 4096 + 2**61 - 1]
        steps = [dict(step, rows=1, address=other) for step, other in zip(steps, others, strict=True)]
    if kind == "one part":  # is another than at the step before, beside any others; or none is
        steps = _walk(case, 400)
    if kind == "alike":  # a step that was captured, gave way, and comes again, equal in everything
        room, steps = 2, [dict(step, tokens=1, length=9, temperature=0.0, rows=step["rows"] % 5) for step in steps]
    if kind == "moves":  # with the same keys, and then with others; always one more than there is room for
        order = [at % 8 % 3 if at % 8 < 4 else step["rows"] % 3 for at, step in enumerate(steps)]
        room, steps = 2, [dict(s, address=n // 8, rows=n // 16 * 3 + order[n]) for n, s in enumerate(steps)]
    if kind == "comes back":
        moves = [0, *case.ints("moves", 0, 1, len(steps) - 10).cumsum(0).tolist(), *[0] * 9]
        moves[len(moves) // 2] = 1
        steps = [dict(step, address=4096 * (at % 2)) for at, step in zip(moves, steps, strict=True)]
    if kind == "many rows":
        steps = [dict(reversed(step.items())) if at % 2 == 0 else step for at, step in enumerate(steps)]
    return call(steps, room)


CHECKS = (Check(keys, 6), Check(a_full_dict, 5), Check(a_new_cache, 4), Check(any_steps, 14, wide=True))
