"""How the inputs of chapter 2's exercises follow the rules of `nanocourse.exercises.rules`, or why they need not."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

from nanocourse.exercises.rules import Covers, above, again, alone, infinite, is_range, kind, large, nan, not_for
from nanocourse.exercises.rules import one_of_several as one

ANYTHING = ("nan", "infinite", "huge")
SCORES = ("far scores", "ties")
PLAIN = not_for("a call leaves nothing behind, and nothing is captured", "left behind", "two at once", "host")
PLAIN |= {"calls": "nothing is lent", "tolerance": "the gap between right and wrong is measured by `course strength`"}
PLAIN |= not_for("nothing comes by name", "names") | not_for("no size is shifted or masked", "odd sizes")
PLAIN |= not_for("columns, rows and ids are taken one by one, and none for a range", "middle")
PLAIN |= not_for("no number is floating point", "narrow") | not_for("nothing is subtracted that is large", "beside")
PLAIN |= not_for("tensors are not divided", "zeros")
PLAIN |= not_for("no number stands for nothing", "stand-ins")

NARROW = (torch.bfloat16, torch.float16, torch.float64)


def _in_type(kind: torch.dtype, a: SimpleNamespace) -> bool:
    return bool(a.keys.dtype == kind)


def _empty_row(at: int, a: SimpleNamespace) -> bool:
    """Whether that row, and not every row, has no token."""
    return len(a.real) > 2 and not bool(a.real[at].any()) and bool(a.real.any())


COVERS: dict[str, Covers] = {
    "2.1": PLAIN | not_for(
        "a table of truths: no scores, no padding, no positions",
        *ANYTHING, *SCORES, "both sides", "no range",
                           "no order", "equal") | {
        "one": lambda a: len(a.reads) == 1 or a.reads.shape[1] - a.new == 1,
        "many": (lambda a: a.reads.shape[1] > 1024 and a.new == 1024, lambda a: len(a.reads) > 256),
        "boundaries": lambda a: a.new == a.reads.shape[1] - 1,
        "empty": lambda a: not bool(a.reads[0].any(1).all()),
        "ends": lambda a: len(a.reads) > 8,
        "mixed": lambda a: not a.reads[0].equal(a.reads[-1]),
        "kind": kind, "again": again, "large numbers": lambda a: a.reads.shape[1] > 256,
    },
    "2.2": PLAIN | not_for("scores are not made here, and sizes are not rounded", *SCORES, "boundaries") | {
        "nan": lambda a: nan(a.k[a.real]) and nan(a.v[a.real]),
        "infinite": lambda a: infinite(a.k), "huge": lambda a: above(a.keys, 9),
        "narrow": tuple(partial(_in_type, kind) for kind in NARROW),
        "one": lambda a: a.keys.shape[0] == 1 and a.keys.shape[3] == 1,
        "many": (partial(large, "k", 0), *(partial(large, "keys", at) for at in range(5))),
        "empty": lambda a: not bool(a.real.any()),
        "ends": lambda a: bool((a.positions == a.keys.shape[2] - 1).any()),
        "mixed": lambda a: len(set(a.real.tolist())) == 2,
        "no range": lambda a: any(not is_range(a.positions[(a.rows == row) & a.real]) for row in set(a.rows.tolist())),
        "no order": lambda a: a.rows.tolist() != sorted(a.rows.tolist()),
        "both sides": lambda a: not a.real[1:-1].all() and bool(a.real[0] & a.real[-1]),
        "equal": lambda a: len(set(zip(a.rows.tolist(), a.positions.tolist(), strict=True))) < len(a.rows),
        "kind": kind, "again": again, "large numbers": lambda a: above(a.positions, 255),
    },
    "2.3": PLAIN | not_for(
        "it makes the mask that hides what may be anything",
        *ANYTHING, *SCORES, "empty", "both sides") | {
        "one": lambda a: a.positions.shape == (1, 1),
        "many": (lambda a: a.longest > 4096, partial(large, "positions", 0), partial(large, "positions", 1)),
        "middle": lambda a: a.positions.shape[1] > 3 and all(
            row[0] == 0 and row[-1] == len(row) - 1 and not is_range(row) for row in a.positions
        ),
        "zeros": lambda a: a.longest % a.multiple == 0 and a.multiple in (3, 5),
        "boundaries": lambda a: a.longest % a.multiple in (0, 1, a.multiple - 1) and a.slots % a.multiple != 0,
        "ends": lambda a: bool((a.positions == 0).any()),
        "mixed": lambda a: len(a.positions) > 1 and not a.positions[0].equal(a.positions[1]),
        "no range": lambda a: not is_range(a.positions),
        "no order": "rows have no numbers",
        "equal": "rows know nothing of each other",
        "kind": kind, "again": (again, alone), "large numbers": lambda a: above(a.positions, 4096),
    },
    "2.4": PLAIN | not_for("no numbers but truths and counts", *ANYTHING, *SCORES, "no range", "no order") | {
        "one": lambda a: a.real.shape[1] == 1,
        "many": tuple(partial(large, "real", at) for at in range(2)),
        "boundaries": "no size is rounded",
        "empty": tuple(partial(_empty_row, at) for at in (0, 1, -1)),
        "ends": lambda a: bool((a.before == 0).any()),
        "mixed": lambda a: bool((a.real[:, 0] & ~a.real[:, -1]).any() and (~a.real[:, 0] & a.real[:, -1]).any()),
        "both sides": lambda a: bool((~a.real[:, 0] & ~a.real[:, -1] & a.real.any(1) & (a.before > 0)).any()),
        "equal": lambda a: bool((a.real.sum(1)[:, None] == a.real.sum(1)).sum() > len(a.real)),
        "kind": kind, "again": again, "large numbers": lambda a: above(a.before, 2**24),
    },
    "2.5": PLAIN | {
        "nan": (
            lambda a: nan(a.q) and nan(a.keys) and nan(a.values) and bool((a.positions >= 0).any()),
            lambda a: one(a.q, torch.nan), lambda a: one(a.values, torch.nan),
        ),
        "infinite": (
            lambda a: infinite(a.keys) and infinite(a.values), lambda a: one(a.values, torch.inf),
            lambda a: one(a.values, -torch.inf),
        ),
        "huge": lambda a: above(a.keys, 1e20) and above(a.values, 1e20),
        "far scores": lambda a: above(a.q, 190) and not nan(a.keys[:, 0]),
        "stand-ins": lambda a: bool((a.positions == 0).any()) and float(a.q.min()) * float(a.keys.max()) < -1e11,
        "beside": (  # a weight of 0, and still a token's; one of almost 0
            lambda a: nan(a.values[:, 1]) and above(a.keys[:, 1], 299),
            lambda a: above(a.keys, 9e16) and a.keys.unique().numel() == 2,
            lambda a: above(a.values, 1e20) and not nan(a.values),
        ),
        "narrow": tuple(partial(_in_type, kind) for kind in NARROW),
        "middle": lambda a: bool((a.positions[:, 0] == 0).all()) and not is_range(a.positions),
        "ties": "a softmax does not ask who is highest",
        "one": lambda a: a.q.shape[:2] == (1, 1) and int(a.positions) == -1,
        "many": (partial(large, "q", 1), *(partial(large, "keys", at) for at in range(4))),
        "boundaries": lambda a: bool((a.positions == a.keys.shape[1] - 1).any()),
        "empty": lambda a: bool((a.positions == -1).all(1).any()) and bool((a.positions >= 0).any()),
        "ends": lambda a: bool((a.positions == 0).any()) and bool((a.positions == a.keys.shape[1] - 1).any()),
        "mixed": lambda a: bool((a.positions < 0).any() and (a.positions >= 0).any()),
        "no range": lambda a: not is_range(a.positions) and bool((a.positions >= 0).all()),
        "no order": "rows have no numbers",
        "both sides": lambda a: any(row[0] == row[-1] == -1 < max(row) for row in a.positions.tolist()),
        "equal": "rows know nothing of each other",
        "kind": kind, "again": again, "large numbers": "positions are below the slots that there are",
    },
    "2.6": PLAIN | not_for(
        "it takes plain numbers: no scores, rows or positions",
        *ANYTHING, *SCORES, "mixed", "no range",
                           "no order", "both sides", "empty", "equal") | {
        "again": alone,
        "one": lambda a: a.slots == a.shape["n_layer"] == a.shape["n_head"] == 1,
        "many": lambda a: a.slots > 100_000,
        "boundaries": lambda a: (a.memory - 4 * a.shape["parameters"]) % (8 * a.shape["n_embd"]) == 0 and a.slots == 1,
        "zeros": lambda a: a.memory == a.shape["parameters"] == 0,
        "ends": lambda a: a.memory < 4 * a.shape["parameters"],
        "names": lambda a: list(a.shape) != ["n_layer", "n_head", "n_embd", "parameters"],
        "kind": kind,
        "large numbers": lambda a: a.memory > 2**53 and int(float(a.memory)) != a.memory,
    },
}  # fmt: skip
