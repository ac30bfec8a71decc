"""What the stand-in for a CUDA graph refuses; on a GPU the same steps are captured for real."""

# ruff: noqa: PLW0108 (a method that is looked up before the recording is another one)

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.engine.fake_graph import CaptureRefused, record
from tests.engine.test_fake_graph import assert_nothing_is_patched

CPU = torch.device("cpu")


def steps_refused(device: torch.device) -> dict[str, Callable[[], Any]]:
    """Steps that a capture must refuse, by the name that the refusal gives."""
    x, w, mask = torch.arange(6.0, device=device), torch.zeros(6, device=device), torch.arange(6, device=device) > 2
    rows, zero = torch.tensor([0, 2], device=device), torch.zeros((), dtype=torch.int64, device=device)
    return {
        "_local_scalar_dense: item": lambda: x[0].item(),
        "_local_scalar_dense: if": lambda: 1 if x.sum() > 3 else 2,
        "_local_scalar_dense: index": lambda: [1, 2][zero],
        "_local_scalar_dense: format": lambda: f"{x[0]:.1f}",
        "Tensor.tolist": lambda: x.tolist(),
        "Tensor.cpu": lambda: x.cpu(),
        "Tensor.numpy": lambda: x.numpy(),
        "Tensor.__repr__": lambda: str(x),
        "equal": lambda: torch.equal(x, w),
        "nonzero": lambda: x.nonzero(),
        "index.Tensor by a mask": lambda: x[mask],
        "index_put_.default by a mask": lambda: w.__setitem__(mask, x.sum()),
        "index_put_.default of a Python number": lambda: w.__setitem__(rows, 3.0),
        "copy_.default of a Python number": lambda: w.__setitem__(0, 3.0),
        "masked_select": lambda: x.masked_select(mask),
        "unique": lambda: x.unique(),
        "bincount": lambda: rows.bincount(),
        "repeat_interleave": lambda: x.repeat_interleave(rows.new_ones(6)),
        "torch.tensor": lambda: torch.tensor([1.0, 2.0], device=device),
        "lift_fresh": lambda: x[[0, 1]],
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
        "where of three": lambda: torch.where(mask, x, 0.0),
        "iteration": lambda: torch.stack([part * 2 for part in x.view(2, 3)]),
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


def test_a_refusal_cannot_be_swallowed_and_recordings_do_not_nest() -> None:
    """A capture that an operation has broken cannot be ended, whatever the step does with the error."""
    x = torch.ones(1)

    def swallowing() -> Tensor:
        try:
            return x * x.item()
        except RuntimeError:
            return x * 1.0

    for step, words in ((swallowing, "_local_scalar_dense"), (lambda: record(lambda: x + 1), "one capture is running")):
        with pytest.raises(CaptureRefused, match=words):
            record(step)
        assert_nothing_is_patched()
    graph, y = record(lambda: x + 1)
    graph.replay()
    assert y.item() == 2.0


def test_one_hot_of_a_width_is_recorded_as_on_a_device() -> None:
    """A CPU's looks at the values first, and CUDA's does not: a capture accepts it where its width is given."""
    x = torch.tensor([1, 0, 3])
    graph, found = record(lambda: F.one_hot(x, 4))
    x.copy_(torch.tensor([2, 2, 0]))
    graph.replay()
    assert found.tolist() == F.one_hot(x, 4).tolist()
    with pytest.raises(CaptureRefused):
        record(lambda: F.one_hot(x))  # its width depends on values


# The real thing

CAPTURE = """
import json, sys, torch
from tests.engine.test_fake_refusals import steps_allowed, steps_refused
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
    root, names, answers = Path(__file__).parents[2], [*steps_refused(CPU), *steps_allowed(CPU)], {}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for start in range(0, len(names), 8):
        some = names[start : start + 8]
        running = [subprocess.Popen([sys.executable, "-c", CAPTURE, name], cwd=root, **pipes) for name in some]
        for name, process in zip(some, running, strict=True):
            output, errors = process.communicate(timeout=120)
            answers[name] = json.loads(output.splitlines()[-1]) if output else ["crashed", errors[-500:]]
    print(json.dumps(answers, indent=1))
    for name in steps_refused(CPU):
        assert answers[name][0] == "refused", (name, answers[name])
    for name in steps_allowed(CPU):  # each from the same beginning, as in its own process
        assert answers[name] == ["captured", steps_allowed(CPU)[name]().tolist()], name
