"""The rules that every exercise's inputs are made by: patterns behind wrong answers that once slipped through.

Each exercise says for each rule that applies to it how an input that follows it is told: in `COVERS` of `rules.py`
beside it. Whether there is such an input is measured on the inputs that the checks make, from several seeds.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from nanocourse.exercises.cases import Call, Case
from nanocourse.exercises.chapters import chapter, run_file
from nanocourse.exercises.exercise import Check, Exercise
from nanocourse.exercises.outcomes import Returned

RULES = {
    "nan": "What may be anything is NaN, in each argument where it may stand, and so is one number of several.",
    "infinite": "What may be anything is infinite.",
    "huge": "What may be anything is finite: large numbers, and what an old text has left.",
    "far scores": "Scores lie far above 0 and far below it, so that an exponential overflows or vanishes.",
    "ties": "Numbers tie at a maximum, at the k-th place, or where one leads the other by nothing.",
    "one": "There is one row, one token, one head: every size that may be 1 is 1 in some input.",
    "many": "Of each size there are more than 1,024 where that may be, one after the other, and ids beyond 16 bits.",
    "boundaries": "Lengths lie before, at and behind every boundary.",
    "empty": "Empty parts stand first, in the middle and last; all of them may be empty.",
    "ends": "The first position, or place, is met, and the last one.",
    "mixed": "Rows of different kinds share a step: what is done for one is not done for all.",
    "no range": "Positions are not a range: they have gaps, or stand in another order.",
    "no order": "Rows are not in the order of their numbers.",
    "both sides": "Padding stands before what is real, behind it, and on both sides of it.",
    "equal": "Two rows, texts, lengths or steps are equal.",
    "kind": "A result of another kind is refused: a list for a tensor, one dimension more, a float for a whole number.",
    "large numbers": "Whole numbers are larger than types hold, at each product on the way: 8, 16, 24, 31, 53 bits.",
    "odd sizes": "Sizes are no powers of two, where a shift or a mask would do for those that are.",
    "stand-ins": "What code may begin with or take for none is met as a number: 0, an id that pads, less than -1e9.",
    "middle": "What looks ordinary at its ends is not so in the middle.",
    "narrow": "What is floating point comes in 16 bits and in 64, with more places than 16 bits count.",
    "beside": "What counts is small beside what does not: deviations beside a mean, totals beside a maximum; or tiny.",
    "zeros": "Plain numbers are all 0, or exact multiples of what they are divided by, and no powers of two.",
    "names": "What comes by name comes in more than one order of the names.",
    "calls": "It is observed how often a lent function is called, and with what.",
    "left behind": "After an error, also that of Ctrl-C, everything is as it was; what is handed over is overwritten.",
    "again": "Inputs of the same shapes come with other numbers, or with one alone: what is remembered is wrong.",
    "two at once": "Two of what an answer may remember one of are in use in turns.",
    "host": "What Python sees at a capture is otherwise at a replay.",
    "tolerance": "A result may be wrong by a little less than the tolerance, or more, wherever all its numbers lie.",
}

Predicate = Callable[[SimpleNamespace], bool]  # of an input's arguments by name, and `call`, the whole `Call`
Covers = Mapping[str, Predicate | tuple[Predicate, ...]]  # rule -> how its input is told; several: an input for each
Inputs = Sequence[tuple[Check, Call]]


def declared(exercise: Exercise) -> Covers:
    """What an exercise says to each rule; empty where it says nothing."""
    path = chapter(exercise.chapter).exercises / "rules.py"
    if not path.is_file():
        return {}
    found: Covers = run_file(path, f"nanoinfer_ch{exercise.chapter:02d}_rules").COVERS.get(exercise.id, {})
    return found


def inputs(exercise: Exercise, seed: str) -> Inputs:
    """All inputs that the checks make from a seed; those for the compiler are none."""
    made = [(c, exercise.call(c, Case(f"{seed}/{c.name}/{at}"))) for c in exercise.checks for at in range(c.cases)]
    return [(check, asked) for check, asked in made if not asked.compiles]


def problems(exercise: Exercise, covers: Covers, seeds: Sequence[str]) -> list[str]:
    """One sentence for each rule that is not followed, for each seed."""
    found = [f"{exercise.id} speaks of {rule!r}, which is no rule" for rule in covers if rule not in RULES]
    for seed in seeds:
        made = inputs(exercise, seed)
        for rule, cover in covers.items():
            each = cover if isinstance(cover, tuple) else (cover,)
            if not all(_met(exercise, made, one) for one in each):
                found.append(f"{exercise.id}, seed {seed!r}: no input follows the rule {rule!r}: {RULES.get(rule)}")
    return found


def _met(exercise: Exercise, made: Inputs, cover: Predicate) -> bool:
    probe = PROBES.get(cover)
    if probe is not None:
        return probe(exercise, made)
    return any(cover(_arguments(exercise, asked)) for _, asked in made)


def _arguments(exercise: Exercise, asked: Call) -> SimpleNamespace:
    bound = inspect.signature(exercise.oracle).bind(*asked.args)
    bound.apply_defaults()
    return SimpleNamespace(**bound.arguments, call=asked)


def kind(_: SimpleNamespace) -> bool:
    """For `COVERS`: the expected results, given in other kinds, must be refused."""
    raise TypeError("it is measured on all inputs together")


def again(_: SimpleNamespace) -> bool:
    """For `COVERS`: an answer that remembers its results by the shapes of its arguments must be refused."""
    raise TypeError("it is measured on all inputs together")


def alone(_: SimpleNamespace) -> bool:
    """For `COVERS`: of two inputs of a check, each plain number must differ alone, at one time."""
    raise TypeError("it is measured on all inputs together")


def _each_number_alone(exercise: Exercise, made: Inputs) -> bool:
    flat = [(check.name, _plain(exercise, asked)) for check, asked in made]
    numbers = {name for _, one in flat for name, value in one.items() if type(value) is int}
    pairs = [(a, b) for (check, a), (other, b) in itertools.combinations(flat, 2) if check == other]
    told = [{name for name in a.keys() | b.keys() if a.get(name) != b.get(name)} for a, b in pairs]
    return all({name} in told for name in numbers)


def _plain(exercise: Exercise, asked: Call) -> dict[str, Any]:
    """Arguments by name, and entries of a dict by theirs; tensors as lists."""
    found: dict[str, Any] = {}
    for name, value in exercise.named(asked).items():
        found |= value if isinstance(value, dict) else {name: _as_lists(value)}
    return found


def _refuses_other_kinds(exercise: Exercise, made: Inputs) -> bool:
    expected = [(check, exercise.expected(asked)) for check, asked in made]
    values = [(check, one, one.value) for check, one in expected if isinstance(one, Returned)]
    for told in (_as_lists, _one_dimension_more, _as_floats, _narrowed):
        changed = [(c, one, Returned(told(value), one.observed)) for c, one, value in values]
        pairs = [(c, one, other) for (c, one, other), (_, _, value) in zip(changed, values, strict=True)
                 if not _same_kind(value, other.value)]  # fmt: skip
        if pairs and not any(exercise.compare(c, one, other) for c, one, other in pairs):
            return False
    return bool(values)


def _as_lists(value: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.tolist(), value)


def _one_dimension_more(value: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor[None], value)


def _as_floats(value: Any) -> Any:
    value = tree_map_only(Tensor, lambda tensor: tensor if tensor.is_floating_point() else tensor.float(), value)
    return tree_map_only(int, lambda number: number if isinstance(number, bool) else float(number), value)


def _narrowed(value: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.int() if tensor.dtype == torch.int64 else tensor, value)


def _same_kind(one: Any, other: Any) -> bool:
    def kinds(value: Any) -> list[Any]:
        return [(leaf.dtype, leaf.dim()) if isinstance(leaf, Tensor) else type(leaf) for leaf in tree_leaves(value)]

    return kinds(one) == kinds(other)


def _same_shapes_again(exercise: Exercise, made: Inputs) -> bool:
    first: dict[str, Any] = {}
    for check, asked in made:
        outcome = exercise.expected(asked)
        before = first.setdefault(f"{check.part} {list(_shapes(asked.args))}", outcome)
        if exercise.compare(check, before, outcome):
            return True
    return False


def _shapes(args: Sequence[Any]) -> Iterator[str]:
    """What is left of arguments without the numbers in tensors and lists."""
    for argument in args:
        leaves, spec = tree_flatten(argument)
        shapes = [str(tuple(leaf.shape)) if isinstance(leaf, Tensor) else "" for leaf in leaves]
        yield repr(argument) if isinstance(argument, int | str) else f"{spec} {shapes}"


PROBES: dict[Predicate, Callable[[Exercise, Inputs], bool]] = {
    kind: _refuses_other_kinds, again: _same_shapes_again, alone: _each_number_alone,
}  # fmt: skip


def is_range(positions: Tensor) -> bool:
    """Whether the last dimension counts on by one everywhere."""
    return bool((positions.diff(dim=-1) == 1).all())


def infinite(tensor: Tensor) -> bool:
    """Whether an entry is infinite."""
    return bool(tensor.isinf().any())


def nan(tensor: Tensor) -> bool:
    """Whether an entry is NaN."""
    return bool(tensor.isnan().any())


def one_of_several(tensor: Tensor, number: float) -> bool:
    """Whether some of the last dimension's numbers are this one, and others of the same are finite."""
    found = tensor.isnan() if math.isnan(number) else tensor == number
    return bool((found.any(-1) & torch.isfinite(tensor).any(-1)).any())


def large(name: str, dimension: int, arguments: SimpleNamespace) -> bool:
    """Whether the argument of that name has more of a dimension than a GPT-2 has positions."""
    return bool(getattr(arguments, name).shape[dimension] > 1024)


def above(tensor: Tensor, bound: float) -> bool:
    """Whether a finite entry is that far from 0."""
    return bool((tensor.double().abs() > bound).logical_and(torch.isfinite(tensor)).any())
