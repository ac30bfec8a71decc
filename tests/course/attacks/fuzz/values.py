"""Values that a student's function may return, raise or print, by number: of every type, size and nesting, and lies.

This file is itself what a student hands in: `make(number)` returns or raises the value of that number, in a worker.
"""
# ruff: noqa

from __future__ import annotations

import random

import torch


def bad(*args):
    raise ValueError


def lying(base, **methods):
    """A type that lies in these ways."""
    return type(base)("Lies", (base,), {"__hash__": None, **methods})


Lies = lying(list, __len__=lambda self: -5 if self[:] else 10**9, __iter__=bad, __eq__=bad)
Bad = lying(object, __repr__=bad, __eq__=bad, __reduce__=bad, __getattr__=bad)
Named = lying(str, __str__=lambda self: 5, __getitem__=bad)
Whole = lying(int, __int__=bad, bit_length=lambda self: -1, __index__=bad)
Real = lying(float, __float__=bad, __repr__=lambda self: "\ud800")
Sub = lying(torch.Tensor, __torch_function__=classmethod(bad))
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)


class Loud(Exception):
    def __str__(self):
        raise SystemExit


class Quiet(Exception):
    def __str__(self):
        return "\ud800\x1b[2J" * 300


PLAIN = (
    10**40, -(10**400), 2**63, -(2**63) - 1, 2**64, 2**1024, 10**10_000, True, 0, -1, None, 1, 0.5, "a", [], {},
    float("nan"), float("inf"), -0.0, 5e-324, 1.7e308, 1e16, "", "\ud800", "\udfff" * 5, "a\0b", "\x1b[2J", "x" * 10**5,
    "é" * 999, "NIC1", '{"op": 1}', 1j, {1, 2}, frozenset(), memoryview(b"x"), torch.Size([1]), torch.float32, object(),
    super, len, print, Bad, type, NotImplemented, ..., range(10**12), b"\xff" * 9, bytearray(5),
)  # fmt: skip
STRANGE = (
    lambda: torch.full((3,), float("nan")), lambda: torch.zeros(2).expand(9, 2), lambda: torch.ones(1),
    lambda: torch.zeros(10**9, device="meta"), lambda: torch.zeros(2, 2).to_sparse(),
    lambda: torch.zeros(3, dtype=torch.complex64).conj(), lambda: torch.zeros(2).as_subclass(Sub),
    lambda: torch.nn.Parameter(torch.zeros(2)), lambda: Lies([1, 2]), lambda: Bad(), lambda: Named("abc\ud800"),
    lambda: Whole(5), lambda: Whole(10**50), lambda: Real(2.5), lambda: Real("nan"), lambda: (one for one in [1]),
)  # fmt: skip
ERRORS = (
    lambda: ValueError(10**5000), lambda: Loud(), lambda: Quiet(), lambda: KeyError(Bad()), lambda: MemoryError(),
    lambda: type("\u0130" * 300, (Exception,), {})("x"), lambda: Exception("y" * 10**6), lambda: KeyboardInterrupt(),
    lambda: SystemExit(Bad()), lambda: GeneratorExit(), lambda: StopIteration(3), lambda: RecursionError(),
    lambda: SyntaxError(5, ("f", "x", None, [])), lambda: ExceptionGroup("g", [ValueError(1)]),
    lambda: NotImplementedError(Bad()), lambda: UnicodeDecodeError("a", b"", 0, 1, "r"),
)  # fmt: skip


def within_itself(draw, few):
    own = []
    own += [own, {"a": own}, (own,)] if draw.random() < 0.3 else [own]
    return own


def deep(draw, few):
    made = []
    for _ in range(draw.choice((5, 30, 3000))):
        made = [made]
    return made


def printed(draw, few):
    print("x" * draw.choice((10, 10**5)), "\ud800".encode("utf-8", "surrogatepass"))


def raised(draw, few):
    raise draw.choice(ERRORS)()


MAKERS = (
    within_itself, deep, printed, *[raised] * 8, *[lambda draw, few: few()] * 5, lambda draw, few: tuple(few()),
    *[lambda draw, few: draw.choice(PLAIN)] * 10, *[lambda draw, few: draw.choice(STRANGE)()] * 8,
    lambda draw, few: {draw.choice(("", "a", "T", "\ud800", "o", 5, None, 1.5)): one for one in few()},
    lambda draw, few: torch.zeros([draw.randrange(4) for _ in range(draw.randrange(5))], dtype=draw.choice(DTYPES)),
    lambda draw, few: [0] * draw.choice((10, 1000, 30_000)),
    lambda draw, few: {str(one): one for one in range(draw.choice((3, 300)))},
)  # fmt: skip


def make(number):
    """The value of that number."""
    return made(random.Random(number), 0)


def made(draw, depth):
    return draw.choice(MAKERS)(
        draw, lambda: [made(draw, depth + 1) for _ in range(draw.randrange(4) if depth < 6 else 0)]
    )
