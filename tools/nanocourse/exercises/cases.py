"""Where a check's inputs come from: a seed and, when a failure is being shrunk, requests for smaller inputs.

Every draw has a name and depends only on the seed and that name, so that one size can be made smaller without changing
anything else.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

T = TypeVar("T")
MANY = 1100  # more than a GPT-2 has positions, and than Python's calls lie in each other


FAR = (  # from each other, and around what types hold
    0, 127, 1023, 1024, 4097, 2**15, 2**16 + 1, 2**24, 2**24 + 1, 2**31 - 1, 2**31 + 5, 2**40, 2**53, 2**53 + 1, 2**62,
)  # fmt: skip


def large_in_turn(sizes: int, large: int = MANY) -> list[list[int]]:
    """So many sizes, of which one is large and the others are 1: each of them once."""
    return [[large if at == turn else 1 for at in range(sizes)] for turn in range(sizes)]


@dataclass(frozen=True)
class Call:
    """One call of a solution.

    args: plain values, tensors and functions. Functions stay in the parent: the solution gets a stand-in that asks the
    parent. If a function has an attribute `gives`, a failed check shows it: pairs of arguments and results. observe:
    called afterwards; its result is compared as part of the outcome (how often a function was called). compiles: the
    kernel is compiled and not run, for the constants that are its one argument. about: what a failed check says of an
    input that cannot be shown. strided: the arguments whose tensors are parts of larger ones. kept: names of the
    arguments, if all of them must stay as they are.
    """

    args: tuple[Any, ...]
    observe: Callable[[], Any] | None = None
    compiles: bool = False
    about: str = ""
    strided: tuple[int, ...] = ()
    kept: tuple[str, ...] = ()

    def placed(self) -> tuple[Any, ...]:
        """Its arguments, with tensors that lie as a worker's do."""
        each = enumerate(self.args)
        return tuple(tree_map_only(Tensor, strided, one) if at in self.strided else one for at, one in each)


def strided(tensor: Tensor) -> Tensor:
    """The same numbers as a part of a larger tensor, transposed: neither it nor a clone lies end to end in memory."""
    larger = tensor.new_empty([2 * n + 1 for n in reversed(tensor.shape)])
    return larger[(slice(1, None, 2),) * tensor.dim()].permute([*reversed(range(tensor.dim()))]).copy_(tensor)


def call(*args: Any, observe: Callable[[], Any] | None = None, compiles: bool = False, about: str = "") -> Call:
    """A call with these arguments."""
    return Call(args, observe, compiles, about)


@dataclass
class Case:
    """A seeded source of sizes and numbers.

    sizes: sizes that the shrinker asks for, by name. simple: floats are small whole numbers, easy to follow by hand.
    zeros: names of floats that the shrinker wants to be zeros. drawn (name, lowest and drawn value of every size) and
    floats_drawn (names of all floats) tell the shrinker what there is.
    """

    seed: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    simple: bool = False
    zeros: frozenset[str] = frozenset()
    drawn: dict[str, tuple[int, int]] = field(default_factory=dict)
    floats_drawn: dict[str, None] = field(default_factory=dict)

    def size(self, name: str, low: int, high: int, least: int | None = None) -> int:
        """A whole number from low to high, which the shrinker may make smaller, down to `least` (or low)."""
        value = self.sizes.get(name, self._random(name).randint(low, high))
        self.drawn[name] = (low if least is None else least, value)
        return value

    def most(self, name: str, low: int, high: int) -> int:
        """The size `high`, which the shrinker may make smaller: of lists that must be long to be worth anything."""
        value = self.sizes.get(name, high)
        self.drawn[name] = (low, value)
        return value

    def choice(self, name: str, options: Sequence[T]) -> T:
        """One of the options, which stays the same when the input is shrunk."""
        return self._random(name).choice(options)

    def turn(self, options: Sequence[T]) -> T:
        """One of the options, in turn by the case's number, so that as many cases as options meet them all."""
        return options[self._number() % len(options)]

    def small(self, names: str) -> list[int]:
        """Sizes from 1 to 3: any two of the first four names meet in each way in nine cases, one after the other."""
        a, b = divmod(self._number() % 9, 3)
        at = (a, b, a + b, a + 2 * b, a * b)
        return [self.most(name, 1, 1 + n % 3) for name, n in zip(names.split(), at, strict=False)]

    def _number(self) -> int:
        numbers = [part for part in self.seed.split("/") if part.isdecimal()]
        return int(numbers[-1] if numbers else 0)

    def sample(self, name: str, options: Sequence[T], count: int) -> list[T]:
        """Several of the options, each at most once."""
        return self._random(name).sample(options, count)

    def floats(self, name: str, *shape: int, scale: float = 1.0) -> Tensor:
        """float32 from a normal distribution; small whole numbers in a simple case."""
        generator = self._generator(name)
        self.floats_drawn[name] = None
        if name in self.zeros:
            return torch.zeros(shape)
        if self.simple:
            return torch.randint(-2, 3, shape, generator=generator).float()
        return torch.randn(shape, generator=generator) * scale

    def ints(self, name: str, low: int, high: int, *shape: int) -> Tensor:
        """int64 from low to high, both included."""
        return torch.randint(low, high + 1, shape, generator=self._generator(name))

    def permutation(self, name: str, length: int) -> Tensor:
        """The numbers 0 to length - 1 in a random order that is not the sorted one, if there is another: int64."""
        order = torch.randperm(length, generator=self._generator(name))
        return order.roll(1) if length > 1 and bool((order == torch.arange(length)).all()) else order

    def _random(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{name}".encode()))
