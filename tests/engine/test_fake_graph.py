"""The recorder that stands in for a CUDA graph: what it replays and what it bakes, shown on small steps.

Whole steps are replayed in test_graphs.py; refusals are in test_fake_refusals.py.

The names G.. are those of the course's list of defects. Kernel launches are seen in Triton's interpreter, in a process
of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from nanoinfer.engine import fake_graph
from nanoinfer.engine.fake_graph import FakeGraph, record
from nanoinfer.model.gpt2 import GPT2
from tests.conftest import SMALL, passed_in_the_interpreter
from tests.engine.fake_graphed import graph_llm, greedy_rows, prove

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
in_the_interpreter = pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's process")


def assert_nothing_is_patched() -> None:
    assert not {"tolist", "cpu", "numpy"} & vars(Tensor).keys()
    assert torch.ones(2).cpu().tolist() == torch.tensor([1.0, 1.0]).tolist()
    assert repr(torch.ones(1)) == "tensor([1.])"
    assert torch.cuda.synchronize.__module__ == "torch.cuda"
    assert fake_graph._recorder() is None
    jit = sys.modules.get("triton.runtime.jit")
    assert jit is None or jit.KernelInterface.__getitem__.__module__ == "triton.runtime.jit"


def test_a_failing_step_leaves_everything_as_found() -> None:
    x, numbers = torch.zeros(3), torch.get_rng_state()

    def step() -> None:
        x.add_(torch.rand(3))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        record(step)
    assert not x.any()
    assert torch.equal(torch.get_rng_state(), numbers)
    assert_nothing_is_patched()


def test_rebinding_is_not_seen() -> None:
    """G11, G12: Python does not run again, neither the step's nor its caller's."""
    box, calls = SimpleNamespace(x=torch.ones(2), y=torch.zeros(2)), []

    def step() -> Tensor:
        calls.append(1)
        box.y = box.x * 3
        return box.y

    graph, y = record(step)
    first, box.x, box.y = box.x, torch.full((2,), 100.0), torch.zeros(2)
    first.fill_(4.0)
    graph.replay()
    assert (y.tolist(), box.y.tolist(), len(calls)) == ([12.0, 12.0], [0.0, 0.0], 1)


@pytest.mark.parametrize("replace", [lambda x, new: setattr(x, "data", new), lambda x, new: x.set_(new)])
def test_other_memory_in_the_same_tensor_is_not_seen(replace: Callable[[Tensor, Tensor], object]) -> None:
    """G16: a graph knows addresses, not tensors."""
    x = torch.ones(2)
    old = x.detach()
    graph, y = record(lambda: x + 1)
    replace(x, torch.full((2,), 50.0))
    old.fill_(5.0)
    graph.replay()
    assert y.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("inference", [True, False])
def test_views_need_no_operation_and_keep_their_shape(inference: bool) -> None:
    """A shape that is changed in place after a use must not change that use in the replay, nor turn at each replay.

    Operations that are made of others, as @ is, are seen as these, in inference mode too.
    """
    x = torch.arange(6.0).view(2, 3)

    def step() -> tuple[Tensor, Tensor]:
        y = x + 0
        before = y @ torch.ones(3)
        y.t_()
        return before, y[1:, 0].reshape(-1) * 1

    with torch.inference_mode(inference):
        graph, (before, after) = record(step)
    assert [name.split(".")[1] for name in graph.operations] == ["add", "ones", "mv", "mul"]
    for _ in range(3):
        graph.replay()
        assert (before.tolist(), after.tolist()) == ([3.0, 12.0], [1.0, 2.0])


@pytest.mark.parametrize("generator", [None, torch.Generator().manual_seed(3)])
def test_random_numbers_are_frozen(generator: torch.Generator | None) -> None:
    """G18: 64 replays draw the same; generators are left as found."""
    weights, noise, used = torch.ones(1000), torch.zeros(4), generator or torch.default_generator

    def step() -> tuple[Tensor, Tensor]:
        noise.normal_(generator=generator)
        return torch.multinomial(weights, 1, generator=generator), torch.rand(2, generator=generator)

    state, drawn = used.get_state(), set()
    graph, results = record(step)
    assert torch.equal(used.get_state(), state)
    for _ in range(64):
        torch.rand(1)
        state = used.get_state()
        graph.replay()
        assert torch.equal(used.get_state(), state)
        drawn.add(str([t.tolist() for t in (*results, noise)]))
    assert len(drawn) == 1
    first, second = results[1].tolist()
    assert first != second  # two numbers of one call do differ


# Kernel launches


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS and Windows: the import fails, and there is nothing to be seen."""
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", None)
    x = torch.ones(2)
    graph, y = record(lambda: x + 1)
    x.fill_(4)
    graph.replay()
    assert (y.tolist(), graph.operations) == ([5.0, 5.0], ["aten.add.Tensor"])


@pytest.mark.long
@pytest.mark.skipif(INTERPRETED, reason="runs in the other process")
def test_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="there are no wheels of Triton here")
    assert passed_in_the_interpreter(__file__, "-k", "launch") == 2


@in_the_interpreter
def test_launches_of_the_paged_cache(small_model: GPT2) -> None:
    """Its steps are replayed, and their tokens are the oracle's."""
    llm = graph_llm(small_model, "paged-graph", max_batch=2)
    prove(llm, [17, 3], greedy_rows(3, 2))
    assert {key.columns for key in llm.core.graphs} == {1, 32}
    for key, captured in llm.core.graphs.items():
        assert isinstance(captured.graph, FakeGraph)
        launches = [name for name in captured.graph.operations if name.startswith("triton.")]
        attention = "triton._attend_kernel" if key.columns == 1 else "triton._ragged_kernel"
        assert launches == ["triton._write_kernel", attention] * SMALL.n_layer


@in_the_interpreter
def test_launches_are_recorded_as_they_were() -> None:
    """Tensors by address, numbers and grid as at the recording, in order with other operations; outside put back."""
    from tests.engine.launches import add_kernel

    n, x, total = 8, torch.arange(8.0), torch.zeros(8)

    def step() -> Tensor:
        out = torch.empty(8)
        add_kernel[lambda meta: (n // meta["SIZE"],)](x, out, 8 * n, SIZE=4)
        add_kernel[(2,)](out, total, n, SIZE=4)
        return total * 2

    graph, result = record(step)
    assert graph.operations == ["triton.add_kernel", "triton.add_kernel", "aten.mul.Tensor"]
    assert not total.any()
    n, memory = 0, x.detach()
    x.data = torch.full((8,), -1.0)
    for start in (0.0, 100.0):
        memory.copy_(torch.arange(8.0) + start)
        graph.replay()
        assert total.tolist() == [value + start + 72 for value in range(8)]
        assert torch.equal(result, total * 2)
    assert_nothing_is_patched()
