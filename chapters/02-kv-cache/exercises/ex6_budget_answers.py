"""Exercise 2.6: correct variants, mutants that are none."""

from __future__ import annotations

from fractions import Fraction


def in_fractions(shape: dict[str, int], memory: int, slots: int, bytes_per_number: int) -> dict[str, int]:
    """Head by head, and in exact fractions of a row."""
    size = shape["n_embd"] // shape["n_head"]
    token = (size + size) * shape["n_head"] * shape["n_layer"] * bytes_per_number
    fit = Fraction(memory - shape["parameters"] * bytes_per_number, token * slots)
    whole = fit.numerator // fit.denominator
    return {"rows": whole - 1 if whole > 0 else 0, "token": token, "row": slots * token}


def in_numbers(shape: dict[str, int], memory: int, slots: int, bytes_per_number: int) -> dict[str, int]:
    """Counts numbers first, and bytes last."""
    token = shape["n_embd"] * shape["n_layer"] << 1
    room = memory // bytes_per_number - shape["parameters"]
    rows = room // (token * slots) - 1
    return {"token": token * bytes_per_number, "row": token * slots * bytes_per_number, "rows": rows if rows > 0 else 0}
