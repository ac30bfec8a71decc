"""Several ways to compute a captured step: which one is kept, and what is counted. By the stand-in for graphs."""

from __future__ import annotations

from functools import partial
from itertools import cycle

import pytest
from torch import Tensor

from nanoinfer import LLM
from nanoinfer.engine.choice import ChoosingEngine
from nanoinfer.engine.graphs import Key, Replayable
from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.step import decode_step
from nanoinfer.model.gpt2 import GPT2
from tests.engine.fake_graphed import graph_llm, greedy_rows, prove

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("no_collection")]


class Other:
    """Computes as `decode_step` does, for so many rows at most; it may fail."""

    def __init__(self, name: str, core: ChoosingEngine, rows: int, error: BaseException | None = None) -> None:
        self.name, self.rows, self.error = name, rows, error
        self._decode = partial(decode_step, core.model, core.cache, core.state)

    def why_not(self, rows: int, sampler: Sampler) -> str | None:
        return "too many rows" if rows > self.rows else None

    def decode(self, rows: int, longest: int, sampler: Sampler) -> Tensor:
        if self.error:
            raise self.error
        return self._decode(rows, longest, sampler)


def with_others(
    model: GPT2, seconds: dict[str, float], error: BaseException | None = None, pinned: bool = False
) -> tuple[LLM, ChoosingEngine]:
    """An `LLM` whose steps "one" may compute for one row, and "few" for two; graphs take so many seconds by name."""
    llm = graph_llm(model, "fused")
    core = llm.core
    assert isinstance(core, ChoosingEngine)
    core.forwards, core.pinned = [Other("one", core, 1, error), Other("few", core, 2)], pinned
    fastest, measured = core._fastest, iter(())

    def timed(key: Key, made: dict[str, Replayable]) -> str:
        nonlocal measured
        measured = cycle([seconds[name] for name in made])
        return fastest(key, made)

    core._fastest, core._seconds = timed, lambda graph: next(measured)  # type: ignore[method-assign]
    return llm, core


FEW, PLAIN = "few: too many rows", "op by op: too many rows"


@pytest.mark.parametrize(
    "seconds, counted",
    [
        ({"one": 1, "few": 2, "op by op": 3}, {"one", FEW, PLAIN}),
        ({"one": 2, "few": 1, "op by op": 3}, {"few: faster than one", FEW, PLAIN}),
        ({"one": 3, "few": 2, "op by op": 1}, {"op by op: faster than one", PLAIN}),
        ({}, {"one", FEW, PLAIN}),  # pinned
    ],
)
def test_the_fastest_or_pinned_one_is_counted(small_model: GPT2, seconds: dict[str, float], counted: set[str]) -> None:
    llm, _ = with_others(small_model, seconds, pinned=not seconds)
    prove(llm, [4, 1, 9, 30], greedy_rows(9, 2, 7, 5))
    assert set(llm.stats.computed_by) == counted
    assert llm.stats.computed_by.total() == llm.stats.replayed_steps
    if seconds:
        assert llm.stats.timed["decode of 1 rows, greedy"] == seconds
        assert llm.stats.timed["decode of 2 rows, greedy"] == {name: seconds[name] for name in ("few", "op by op")}
    else:
        assert not llm.stats.timed


@pytest.mark.parametrize("pinned", [False, True])
def test_what_fails_costs_no_graph_where_another_can(small_model: GPT2, pinned: bool) -> None:
    llm, _ = with_others(small_model, {"few": 1, "op by op": 2}, RuntimeError("no room\nand a trace"), pinned)
    prove(llm, [4, 1], greedy_rows(9, 2))
    assert set(llm.stats.computed_by) == {"few: RuntimeError: no room", FEW}
    assert not llm.stats.fallbacks


def test_an_interrupt_ahead_of_the_choice_leaves_a_step_that_works(small_model: GPT2) -> None:
    llm, _ = with_others(small_model, {"few": 1, "op by op": 2}, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        prove(llm, [4], greedy_rows(3))
    prove(llm, [4], greedy_rows(3))
    assert set(llm.stats.computed_by) == {"op by op"}
    assert not llm.stats.fallbacks
