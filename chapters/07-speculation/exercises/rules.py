"""How the inputs of chapter 7's exercises follow the rules of `nanocourse.exercises.rules`."""

from __future__ import annotations

from types import SimpleNamespace

from nanocourse.exercises.rules import Covers, above, again, infinite, kind, nan

COVERS: dict[str, Covers] = {
    "7.1": {
        "ties": lambda a: 1.0 in a.alpha and 0.0 in a.alpha,
        "one": lambda a: len(a.alpha) == 1 and max(a.drafts) <= 1,
        "many": lambda a: len(a.alpha) > 64,
        "boundaries": lambda a: {0, 1} <= set(a.drafts),
        "empty": lambda a: not any(a.drafts),
        "ends": lambda a: a.drafts[0] == a.drafts[-1] == 0 < max(a.drafts),
        "mixed": lambda a: len(set(a.drafts)) > 1 and len(set(a.alpha)) > 1,
        "equal": lambda a: len(a.alpha) > 1 and len(set(zip(a.alpha, a.drafts, strict=True))) == 1,
        "kind": kind, "again": again,
        "large numbers": lambda a: max(a.drafts) > 65_536,
        "zeros": lambda a: a.alpha == [1.0] and a.plain < a.verify,
    },
    "7.2": {
        "nan": lambda a: nan(a.scores) and nan(a.noise),
        "infinite": lambda a: infinite(a.scores) and infinite(a.noise),
        "huge": lambda a: above(a.scores, 1e38) and above(a.noise, 1e38),
        "far scores": (lambda a: float(a.scores.min()) > 100, lambda a: float(a.scores.max()) < -100),
        "ties": lambda a: bool((a.scores == a.scores[:, :, :1]).all()) and not a.noise.any(),
        "one": lambda a: a.drafts.shape == (1, 1),
        "many": lambda a: len(a.drafts) > 64,
        "boundaries": lambda a: {0, 1, a.drafts.shape[1]} <= set(_drafts(a)),
        "empty": (lambda a: set(_drafts(a)) == {0}, lambda a: _drafts(a)[0] == _drafts(a)[-1] == 0 < max(_drafts(a))),
        "ends": lambda a: 0 in a.drafts and a.scores.shape[2] - 1 in a.drafts,
        "mixed": lambda a: len(set(_drafts(a))) > 2,
        "no order": lambda a: _drafts(a) not in (sorted(_drafts(a)), sorted(_drafts(a), reverse=True)),
        "equal": lambda a: len(a.drafts) > 1 and bool((a.drafts == a.drafts[0]).all()),
        "kind": kind, "again": again,
        "large numbers": lambda a: max(a.drafts.flatten().tolist(), default=0) > 65_536,
        "stand-ins": (lambda a: float(a.scores.max()) < -1e9, lambda a: bool((a.drafts == 0).any())),
        "middle": lambda a: a.drafts.shape[1] > 64,
        "zeros": lambda a: not a.scores.any() and not a.noise.any(),
        "odd sizes": lambda a: a.scores.shape[2] == 7 and a.drafts.shape[1] == 6,
    },
    "7.3": {
        "far scores": (lambda a: float(a.logits.min()) > 100, lambda a: float(a.logits.max()) < -100),
        "ties": lambda a: a.logits.shape[1] > 1 and bool((a.logits == 3.0).all()),
        "one": lambda a: len(a.logits) == 1,
        "many": lambda a: len(a.drafts) > 64,
        "boundaries": lambda a: {0, 1, a.drafts.shape[1]} <= set(a.offset.tolist()),
        "empty": (lambda a: a.drafts.shape[1] == 0, lambda a: _drafts(a)[0] == _drafts(a)[-1] == 0 < max(_drafts(a))),
        "ends": lambda a: bool((a.rows["step"] == 0).any()),
        "mixed": lambda a: len(set((a.rows["temperature"] > 0).tolist())) == 2,
        "no range": lambda a: len(a.offset) > 2 and a.offset.tolist() != sorted(a.offset.tolist()),
        "no order": lambda a: a.run.tolist() != sorted(a.run.tolist()),
        "equal": lambda a: len(a.drafts) > 1 and len(set(a.rows["seed"].tolist())) == 1,
        "kind": kind, "again": again,
        "large numbers": (lambda a: above(a.rows["step"], 2**32), lambda a: a.logits.shape[1] > 65_536),
        "stand-ins": (lambda a: bool((a.drafts == 0).any()), lambda a: float(a.logits.max()) < -1e9),
        "middle": lambda a: a.drafts.shape[1] > 64,
        "zeros": lambda a: not a.logits.any(),
        "odd sizes": lambda a: a.logits.shape[1] == 9 or len(a.drafts) == 3,
        "names": (lambda a: next(iter(a.rows)) == "seed", lambda a: next(iter(a.rows)) == "counts"),
    },
    "7.4": {
        "ties": lambda a: len(a.rows) > 1 and len({(row["length"], row["left"]) for row in a.rows}) == 1,
        "one": lambda a: len(a.rows) == 1 and a.rows[0]["length"] == a.rows[0]["left"] == 1,
        "many": (lambda a: len(a.rows) > 64, lambda a: max(map(len, a.drafts)) > 64),
        "boundaries": tuple(lambda a, more=more: _lacking(a) == more for more in (-1, 0, 1)),
        "empty": (lambda a: not any(a.drafts), lambda a: not a.drafts[0] and not a.drafts[-1] and any(a.drafts)),
        "ends": lambda a: max(row["length"] for row in a.rows) == a.max_len - 1,
        "mixed": lambda a: len({row["filled"] - row["length"] for row in a.rows}) > 1 and any(a.drafts),
        "no range": lambda a: len(a.rows) > 1 and len({row["length"] for row in a.rows}) > 1,
        "no order": lambda a: [row["slot"] for row in a.rows] != sorted(row["slot"] for row in a.rows),
        "equal": lambda a: len(a.drafts) > 1 and a.drafts[0] == a.drafts[1] != [],
        "kind": kind, "again": again,
        "large numbers": lambda a: max(row["slot"] for row in a.rows) * a.max_len > 2**31,
        "stand-ins": lambda a: any(row["newest"] == 0 for row in a.rows) and any(0 in own for own in a.drafts),
        "odd sizes": lambda a: a.max_len == 31 and len(a.rows) > 1,
        "names": (lambda a: next(iter(a.rows[0])) == "slot", lambda a: next(iter(a.rows[0])) != "slot"),
    },
    "7.5": {
        "ties": lambda a: len(a.text) > 2 and len(set(a.text)) == 1,
        "one": lambda a: len(a.text) == a.longest == a.limit == 1,
        "many": lambda a: len(a.text) > 256,
        "boundaries": (lambda a: a.longest < len(a.text), lambda a: a.longest >= len(a.text) == 2),
        "empty": (lambda a: not a.text, lambda a: a.limit == 0),
        "ends": lambda a: len(a.text) > 2 and a.text[-1] == a.text[0],
        "mixed": lambda a: 1 < len(set(a.text)) < len(a.text),
        "equal": lambda a: len(a.text) == 2 and a.text[0] == a.text[1],
        "kind": kind, "again": again,
        "large numbers": lambda a: max(a.text, default=0) > 2**24,
        "stand-ins": lambda a: 0 in a.text,
    },
    "7.6": {
        "ties": lambda a: a.params["max_tokens"] - a.row["new"] == a.params["context"] - a.row["length"],
        "one": lambda a: len(a.run) == 1 and a.params["max_tokens"] == 1,
        "many": lambda a: len(a.run) > 64,
        "boundaries": (lambda a: _room(a) == len(a.run), lambda a: _room(a) == len(a.run) + 1, lambda a: _room(a) == 1),
        "empty": (lambda a: not a.params["stop_ids"] and not a.params["stops"], lambda a: not a.row["text"],
                  lambda a: not a.run[0][1]),
        "ends": (lambda a: a.run[0][0] in a.params["stop_ids"], lambda a: a.run[-1][0] in a.params["stop_ids"]),
        "mixed": lambda a: bool(a.params["stop_ids"] and a.params["stops"]) and _room(a) <= len(a.run),
        "equal": lambda a: len(a.run) > 2 and len(set(a.run)) == 1,
        "kind": kind, "again": again,
        "large numbers": lambda a: max(token for token, _ in a.run) >= 2**24,
        "stand-ins": lambda a: 0 in a.params["stop_ids"],
        "middle": lambda a: len(a.run) > 64 and a.run[70][1] == "x",
        "names": (lambda a: next(iter(a.row)) == "new", lambda a: next(iter(a.row)) == "text"),
    },
    "7.7": {
        "ties": lambda a: len(a.rows) > 2 and len(set(a.rows)) == 1,
        "one": lambda a: len(a.rows) == a.block_size == a.wishes[0] == 1,
        "many": lambda a: len(a.rows) > 64,
        "boundaries": tuple(
            lambda a, more=more: any(written % a.block_size == more % a.block_size for written, _ in a.rows)
            and a.block_size > 2 for more in (-1, 0, 1)
        ),
        "empty": (lambda a: not a.rows, lambda a: len(a.rows) > 1 and not any(a.wishes)),
        "ends": lambda a: a.free == 0 and len(a.rows) > 0,
        "mixed": lambda a: len({promised * a.block_size - written > 3 for written, promised in a.rows}) == 2,
        "equal": lambda a: len(a.rows) > 1 and a.rows[0] == a.rows[1] and a.wishes[0] == a.wishes[1],
        "kind": kind, "again": again,
        "large numbers": lambda a: any(written > 65_536 for written, _ in a.rows),
        "odd sizes": lambda a: a.block_size in (3, 5, 17),
    },
    "7.8": {
    },
}  # fmt: skip


def _lacking(a: SimpleNamespace) -> int:
    """Of one row alone: how many tokens fewer it may get than its drafts and the token after them are."""
    row = a.rows[0]
    return len(a.drafts[0]) + 1 - min(row["left"], a.max_len - row["length"]) if len(a.rows) == 1 else 99


def _room(a: SimpleNamespace) -> int:
    """How many tokens the row may still have."""
    return min(a.params["max_tokens"] - a.row["new"], a.params["context"] - a.row["length"])


def _drafts(a: SimpleNamespace) -> list[int]:
    """How many drafts each row has."""
    counts: list[int] = (a.drafts >= 0).sum(1).tolist()
    return counts
