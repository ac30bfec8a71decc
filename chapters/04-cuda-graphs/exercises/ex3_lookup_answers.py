"""Exercise 4.3: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from typing import Any

from nanocourse.exercises.exercise import Edition, Right, Wrong

Steps = list[dict[str, Any]]


def most_used_stays(steps: Steps, room: int) -> list[int]:
    """The least recently used graph is the one that was used least."""
    graphs: dict[tuple[Any, ...], int] = {}
    uses: dict[tuple[Any, ...], int] = {}
    address, found = None, []
    for number, step in enumerate(steps):
        if step["address"] != address:
            graphs, uses, address = {}, {}, step["address"]
        key = step["rows"], step["columns"], step["read"], step["sampler"]
        graphs.setdefault(key, number)
        uses[key] = uses.get(key, 0) + 1
        if len(graphs) > room:
            del graphs[min((other for other in graphs if other != key), key=lambda other: uses[other])]
        found.append(graphs[key])
    return found


def times_outlive_the_cache(steps: Steps, room: int) -> list[int]:
    """When a graph was used last is overwritten once it is used again, so it needs no clearing."""
    graphs: dict[tuple[Any, ...], int] = {}
    used: dict[tuple[Any, ...], int] = {}
    address, found = None, []
    for number, step in enumerate(steps):
        if step["address"] != address:
            graphs, address = {}, step["address"]
        key = step["rows"], step["columns"], step["read"], step["sampler"]
        graphs.setdefault(key, number)
        used[key] = number
        if len(graphs) > room:
            oldest = min(used, key=lambda other: used[other])
            del used[oldest]
            graphs.pop(oldest, None)
        found.append(graphs[key])
    return found


KEY = 'step["rows"], step["columns"], step["read"], step["sampler"]'
KEPT = "graphs[key] = graphs.pop(key, number)"
GOES = "del graphs[next(iter(graphs))]"
MOVED = 'if step["address"] != address:\n            graphs, address = {}, step["address"]'
WRONG = (
    Wrong.patch(
        "shape-is-all", "The shape of the ids is all that is baked.", KEY, 'step["rows"], step["columns"]',
        "vllm-project/vllm#36165, the shape as the key; huggingface/transformers#45323: what it lacks",
    ),
    Wrong.patch(
        "without-columns", "A graph is known by its batch size.", KEY,
        'step["rows"], step["read"], step["sampler"]',
        "pytorch/torchtitan#3685, vllm-project/vllm#8068: a prefill sent into a decode graph",
    ),
    Wrong.patch(
        "without-rows", "A graph is known by the length of its prompts.", KEY,
        'step["columns"], step["read"], step["sampler"]',
        "vllm-project/vllm#19106: a replay for another batch than the captured one",
    ),
    Wrong.patch(
        "without-read", "How much of a context is read is in a tensor, as its length is.", KEY,
        'step["rows"], step["columns"], step["sampler"]',
        "huggingface/transformers#45323, ikawrakow/ik_llama.cpp#2096: a read length frozen in the graph",
    ),
    Wrong.patch(
        "sampled-or-not", "A step samples or it does not.", KEY,
        'step["rows"], step["columns"], step["read"], step["sampler"] == "greedy"',
        "huggingface/text-generation-inference#2180: a branch that the capture did not take",
    ),
    Wrong.patch(
        "tokens-in-the-key", "Another number of tokens needs another graph.", KEY, KEY + ', step["tokens"]',
        "vllm-project/vllm#36165, sgl-project/sglang#30752: captured by the padded count, looked up by the real one",
    ),
    Wrong.patch(
        "without-sampler", "Sampling comes after the step, so it is not in the graph.", KEY,
        'step["rows"], step["columns"], step["read"]',
        "sgl-project/sglang-omni#272: the sampler's branch, taken at the capture",
    ),
    Wrong.patch(
        "temperature-in-the-key", "Another temperature needs another graph.", KEY, KEY + ', step["temperature"]',
        "mstar-project/mstar#199, mended the expensive way",
    ),
    Wrong.patch(
        "length-in-the-key", "Another length needs another graph.", 'step["read"]', 'step["length"]',
        "flash-attention#911 among others: one recording, or one compilation, for every length",
    ),
    Wrong.patch(
        "first-captured-goes", "The oldest graph goes, whether it is used or not.",
        KEPT, "graphs[key] = graphs.get(key, number)", "an author's own slip: first in, first out",
    ),
    Wrong.patch(
        "newest-goes", "What was captured just now goes: the others have proven themselves.",
        GOES, "del graphs[next(reversed([other for other in graphs if other != key] or [key]))]",
        "an author's own slip: the order of the dict the wrong way round",
    ),
    Wrong(most_used_stays, "frequency taken for recency, in any cache's first version"),
    Wrong.patch(
        "never-full", "A graph costs nothing once it is there.", "if len(graphs) > room:", "if False:",
        "vllm-project/vllm#27951, pytorch/pytorch#121932: memory of graphs that nobody counted",
    ),
    Wrong.patch(
        "room-for-one-less", "Room is made before the dict is full.", "len(graphs) > room", "len(graphs) >= room > 1",
        "an author's own slip: one entry too early",
    ),
    Wrong.patch(
        "graphs-outlive-the-cache", "A graph knows tensors by name, so a new cache is found.",
        MOVED, 'address = step["address"]', "infinigence/ApxInf#89, NVIDIA/TensorRT-LLM#4894: a reset made a new cache",
    ),
    Wrong.patch(
        "address-in-the-key", "With the address in the key, a graph waits until its cache comes back.",
        MOVED + "\n        key = ", 'key = step["address"], ',
        "an author's own slip: an address that comes back is not the same memory with the same contents",
    ),
    Wrong.patch(
        "read-of-decode-alone", "How much is read is in the key of decode steps; a prefill reads what it brings.",
        'key = step["rows"], step["columns"], step["read"], step["sampler"]',
        'key = step["rows"], step["columns"], step["read"] if step["columns"] == 1 else 0, step["sampler"]',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "digits-end-to-end", "A key is its numbers, written one behind the other.",
        'key = step["rows"], step["columns"], step["read"], step["sampler"]',
        'key = "".join(str(step[name]) for name in ("rows", "columns", "read", "sampler"))',
        "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "no-cache-at-0", "An address of 0 is none.",
        'if step["address"] != address:', 'if step["address"] != address and address:',
        "a reader who saw stub and text alone", unnamed="graphs-outlive-the-cache",
    ),
    Wrong.patch(
        "tokens-for-the-shape", "Steps of as many tokens have one graph.",
        'key = step["rows"], step["columns"], step["read"], step["sampler"]',
        'key = step["rows"] * step["columns"], step["read"], step["sampler"]',
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "ten-bits-each", "No step has more than 1,023 rows or columns.",
        'key = step["rows"], step["columns"], step["read"], step["sampler"]',
        'key = step["rows"] << 20 | step["columns"] << 10 | step["read"], step["sampler"]',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "number-by-thousands", 'A key is a number, three digits for each of its parts.',
        'key = step["rows"], step["columns"], step["read"], step["sampler"]',
        'key = step["rows"] * 1000 + step["columns"], step["read"], step["sampler"]',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "pages-of-addresses", 'A cache begins at a page of memory of its own.',
        'if step["address"] != address:\n            graphs, address = {}, step["address"]',
        'if step["address"] // 4096 != address:\n            graphs, address = {}, step["address"] // 4096',
        "a fourth reader who saw stub and text alone; it passed", unnamed="graphs-outlive-the-cache",
    ),
    Wrong.patch(
        "key-by-hash", "Two keys of one hash are one key.",
        'key = step["rows"], step["columns"], step["read"], step["sampler"]',
        'key = hash((step["rows"], step["columns"], step["read"], step["sampler"]))',
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "address-of-32-bits", "An address is a number of 32 bits.",
        'if step["address"] != address:\n            graphs, address = {}, step["address"]',
        'if step["address"] % 2**32 != address:\n            graphs, address = {}, step["address"] % 2**32',
        "written to pass all checks that there were, and it did", unnamed="graphs-outlive-the-cache",
    ),
    Wrong.patch(
        "rows-of-16-bits", "No batch has more rows than 16 bits tell.",
        'key = step["rows"]', 'key = step["rows"] % 65536', "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "wide-rows-have-one-column", "Where there are many rows each has one column.",
        'key = step["rows"], step["columns"]', 'key = step["rows"], step["columns"] * (step["rows"] < 9)',
        "written to pass all checks that there were, and it did", unnamed="without-columns",
    ),
    Wrong(times_outlive_the_cache, "a reader who saw stub and text alone; it passed at times"),
)  # fmt: skip


def with_a_list(steps: Steps, room: int) -> list[int]:
    """A list of pairs, the most recently used first; keys in words."""
    kept: list[tuple[str, int]] = []
    found = []
    for number, step in enumerate(steps):
        if number and steps[number - 1]["address"] != step["address"]:
            kept = []
        name = " ".join(f"{word}={step[word]}" for word in ("sampler", "read", "columns", "rows"))
        at = next((at for at, (other, _) in enumerate(kept) if other == name), None)
        graph = (name, number) if at is None else kept.pop(at)
        kept = [graph, *kept][:room]
        found.append(graph[1])
    return found


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


RIGHT = (Right(with_a_list), Right(with_times), Right(looking_back))

_ORDER = "a key with its parts in another order is as good"
EQUIVALENT = {
    "key = (step['columns'], step['rows'], step['read'], step['sampler'])": _ORDER,
    "key = (step['rows'], step['columns'], step['sampler'], step['read'])": _ORDER,
    "key = (step['rows'], step['read'], step['columns'], step['sampler'])": _ORDER,
    "graphs, address, found = (None, {}, [])": "the first step's address is none that was there, so both are set then",
}


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


_NAMES = ("rows", "columns", "tokens", "address", "read", "length", "sampler", "temperature")


def _back(steps: list[tuple[Any, ...]], room: int) -> tuple[Any, ...]:
    return [dict(zip(_NAMES, step, strict=True)) for step in steps], room


def _counted(found: list[int], *args: object) -> list[tuple[int, int]]:
    return [(number, found.count(number)) for number in sorted(set(found))]


EDITIONS = (
    Edition(
        "captured-and-used",
        "steps are tuples, and the answer is which of them capture a graph, and how often each is used",
        captures, args=lambda steps, room: ([tuple(step[name] for name in _NAMES) for step in steps], room),
        back=_back, result=_counted, axes=("capture", "number"),
    ),
)  # fmt: skip
