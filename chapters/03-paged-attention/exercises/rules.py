"""How the inputs of chapter 3's exercises follow the rules of `nanocourse.exercises.rules`."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import torch

from nanocourse.exercises.rules import Covers, above, again, infinite, is_range, kind, nan
from nanoinfer.cache.paged import PROGRAMS, SPLIT_TOKENS


def _tiles(a: SimpleNamespace) -> list[tuple[list[float], list[float]]]:
    return [pair for _, pair in a.read.gives]


def _dirt(a: SimpleNamespace) -> list[float]:
    """Values of slots that no token is in."""
    return [v for scores, values in _tiles(a) for s, v in zip(scores, values, strict=True) if s == -math.inf]


def _lacks(a: SimpleNamespace) -> list[int]:
    return [-(-length // a.block_size) - len(blocks) for blocks, length in zip(a.owned, a.lengths, strict=True)]


def _owned(a: SimpleNamespace) -> list[int]:
    return [len(blocks) for blocks in a.owned]


def _empty_tile(at: int, a: SimpleNamespace) -> bool:
    """Whether that tile, and not every tile, has no token."""
    empty = [max(scores) == -math.inf for scores, _ in _tiles(a)]
    return len(empty) > 1 and empty[at] and not all(empty)


COVERS: dict[str, Covers] = {
    "3.1": {
        "one": lambda a: len(a.owned) == 1,
        "many": lambda a: len(a.owned) > 64,
        "boundaries": lambda a: {n - len(b) * a.block_size for b, n in zip(a.owned, a.lengths, strict=True)} >= {0, 1},
        "empty": lambda a: len(a.lengths) > 4 and a.lengths[0] == a.lengths[2] == a.lengths[-1] == 0 < max(a.lengths),
        "ends": (
            lambda a: not a.free and max(_lacks(a)) <= 0, lambda a: a.owned and a.free and max(_lacks(a)) <= 0,
        ),
        "mixed": lambda a: not a.free and min(_lacks(a)) < 0 < max(_lacks(a)),
        "stand-ins": lambda a: {0, -1} <= set(a.free) and sum(_lacks(a)) == len(a.free),
        "equal": lambda a: len(a.lengths) > len(set(a.lengths)),
        "kind": kind, "again": again,
        "large numbers": lambda a: max(a.lengths) > 64 * a.block_size,
    },
    "3.2": {
        "one": (lambda a: a.block_size == 1, lambda a: len(a.tables) == 1 and {0, 1} == set(a.row.tolist())),
        "many": lambda a: len(a.tables) > 64,
        "boundaries": lambda a: (
            {0, a.block_size - 1} <= set((a.positions % a.block_size).tolist())
            and a.block_size > 1
        ),
        "empty": lambda a: len(set(range(len(a.tables))) - set(a.row.tolist())) > 0,
        "ends": lambda a: bool((a.positions == 0).any()),
        "mixed": lambda a: bool((a.row == len(a.tables)).any() and (a.row < len(a.tables)).any()),
        "no range": lambda a: any(not is_range(a.positions[a.row == row]) for row in set(a.row.tolist())),
        "no order": lambda a: a.row.tolist() != sorted(a.row.tolist()),
        "both sides": lambda a: bool((a.row[:-1] == len(a.tables)).any() and a.row[-1] < len(a.tables)),
        "kind": kind, "again": again,
        "large numbers": (
            lambda a: int(a.tables.max()) * a.block_size >= 2**31, lambda a: int(a.positions.max()) > 2**24,
        ),
        "odd sizes": lambda a: a.block_size in (3, 5),
    },
    "3.3": {
        "one": lambda a: a.block_size == 1,
        "many": lambda a: len(a.lengths) > 64,
        "boundaries": (
            lambda a: all(length % a.block_size == 0 for length in a.lengths) and a.block_size > 1,
            lambda a: a.room in a.lengths and a.room % a.block_size,
        ),
        "empty": lambda a: len(a.lengths) > 2 and a.lengths[0] == a.lengths[-1] == 0 < max(a.lengths),
        "ends": lambda a: not a.lengths,
        "equal": lambda a: len(a.lengths) > len(set(a.lengths)),
        "kind": kind,
        "large numbers": lambda a: a.token_bytes > 2**53 and a.token_bytes % 2,
        "zeros": lambda a: len(a.lengths) > 1 and not any(a.lengths),
    },
    "3.4": {
        "one": lambda a: a.heads == a.block_size == len(a.positions) == 1,
        "many": lambda a: len(a.table) > 999 and a.heads < 9,
        "boundaries": lambda a: bool((a.positions % a.block_size == a.block_size - 1).any()) and a.block_size > 1,
        "ends": lambda a: bool((a.positions == len(a.table) * a.block_size - 1).any()) and a.head == a.heads - 1 > 0,
        "no range": lambda a: len(a.positions) > 1 and not is_range(a.positions),
        "kind": kind, "again": again,
        "large numbers": (
            lambda a: int(a.table.max()) * a.heads > 2**31 and a.block_size == 1, lambda a: above(a.positions, 2**24),
        ),
        "odd sizes": lambda a: a.block_size in (3, 6),
    },
    "3.5": {
        "nan": lambda a: any(map(math.isnan, _dirt(a))),
        "infinite": lambda a: any(map(math.isinf, _dirt(a))),
        "huge": lambda a: any(1e200 < value < math.inf for value in _dirt(a)),
        "far scores": lambda a: any(-math.inf < max(scores) < -3e38 for scores, _ in _tiles(a)),
        "ties": lambda a: a.tiles > 1 and len({score for scores, _ in _tiles(a) for score in scores}) == 1,
        "one": lambda a: a.tiles == 1,
        "many": lambda a: a.tiles > 64,
        "stand-ins": lambda a: any(max(scores) == 0.0 for scores, _ in _tiles(a)[:-1]),
        "empty": tuple(partial(_empty_tile, at) for at in (0, 1, -1)),
        "beside": lambda a: any(s == -1000 and math.isnan(v) for t in _tiles(a) for s, v in zip(*t, strict=True)),
        "ends": lambda a: a.tiles == 0,
        "equal": lambda a: a.tiles > 1 and _tiles(a)[0][0] == _tiles(a)[1][0],
        "kind": kind,
        "calls": lambda a: a.call.observe is not None,
    },
    "3.6": {
        "nan": lambda a: nan(a.k_pool) and nan(a.v_pool),
        "infinite": lambda a: infinite(a.k_pool) and infinite(a.v_pool),
        "huge": lambda a: above(a.k_pool, 1e20) and above(a.v_pool, 1e20),
        "far scores": lambda a: above(a.k_pool, 19_000) and not nan(a.k_pool),
        "one": lambda a: 1 in a.lengths.tolist() and a.q.shape[1] == 1,
        "many": lambda a: int(a.lengths.max()) > 16 * a.k_pool.shape[2],
        "boundaries": lambda a: {0, 1, a.k_pool.shape[2] - 1} <= set((a.lengths % a.k_pool.shape[2]).tolist()),
        "empty": lambda a: 0 in a.lengths.tolist() and len(a.lengths) > 1,
        "ends": lambda a: bool((a.lengths == a.tables.shape[1] * a.k_pool.shape[2]).any()),
        "stand-ins": lambda a: above(a.q, 1e18) and above(a.k_pool, 1e18) and float(a.q.min()) < 0,
        "narrow": lambda a: a.q.dtype == torch.bfloat16 and a.k_pool.dtype == torch.float32,
        "mixed": lambda a: len(set(a.lengths.tolist())) > 2,
        "large numbers": lambda a: above(a.tables, 2**16),
    },
    "3.7": {
        "nan": lambda a: nan(a.maxima),
        "infinite": lambda a: infinite(a.maxima) and infinite(a.accs),
        "huge": lambda a: bool((a.maxima[a.tokens == 0] > 40).any()),
        "far scores": lambda a: above(a.maxima, 290),
        "ties": lambda a: a.maxima.shape[1] > 1 and bool((a.maxima[:, 0] == a.maxima[:, 1]).any()),
        "one": lambda a: a.maxima.shape[1] == 1 or a.maxima.shape[0] == 1,
        "many": (lambda a: min(a.maxima.shape[1], a.accs.shape[2]) > 128, lambda a: len(a.maxima) > 128),
        "large numbers": lambda a: above(a.tokens, 2**39),
        "stand-ins": lambda a: bool((a.tokens == 0).any()) and a.maxima[a.tokens > 0].lt(-1e9).all(),
        "beside": (
            lambda a: a.maxima.shape[1] > 1 and bool((a.maxima[:, 1].abs() > 1e7).all()),
            lambda a: above(a.maxima[:, 1:2], 9e16) and not a.totals[:, 0].equal(a.totals[:, 1]),
            lambda a: above(a.accs[:, -1], 1e35),
        ),
        "empty": lambda a: (
            bool((a.tokens == 0).all(1).any())
            and all(bool((a.tokens[:, at] == 0).any()) for at in (0, 1, -1))
        ),
        "ends": lambda a: (
            bool(((a.tokens[:, -1] > 0) & (a.tokens[:, :-1] == 0).all(1)).any())
            and a.tokens.shape[1] > 1
        ),
        "mixed": lambda a: len({bool((row == 0).any()) for row in a.tokens}) == 2,
        "equal": lambda a: len(a.tokens) > 1 and a.tokens[0].equal(a.tokens[1]),
        "kind": kind, "again": again,
    },
    "3.8": {
        "one": lambda a: a.batch == 1,
        "many": lambda a: a.batch > PROGRAMS,
        "zeros": (lambda a: not any(a.lengths), lambda a: a.max_len == 3 * SPLIT_TOKENS),
        "boundaries": lambda a: a.max_len - 1 == 2 * SPLIT_TOKENS and 4 * a.batch * a.heads <= PROGRAMS,
        "ends": lambda a: a.max_len == 1,
        "kind": kind,
        "large numbers": lambda a: a.max_len > 65_535,
    },
}  # fmt: skip
