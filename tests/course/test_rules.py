"""The rules that inputs are made by: every exercise follows those that apply to it, which is measured."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_leaves

from nanocourse.exercises import rules
from nanocourse.exercises.cases import Call, Case, call
from nanocourse.exercises.exercise import Check, Exercise
from tests.course.learner_files import EXERCISES

SEEDS = ("course", "another", "a third")  # of a learner's own checks, and as hidden inputs have


each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)


@each
@pytest.mark.strength
def test_every_rule_is_followed(exercise: Exercise) -> None:
    assert rules.problems(exercise, rules.declared(exercise), SEEDS) == []


@each
@pytest.mark.strength
def test_a_wide_check_is_what_some_rule_needs(exercise: Exercise) -> None:
    """Without it an input is missing: so the measure sees what inputs there are, and not what is said of them."""
    narrow = tuple(check for check in exercise.checks if not check.wide)
    if len(narrow) < len(exercise.checks):
        assert rules.problems(replace(exercise, checks=narrow), rules.declared(exercise), SEEDS[:1])


@each
def test_tensors_lie_anywhere_but_where_the_stub_says_contiguous(exercise: Exercise) -> None:
    names = list(inspect.signature(exercise.oracle).parameters)
    assert set(exercise.spec.contiguous) <= set(names)
    assert not exercise.spec.contiguous or "contiguous" in (inspect.getdoc(exercise.function) or "")
    tensors, strided = set(), set()
    for _, asked in rules.inputs(exercise, SEEDS[0]):
        tensors |= {names[at] for at, one in enumerate(asked.args) if any(map(torch.is_tensor, tree_leaves(one)))}
        strided |= {names[at] for at in asked.strided}
    if exercise.spec.kernel is None and exercise.spec.scene is None:  # which is asked, and a kernel gets strides
        assert tensors - strided == set(exercise.spec.contiguous)


def test_every_rule_applies_somewhere_and_a_slip_of_the_pen_nowhere() -> None:
    assert set().union(*map(rules.declared, EXERCISES)) == rules.RULES.keys()
    assert rules.problems(EXERCISES[0], {"nam": rules.kind}, ()) == ["1.1 speaks of 'nam', which is no rule"]


def _toy(*makes: object) -> Exercise:
    def double(x: torch.Tensor) -> torch.Tensor:
        """Twice x."""
        return x * 2

    spec = replace(EXERCISES[0].spec, scene=None)
    return replace(EXERCISES[0], spec=spec, function=double, checks=tuple(Check(make) for make in makes))  # type: ignore[arg-type]


def ones(case: Case) -> Call:
    return call(torch.ones(3))


def numbers(case: Case) -> Call:
    return call(case.floats("x", 3))


def test_inputs_of_one_shape_and_one_value_do_not_come_again() -> None:
    covers = {"again": rules.again}
    assert any("'again'" in problem for problem in rules.problems(_toy(ones), covers, ("s",)))
    assert not any("'again'" in problem for problem in rules.problems(_toy(ones, numbers), covers, ("s",)))


def test_other_kinds_of_results_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    toy, covers = _toy(numbers), {"kind": rules.kind}
    assert not any("'kind'" in problem for problem in rules.problems(toy, covers, ("s",)))
    monkeypatch.setattr(Exercise, "compare", lambda *_: None)
    assert any("'kind'" in problem for problem in rules.problems(toy, covers, ("s",)))
