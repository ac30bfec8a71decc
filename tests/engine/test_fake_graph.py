"""The recorder that stands in for a CUDA graph: what it replays, what it bakes, what it refuses.

The names G.. are those of the course's list of defects. Kernel launches are seen in Triton's interpreter, in a process
of its own, as in test_paged_kernels.py. On a GPU the same steps are captured for real: both must refuse the same.
"""

# ruff: noqa: PLW0108 (a method that is looked up before the recording is another one)

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.paged import PagedCache
from nanoinfer.engine import fake_graph
from nanoinfer.engine.fake_graph import CaptureRefused, FakeGraph, escaping, record
from nanoinfer.engine.sampling import Sampler, greedy, sample, sample_filtered
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import decode_step, prefill_step
from nanoinfer.model.batch import Batch, Chunk, pack, unpack
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request, SamplingParams
from tests.conftest import SMALL, passed_in_the_interpreter, prompts_of

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
STEPS = 3 if INTERPRETED else 30  # the interpreter is slow
PROMPTS = prompts_of([7, 16, 1])
B, CPU = len(PROMPTS), torch.device("cpu")
PARAMS = [SamplingParams(temperature=t, top_k=k, top_p=p) for t, k, p in ((0.0, 0, 1.0), (0.8, 20, 1.0), (1.2, 0, 0.9))]
needs_no_interpreter = pytest.mark.skipif(INTERPRETED, reason="runs in the other process")


class Rows:
    """Three ragged rows whose prompts have been run, in a cache of its own."""

    def __init__(self, model: GPT2, kind: str, sampler: Sampler = greedy) -> None:
        self.model, self.sampler, self.lengths = model, sampler, [len(prompt) for prompt in PROMPTS]
        self.longest = max(self.lengths) + STEPS + 2  # one number for all steps, as a runner with one bucket has it
        self.cache: Any
        if kind == "dense":
            self.cache = DenseCache(SMALL, B, self.longest, CPU, torch.float32)
        else:
            self.cache = PagedCache(SMALL, B, self.longest, 12, 16, CPU, torch.float32)
        requests = [Request(i, tuple(PROMPTS[i]), PARAMS[i], 100 + i, 99, frozenset()) for i in range(B)]
        chunks = [Chunk(row, 0, prompt) for row, prompt in enumerate(PROMPTS)]
        with torch.inference_mode():
            self.state = BatchState.empty(B, CPU)
            for tensor in (self.cache.k, self.cache.v):
                tensor.zero_()  # contents are compared, those that nobody has written too
            for row in range(B if self.cache.blocks else 0):
                assert self.cache.blocks.reserve(row, self.longest)
            self.state.admit(range(B), requests)
            self.layout = self.cache.layout(*self.cache.captured([], chunks))
            self.packed = pack([], chunks, self.layout, B)
        self._grow()
        self.run_prompts()

    def run_prompts(self) -> None:
        prefill_step(self.model, self.cache, self.state, unpack(self.packed, self.layout), self.sampler)

    def step(self) -> Tensor:
        return decode_step(self.model, self.cache, self.state, B, self.longest, self.sampler)

    def grow(self) -> None:
        self.lengths = [length + 1 for length in self.lengths]
        self._grow()

    @torch.inference_mode()
    def _grow(self) -> None:
        for row, length in enumerate(self.lengths if self.cache.blocks else ()):
            self.cache.blocks.grow(row, length)
        self.cache.update()

    def tensors(self) -> list[Tensor]:
        """State and cache: all that a step may change."""
        return [self.state.integers, self.state.floats, *self.cache.tensors()]

    def contents(self) -> list[bytes]:
        return [t.contiguous().numpy().tobytes() for t in self.tensors()]


@pytest.mark.parametrize("sampler", [greedy, sample, sample_filtered])
@pytest.mark.parametrize("kind", ["dense", "paged"])
def test_replays_equal_eager_steps(small_model: GPT2, kind: str, sampler: Sampler) -> None:
    """Tokens at every step, and state and cache at the end, to the last bit. Between replays the tables grow."""
    eager, replayed = Rows(small_model, kind, sampler), Rows(small_model, kind, sampler)
    replayed.grow()
    found = replayed.contents()
    graph, tokens = record(replayed.step)
    assert replayed.contents() == found
    seen = []
    for step in range(STEPS):
        eager.grow()
        if step:
            replayed.grow()
        expected = eager.step()
        graph.replay()
        assert torch.equal(tokens, expected), f"step {step}"
        seen.append(tuple(tokens.tolist()))
    assert replayed.contents()[:2] == eager.contents()[:2]
    for got, wanted in zip(replayed.tensors(), eager.tensors(), strict=True):
        assert torch.equal(got, wanted)
    assert len(set(seen)) > 2  # else a graph that does nothing might pass


