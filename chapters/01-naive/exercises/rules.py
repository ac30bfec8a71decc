"""How the inputs of chapter 1's exercises follow the rules of `nanocourse.exercises.rules`."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

from nanocourse.exercises.rules import Covers, above, again, alone, is_range, kind, large, nan
from nanocourse.exercises.rules import one_of_several as one

NARROW = (torch.bfloat16, torch.float16, torch.float64)


def _in_type(kind: torch.dtype, least: int, a: SimpleNamespace) -> bool:
    """Whether an input is of this type, and has so many columns."""
    given: torch.Tensor = a.q if hasattr(a, "q") else a.hidden
    return given.dtype == kind and given.shape[1] >= least


COVERS: dict[str, Covers] = {
    "1.1": {
        "far scores": lambda a: above(a.q, 200),
        "beside": lambda a: above(a.k, 9e16) and a.k.unique().numel() == 2,
        "one": lambda a: a.q.shape[:3] == (1, 1, 1),
        "many": tuple(partial(large, "q", at) for at in range(4)),
        "ends": lambda a: bool((a.positions == 0).any()),
        "mixed": lambda a: len({is_range(row) for row in a.positions}) == 2,
        "no range": lambda a: not is_range(a.positions) and {0, 1024, 2**31 + 5} <= set(a.positions[0].tolist()),
        "kind": kind, "again": again,
        "large numbers": lambda a: above(a.positions, 2**24),
        "middle": lambda a: bool((a.positions[:, 0] == 0).all()) and all(
            row[-1] == len(row) - 1 and not is_range(row) for row in a.positions
        ),
        "narrow": tuple(partial(_in_type, kind, 257) for kind in NARROW),
    },
    "1.2": {
        "one": lambda a: a.x.shape[0] == a.n_head == 1,
        "many": (partial(large, "x", 0), lambda a: a.n_head > 128, lambda a: a.x.shape[1] // a.n_head > 256),
        "kind": kind, "again": again,
        "calls": lambda a: a.call.observe is not None,
        "beside": (
            lambda a: float(a.x.mean()) > 1000 and float(a.x.std()) < 1,
            lambda a: float(a.x.std()) < 0.1 and not above(a.weights["attn.c_proj.weight"], 0),
        ),
    },
    "1.3": {
        "nan": (lambda a: nan(a.hidden), lambda a: one(a.hidden, torch.nan)),
        "infinite": (
            lambda a: one(a.hidden, torch.inf), lambda a: one(a.hidden, -torch.inf),
        ),
        "huge": lambda a: above(a.hidden, 1e20),
        "one": lambda a: a.hidden.shape[:2] == (1, 1),
        "many": (lambda a: a.vocab_size > 65_536, *(partial(large, "hidden", at) for at in range(3))),
        "boundaries": lambda a: {1, 2, a.hidden.shape[1] - 1} <= set(a.lengths.tolist()),
        "ends": lambda a: {1, a.hidden.shape[1]} <= set(a.lengths.tolist()),
        "mixed": lambda a: len(set(a.lengths.tolist())) > 1,
        "no order": lambda a: a.lengths.tolist() not in (sorted(a.lengths.tolist()), sorted(a.lengths.tolist())[::-1]),
        "equal": lambda a: len(set(a.lengths.tolist())) < len(a.lengths),
        "kind": kind, "again": again, "narrow": tuple(partial(_in_type, kind, 257) for kind in NARROW),
    },
    "1.4": {
        "far scores": lambda a: float(a.scores.amax(1).max() - a.scores.amax(1).min()) > 190,
        "ties": lambda a: a.scores[0].unique().numel() < a.scores.shape[1] and int(a.scores[0].argmax()) >= 0,
        "one": lambda a: a.scores.shape == (1, 1),
        "many": (lambda a: a.scores.shape[1] > 50_257, lambda a: len(a.scores) > 512),
        "boundaries": lambda a: {a.scores.shape[1] + more for more in (-1, 0, 1)} <= set(a.top_k.tolist()),
        "ends": lambda a: bool((a.top_k == 1).any()),
        "mixed": lambda a: bool((a.top_p == 1).any() and (a.top_p < 1).any()),
        "beside": lambda a: bool(((a.scores.abs().amin(1) > 2**24) & (a.scores.amax(1) - a.scores.amin(1) < 9)).any()),
        "equal": lambda a: len(a.scores) > 1 and a.scores[0].equal(a.scores[-1]),
        "kind": kind, "again": again,
        "large numbers": lambda a: above(a.top_k, 256),
    },
    "1.5": {
        "one": lambda a: len(a.seed) == a.vocab_size == 1,
        "many": partial(large, "seed", 0),
        "ends": lambda a: bool((a.step == 0).any()),
        "mixed": lambda a: len(set(a.step.tolist())) > 1,
        "no range": lambda a: len(a.step) > 1 and not is_range(a.step),
        "equal": lambda a: len(a.seed) > len(set(a.seed.tolist())),
        "kind": kind, "again": again,
        "large numbers": (lambda a: above(a.step, 256), lambda a: a.vocab_size > 65_536),
    },
    "1.6": {
        "one": lambda a: len(a.prompt) == 1 and a.max_tokens == 1,
        "many": (lambda a: a.max_tokens > 198, lambda a: len(a.prompt) > 128, lambda a: len(a.stop_ids) > 2048),
        "boundaries": lambda a: a.context - len(a.prompt) == a.max_tokens,
        "ends": lambda a: a.context - len(a.prompt) == 1,
        "kind": kind, "again": again,
        "calls": lambda a: a.call.observe is not None,
        "stand-ins": lambda a: 0 in a.stop_ids and len(a.stop_ids) == 1,
    },
    "1.7": {
        "again": alone,
        "one": lambda a: a.tokens == 1,
        "many": lambda a: a.tokens > 100_000,
        "names": lambda a: list(a.shape) != ["n_layer", "n_embd", "vocab_size"],
        "kind": kind,
        "large numbers": lambda a: a.shape["n_layer"] * a.shape["n_embd"] * a.tokens**2 > 2**53,
        "odd sizes": lambda a: a.shape["n_embd"] & (a.shape["n_embd"] - 1),
    },
    "1.8": {
        "middle": lambda a: hasattr(a.generate, "wrong") and "place" in a.generate.wrong.__code__.co_freevars,
        "ties": lambda a: _near_ties(a, 0.0, 1.0),
        "tolerance": lambda a: _near_ties(a, 1.0, 2.0) and float(_logits(a).abs().min()) > 100,
        "left behind": lambda a: "known" in str(getattr(a.generate, "wrong", None).__code__.co_names)
        if getattr(a.generate, "wrong", None) else False,
    },
}  # fmt: skip


def _logits(a: object) -> torch.Tensor:
    logits: torch.Tensor = a.logits_of([3, 3, 3])  # type: ignore[attr-defined]
    return logits


def _near_ties(a: object, least: float, most: float) -> bool:
    """Whether, after some token, the two highest logits are so far apart, in units of the tolerance."""
    logits = _logits(a)
    high = logits.topk(2).values
    apart = (high[:, 0] - high[:, 1]) / (1e-4 * logits.abs().amax(-1).clamp(min=1))
    return bool(((apart > least) & (apart < most)).any())
