"""How the inputs of chapter 2's exercises follow the rules of `nanocourse.exercises.rules`."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

from nanocourse.exercises.rules import Covers, above, again, alone, infinite, is_range, kind, large, nan
from nanocourse.exercises.rules import one_of_several as one

NARROW = (torch.bfloat16, torch.float16, torch.float64)


def _in_type(kind: torch.dtype, a: SimpleNamespace) -> bool:
    return bool(a.keys.dtype == kind)


def _empty_row(at: int, a: SimpleNamespace) -> bool:
    """Whether that row, and not every row, has no token."""
    return len(a.real) > 2 and not bool(a.real[at].any()) and bool(a.real.any())


COVERS: dict[str, Covers] = {
    "2.1": {
        "one": lambda a: len(a.reads) == 1 or a.reads.shape[1] - a.new == 1,
        "many": (lambda a: a.reads.shape[1] > 1024 and a.new == 1024, lambda a: len(a.reads) > 256),
        "boundaries": lambda a: a.new == a.reads.shape[1] - 1,
        "empty": lambda a: not bool(a.reads[0].any(1).all()),
        "ends": lambda a: len(a.reads) > 8,
        "mixed": lambda a: not a.reads[0].equal(a.reads[-1]),
        "kind": kind, "again": again,
        "large numbers": lambda a: a.reads.shape[1] > 256,
    },
    "2.2": {
        "nan": lambda a: nan(a.k[a.real]) and nan(a.v[a.real]),
        "infinite": lambda a: infinite(a.k),
        "huge": lambda a: above(a.keys, 9),
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
        "kind": kind, "again": again,
        "large numbers": lambda a: above(a.positions, 255),
    },
    "2.3": {
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
        "kind": kind, "again": (again, alone),
        "large numbers": lambda a: above(a.positions, 4096),
    },
    "2.4": {
        "one": lambda a: a.real.shape[1] == 1,
        "many": tuple(partial(large, "real", at) for at in range(2)),
        "empty": tuple(partial(_empty_row, at) for at in (0, 1, -1)),
        "ends": lambda a: bool((a.before == 0).any()),
        "mixed": lambda a: bool((a.real[:, 0] & ~a.real[:, -1]).any() and (~a.real[:, 0] & a.real[:, -1]).any()),
        "both sides": lambda a: bool((~a.real[:, 0] & ~a.real[:, -1] & a.real.any(1) & (a.before > 0)).any()),
        "equal": lambda a: bool((a.real.sum(1)[:, None] == a.real.sum(1)).sum() > len(a.real)),
        "kind": kind, "again": again,
        "large numbers": lambda a: above(a.before, 2**24),
    },
    "2.5": {
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
        "one": lambda a: a.q.shape[:2] == (1, 1) and int(a.positions) == -1,
        "many": (partial(large, "q", 1), *(partial(large, "keys", at) for at in range(4))),
        "boundaries": lambda a: bool((a.positions == a.keys.shape[1] - 1).any()),
        "empty": lambda a: bool((a.positions == -1).all(1).any()) and bool((a.positions >= 0).any()),
        "ends": lambda a: bool((a.positions == 0).any()) and bool((a.positions == a.keys.shape[1] - 1).any()),
        "mixed": lambda a: bool((a.positions < 0).any() and (a.positions >= 0).any()),
        "no range": lambda a: not is_range(a.positions) and bool((a.positions >= 0).all()),
        "both sides": lambda a: any(row[0] == row[-1] == -1 < max(row) for row in a.positions.tolist()),
        "kind": kind, "again": again,
    },
    "2.6": {
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
