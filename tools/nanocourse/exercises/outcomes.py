"""The outcome of a call, and where it differs from the expected one.

Values are plain ones and tensors. Tensors are compared in float64, so that layout and width of a type do not matter;
integers must stay integers. What should be a float64 tensor is held to a float64's precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only

from nanocourse.exercises.cases import Call

SHOWN = 24  # numbers of a tensor that are printed; a larger one is told by its shape
WHOLE = 2**53  # up to here a float represents every integer
MOST = 4000  # characters of a value as a message prints it
LONG = 1500  # of an argument that is printed with all its items
BEFORE, BEHIND = 3, 9  # items that are printed around the first one that differs
FROM = "from item "
HANDED = "what it was handed"
FINER = 1e5  # so many times a difference counts where the expected tensor is float64: it is held to its own precision

Axes = Sequence[Any]  # names, or a tuple for each item: see `Spec.axes`


@dataclass(frozen=True)
class Returned:
    """The call returned. observed: what the call's own `observe` saw."""

    value: Any
    observed: Any = None


@dataclass(frozen=True)
class Raised:
    """The call raised an exception. where: the line of the learner's file, with its number."""

    kind: str
    message: str
    where: str = ""


@dataclass(frozen=True)
class Hung:
    """The call took longer than its limit. where: the line of the learner's file that it was at, if that is known."""

    seconds: float
    where: str = ""


@dataclass(frozen=True)
class Crashed:
    """The process ended."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """The call reached the function that the exercise asks for, or another that is not allowed."""

    name: str


@dataclass(frozen=True)
class Foreign:
    """A value of a type that no exercise asks for."""

    type_name: str


@dataclass(frozen=True)
class Changed:
    """The call returned, and something that it must leave alone is no longer as it was. what: in words."""

    what: str


Outcome = Returned | Raised | Hung | Crashed | Refused | Changed


@dataclass(frozen=True)
class Difference:
    """The first place that differs. where: in words, empty if the whole value differs."""

    where: str
    expected: str
    got: str
    size: float  # |got - expected|, of floats over max(1, |expected|); infinite if the difference is not one of numbers


def local(function: Callable[..., Any], asked: Call) -> Outcome:
    """The outcome of a call in this process: for the chapter's own functions, never for a learner's."""
    try:
        with torch.no_grad():
            args = asked.placed()
            before = Before(args, asked.kept) if asked.kept else None
            value = function(*args)
    except NotAsItWas:
        return Changed(HANDED)
    except Exception as error:
        return Raised(type(error).__name__, str(error))
    if before and (changed := before.changed()):
        return Changed(changed)
    return Returned(value, asked.observe() if asked.observe else None)


class NotAsItWas(BaseException):
    """An answer has changed what it was handed; no `except Exception` of a scene or an answer catches it."""


class Before:
    """What an answer should leave as it is: what it was handed, which may have names, and torch's random state."""

    def __init__(self, handed: Sequence[Any], names: Sequence[str] = ()) -> None:
        self._each, self._random = list[tuple[str, Any, Any]](), torch.get_rng_state()
        if names:
            for name, argument in zip(names, handed, strict=False):
                self.add(argument, f"its argument {name}")
        else:
            self.add(list(handed))

    def add(self, handed: Any, name: str = HANDED) -> None:
        """One more thing that it is handed."""
        self._each.append((name, handed, tree_map_only(Tensor, torch.clone, handed)))  # with containers of its own

    def changed(self) -> str:
        """The first of it that is not as it was, in words; empty if all of it is."""
        for name, now, then in self._each:
            (leaves, form), (others, before) = tree_flatten(now), tree_flatten(then)
            if form != before or not all(map(_same, leaves, others)):
                return name
        return "" if torch.get_rng_state().equal(self._random) else "torch's random state"


def _same(one: Any, other: Any) -> bool:
    """Whether two are the same to the bit: 0.0 is not -0.0, and NaN is NaN."""
    if one is other or not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other) and (one is other or repr(one) == repr(other))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    alike = (one == other) & (one.signbit() == other.signbit())
    return bool((alike | (one != one) & (other != other)).all())  # noqa: PLR0124


def difference(
    expected: Outcome, got: Outcome, tolerance: float, axes: Axes = (), typed: bool = False, exact: bool = False
) -> Difference | None:
    """The first place where `got` differs by more than `tolerance`, of floats relative above 1; None if it does not."""
    return next(differences(expected, got, tolerance, axes, typed, exact), None)


def deviation(expected: Outcome, got: Outcome, typed: bool = False, exact: bool = False) -> float:
    """The largest difference of numbers; infinite if the outcomes differ in kind, type or shape."""
    return max((found.size for found in differences(expected, got, -1.0, (), typed, exact)), default=0.0)


