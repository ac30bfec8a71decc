"""Random histories of the engine with all of its parts, and the planted mistakes that they find."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.audit import Broken
from tests.engine.history import History
from tests.engine.mistakes import MISTAKES

THINGS: dict[str | None, set[str]] = {  # by who drafts
    None: {"preempted", "gave way in its prompt", "came back to its blocks", "waited for its tokens", "cached",
           "recomputed", "evicted", "moved", "cancelled while preempted", "failures"},
    "here": {"preempted", "verified", "accepted", "behind", "failures"},
    "within": {"preempted", "verified", "accepted", "behind", "failures", "moved"},
}  # fmt: skip


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.sampled_from([*THINGS]))
def test_histories(random: Random, drafts: str | None) -> None:
    """Hypothesis looks for a short one."""
    History(random, drafts=drafts).run()


def test_nobody_starves() -> None:
    """Long ones, in which requests do not stop coming."""
    for seed in range(4):
        History(Random(seed)).run(rounds=60)


@pytest.mark.long
@pytest.mark.parametrize("drafts", THINGS)
def test_hundreds_of_histories(drafts: str | None) -> None:
    """In which all that may happen does."""
    happened: Counter[str] = Counter()
    for seed in range(400):
        happened += History(Random(seed), drafts=drafts).run()
    print(happened)
    assert min(happened[thing] for thing in THINGS[drafts]) > 10


def outcome(seed: int, parts: dict[str, Any]) -> str | None:
    """What does not hold in the history of that seed; empty where that has no name, None where all does hold."""
    try:
        History(Random(seed), **parts).run(rounds=12)
    except Broken as broken:
        return str(broken)
    except (AssertionError, AttributeError, ValueError, LookupError, RuntimeError, StopIteration):
        return ""
    return None


SELDOM = {"prompts always have their turn", "drafts beyond the end"}  # found by one history in hundreds


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in SELDOM else []) for name in MISTAKES]
)
def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Where the table names what does not hold, it is that which comes up."""
    what, mutate, parts = MISTAKES[name]
    mutate(monkeypatch)
    outcomes = (outcome(seed, parts) for seed in range(2000 if name in SELDOM else 200))
    assert any(found == what if what else found is not None for found in outcomes)


def test_each_thing_that_must_hold_has_a_mistake() -> None:
    named = set[str]()
    for file in ("history.py", "audit.py", "shadow.py"):
        tree = ast.parse(Path(__file__).with_name(file).read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        named |= {ast.literal_eval(call.args[1]) for call in calls if call.func.id == "must"}  # type: ignore[attr-defined]
    assert named == {mistake.what for mistake in MISTAKES.values()} - {""}