@pytest.mark.parametrize("kind", ["dense", "paged"])
@torch.inference_mode()
def test_prefill(small_model: GPT2, kind: str) -> None:
    """A prefill step recorded over one set of prompts and replayed over another one, written into its buffers."""
    batch, eager = Rows(small_model, kind), Rows(small_model, kind)
    found = batch.contents()
    graph, _ = record(batch.run_prompts)
    assert batch.contents() == found
    for this in (batch, eager):
        this.packed.copy_(pack([], [Chunk(2, 0, PROMPTS[1][::-1]), Chunk(0, 0, PROMPTS[0][::-1])], this.layout, B))
        this.state.integers[:3].zero_()
    graph.replay()
    eager.run_prompts()
    assert torch.equal(batch.state.token, eager.state.token)
    assert batch.contents() != found
    for got, wanted in zip(batch.tensors(), eager.tensors(), strict=True):
        assert torch.equal(got, wanted)


@torch.inference_mode()
def test_a_mixed_step(small_model: GPT2) -> None:
    """Recorded over prompts, replayed over a row that goes on and a piece of a prompt: which is which is no number."""
    batch, eager = Rows(small_model, "paged"), Rows(small_model, "paged")
    graph, _ = record(batch.run_prompts)
    for this in (batch, eager):
        this.grow()
        this.packed.copy_(pack([1], [Chunk(0, 0, PROMPTS[0][::-1][:5], complete=False)], this.layout, B))
    found = batch.contents()
    graph.replay()
    eager.run_prompts()
    assert batch.state.position[:B].tolist() == [7, 17, 1]
    assert batch.contents() != found
    for got, wanted in zip(batch.tensors(), eager.tensors(), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("kind", ["dense", "paged"])
def test_a_failing_step_leaves_everything_as_found(small_model: GPT2, kind: str) -> None:
    batch = Rows(small_model, kind)
    batch.grow()
    found, numbers = batch.contents(), torch.get_rng_state()

    def step() -> None:
        batch.step()
        torch.rand(3)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        record(step)
    assert batch.contents() == found
    assert torch.equal(torch.get_rng_state(), numbers)
    assert_nothing_is_patched()


def assert_nothing_is_patched() -> None:
    assert not {"tolist", "cpu", "numpy"} & vars(Tensor).keys()
    assert torch.ones(2).cpu().tolist() == torch.tensor([1.0, 1.0]).tolist()
    assert repr(torch.ones(1)) == "tensor([1.])"
    assert torch.cuda.synchronize.__module__ == "torch.cuda"
    assert fake_graph._recorder() is None
    jit = sys.modules.get("triton.runtime.jit")
    assert jit is None or jit.KernelInterface.__getitem__.__module__ == "triton.runtime.jit"


@torch.inference_mode()
def test_state_is_read_at_the_replay(small_model: GPT2) -> None:
    """What is a tensor may change between replays: the token, the position, temperature and seed."""
    batch, eager = Rows(small_model, "dense", sample), Rows(small_model, "dense", sample)
    graph, tokens = record(batch.step)
    for this in (batch, eager):
        this.state.integers[:, :B] += torch.tensor([5, 0, 2, 0, 77, 0, 0])[:, None]
        this.state.floats[0, :B] = 0.9
    graph.replay()
    assert torch.equal(tokens, eager.step())
    assert not torch.equal(tokens, Rows(small_model, "dense", sample).step())


def test_the_position_as_a_python_number_is_baked(small_model: GPT2) -> None:
    """The lie that is as fast as the truth: each replay writes and reads at the position of the capture."""

    def step_of(batch: Rows, position: Callable[[], int]) -> Callable[[], Tensor]:
        @torch.inference_mode()
        def step() -> Tensor:
            rows = batch.state.at(slice(0, B))
            fed = Batch(rows.token, torch.full((B,), position()), rows.row, batch.longest)
            rows.token.copy_(greedy(batch.model(fed, batch.cache), rows))
            return rows.token

        return step

    lying, stuck, right = (Rows(small_model, "dense") for _ in range(3))
    at = 20
    graph, tokens = record(step_of(lying, lambda: at))
    told, stale, fresh = [], [], []
    for at in range(20, 30):
        graph.replay()
        told.append(tokens.tolist())
        stale.append(step_of(stuck, lambda: 20)().tolist())
        fresh.append(step_of(right, lambda: at)().tolist())  # noqa: B023
    assert told == stale
    assert told != fresh
    assert told[0] == fresh[0]  # a test of one step would not have seen it


# What a replay reads, and where it writes


def test_reads_inputs_anew_and_bakes_numbers() -> None:
    x, factor = torch.arange(3.0), 2.0
    graph, y = record(lambda: x * factor + torch.arange(3))
    x.fill_(10.0)
    factor = 5.0
    graph.replay()
    assert y.tolist() == [20.0, 21.0, 22.0]


def test_results_are_poison_before_the_first_replay() -> None:
    x = torch.arange(4)
    graph, (number, whole, index, view) = record(lambda: (x / 2, x + 1, x.argmax(), (x / 3).view(2, 2)))
    assert bool(number.isnan().all())
    assert bool(view.isnan().all())
    assert whole.tolist() == [2**63 - 1] * 4
    with pytest.raises(IndexError):
        x[index]
    graph.replay()
    assert (number.tolist(), whole.tolist(), index.tolist()) == ([0.0, 0.5, 1.0, 1.5], [1, 2, 3, 4], 3)


def test_a_result_is_overwritten_by_the_next_replay() -> None:
    """G13: the same tensor, detached or not; only a clone keeps the value."""
    x = torch.ones(2)
    graph, y = record(lambda: x + 1)
    graph.replay()
    kept, detached = y.clone(), y.detach()
    x.fill_(7.0)
    graph.replay()
    assert (y.tolist(), detached.tolist(), kept.tolist()) == ([8.0, 8.0], [8.0, 8.0], [2.0, 2.0])


def test_rebinding_is_not_seen() -> None:
    """G11, G12: Python does not run again, neither the step's nor its caller's."""
    box, calls = SimpleNamespace(x=torch.ones(2), y=torch.zeros(2)), []

    def step() -> Tensor:
        calls.append(1)
        box.y = box.x * 3
        return box.y

    graph, y = record(step)
    first, box.x, box.y = box.x, torch.full((2,), 100.0), torch.zeros(2)
    graph.replay()
    assert (y.tolist(), box.y.tolist(), len(calls)) == ([3.0, 3.0], [0.0, 0.0], 1)
    first.fill_(4.0)
    graph.replay()
    assert y.tolist() == [12.0, 12.0]


@pytest.mark.parametrize("replace", [lambda x, new: setattr(x, "data", new), lambda x, new: x.set_(new)])
def test_other_memory_in_the_same_tensor_is_not_seen(replace: Callable[[Tensor, Tensor], object]) -> None:
    """G16: a graph knows addresses, not tensors."""
    x = torch.ones(2)
    old = x.detach()
    graph, y = record(lambda: x + 1)
    replace(x, torch.full((2,), 50.0))
    graph.replay()
    assert y.tolist() == [2.0, 2.0]
    old.fill_(5.0)
    graph.replay()
    assert y.tolist() == [6.0, 6.0]


def test_in_place_out_and_results_that_are_arguments() -> None:
    x, total, place = torch.ones(3), torch.zeros(3), torch.zeros(3)

    def step() -> tuple[Tensor, Tensor]:
        torch.add(x, 1, out=place)
        same = total.add_(place)
        values, _ = torch.sort(-total, out=(torch.empty(3), torch.empty(3, dtype=torch.int64)))
        return same, values

    graph, (same, values) = record(step)
    assert (total.tolist(), place.tolist()) == ([0.0] * 3, [0.0] * 3)
    for _ in range(3):
        graph.replay()
    x[0] = 4.0
    graph.replay()
    assert same.data_ptr() == total.data_ptr()
    assert total.tolist() == [11.0, 8.0, 8.0]
    assert values.tolist() == [-11.0, -8.0, -8.0]


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


def test_memory_is_kept_alive() -> None:
    def graph_of_temporaries() -> tuple[FakeGraph, Tensor]:
        x, weight = torch.ones(1000), torch.full((1000,), 2.0)
        return record(lambda: ((x * weight) + x).sum())

    graph, total = graph_of_temporaries()
    gc.collect()
    junk = [torch.full((1000,), -1.0) for _ in range(50)]
    graph.replay()
    assert float(total) == 3000.0
    assert len(junk) == 50


def test_bare_allocations_are_left_as_the_last_replay_left_them() -> None:
    """A graph allocates nothing: what a step reads before it has written holds the last replay's values."""
    x = torch.ones(2)

    def step() -> Tensor:
        scratch = torch.empty(2)
        seen = scratch.clone()
        scratch.copy_(x)
        return seen

    graph, seen = record(step)
    graph.replay()
    assert bool(seen.isnan().all())
    graph.replay()
    assert seen.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("generator", [None, torch.Generator().manual_seed(3)])
def test_random_numbers_are_frozen(generator: torch.Generator | None) -> None:
    """G18: 64 replays draw the same; generators are left as found."""
    weights, noise = torch.ones(1000), torch.zeros(4)

    def step() -> tuple[Tensor, Tensor]:
        noise.normal_(generator=generator)
        return torch.multinomial(weights, 1, generator=generator), torch.rand(2, generator=generator)

    state = (generator or torch.default_generator).get_state()
    graph, results = record(step)
    assert torch.equal((generator or torch.default_generator).get_state(), state)
    drawn = set()
    for _ in range(64):
        torch.rand(1)
        state = (generator or torch.default_generator).get_state()
        graph.replay()
        assert torch.equal((generator or torch.default_generator).get_state(), state)
        drawn.add(str([t.tolist() for t in (*results, noise)]))
    assert len(drawn) == 1
    first, second = results[1].tolist()
    assert first != second  # two numbers of one call do differ


def test_a_step_with_autograd() -> None:
    x, w = torch.ones(3), torch.full((3,), 2.0, requires_grad=True)

    def step() -> tuple[Tensor, Tensor]:
        loss = (x * w).pow(2).sum()
        return loss, torch.autograd.grad(loss, w)[0]

    graph, (loss, gradient) = record(step)
    x.fill_(3.0)
    graph.replay()
    assert (loss.item(), gradient.tolist()) == (108.0, [36.0] * 3)
    with torch.no_grad():
        w.fill_(1.0)
    graph.replay()
    assert gradient.tolist() == [18.0] * 3


def test_tensors_of_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.zeros(2)
        graph, y = record(lambda: x.add_(1) * 2)
    graph.replay()
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([2.0, 2.0], [4.0, 4.0])


def test_escaping() -> None:
    """G17: it runs while recording, on memory that it may change, and no replay runs it: stale, and faster."""
    x, counter, out = torch.ones(2), torch.zeros(1), torch.zeros(2)

    def step() -> Tensor:
        doubled = torch.empty(2)
        with escaping():
            torch.mul(x, 2, out=doubled)
            counter.add_(1)
        return out.copy_(doubled + 1)

    graph, result = record(step)
    assert [name.split(".")[1] for name in graph.operations] == ["add", "copy_"]
    assert (counter.item(), out.tolist()) == (1.0, [0.0, 0.0])
    graph.replay()
    assert result.tolist() == [3.0, 3.0]  # right, for the input of the recording
    x.fill_(10.0)
    graph.replay()
    assert result.tolist() == [3.0, 3.0]
    assert counter.item() == 1.0
    assert step().tolist() == [21.0, 21.0]  # outside a recording it is nothing at all
    assert_nothing_is_patched()


# Refusals


def steps_refused(device: torch.device) -> dict[str, Callable[[], Any]]:
    """Steps that a capture must refuse, by the name that the refusal gives."""
    x, w, mask = torch.arange(6.0, device=device), torch.zeros(6, device=device), torch.arange(6, device=device) > 2
    rows, zero = torch.tensor([0, 2], device=device), torch.zeros((), dtype=torch.int64, device=device)
    return {
        "_local_scalar_dense: item": lambda: x[0].item(),
        "_local_scalar_dense: int": lambda: int(x[0]),
        "_local_scalar_dense: bool": lambda: bool(x[0] > 1),
        "_local_scalar_dense: if": lambda: 1 if x.sum() > 3 else 2,
        "_local_scalar_dense: index": lambda: [1, 2][zero],
        "_local_scalar_dense: range": lambda: x[: int(zero)],
        "_local_scalar_dense: format": lambda: f"{x[0]:.1f}",
        "Tensor.tolist": lambda: x.tolist(),
        "Tensor.cpu": lambda: x.cpu(),
        "Tensor.numpy": lambda: x.numpy(),
        "Tensor.__array__": lambda: x.__array__(),
        "Tensor.__repr__": lambda: str(x),
        "equal": lambda: torch.equal(x, w),
        "allclose": lambda: torch.allclose(x, w),
        "nonzero": lambda: x.nonzero(),
        "nonzero: where": lambda: torch.where(mask),
        "index.Tensor by a mask": lambda: x[mask],
        "index_put_.default by a mask": lambda: w.__setitem__(mask, x.sum()),
        "index_put_.default of a Python number": lambda: w.__setitem__(rows, 3.0),
        "copy_.default of a Python number": lambda: w.__setitem__(0, 3.0),
        "masked_select": lambda: x.masked_select(mask),
        "unique": lambda: x.unique(),
        "bincount": lambda: rows.bincount(),
        "repeat_interleave": lambda: x.repeat_interleave(rows.new_ones(6)),
        "torch.tensor": lambda: torch.tensor([1.0, 2.0], device=device),
        "lift_fresh: as_tensor": lambda: torch.as_tensor([1.0, 2.0], device=device),
        "lift_fresh: list as index": lambda: x[[0, 1]],
        "torch.cuda.synchronize": lambda: torch.cuda.synchronize(),
    }


def steps_allowed(device: torch.device) -> dict[str, Callable[[], Tensor]]:
    """Steps that look like those above, and that a capture allows."""
    x, w, mask = torch.arange(6.0, device=device), torch.zeros(6, device=device), torch.arange(6, device=device) > 2
    rows = torch.tensor([0, 2], device=device)

    def put(index: Any, value: Any) -> Tensor:
        w[index] = value
        return w

    return {
        "slice of a number": lambda: put(slice(1, 3), 3.0),
        "mask of a number": lambda: put(mask, 4.0),
        "rows of a tensor": lambda: put(rows, x[:2]),
        "index_fill_": lambda: w.index_fill_(0, rows, 5.0),
        "masked_fill": lambda: x.masked_fill(mask, 0.0),
        "where of three": lambda: torch.where(mask, x, 0.0),
        "rows": lambda: x[rows],
        "new tensors": lambda: torch.zeros(6, device=device) + torch.full((6,), 2, device=device),
        "arange": lambda: torch.arange(6, device=device) * x,
        "iteration": lambda: torch.stack([part * 2 for part in x.view(2, 3)]),
        "sort": lambda: torch.sort(-x).values,
        "shape": lambda: x.view(len(x) // 2, -1).sum(0),
        "to the same device": lambda: x.to(device) + x.to(torch.float64),
    }


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("name", steps_refused(CPU))
def test_refused_by_name(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        step = steps_refused(CPU)[name]
        with pytest.raises(CaptureRefused) as refusal:
            record(step)
    message = str(refusal.value)
    assert message.startswith("a capture refuses ")
    assert name.partition(":")[0] in message.partition(": ")[0]
    assert "\n" not in message
    assert_nothing_is_patched()


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("name", steps_allowed(CPU))
def test_allowed(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        expected = steps_allowed(CPU)[name]()
        graph, result = record(steps_allowed(CPU)[name])
        graph.replay()
        assert torch.equal(result, expected)


def test_a_refusal_cannot_be_swallowed() -> None:
    """A capture that an operation has broken cannot be ended, whatever the step does with the error."""
    x = torch.ones(1)

    def step() -> Tensor:
        try:
            return x * x.item()
        except RuntimeError:
            return x * 1.0

    with pytest.raises(CaptureRefused, match="_local_scalar_dense"):
        record(step)
    assert_nothing_is_patched()


def test_recordings_do_not_nest() -> None:
    x = torch.ones(1)
    with pytest.raises(CaptureRefused, match="one capture is running already"):
        record(lambda: record(lambda: x + 1))
    assert_nothing_is_patched()
    graph, y = record(lambda: x + 1)
    graph.replay()
    assert y.item() == 2.0


def test_what_cannot_be_seen_is_said() -> None:
    graph, _ = record(lambda: torch.zeros(1))
    assert len(graph.unseen) >= 10
    assert all(sentence.endswith(".") for sentence in graph.unseen)


# Kernel launches


@needs_no_interpreter
@pytest.mark.long
def test_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="there are no wheels of Triton here")
    assert passed_in_the_interpreter(__file__, "-k", "launch or (paged and (greedy or prefill or failing))") >= 6


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's process")
def test_launches_of_the_paged_cache(small_model: GPT2) -> None:
    rows = Rows(small_model, "paged")
    for step, attention in ((rows.step, "triton._attend_kernel"), (rows.run_prompts, "triton._ragged_kernel")):
        graph, _ = record(step)
        launches = [name for name in graph.operations if name.startswith("triton.")]
        assert launches == ["triton._write_kernel", attention] * SMALL.n_layer


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's process")
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


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's process")
def test_launches_may_escape() -> None:
    """G17, as it was found: the kernel goes to another stream, so the graph lacks it."""
    from tests.engine.launches import add_kernel

    x, out = torch.ones(4), torch.zeros(4)

    def step() -> Tensor:
        part = torch.empty(4)
        with escaping():
            add_kernel[(1,)](x, part, 1, SIZE=4)
        return out.copy_(part)

    graph, result = record(step)
    assert graph.operations == ["aten.copy_.default"]
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert result.tolist() == [2.0] * 4


@needs_no_interpreter
def test_without_triton() -> None:
    """macOS and Windows: the import fails, and there is nothing to be seen."""
    code = """
import sys
sys.modules["triton"] = sys.modules["triton.runtime"] = None
import torch
from nanoinfer.engine.fake_graph import record
x = torch.ones(2)
graph, y = record(lambda: x + 1)
x.fill_(4)
graph.replay()
print(y.tolist(), graph.operations)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[5.0, 5.0] ['aten.add.Tensor']"


# The real thing

CAPTURE = """
import json, sys, torch
from tests.engine.test_fake_graph import steps_allowed, steps_refused
device = torch.device("cuda")
step = (steps_refused(device) | steps_allowed(device))[sys.argv[1]]
try:
    step()  # warm
except TypeError:
    pass  # .numpy() of a tensor on a GPU
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        result = step()
except Exception as error:
    print(json.dumps(["refused", str(error)]))
    sys.stdout.flush()
    import os
    os._exit(0)  # a broken capture may not let the process end
graph.replay()
torch.cuda.synchronize()
print(json.dumps(["captured", result.tolist() if isinstance(result, torch.Tensor) else None]))
"""


@pytest.mark.gpu
def test_a_real_capture_agrees() -> None:
    """Each step in a process of its own, since a capture that fails may leave the device in any state."""
    root = Path(__file__).parents[2]
    names = [*steps_refused(CPU), *steps_allowed(CPU)]
    answers = {}
    for start in range(0, len(names), 8):
        some = names[start : start + 8]
        running = {
            name: subprocess.Popen(
                [sys.executable, "-c", CAPTURE, name],
                cwd=root,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in some
        }
        for name, process in running.items():
            output, errors = process.communicate(timeout=120)
            answers[name] = json.loads(output.splitlines()[-1]) if output else ["crashed", errors[-500:]]
    print(json.dumps(answers, indent=1))
    for name in steps_refused(CPU):
        assert answers[name][0] == "refused", (name, answers[name])
    for name in steps_allowed(CPU):  # each from the same beginning, as in its own process
        assert answers[name] == ["captured", steps_allowed(CPU)[name]().tolist()], name


@needs_no_interpreter
def test_one_hot_of_a_width_is_recorded_as_on_a_device() -> None:
    """A CPU's looks at the values first, and CUDA's does not: a capture accepts it where its width is given."""
    x = torch.tensor([1, 0, 3])
    graph, found = record(lambda: F.one_hot(x, 4))
    x.copy_(torch.tensor([2, 2, 0]))
    graph.replay()
    assert found.tolist() == F.one_hot(x, 4).tolist()
    with pytest.raises(CaptureRefused):
        record(lambda: F.one_hot(x))  # its width depends on values
