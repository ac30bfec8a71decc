"""Values that a student's function may return, raise or print, by number: of every type, size and nesting, and lies.

This file is itself what a student hands in: `make(number)` returns or raises the value of that number, in a worker.
"""
# ruff: noqa

from __future__ import annotations

import random

import torch

KINDS = 40


class Lies(list):
    """A list that lies about its length, and about what is in it."""

    def __len__(self):
        return -5 if self[:] else 10**9

    def __iter__(self):
        raise RuntimeError("no")

    def __eq__(self, other):
        raise ZeroDivisionError

    __hash__ = None


class Bad:
    """Nothing that is asked of it works."""

    def __repr__(self):
        raise ValueError

    def __eq__(self, other):
        raise ValueError

    def __reduce__(self):
        raise ValueError

    def __getattr__(self, name):
        raise KeyError(name)

    __hash__ = None


class Named(str):
    def __str__(self):
        return 5

    def __getitem__(self, at):
        raise IndexError


class Whole(int):
    def __int__(self):
        raise OverflowError

    def bit_length(self):
        return -1

    def __index__(self):
        raise OverflowError


class Real(float):
    def __float__(self):
        raise OverflowError

    def __repr__(self):
        return "\ud800"


class Sub(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("no")


class Loud(Exception):
    def __str__(self):
        raise SystemExit


class Quiet(Exception):
    def __str__(self):
        return "\ud800\x1b[2J" * 300


def make(number):
    """The value of that number."""
    draw = random.Random(number)
    return _made(draw, 0)


def _made(draw, depth):  # noqa: PLR0911, PLR0912, PLR0915
    kind = draw.randrange(KINDS)
    few = range(draw.randrange(4))
    if kind == 0:
        return draw.choice((10**40, -(10**400), 2**63, -(2**63) - 1, 2**64, 2**1024, 10**10_000, True, 0, -1))
    if kind == 1:
        return draw.choice((float("nan"), float("inf"), -0.0, 5e-324, 1.7e308, 1e16))
    if kind == 2:
        return draw.choice(("", "\ud800", "\udfff" * 5, "a\0b", "\x1b[2J", "x" * 10**5, "é" * 999, "NIC1", '{"op": 1}'))
    if kind < 8:
        return [_made(draw, depth + 1) for _ in few] if depth < 6 else []
    if kind == 8:
        return tuple(_made(draw, depth + 1) for _ in few) if depth < 6 else ()
    if kind == 9:
        keys = ("", "a", "T", "\ud800", "o", 5, None, 1.5)
        return {draw.choice(keys): _made(draw, depth + 1) for _ in few} if depth < 6 else {}
    if kind == 10:
        dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)
        shape = [draw.randrange(4) for _ in range(draw.randrange(5))]
        return torch.zeros(shape, dtype=draw.choice(dtypes))
    if kind == 11:
        return draw.choice(
            (torch.full((3,), float("nan")), torch.zeros(2).expand(9, 2), torch.zeros(10**9, device="meta"))
        )
    if kind == 12:
        return torch.zeros(2, 2).to_sparse() if draw.random() < 0.5 else torch.zeros(3, dtype=torch.complex64).conj()
    if kind == 13:
        return torch.zeros(2).as_subclass(Sub)
    if kind == 14:
        return Lies([1, 2])
    if kind == 15:
        return Bad()
    if kind == 16:
        return Named("abc\ud800")
    if kind == 17:
        return draw.choice((Whole(5), Whole(10**50), Real(2.5), Real("nan")))
    if kind == 18:
        return (one for one in few)
    if kind == 19:
        return draw.choice((len, print, Bad, type, make, NotImplemented, ..., range(10**12), b"\xff" * 9, bytearray(5)))
    if kind == 20:
        own = []
        own += [own, {"a": own}, (own,)] if draw.random() < 0.3 else [own]
        return own
    if kind == 21:
        deep = []
        for _ in range(draw.choice((5, 30, 3000))):
            deep = [deep]
        return deep
    if kind == 22:
        return [0] * draw.choice((10, 1000, 30_000))
    if kind == 23:
        return {str(one): one for one in range(draw.choice((3, 300)))}
    if kind == 24:
        return torch.nn.Parameter(torch.zeros(2))
    if kind == 25:
        return draw.choice((1j, {1, 2}, frozenset(), memoryview(b"x"), torch.Size([1]), torch.float32, object(), super))
    if kind == 26:
        print("x" * draw.choice((10, 10**5)), "\ud800".encode("utf-8", "surrogatepass"))
        return None
    if kind < 34:
        errors = (
            lambda: ValueError(10**5000), lambda: Loud(), lambda: Quiet(), lambda: KeyError(Bad()),
            lambda: type("\u0130" * 300, (Exception,), {})("x"), lambda: Exception("y" * 10**6), lambda: KeyboardInterrupt(),
            lambda: SystemExit(Bad()), lambda: GeneratorExit(), lambda: StopIteration(3), lambda: RecursionError(),
            lambda: SyntaxError(5, ("f", "x", None, [])), lambda: ExceptionGroup("g", [ValueError(1)]),
            lambda: MemoryError(), lambda: NotImplementedError(Bad()), lambda: UnicodeDecodeError("a", b"", 0, 1, "r"),
        )  # fmt: skip
        raise draw.choice(errors)()
    return _leaf(draw)


def _leaf(draw):
    return draw.choice((None, 0, 1, 0.5, "a", [], {}, torch.ones(1)))
