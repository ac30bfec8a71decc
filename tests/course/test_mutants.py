"""Mutants and the sources that answers are made of: every kind of change, each once, none that cannot be seen."""

from __future__ import annotations

import textwrap

import pytest
import torch

from nanocourse.authoring.mutants import mutants
from nanocourse.exercises import chapters, sources


def names(source: str) -> set[str]:
    return {mutant.name for mutant in mutants(textwrap.dedent(source))}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a + b", {"return a - b"}),
        ("return a * b", {"return a / b", "return a + b"}),
        ("return a < b", {"return a <= b", "return a > b"}),
        ("return a == b", {"return a != b"}),
        ("return a and b", {"return a or b"}),
        ("return not a", {"return not not a"}),
        ("return -a", {"return --a"}),
        ("return 3", {"return 4", "return 2"}),
        ("return 0.5", {"return 1.0", "return 0.25"}),
        ("return True", {"return False"}),
        ("return a[1:b]", {"return a[:b]", "return a[1:]", "return a[2:b]", "return a[0:b]"}),
        ("return f(a, b)", {"return f(b, a)"}),
        ("return f(a, k=2)", {"return f(a, k=3)", "return f(a, k=1)"}),
        ("return a, b", {"return (b, a)"}),
        ("a += b", {"a -= b", "without: a += b"}),
        ("a = b", {"without: a = b"}),
        ("for x in a:\n        break", {"without: for x in a:", "without: break"}),
        ("if a:\n        b()", {"without: if a:", "without: b()"}),
        ("assert a", {"without: assert a"}),
    ],
)
def test_each_kind_of_change(line: str, expected: set[str]) -> None:
    assert names(f"def g(a, b):\n    {line}\n") == expected


def test_documentation_and_annotations_are_left_alone() -> None:
    source = '''
    def g(a: dict[str, int] = None) -> tuple[int, str]:
        """Adds 1."""
        return a
    '''
    assert names(source) == set()


def test_each_mutant_has_a_name_of_its_own_in_inner_functions_too() -> None:
    assert "return x - 1" in names("def g(a):\n    def h(x):\n        return x + 1\n    return h(a)\n")
    found = [mutant.name for mutant in mutants("def g(a):\n    a = 1\n    b = 2\n    a = 1\n    return a\n")]
    assert len(found) == len(set(found))
    kernel = mutants(sources.function_source(chapters.exercise("3.6").function))
    assert len(kernel) > 100
    assert all("PAGE: tl.constexpr" in mutant.source for mutant in kernel)  # a kernel's constants are kept


def _helper(x: torch.Tensor) -> torch.Tensor:
    return x * _FACTOR


_FACTOR = 3


def helped(x: torch.Tensor) -> torch.Tensor:
    """Needs a helper, a constant and torch."""
    return torch.relu(_helper(x))


def test_a_file_of_ones_own_has_all_that_it_needs() -> None:
    text = sources.submission(helped, sources.function_source(helped), "named")
    space: dict[str, object] = {"__name__": "alone"}
    exec(compile(text, "alone", "exec"), space)
    assert space["named"](torch.tensor([-1.0, 2.0])).tolist() == [0.0, 6.0]  # type: ignore[operator]
    assert "import tests" not in text
    assert "from tests" not in text
