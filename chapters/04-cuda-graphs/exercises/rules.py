"""How the inputs of chapter 4's exercises follow the rules of `nanocourse.exercises.rules`."""

from __future__ import annotations

from itertools import pairwise

from nanocourse.exercises.rules import Covers, above, again, infinite, kind, nan

COVERS: dict[str, Covers] = {
    "4.1": {
        "one": lambda a: max(now["rows"] for now in a.script) == 1,
        "many": lambda a: len(a.script) > 16,
        "boundaries": lambda a: len({(now["rows"], now["read"], now["sampled"]) for now in a.script}) == 2,
        "ends": (
            lambda a: bool((a.batch[1] == 0).any()),
            lambda a: any(row[2] + len(a.script) - n == a.room for n, at in enumerate(a.script)
                          for row in at["admitted"]),
        ),
        "stand-ins": lambda a: any(row[3] < 0 for now in a.script for row in now["admitted"]),
        "mixed": lambda a: any({row[-1] for row in now["admitted"]} == {0} for now in a.script),
        "again": again,
        "large numbers": lambda a: above(a.weights, 2**31) and any(
            row[1] > 2**31 for now in a.script for row in now["admitted"]),
        "host": lambda a: any(bool((a.batch[at] == 0).all()) for at in (2, 3)) and a.script[0]["sampled"] == 1,
        "two at once": lambda a: len({now["rows"] for now in a.script}) == 2,
    },
    "4.2": {
        "one": lambda a: any(len(new["token_ids"]) == 1 for new in a.batches),
        "many": lambda a: a.rows > 64,
        "boundaries": lambda a: {a.tokens - len(new["token_ids"]) for new in a.batches} >= {0} and len(a.batches) > 2,
        "empty": lambda a: any(not len(new["logits_at"]) for new in a.batches[1:]),
        "ends": lambda a: len(a.batches[0]["logits_at"]) == a.rows,
        "mixed": lambda a: any(0 < len(new["logits_at"]) < len(new["starts"]) - 1 for new in a.batches),
        "no range": lambda a: any(bool((new["positions"].diff() < 0).any()) for new in a.batches),
        "no order": lambda a: any(new["row"].tolist() != sorted(new["row"].tolist()) for new in a.batches),
        "again": again,
        "large numbers": lambda a: any(above(new["token_ids"], 2**31) for new in a.batches),
        "two at once": lambda a: a.recordings > 1 and len(a.batches) > 2 * a.recordings,
    },
    "4.3": {
        "one": lambda a: a.room == 1,
        "many": lambda a: len({step["rows"] for step in a.steps}) > 12 and a.room > 8,
        "names": lambda a: list(a.steps[0])[-1] == "rows",
        "stand-ins": lambda a: a.steps[0]["address"] == 0,
        "zeros": lambda a: len({f"{step['rows']}{step['columns']}" for step in a.steps})
        < len({(step["rows"], step["columns"]) for step in a.steps}),
        "boundaries": lambda a: len({step["rows"] for step in a.steps}) > a.room,
        "empty": lambda a: not a.steps,
        "ends": lambda a: a.steps[0]["address"] == a.steps[-1]["address"] != a.steps[len(a.steps) // 2]["address"],
        "mixed": lambda a: len({step["columns"] for step in a.steps}) > 1,
        "equal": lambda a: _as_many_tokens({(step["rows"], step["columns"]) for step in a.steps}),
        "kind": kind, "again": again,
        "large numbers": lambda a: max(step["rows"] for step in a.steps) > 64,
        "host": lambda a: len({step["temperature"] for step in a.steps}) > 1,
    },
    "4.4": {
        "one": lambda a: a.maximum == 1,
        "many": lambda a: a.maximum > 2048,
        "boundaries": lambda a: {15, 16, 17, 127, 128, 129} <= set(a.batches),
        "empty": lambda a: a.maximum == 0,
        "ends": lambda a: {a.maximum, a.maximum + 1} <= set(a.batches),
        "mixed": lambda a: min(a.batches) <= a.maximum < max(a.batches),
        "no order": lambda a: any(one > other for one, other in pairwise(a.batches)),
        "equal": lambda a: len(a.batches) > len(set(a.batches)),
        "kind": kind,
        "large numbers": lambda a: a.maximum > 131_072,
        "odd sizes": lambda a: a.maximum & (a.maximum - 1),
    },
    "4.5": {
        "nan": lambda a: nan(a.pool),
        "infinite": lambda a: infinite(a.pool),
        "huge": lambda a: any(above(batch["position"], 10_000) for batch in a.batches),
        "one": lambda a: a.pool.shape[1] == 1 or len(a.batches[0]["live"]) == 1,
        "many": lambda a: len(a.batches[0]["live"]) > 32,
        "boundaries": lambda a: any(bool((b["position"] == a.width * a.pool.shape[1] - 1).any()) for b in a.batches),
        "empty": lambda a: any(not bool(batch["live"].any()) for batch in a.batches),
        "ends": lambda a: any(bool(((b["position"] == 0) & (b["live"] == 1)).any()) for b in a.batches),
        "mixed": lambda a: any(len(set(batch["live"].tolist())) == 2 for batch in a.batches),
        "no range": lambda a: any(bool((batch["position"] < 0).any()) for batch in a.batches),
        "both sides": lambda a: any(b["live"][0] == 0 and bool(b["live"].any()) for b in a.batches),
        "equal": lambda a: (
            any(not bool(b["live"].all())
            and len(b["tables"].unique(dim=0)) < len(b["live"]) for b in a.batches)
        ),
        "again": lambda a: not a.batches[0]["tables"].equal(a.batches[1]["tables"]),
        "large numbers": lambda a: a.first * a.pool.shape[1] >= 2**31,
        "host": lambda a: not a.batches[0]["live"].equal(a.batches[-1]["live"]),
    },
    "4.6": {
        "large numbers": lambda a: above(a.state, 2**31),
        "one": lambda a: a.state.shape[1] == 2,
        "empty": lambda a: not bool(a.state[2].any()),
        "ends": lambda a: bool((a.state[1] == a.cache.shape[1] - 1).any()),
        "mixed": lambda a: len(set(a.state[2].tolist())) == 2,
        "again": again,
        "calls": lambda a: not a.fails,
        "left behind": lambda a: a.fails == "record" and a.error == "KeyboardInterrupt",
        "host": lambda a: a.replays > 1,
    },
    "4.7": {
        "one": lambda a: len(a.start) == 1,
        "many": lambda a: a.count > 128 and len(a.start) > 0,
        "empty": lambda a: a.count == 0,
        "ends": lambda a: a.count == 1,
        "kind": lambda a: a.count > 0,
        "two at once": lambda a: a.count > 0,
        "again": again,
        "large numbers": lambda a: above(a.start, 2**31),
        "calls": lambda a: a.count > 0,
        "left behind": lambda a: a.count > 8,
    },
    "4.8": {
    },
}  # fmt: skip


def _as_many_tokens(shapes: set[tuple[int, int]]) -> bool:
    """Whether two shapes have room for as many tokens."""
    return len({rows * columns for rows, columns in shapes}) < len(shapes)
