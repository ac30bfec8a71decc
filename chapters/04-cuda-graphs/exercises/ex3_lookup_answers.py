"""Exercise 4.3: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from typing import Any

from nanocourse.exercises.exercise import edition

Steps = list[dict[str, Any]]


def with_times(steps: Steps, room: int) -> list[int]:
    """When each graph was used last; the lowest time goes."""
    graphs: dict[tuple[Any, ...], list[int]] = {}
    found, moving = [], ("address", "tokens", "length", "temperature")
    for now, step in enumerate(steps):
        key = tuple(value for name, value in sorted(step.items()) if name not in moving)
        if now > 0 and step["address"] != steps[now - 1]["address"]:
            graphs.clear()
        entry = graphs.setdefault(key, [now, now])
        entry[1] = now
        while len(graphs) > room:
            graphs.pop(min(graphs, key=lambda other: graphs[other][1]))
        found.append(entry[0])
    return found


def looking_back(steps: Steps, room: int) -> list[int]:
    """No dict at all: a step's graph is there if too few others were used since, and the cache is the same."""
    keys = [(s["rows"], s["columns"], s["read"], s["sampler"]) for s in steps]
    found: list[int] = []
    for now, key in enumerate(keys):
        since: set[Any] = set()
        number = now
        for then in range(now - 1, -1, -1):
            if steps[then]["address"] != steps[then + 1]["address"] or len(since) == room:
                break
            if keys[then] == key:
                number = found[then]
                break
            since.add(keys[then])
        found.append(number)
    return found


_ORDER = "a key with its parts in another order is as good"
EQUIVALENT = {
    "key = (step['columns'], step['rows'], step['read'], step['sampler'])": _ORDER,
    "key = (step['rows'], step['columns'], step['sampler'], step['read'])": _ORDER,
    "key = (step['rows'], step['read'], step['columns'], step['sampler'])": _ORDER,
    "graphs, address, found = (None, {}, [])": "the first step's address is none that was there, so both are set then",
}


_NAMES = ("rows", "columns", "tokens", "address", "read", "length", "sampler", "temperature")


def _back(steps: list[tuple[Any, ...]], room: int) -> tuple[Any, ...]:
    return [dict(zip(_NAMES, step, strict=True)) for step in steps], room


def _counted(found: list[int], *args: object) -> list[tuple[int, int]]:
    return [(number, found.count(number)) for number in sorted(set(found))]


@edition(
    "captured-and-used",
    "steps are tuples, and the answer is which of them capture a graph, and how often each is used",
    args=lambda steps, room: ([tuple(step[name] for name in _NAMES) for step in steps], room),
    back=_back,
    result=_counted,
    axes=("capture", "number"),
)
def captures(steps: list[tuple[Any, ...]], room: int) -> list[tuple[int, int]]:
    """The steps at which a graph is captured, and how many steps replay it: pairs (number, uses), in order.

    A step is a tuple: how many rows and columns its inputs have, how many of the tokens in them are no
    padding, its cache's address, how much of a context it reads, how long the longest context is, its sampler
    ("greedy", "sampled" or "filtered"), and its temperature. Rows, columns, what is read and the sampler are Python
    values in the code; how many tokens are real, the longest context's length and the temperature are known by tensors.
    A graph is replayed wherever it does what the step would; else the step is captured, kept, and is its first use. At
    most `room` graphs are kept, of 1 to 256: where there is one too many the least recently used one goes. When the
    cache has another address than at the step before, all graphs go.
    """
    graphs: dict[tuple[Any, ...], int] = {}
    uses: dict[int, int] = {}
    address = None
    for number, (rows, columns, _, at, read, _, sampler, _) in enumerate(steps):
        if at != address:
            graphs, address = {}, at
        key = rows, columns, read, sampler
        graphs[key] = graphs.pop(key, number)
        if len(graphs) > room:
            del graphs[next(iter(graphs))]
        uses[graphs[key]] = uses.get(graphs[key], 0) + 1
    return sorted(uses.items())
