"""How many threads a CPU's steps get, with a clock that says what each number of threads costs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from nanoinfer import LLM, SamplingParams, threads
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.threads import LATEST, SOONEST, Threads

BUSY, QUIET = {1: 1.0, 2: 4.0, 4: 9.0}, {1: 4.0, 2: 2.5, 4: 1.0}


class Machine:
    """Four cores, and a clock that only steps move. costs: seconds of one, by the number of threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: dict[int, float]) -> None:
        self.costs, self.now, self.count, self.used = costs, 0.0, 4, [0]
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.count)
        monkeypatch.setattr(torch, "set_num_threads", lambda count: setattr(self, "count", count))
        monkeypatch.setattr(threads.time, "perf_counter", lambda: self.now)

    def step(self) -> None:
        self.now += self.costs[self.count]
        self.used.append(self.count)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch, dict(BUSY))


def run(chooser: Threads, machine: Machine, number: int, rows: Callable[[int], int] = lambda step: 1) -> None:
    """Take so many steps. rows: of each step, 0 for one that feeds prompts."""
    for step in range(number):
        decoded = rows(step)
        chooser.step(SimpleNamespace(step=machine.step, fed=[()] * max(1, decoded), decoded=decoded))
        assert machine.count == 4  # torch has its own number between the steps


def test_what_is_fastest_is_found_and_kept(machine: Machine) -> None:
    chooser = Threads()
    assert chooser.counts == [1, 2, 4]
    run(chooser, machine, 7)
    assert machine.used[-7:] == [4, 1, 2, 4, 1, 2, 4]  # the first steps are a trial
    assert chooser.count == 1
    run(chooser, machine, SOONEST)
    assert set(machine.used[-SOONEST:]) == {1}


def test_a_machine_that_becomes_busy_or_quiet_is_noticed(machine: Machine) -> None:
    machine.costs.update(QUIET)
    chooser = Threads()
    run(chooser, machine, 4 * LATEST)
    assert chooser.count == 4
    machine.costs.update(BUSY)
    run(chooser, machine, SOONEST + 7)
    assert chooser.count == 1
    machine.costs.update(QUIET)
    run(chooser, machine, SOONEST + 7)
    assert chooser.count == 4


def test_steps_of_other_shapes_are_not_compared(machine: Machine) -> None:
    """A trial begins anew where the number of rows changes, and a prompt's step is no part of one."""
    chooser = Threads()
    run(chooser, machine, 3 * SOONEST, lambda step: 1 + step // 5)
    assert chooser.count == 4
    run(chooser, machine, 3 * SOONEST, lambda step: 0)
    assert chooser.count == 4
    run(chooser, machine, 7)
    assert chooser.count == 1


def test_a_number_that_is_given_is_kept_and_torch_has_its_own_after_an_error(machine: Machine) -> None:
    run(Threads(fixed=2), machine, 3 * SOONEST)
    assert set(machine.used[1:]) == {2}
    with pytest.raises(ZeroDivisionError):
        Threads(fixed=2).step(SimpleNamespace(step=lambda: 1 // 0))
    assert machine.count == 4


def test_threads_of_an_llm(small_model: GPT2) -> None:
    before, asked = torch.get_num_threads(), SamplingParams(max_tokens=8, temperature=0)
    fixed, free = (LLM(small_model, threads=n).generate([[1, 2, 3]], asked)[0].token_ids for n in (2, None))
    assert fixed == free
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match="threads must be a whole number from 1 to 1024, not 0"):
        LLM(small_model, threads=0)
