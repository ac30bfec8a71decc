"""Exercise 1.7: correct variants, mutants that are none."""

from __future__ import annotations

from fractions import Fraction


def by_the_config(shape: dict[str, int], tokens: int, bytes_per_number: int) -> dict[str, int]:
    """The package's own count of parameters, less the position rows that are not read."""
    from nanoinfer.model.config import ModelConfig

    config = ModelConfig(n_head=1, n_positions=1024, **shape)
    unused = (1024 - tokens) * config.n_embd
    wide = [a * b for (a, *b_) in config.parameter_shapes().values() for b in b_]
    matrices = sum(wide) - (config.n_positions + config.vocab_size) * config.n_embd
    square = 2 * config.n_layer * config.n_embd * tokens**2
    return {
        "launches": 10 * config.n_layer + 6,
        "flops": 2 * (matrices * tokens + square + config.vocab_size * config.n_embd),
        "bytes": (config.parameters - unused) * bytes_per_number,
    }


def in_fractions(shape: dict[str, int], tokens: int, bytes_per_number: int) -> dict[str, int]:
    """Counted in fractions, which are exact, and given as whole numbers."""
    L, C, V = (Fraction(shape[name]) for name in ("n_layer", "n_embd", "vocab_size"))
    flops = 24 * L * C**2 * tokens + 4 * L * C * tokens**2 + 2 * C * V
    numbers = L * (12 * C**2 + 13 * C) + (2 + V + tokens) * C
    return {"flops": int(flops), "bytes": int(bytes_per_number * numbers), "launches": int(6 + L * 10)}


EQUIVALENT: dict[str, str] = {}
