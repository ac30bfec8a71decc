"""A direct launch of a compiled kernel is the call that Triton makes, or Triton makes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.kernel_cases import RUNS_HERE

pytest.importorskip("triton", reason="there are no wheels of Triton here")

from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import driver

from nanoinfer.kernels import paged_attention as kernels

compiles_here = pytest.mark.skipif(RUNS_HERE, reason="needs a Triton that compiles, and no driver of its own")
Launched = tuple[Any, list[tuple[Any, ...]]]
FAKE_DRIVER = SimpleNamespace(
    get_current_device=lambda: -1,  # where tensors of a CPU are
    get_current_stream=lambda device: 1000 + device,
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """A form as if compiled; and what Triton's own way to a launch gives it in the last call."""
    calls: list[tuple[Any, ...]] = []
    form = CompiledKernel.__new__(CompiledKernel)
    form.__dict__ |= {"module": "loaded", "function": 77, "packed_metadata": (4, 1, 0), "name": "fake", "src": None}
    form._module_pid = None  # of a newer Triton: the process that is to unload it
    form._run = lambda *call: calls.append(call)
    monkeypatch.setattr(kernels._write_kernel, "_do_compile", lambda *args: form)
    monkeypatch.setattr(kernels._write_kernel, "device_caches", kernels._write_kernel.device_caches.copy())
    kernels._write_kernel.device_caches.clear()
    monkeypatch.setattr(kernels.Launcher, "trusted", True)
    monkeypatch.setattr(driver, "_active", FAKE_DRIVER)
    return form, calls


def write_often(launcher: Any, times: int, device: str = "cpu") -> None:
    pools, slots = torch.zeros(4, 2, 2, 16, 16, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    for _ in range(times):
        launcher((2, 1, 1), (*pools, slots), (32, 32), H=2, D=16, PAGE=16, HD_POWER=32)


@compiles_here
@pytest.mark.filterwarnings("error")
def test_a_direct_launch_is_the_call_that_triton_makes(launched: Launched) -> None:
    _, calls = launched
    launcher = kernels.Launcher(kernels._write_kernel, num_warps=4)
    write_often(launcher, 4)
    assert len(launcher._compiled) == 1
    assert len(calls) == 4
    first, *others = ([type(each) if isinstance(each, Tensor) else each for each in (*c[:6], *c[9:])] for c in calls)
    assert all(other == first for other in others)
    assert first[:5] == [2, 1, 1, 999, 77]
    assert calls[3][6:9] == (None, None, None)


@compiles_here
def test_another_way_to_launch_is_noticed(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    """All launches are then Triton's own, with one warning, whatever the number of kernels."""
    form, calls = launched
    one_more = property(lambda self: lambda *call: self._run(*call[:3], 1, *call[3:]))
    monkeypatch.setattr(type(form), "run", one_more)
    first, second = (kernels.Launcher(kernels._write_kernel, num_warps=4) for _ in range(2))
    with pytest.warns(RuntimeWarning, match="in a way that is not known here") as caught:
        write_often(first, 4)
    write_often(second, 4)
    assert len(caught) == 1
    assert len(calls) == 8
    assert not first._compiled
    assert not second._compiled


@pytest.mark.gpu
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_this_triton_launches_in_the_known_way() -> None:
    """No warning, and from the third time on by the compiled form."""
    launcher = kernels.Launcher(kernels._write_kernel, num_warps=4)
    write_often(launcher, 3, "cuda")
    torch.cuda.synchronize()
    assert kernels.Launcher.trusted
    assert len(launcher._compiled) == 1