def differences(
    expected: Outcome, got: Outcome, tolerance: float, axes: Axes, typed: bool = False, exact: bool = False
) -> Iterator[Difference]:
    """Every leaf that differs by more than `tolerance`, each at its first place (its worst if `tolerance` is -1).

    typed: a returned tensor must have exactly the expected dtype, and a whole number must be one. exact: with typed, a
    list must be a list and not a tuple, and a whole number no tensor.
    """
    if isinstance(expected, Returned) and isinstance(got, Returned):
        one, other = expected.value, got.value
        if typed:
            yield from _kinds(one, other, "", exact)
        yield from _values(expected.value, got.value, tolerance, axes, "")
        yield from _values(expected.observed, got.observed, tolerance, (), "what the checks counted")
    elif not (isinstance(expected, Raised) and isinstance(got, Raised) and expected.kind == got.kind):
        whole = isinstance(expected, Returned) and expected.value is not None  # it may be the answer itself: not shown
        yield Difference("", "a result" if whole else told(expected), told(got), math.inf)


def _kinds(expected: Any, got: Any, path: str, exact: bool) -> Iterator[Difference]:
    """Tensors of another dtype, floats in place of whole numbers; exact: tensors in their place, tuples of lists."""
    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        if expected.dtype != got.dtype:
            yield Difference(path, f"the type {_dtype(expected)}", _dtype(got), math.inf)
    elif isinstance(expected, int) and (isinstance(got, float) or _floating(got)):
        yield Difference(path, f"a whole number: {expected}", f"a float: {show(got)}", math.inf)
    elif exact and isinstance(expected, int) and isinstance(got, Tensor):
        yield Difference(path, f"a whole number: {expected}", f"a tensor: {show(got)}", math.inf)
    elif isinstance(expected, dict) and isinstance(got, dict):
        for key in expected.keys() & got.keys():
            yield from _kinds(expected[key], got[key], _join(path, str(key)), exact)
    elif isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        if exact and isinstance(expected, list) != isinstance(got, list):
            yield Difference(path, f"a {type(expected).__name__}", f"a {type(got).__name__}", math.inf)
        for at, (one, other) in enumerate(zip(expected, got, strict=False)):
            yield from _kinds(one, other, _join(path, f"item {at}"), exact)


def _values(expected: Any, got: Any, tolerance: float, axes: Axes, path: str) -> Iterator[Difference]:
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        if len(expected) != len(got):
            yield Difference(path, *_lengths(expected, got, tolerance), math.inf)
            return
        for at, (one, other) in enumerate(zip(expected, got, strict=True)):
            name, rest = _item(axes, at)
            yield from _values(one, other, tolerance, rest, _join(path, name))
    elif isinstance(expected, dict) and isinstance(got, dict):
        if expected.keys() != got.keys():
            wanted, found = (_cut(f"entries {', '.join(map(str, one))}") for one in (expected, got))
            yield Difference(path, wanted, found, math.inf)
            return
        for key in expected:
            yield from _values(expected[key], got[key], tolerance, axes, _join(path, str(key)))
    elif type(expected) is type(got) is int and expected == got:  # most of long lists: a tensor for each takes minutes
        return
    elif _number(expected) and _number(got):
        finer = FINER if isinstance(expected, Tensor) and expected.dtype == torch.float64 else 1.0
        yield from _tensors(_tensor(expected), _tensor(got), tolerance, axes, path, finer)
    elif type(expected) is not type(got) or expected != got:
        yield Difference(path, show(expected), show(got), math.inf)


def _lengths(expected: Sequence[Any], got: Sequence[Any], tolerance: float) -> tuple[str, str]:
    """Two lists of different lengths; long ones around the first item that differs, since they may begin alike."""
    head = f"{len(expected)} items", str(len(got))
    if max(len(expected), len(got)) <= SHOWN:
        return f"{head[0]}: {show(expected)}", f"{head[1]}: {show(got)}"
    pairs = enumerate(zip(expected, got, strict=False))
    same = min(len(expected), len(got))
    first = next((at for at, pair in pairs if next(_values(*pair, tolerance, (), ""), None)), same)
    begin = max(0, first - BEFORE)
    from_on = f", {FROM}{begin} on: "
    return head[0] + from_on + _part(expected, begin), head[1] + from_on + _part(got, begin)


def _part(items: Sequence[Any], begin: int) -> str:
    end = begin + BEFORE + BEHIND
    inside = [show(item) for item in items[begin:end]]
    return f"[{', '.join([*inside, '...'] if end < len(items) else inside)}]"


