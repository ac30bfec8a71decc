"""Values that a student's function may return, raise or print, by number: of every type and size, nested, and lies.

This file is itself what a student hands in: `make(number)` returns or raises the value of that number, in a worker.
"""
# ruff: noqa

from __future__ import annotations

import torch


def bad(*args):
    raise ValueError


def lying(base, **methods):
    """A type that lies in these ways."""
    return type(base)("Lies", (base,), {"__hash__": None, **methods})


def endless(self):
    while True:
        yield 1


Lies = lying(list, __len__=lambda self: -5 if self[:] else 10**9, __iter__=bad, __eq__=bad)
Endless = lying(list, __iter__=endless)
Bad = lying(object, __repr__=bad, __eq__=bad, __reduce__=bad, __getattr__=bad)
Named = lying(str, __str__=lambda self: 5, __getitem__=bad)
Whole = lying(int, __int__=bad, bit_length=lambda self: -1, __index__=bad)
Real = lying(float, __float__=bad, __repr__=lambda self: "\ud800")
Sub = lying(torch.Tensor, __torch_function__=classmethod(bad))


class Loud(Exception):
    def __str__(self):
        raise SystemExit


class Quiet(Exception):
    def __str__(self):
        return "\ud800\x1b[2J" * 300


PLAIN = (
    10**40, -(10**400), 2**63, -(2**63) - 1, 2**64, 10**10_000, 10 ** 10**6, True, -1, None, 0.5, "a", [], {}, (1, "a"),
    float("nan"), float("inf"), -0.0, 5e-324, 1.7e308, "", "\ud800", "a\0b", "\x1b[2J", "x" * 10**5, "NIC1", {"a": 1},
    '{"op": 1}', 1j, {1, 2}, memoryview(b"x"), torch.Size([1]), torch.float32, object(), super, len, Bad, type, ...,
    range(10**12), b"\xff" * 9, bytearray(5), {"\ud800": 1}, {5: 1, None: 2, 1.5: 3}, {str(one): one for one in range(300)},
    [0] * 30_000,
)  # fmt: skip
STRANGE = (
    lambda: torch.full((3,), float("nan")), lambda: torch.zeros(2).expand(9, 2), lambda: torch.ones(3, 0, 2).bool(),
    lambda: torch.zeros(10**9, device="meta"), lambda: torch.zeros(2, 2).to_sparse(), lambda: torch.ones(3).bfloat16(),
    lambda: torch.zeros(3, dtype=torch.complex64).conj(), lambda: torch.zeros(2).as_subclass(Sub),
    lambda: torch.nn.Parameter(torch.zeros(2)), lambda: Lies([1, 2]), lambda: Endless(), lambda: Named("abc\ud800"),
    lambda: Bad(), lambda: Whole(10**50), lambda: Real(2.5), lambda: Real("nan"), lambda: (one for one in [1]),
    lambda: print("x" * 10**7, "\ud800".encode("utf-8", "surrogatepass")),
)  # fmt: skip
ERRORS = (
    lambda: ValueError(10**5000), lambda: Loud(), lambda: Quiet(), lambda: KeyError(Bad()), lambda: MemoryError(),
    lambda: type("\u0130" * 300, (Exception,), {})("x"), lambda: Exception("y" * 10**6), lambda: KeyboardInterrupt(),
    lambda: SystemExit(Bad()), lambda: GeneratorExit(), lambda: StopIteration(3), lambda: RecursionError(),
    lambda: SyntaxError(5, ("f", "x", None, [])), lambda: NotImplementedError(Bad()),
    lambda: UnicodeDecodeError("a", b"", 0, 1, "r"),
)  # fmt: skip


def deep():
    made = []
    made += [made, {"a": made}, (made,)]
    for _ in range(3000):
        made = [made]
    return made


def raised(error):
    raise error()


MAKERS = [
    deep, *STRANGE, *(lambda one=one: one for one in PLAIN), *(lambda error=error: raised(error) for error in ERRORS)
]  # fmt: skip


def make(number):
    """The value of that number; the same ones come a second time within others."""
    value = MAKERS[number % len(MAKERS)]()
    return value if number < len(MAKERS) else [value, ({"a": value}, [[value] * 3])]
