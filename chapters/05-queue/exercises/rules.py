"""How the inputs of chapter 5's exercises follow the rules of `nanocourse.exercises.rules`."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace

from nanocourse.exercises.rules import Covers, again, alone, kind


def _lacks(a: SimpleNamespace) -> list[int]:
    return [length - done for length, done in zip(a.prompts, a.computed, strict=True)]


def _reserved(a: SimpleNamespace) -> int:
    return sum(-(-(prompt + new) // a.block_size) - held for prompt, new, held in a.running)


def _blocks(a: SimpleNamespace) -> list[int]:
    return [-(-sum(text) // a.block_size) for text in a.waiting]


def _events(a: SimpleNamespace) -> Counter[str]:
    return Counter(what for what, _, _ in a.history)


def _grows(row: dict[str, object], size: int) -> int:
    """Blocks that a row lacks."""
    return -(-(len(row["prompt"]) + len(row["new"])) // size) - int(row["blocks"])  # type: ignore[arg-type, call-overload]


COVERS: dict[str, Covers] = {
    "5.1": {
        "ties": lambda a: len(a.prompts) > 2 and len(set(a.prompts)) == 1,
        "one": lambda a: len(a.prompts) == a.budget == a.chunk == 1,
        "many": lambda a: len(a.prompts) > 64,
        "boundaries": lambda a: {n - a.chunk for n in _lacks(a)} >= {0, 1} or {-1, 0, 1} <= set(_lacks(a)),
        "empty": lambda a: not a.prompts,
        "ends": lambda a: a.budget == len(a.prompts) == sum(n <= 0 for n in _lacks(a)),
        "mixed": lambda a: min(_lacks(a), default=1) <= 0 < max(_lacks(a), default=0),
        "no range": lambda a: any(0 < done < n for done, n in zip(a.computed, a.prompts, strict=True)),
        "no order": lambda a: [n <= 0 for n in _lacks(a)] != sorted((n <= 0 for n in _lacks(a)), reverse=True),
        "equal": lambda a: len(a.prompts) > len(set(a.prompts)),
        "kind": kind, "again": again,
        "large numbers": lambda a: max(a.prompts, default=0) > 65_536,
    },
    "5.2": {
        "ties": lambda a: len(a.waiting) > 2 and len(set(a.waiting)) == 1,
        "one": lambda a: a.block_size == 1 and len(a.running) > 0,
        "many": lambda a: len(a.waiting) > 64 and len(a.running) > 64,
        "boundaries": lambda a: a.block_size > 1 and any(sum(text) % a.block_size == 1 for text in a.waiting),
        "empty": lambda a: not a.waiting,
        "ends": lambda a: a.free == 0 or (len(a.running) == a.max_rows > 0),
        "mixed": lambda a: max(_blocks(a), default=0) > a.free + sum(held for *_, held in a.running) > min(_blocks(a)),
        "no order": lambda a: _blocks(a) not in (sorted(_blocks(a)), sorted(_blocks(a), reverse=True)),
        "equal": lambda a: len(a.waiting) > len(set(a.waiting)),
        "kind": kind, "again": again,
        "large numbers": lambda a: any(sum(text) > 65_536 for text in a.waiting),
    },
    "5.3": {
        "one": lambda a: len(a.prompt) == 1,
        "many": lambda a: len(a.prompt) // a.block_size > 64,
        "boundaries": lambda a: len(a.prompt) % a.block_size == 0 and a.block_size > 1,
        "empty": lambda a: not a.known or len(a.prompt) < a.block_size,
        "ends": lambda a: len(a.prompt) == a.block_size,
        "mixed": lambda a: len(a.prompt) > 2 * a.block_size and len(a.known) > 1,
        "equal": lambda a: len(a.prompt) > 2 and len(set(a.prompt)) == 1,
        "kind": kind, "again": again,
        "large numbers": lambda a: max(a.prompt) > 65_535,
        "calls": lambda a: a.call.observe is not None,
    },
    "5.4": {
        "one": lambda a: a.blocks == 1,
        "many": lambda a: _events(a)["begin"] > 64,
        "boundaries": lambda a: a.blocks in (2, 3, 4, 5, 6) and _events(a)["begin"] > 1,
        "empty": lambda a: _events(a)["begin"] == 0 or any(detail == [] for _, _, detail in a.history),
        "ends": lambda a: a.blocks == 0,
        "mixed": lambda a: len({why for what, _, why in a.history if what == "end"}) > 1,
        "no order": lambda a: (
            [row for what, row, _ in a.history if what == "end"]
            != sorted(row for what, row, _ in a.history if what == "end")
        ),
        "equal": lambda a: max(Counter(str(k) for what, _, k in a.history if what == "begin").values(), default=0) > 1,
        "kind": kind, "again": again,
        "large numbers": lambda a: a.blocks > 128,
    },
    "5.5": {
        "ties": lambda a: len(a.rows) > 2 and len({row["blocks"] for row in a.rows}) == 1,
        "one": lambda a: len(a.rows) == a.block_size == 1,
        "many": lambda a: len(a.rows) > 64,
        "boundaries": lambda a: {0, 1} <= {_grows(row, a.block_size) for row in a.rows if row["blocks"]},
        "empty": lambda a: not a.rows,
        "ends": lambda a: a.free == 0 and len(a.rows) > 1,
        "mixed": lambda a: len({row["blocks"] > 0 for row in a.rows if row["new"]}) == 2,
        "equal": lambda a: len({len(row["prompt"]) for row in a.rows}) < len(a.rows),
        "kind": kind, "again": again,
        "large numbers": lambda a: any(len(row["prompt"]) > 2_048 for row in a.rows),
        "calls": lambda a: a.call.observe is not None,
    },
    "5.6": {
        "infinite": lambda a: any(not ok for *_, ok in a.log),
        "ties": lambda a: len(a.due) > 2 and len(set(a.due)) == 1,
        "one": lambda a: len(a.due) == 1,
        "many": lambda a: len(a.due) > 64,
        "boundaries": lambda a: any(p * len(a.due) % 100 == 0 for p in a.percents) and len(a.due) > 3,
        "empty": lambda a: not a.log,
        "ends": lambda a: 100 in a.percents and 1 in a.percents,
        "mixed": lambda a: len({ok for *_, ok in a.log}) == 2,
        "no range": lambda a: sorted({line[0] for line in a.log}) != list(range(len(a.due))),
        "no order": lambda a: [line[0] for line in a.log] != sorted(line[0] for line in a.log),
        "equal": lambda a: len(a.log) > len({line[0] for line in a.log}),
        "kind": kind, "again": again,
        "large numbers": lambda a: math.prod((len(a.due), 100)) > 10_000,
    },
    "5.7": {
    },
    "5.8": {
        "one": lambda a: min(map(len, a.texts)) == 1,
        "many": lambda a: len(a.texts) > 1024,
        "stand-ins": lambda a: any({0, 50_256} <= set(text) for text in a.texts),
        "zeros": lambda a: not any(a.fed) and len(a.texts) > 2,
        "boundaries": lambda a: {len(t) - n - a.chunk for t, n in zip(a.texts, a.fed, strict=True)} >= {0, 1},
        "ends": lambda a: 0 in a.fed,
        "mixed": lambda a: 0 in a.fed and max(a.fed) > 0,
        "equal": lambda a: (
            len(a.texts) > len({tuple(text) for text in a.texts})
            and len(a.texts[0]) > len(set(a.texts[0]))
        ),
        "kind": kind, "again": (again, alone),
        "large numbers": lambda a: a.chunk > 128 and max(map(len, a.texts)) > 256,
    },
}  # fmt: skip
