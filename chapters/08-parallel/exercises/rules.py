"""How the inputs of chapter 8's exercises follow the rules of `nanocourse.exercises.rules`."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch

from nanocourse.exercises.rules import Covers, above, again, infinite, kind, nan

COVERS: dict[str, Covers] = {
    "8.1": {
        "nan": lambda a: nan(a.whole) and a.name.endswith("c_proj.bias") and a.rank > 0,
        "infinite": lambda a: infinite(a.whole),
        "huge": lambda a: above(a.whole, 1e38),
        "one": (lambda a: a.size == 1, lambda a: a.heads == 1),
        "many": lambda a: a.size > 64,
        "boundaries": (lambda a: a.size == a.heads > 1, lambda a: a.size == a.heads + 1, lambda a: a.size < a.heads),
        "ends": (lambda a: a.rank == 0 < a.size - 1, lambda a: a.rank == a.size - 1 > 0),
        "mixed": lambda a: a.heads % a.size > 0 and a.rank > 0,
        "equal": lambda a: bool((a.whole == 1).all()),
        "kind": kind, "again": again,
        "large numbers": lambda a: a.whole.shape[-1] > 65_536,
        "odd sizes": lambda a: a.heads in (3, 5, 7) and a.heads % a.size > 0,
        "middle": lambda a: 0 < a.rank < a.size - 1,
        "narrow": tuple(lambda a, t=t: a.whole.dtype == t for t in (torch.bfloat16, torch.float16, torch.float64)),
        "zeros": lambda a: not a.whole.any(),
    },
    "8.2": {
        "far scores": (lambda a: float(a.x.mean()) > 500, lambda a: above(a.x, 500)),
        "one": (lambda a: len(a.x) == 1 and a.heads == [1], lambda a: a.parts[0]["mlp.c_fc.bias"].numel() == 1),
        "many": (lambda a: len(a.x) > 64, lambda a: len(a.heads) > 6),
        "boundaries": (lambda a: len(a.heads) == 1, lambda a: len(a.heads) == 2, lambda a: len(a.heads) == 3),
        "ends": (lambda a: a.heads[0] > a.heads[-1], lambda a: a.heads[0] < a.heads[-1]),
        "mixed": lambda a: len(set(a.heads)) > 1,
        "equal": lambda a: len(a.heads) > 1 and len(a.x) > 1 and bool((a.x == a.x[0]).all()),
        "kind": kind, "again": again,
        "odd sizes": lambda a: sum(a.heads) in (3, 7),
        "names": lambda a: next(iter(a.parts[0])) == "mlp.c_proj.bias",
        "middle": lambda a: len(a.heads) > 2 and a.heads[1] not in (a.heads[0], a.heads[-1]),
        "narrow": lambda a: a.x.dtype == torch.float64,
        "beside": lambda a: above(a.x, 0) and not above(a.x, 0.05),
        "zeros": (lambda a: not a.x.any(), lambda a: not a.parts[0]["attn.c_attn.weight"].any()),
    },
    "8.3": {
        "nan": lambda a: any(math.isnan(number) for own in a.values for number in own),
        "infinite": tuple(lambda a, far=far: any(far in own for own in a.values) for far in (math.inf, -math.inf)),
        "huge": lambda a: any(1e300 < abs(number) < math.inf for own in a.values for number in own),
        "one": (lambda a: len(a.values) == 1, lambda a: len(a.values[0]) == 1),
        "many": (lambda a: len(a.values) > 8, lambda a: len(a.values[0]) > 128),
        "boundaries": (
            lambda a: len(a.values[0]) % len(a.values) == 0 < len(a.values[0]),
            lambda a: len(a.values[0]) % len(a.values) == 1,
            lambda a: len(a.values[0]) % len(a.values) == len(a.values) - 1 > 0,
        ),
        "empty": (lambda a: not a.values[0], lambda a: 0 < len(a.values[0]) < len(a.values)),
        "ends": lambda a: len(a.values) == 2,
        "mixed": lambda a: len(a.values[0]) % len(a.values) > 0,
        "equal": lambda a: len(a.values) > 1 and len(a.values[0]) > 1 and a.values[0] == a.values[1],
        "large numbers": lambda a: any(abs(number) > 2.0**52 for own in a.values for number in own),
        "odd sizes": lambda a: len(a.values) in (3, 5),
        "stand-ins": lambda a: len(a.values[0]) > 0 and not any(map(any, a.values)),
        "beside": (lambda a: any(1e16 in own for own in a.values),
                   lambda a: any(0 < abs(number) < 1e-300 for own in a.values for number in own)),
        "zeros": lambda a: len(a.values[0]) > 0 and not any(map(any, a.values)),
    },
    "8.4": {
        "nan": lambda a: any(nan(own) for own in a.logits),
        "infinite": lambda a: any(infinite(own) for own in a.logits),
        "huge": lambda a: any(above(own, 1e29) for own in a.logits),
        "far scores": (lambda a: _real(a).min() > 100, lambda a: _real(a).max() < -100),
        "ties": lambda a: len(_real(a)) > 1 and bool((_real(a) == _real(a)[0]).all()),
        "one": (lambda a: len(a.logits) == 1, lambda a: a.vocab == 1, lambda a: len(a.rows["seed"]) == 1),
        "many": (lambda a: len(a.rows["seed"]) > 64, lambda a: len(a.logits) > 8),
        "boundaries": tuple(
            lambda a, more=more: any(first + own.shape[1] == a.vocab + more
                                     for first, own in zip(a.firsts, a.logits, strict=True)) for more in (0, 1, 2)
        ),
        "empty": lambda a: any(first >= a.vocab for first in a.firsts),
        "ends": (lambda a: a.firsts[0] > 0, lambda a: a.firsts[0] == 0),
        "mixed": lambda a: len(set((a.rows["temperature"] > 0).tolist())) == 2,
        "no range": lambda a: len({own.shape[1] for own in a.logits}) > 2,
        "no order": lambda a: a.firsts != sorted(a.firsts),
        "equal": lambda a: len(a.rows["seed"]) > 1 and bool((a.rows["seed"] == a.rows["seed"][0]).all()),
        "kind": kind, "again": again,
        "large numbers": (lambda a: a.vocab > 65_536, lambda a: above(a.rows["step"], 2**32)),
        "odd sizes": lambda a: any(own.shape[1] in (3, 5, 7) for own in a.logits),
        "stand-ins": (lambda a: _real(a).max() < -1e9, lambda a: bool((a.rows["seed"] >= 0).all())),
        "names": (lambda a: next(iter(a.rows)) == "step", lambda a: next(iter(a.rows)) == "temperature"),
        "middle": lambda a: len(a.logits) > 2 and a.firsts[1] > max(a.firsts[0], a.firsts[-1]),
        "beside": lambda a: 0 < float(_real(a).max() - _real(a).min()) < 1e-4,
        "zeros": lambda a: not _real(a).any(),
    },
    "8.5": {
        "ties": lambda a: any(row["deadline"] == a.clocks[0] for row in a.rows),
        "one": (lambda a: len(a.each) == 1, lambda a: len(a.rows) == 1),
        "many": (lambda a: len(a.rows) > 64, lambda a: len(a.each) > 8),
        "boundaries": (
            lambda a: any(row["blocks"] == _blocks(a) for row in a.rows),
            lambda a: any(row["blocks"] == _blocks(a) + 1 for row in a.rows),
        ),
        "empty": (lambda a: not a.rows, lambda a: any(not one["graphs"] for one in a.each)),
        "ends": (lambda a: a.each[-1]["settings"] != a.each[0]["settings"],
                 lambda a: a.each[0]["blocks"] == _blocks(a)),
        "mixed": lambda a: len({row["deadline"] for row in a.rows}) > 2 and len({row["blocks"] for row in a.rows}) > 1,
        "no range": lambda a: a.tick != 1.0,
        "no order": lambda a: any(one["graphs"] != sorted(one["graphs"]) for one in a.each),
        "equal": lambda a: len(a.rows) > 1 and len({(row["blocks"], row["deadline"]) for row in a.rows}) == 1,
        "kind": kind, "again": again,
        "large numbers": lambda a: any(row["blocks"] > 2**31 and row["deadline"] > 2**53 - 1 for row in a.rows),
        "odd sizes": lambda a: len(a.each) == 3,
        "stand-ins": lambda a: any(row["deadline"] == 0 for row in a.rows),
        "names": (lambda a: any(next(iter(row)) == "deadline" for row in a.rows),
                  lambda a: any(next(iter(row)) == "name" for row in a.rows)),
        "middle": lambda a: a.each[1:-1] and a.each[1]["settings"] != a.each[0]["settings"] == a.each[-1]["settings"],
        "zeros": lambda a: 0.0 in a.clocks,
    },
    "8.6": {
        "ties": lambda a: a.replicas > 1 and len(a.history) > 0,
        "one": (lambda a: a.replicas == 1, lambda a: a.block == 1,
                lambda a: any(e[0] == "ask" and len(e[2]) == 1 for e in a.history)),
        "many": (lambda a: len(a.history) > 64, lambda a: any(e[0] == "ask" and len(e[2]) > 64 for e in a.history)),
        "boundaries": tuple(
            lambda a, more=more: any(e[0] == "ask" and len(e[2]) % a.block == more % a.block for e in a.history)
            and a.block > 2
            for more in (-1, 0, 1)
        ),
        "empty": (lambda a: not a.history, lambda a: any(e[0] == "tokens" and not e[2] for e in a.history)),
        "ends": (lambda a: ("dies", 0) in a.history, lambda a: ("dies", a.replicas - 1) in a.history),
        "mixed": lambda a: {e[0] for e in a.history} == {"ask", "tokens", "end", "dies"},
        "no order": lambda a: ("dies", 1) in a.history and ("dies", 0) in a.history[a.history.index(("dies", 1)) :],
        "equal": lambda a: len(a.history) > 1 and len({str(e[2]) for e in a.history if e[0] == "ask"}) == 1,
        "kind": kind, "again": again,
        "large numbers": lambda a: any(e[0] == "ask" and max(e[2]) > 2**31 for e in a.history),
        "odd sizes": lambda a: a.replicas == 3 and a.block in (3, 5),
        "stand-ins": lambda a: any(e[0] == "ask" and 0 in e[2] for e in a.history),
        "middle": lambda a: ("dies", 1) in a.history and a.replicas > 2,
        "zeros": (lambda a: a.worth == 0, lambda a: any(e[0] == "ask" and not any(e[2]) for e in a.history)),
    },
    "8.7": {
        "one": (lambda a: len(a.lines) == 1, lambda a: a.each == 1),
        "many": (lambda a: len(a.lines) > 64 > a.each, lambda a: a.each > 64, lambda a: len(a.runs) > 4),
        "boundaries": (lambda a: len(a.lines) % a.each == 1 < a.each,
                       lambda a: len(a.lines) % a.each == 0 < len(a.lines),
                       lambda a: a.each > 1 and len(a.lines) % a.each == a.each - 1),
        "empty": (lambda a: not a.lines, lambda a: any(not id for id, _ in a.lines)),
        "ends": (lambda a: len(a.there) > 2 and "" not in a.there,
                 lambda a: any(d and d[0] == "rename" for _, d in a.runs)),
        "mixed": lambda a: len({bool(dies) for _, dies in a.runs}) == 2 and max(a.order) > 1,
        "no order": lambda a: [id for id, _ in a.lines] != sorted(id for id, _ in a.lines),
        "equal": lambda a: len(a.lines) > 1 and len({prompt for _, prompt in a.lines}) == 1,
        "again": again,
        "large numbers": (lambda a: a.seed > 2**64, lambda a: a.each > 65_536),
        "odd sizes": lambda a: a.each == 3,
        "stand-ins": lambda a: ("0", "") in a.lines,
        "middle": lambda a: any(name.startswith("00000") and not name.startswith("000000") for name in a.there),
        "zeros": lambda a: a.seed == 0,
    },
    "8.8": {
    },
}  # fmt: skip


def _real(a: SimpleNamespace) -> torch.Tensor:
    """The logits of ids that exist, of all ranks."""
    parts = [own[:, : max(0, a.vocab - first)].flatten() for own, first in zip(a.logits, a.firsts, strict=True)]
    return torch.cat(parts)


def _blocks(a: SimpleNamespace) -> int:
    """As many as the rank with the fewest has."""
    return min(one["blocks"] for one in a.each)