def _tensors(
    expected: Tensor, got: Tensor, tolerance: float, axes: Axes, path: str, finer: float
) -> Iterator[Difference]:
    if expected.shape != got.shape:
        yield Difference(path, f"the shape {tuple(expected.shape)}", f"{tuple(got.shape)}", math.inf)
    elif got.is_floating_point() and not expected.is_floating_point() and expected.dim():
        yield Difference(path, f"whole numbers ({_dtype(expected)})", _dtype(got), math.inf)
    elif got.dtype != expected.dtype and torch.bool in (got.dtype, expected.dtype):
        yield Difference(path, f"{_dtype(expected)}", _dtype(got), math.inf)
    elif expected.numel():
        one, other = expected.double(), got.double()
        whole = not (expected.is_floating_point() or got.is_floating_point())
        gap = (expected.long() - got.long()).double() if whole else one - other  # float64 has no integer beyond 2^53
        size = gap.abs() if whole else gap.abs() / one.abs().clamp(min=1) * finer
        same = (gap == 0) | ((one == other) & one.isinf()) | (one.isnan() & other.isnan())  # inf - inf is NaN
        size = torch.where(same, 0.0, size)
        size = size.nan_to_num(math.inf, math.inf)
        flat = int(size.argmax()) if tolerance < 0 else int((size > tolerance).flatten().int().argmax())
        if float(size.flatten()[flat]) > tolerance:
            index = [int(i) for i in torch.unravel_index(torch.tensor(flat), size.shape)]
            place = ", ".join(f"{name} {i}" for name, i in zip([*axes, *["index"] * len(index)], index, strict=False))
            values = [_shown(tensor.flatten()[flat]) for tensor in (expected, got)]
            yield Difference(_join(path, place), values[0], values[1], float(size.flatten()[flat]))


def _item(axes: Axes, at: int) -> tuple[str, Axes]:
    """The name of an item of a list or tuple, and the names of its own dimensions."""
    if axes and isinstance(axes[0], tuple) and at < len(axes):  # each item has a name of its own
        own = axes[at]
        return own[0], own[1:]
    return f"{axes[0] if axes else 'item'} {at}", axes[1:]


def _shown(number: Tensor) -> str:
    """One number of a tensor; an integer with all its digits."""
    return show(int(number) if not number.is_floating_point() else number.item())


def told(outcome: Outcome) -> str:
    """An outcome in a few words."""
    if isinstance(outcome, Returned):
        return show(outcome.value) if outcome.value is not None else "no error"
    if isinstance(outcome, Raised):
        message = f": {outcome.message}" if outcome.message else ""
        return f"{outcome.kind}{message}" + (f" ({outcome.where})" if outcome.where else "")
    if isinstance(outcome, Changed):
        return f"a call that has changed {outcome.what}"
    if isinstance(outcome, Hung):
        return f"no answer within {outcome.seconds:g} s" + (f"; it was at {outcome.where}" if outcome.where else "")
    return outcome.reason if isinstance(outcome, Crashed) else f"a call of {outcome.name}"


def show(value: Any) -> str:
    """A value as messages print it: integers in full, floats with six digits, large tensors by their shape."""
    return _cut(_told(value))


def in_full(value: Any) -> str:
    """A value with all its items, if that is not too long."""
    text = _told(value, LONG)
    return text if len(text) <= LONG else show(value)


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[:MOST]}..."


def _told(value: Any, most: int = SHOWN) -> str:  # noqa: PLR0911  one for each kind of value
    if isinstance(value, Tensor):
        if value.numel() > 1 and not bool(value.any()):
            return f"zeros of shape {tuple(value.shape)}"
        if value.numel() > SHOWN:
            return f"{_dtype(value)} of shape {tuple(value.shape)}"
        return show(value.tolist())
    if isinstance(value, Foreign):
        return f"a value of type {value.type_name}"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < WHOLE else f"{value:.6g}"
    if isinstance(value, list | tuple):
        more = ", ..." if len(value) > most else ""
        inside = ", ".join(_cut(_told(item, most)) for item in value[:most]) + more
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, dict):
        more = ", ..." if len(value) > most else ""
        items = [f"{key!r}: {_cut(_told(item, most))}" for key, item in list(value.items())[:most]]
        return "{" + ", ".join(items) + more + "}"
    if callable(value):
        return "a function"
    return repr(value)


def _tensor(value: Any) -> Tensor:
    """A number as a tensor that holds it exactly."""
    if isinstance(value, Tensor):
        return value
    return torch.tensor(float(value), dtype=torch.float64) if isinstance(value, float) else torch.tensor(value)


def _number(value: Any) -> bool:
    """Whether it is a tensor, or a number that one can hold."""
    return isinstance(value, Tensor | float) or (isinstance(value, int) and -(2**63) <= value < 2**63)


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _join(path: str, more: str) -> str:
    return ", ".join(filter(None, (path, more)))
