"""How many threads a CPU's steps get, with a clock that says what each number of threads costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from nanoinfer import LLM, SamplingParams, threads
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.threads import LATEST, SOONEST, Threads


class Machine:
    """Four cores, and a clock that only steps and products move. costs: seconds of one, by the number of threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: dict[int, float]) -> None:
        self.costs, self.now, self.count, self.used = costs, 0.0, 4, [0]
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.count)
        monkeypatch.setattr(torch, "set_num_threads", lambda count: setattr(self, "count", count))
        monkeypatch.setattr(threads.time, "perf_counter", lambda: self.now)

    def steps(self, number: int) -> Iterator[int]:
        for step in range(number):
            self.now += self.costs[self.count]
            self.used.append(self.count)
            yield step


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float]], Machine]:
    return lambda costs: Machine(monkeypatch, costs)


BUSY, QUIET = {1: 1.0, 2: 4.0, 4: 9.0}, {1: 4.0, 2: 2.5, 4: 1.0}


def run(chooser: Threads, made: Machine, number: int) -> None:
    assert list(chooser.run(made.steps(number), lambda step: "one row")) == list(range(number))
    assert made.count == 4  # torch has its own number between the steps


def test_what_is_fastest_is_found_and_kept(machine: Callable[[dict[int, float]], Machine]) -> None:
    made = machine(BUSY)
    chooser = Threads()
    assert chooser.counts == [1, 2, 4]
    run(chooser, made, 7)
    assert made.used[-7:] == [4, 1, 2, 4, 1, 2, 4]  # the first steps are a trial
    assert chooser.count == 1
    run(chooser, made, SOONEST)
    assert set(made.used[-SOONEST:]) == {1}


def test_trials_become_rare_while_they_change_nothing(machine: Callable[[dict[int, float]], Machine]) -> None:
    made = machine(BUSY)
    run(Threads(), made, 8 * LATEST)
    assert sum(count != 1 for count in made.used[4 * LATEST :]) <= 4 * 5


def test_a_machine_that_becomes_busy_or_quiet_is_noticed(machine: Callable[[dict[int, float]], Machine]) -> None:
    made = machine(dict(QUIET))
    chooser = Threads()
    run(chooser, made, 4 * LATEST)
    assert chooser.count == 4
    made.costs.update(BUSY)
    run(chooser, made, SOONEST + 7)
    assert chooser.count == 1
    made.costs.update(QUIET)
    run(chooser, made, SOONEST + 7)
    assert chooser.count == 4


def test_steps_of_other_shapes_are_not_compared(machine: Callable[[dict[int, float]], Machine]) -> None:
    """A trial begins anew where the number of rows changes, and a prompt's step is no part of one."""
    made = machine(BUSY)
    chooser = Threads()
    list(chooser.run(made.steps(3 * SOONEST), lambda step: step // 5))
    assert chooser.count == 4
    list(chooser.run(made.steps(3 * SOONEST), lambda step: None))
    assert chooser.count == 4
    run(chooser, made, 7)
    assert chooser.count == 1


def test_a_number_that_is_given_is_kept(machine: Callable[[dict[int, float]], Machine]) -> None:
    made = machine(BUSY)
    run(Threads(fixed=2), made, 3 * SOONEST)
    assert set(made.used[1:]) == {2}


def test_products_choose_at_load(machine: Callable[[dict[int, float]], Machine]) -> None:
    made = machine(BUSY)

    class Column:
        """Of a matrix: its product with that takes the machine's time."""

        def contiguous(self) -> Column:
            return self

        __getitem__ = lambda self, index: self  # noqa: E731

        def __matmul__(self, other: object) -> None:
            made.now += made.costs[made.count]

    chooser = Threads()
    chooser.try_products(Column())  # type: ignore[arg-type]
    assert chooser.count == 1
    assert made.count == 4


def test_an_error_leaves_torch_as_it_was(machine: Callable[[dict[int, float]], Machine]) -> None:
    made = machine(BUSY)
    chooser = Threads(fixed=2)
    with pytest.raises(ZeroDivisionError):
        list(chooser.run((1 // 0 for _ in range(2)), lambda step: 1))
    assert made.count == 4


def test_threads_of_an_llm(small_model: GPT2) -> None:
    before, asked = torch.get_num_threads(), SamplingParams(max_tokens=8, temperature=0)
    (fixed,) = LLM(small_model, threads=2).generate([[1, 2, 3]], asked)
    (free,) = LLM(small_model).generate([[1, 2, 3]], asked)
    assert fixed.token_ids == free.token_ids
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match="threads must be a whole number of at least 1, not 0"):
        LLM(small_model, threads=0)
