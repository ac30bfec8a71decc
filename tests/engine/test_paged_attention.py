"""The Triton kernels against their twins: compiled on a GPU, elsewhere in Triton's interpreter, in its own process.

Triton decides at decoration whether it interprets, so TRITON_INTERPRET must stand before the import. The interpreter
reads past a buffer without a word; so buffers stand between guard zones of NaN, and what was not written holds NaN.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoinfer.kernels import paged_attention_torch
from tests.conftest import passed_in_the_interpreter

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
RUNS_HERE = INTERPRETED or DEVICE == "cuda"
here = pytest.mark.skipif(not RUNS_HERE, reason="runs in the interpreter's process, or on a GPU")

triton = pytest.importorskip("triton", reason="there are no wheels of Triton here")


@pytest.mark.skipif(RUNS_HERE, reason="this is that process")
@pytest.mark.long
def test_in_the_interpreter() -> None:
    assert passed_in_the_interpreter(__file__) >= 35


def guarded(*shape: int, dtype: torch.dtype = torch.float32, fill: float = float("nan")) -> Tensor:
    """A buffer between two zones of NaN as large as itself."""
    size = int(torch.Size(shape).numel())
    whole = torch.full((3 * size,), float("nan"), dtype=dtype, device=DEVICE)
    whole[size : 2 * size] = fill
    return whole[size : 2 * size].view(shape)


class Case:
    """Rows of the given lengths in pages handed out in a random order; every slot that is not live holds NaN."""

    def __init__(self, lengths: list[int], H: int, D: int, page: int, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(sum(lengths) + D)
        width = max(1, -(-max(lengths) // page)) + 1
        pages = 1 + sum(-(-length // page) for length in lengths) + 2
        order = (torch.randperm(pages - 1, generator=generator) + 1).tolist()  # never the null page
        self.k_pool, self.v_pool = (guarded(pages, H, page, D, dtype=dtype) for _ in range(2))
        self.tables = torch.zeros(len(lengths), width, dtype=torch.int32)
        self.q = torch.randn(len(lengths), H, D, generator=generator).to(DEVICE, dtype)
        self.slots: list[list[int]] = []
        for row, length in enumerate(lengths):
            owned = [order.pop() for _ in range(-(-length // page))]
            self.tables[row, : len(owned)] = torch.tensor(owned, dtype=torch.int32)
            self.slots.append([owned[t // page] * page + t % page for t in range(length)])
            for t in range(length):
                for pool in (self.k_pool, self.v_pool):
                    pool[owned[t // page], :, t % page] = torch.randn(H, D, generator=generator).to(DEVICE, dtype)
        self.tables = self.tables.to(DEVICE)
        self.lengths = torch.tensor(lengths, device=DEVICE)
        self.done = torch.zeros(len(lengths) * H, dtype=torch.int32, device=DEVICE)

    def attend(self, splits: int) -> tuple[Tensor, Tensor]:
        """The kernel's result and the twin's, of the same arguments."""
        from nanoinfer.kernels import paged_attention as paged_kernels

        arguments = (self.q, self.k_pool, self.v_pool, self.tables, self.lengths, self.done, splits)
        got = paged_kernels.attend_pages(*arguments)
        assert not self.done.any()  # ready for the next launch
        return got, paged_attention_torch.attend_pages(*arguments)


TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def check(case: Case, splits: int, dtype: torch.dtype = torch.float32) -> Tensor:
    got, expected = case.attend(splits)
    assert bool(got.isfinite().all())
    torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    return got


@here
@pytest.mark.parametrize("splits", [1, 2, 4])
@pytest.mark.parametrize("page", [16, 32, 64, 128])
def test_lengths_around_pages_and_tiles(page: int, splits: int) -> None:
    """k*page-1, k*page, k*page+1, and the same of a tile of 64; one row with more pages than the others."""
    check(Case([page - 1, page, page + 1, 1, 63, 64, 65, 200], H=2, D=16, page=page), splits)


@here
@pytest.mark.parametrize("D", [16, 32, 64, 80, 96, 128])
def test_head_sizes(D: int) -> None:
    """Powers of two and others: padded lanes neither read nor write (P05)."""
    check(Case([33, 70], H=3, D=D, page=16), 2)


@here
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("splits", [1, 4])
def test_dtypes(dtype: torch.dtype, splits: int) -> None:
    check(Case([100, 5], H=2, D=64, page=16, dtype=dtype), splits, dtype)


@here
@pytest.mark.parametrize("splits", [1, 2, 8, 16])
def test_rows_of_length_0_and_empty_splits(splits: int) -> None:
    """P03: such a row gives zeros; its neighbours are as without it."""
    case = Case([70, 0, 3], H=2, D=32, page=16)
    got = check(case, splits)
    assert not got[1].any()


@here
@pytest.mark.parametrize("splits", [1, 4])
def test_scores_near_the_limits(splits: int) -> None:
    """One huge key in the last slot, and scores in the hundreds: without a running maximum exp overflows."""
    case = Case([130, 64], H=2, D=32, page=16)
    last = case.slots[0][-1]
    case.k_pool[last // 16, :, last % 16] = 60.0 * case.q[0].sign()
    case.q *= 20
    got = check(case, splits)
    torch.testing.assert_close(got[0], case.v_pool[last // 16, :, last % 16], rtol=1e-4, atol=1e-4)


@here
def test_identical_rows_give_identical_results() -> None:
    """P10, to the last bit, whatever pages they lie in."""
    case = Case([90, 90, 90], H=2, D=32, page=16)
    for row in (1, 2):
        case.q[row] = case.q[0]
        for a, b in zip(case.slots[0], case.slots[row], strict=True):
            for pool in (case.k_pool, case.v_pool):
                pool[b // 16, :, b % 16] = pool[a // 16, :, a % 16]
    got = check(case, 2)
    assert torch.equal(got[0], got[1])
    assert torch.equal(got[0], got[2])


@here
@pytest.mark.parametrize("H, D", [(3, 16), (5, 32), (2, 80)])
def test_write(H: int, D: int) -> None:
    """Into permuted slots, from the rows of a wider tensor as qkv is; all else, guard zones too, stays as it was."""
    from nanoinfer.kernels import paged_attention as paged_kernels

    N, page, pages = 9, 16, 4
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(N, 3, H, D, generator=generator).to(DEVICE)
    slots = torch.randperm(pages * page, generator=generator)[:N].to(DEVICE)
    pools = [guarded(pages, H, page, D) for _ in range(4)]
    paged_kernels.write_pages(qkv[:, 1], qkv[:, 2], pools[0], pools[1], slots)
    paged_attention_torch.write_pages(qkv[:, 1], qkv[:, 2], pools[2], pools[3], slots)
    for got, expected in ((pools[0], pools[2]), (pools[1], pools[3])):
        assert torch.equal(got.nan_to_num(99.0), expected.nan_to_num(99.0))
        whole = got.untyped_storage()
        zone = torch.tensor([], dtype=torch.float32, device=DEVICE).set_(whole)  # type: ignore[call-overload]
        size = got.numel()
        assert bool(zone[:size].isnan().all())
        assert bool(zone[2 * size :].isnan().all())


@here
def test_the_comparison_can_fail() -> None:
    """One key hidden, and a table of another row: both are far outside the tolerance."""
    from nanoinfer.kernels import paged_attention as paged_kernels

    case = Case([70, 70], H=2, D=32, page=16)
    _, expected = case.attend(2)
    arguments = (case.q, case.k_pool, case.v_pool)
    hidden = paged_kernels.attend_pages(*arguments, case.tables, case.lengths - 1, case.done, 2)
    swapped = paged_kernels.attend_pages(*arguments, case.tables.flip(0), case.lengths, case.done, 2)
    assert float((hidden - expected).abs().max()) > 1e-3
    assert float((swapped - expected).abs().max()) > 1e-2


SIGNATURES = {
    "_write_kernel": (
        {"k": "*fp16", "v": "*fp16", "k_pool": "*fp16", "v_pool": "*fp16", "slots": "*i64", "k_stride": "i32",
         "v_stride": "i32"},
        {"H": 12, "D": 64, "PAGE": 16, "HD_POWER": 1024},
    ),
    "_attend_kernel": (
        {"q": "*fp16", "k_pool": "*fp16", "v_pool": "*fp16", "tables": "*i32", "lengths": "*i64", "out": "*fp16",
         "parts": "*fp32", "done": "*i32", "q_stride": "i32", "table_stride": "i32", "scale": "fp32"},
        {"H": 12, "D": 80, "D_POWER": 128, "PAGE": 16, "TILE": 64, "SPLITS": 4, "STAGES": 1},
    ),
    "_attend_kernel whole": (
        {"q": "*fp16", "k_pool": "*fp16", "v_pool": "*fp16", "tables": "*i32", "lengths": "*i64", "out": "*fp16",
         "parts": "*fp32", "done": "*i32", "q_stride": "i32", "table_stride": "i32", "scale": "fp32"},
        {"H": 12, "D": 64, "D_POWER": 64, "PAGE": 16, "TILE": 32, "SPLITS": 1, "STAGES": 3},
    ),
}  # fmt: skip


@pytest.mark.skipif(INTERPRETED, reason="interpreted kernels cannot be compiled")
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize("name", SIGNATURES)
def test_compiles_without_a_gpu(name: str, capability: int) -> None:
    """What the interpreter accepts the compiler may refuse: every kernel is compiled down to machine code."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from nanoinfer.kernels import paged_attention as paged_kernels

    pointers, constants = SIGNATURES[name]
    signature = pointers | dict.fromkeys(constants, "constexpr")
    source = ASTSource(getattr(paged_kernels, name.split(maxsplit=1)[0]), signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert len(compiled.asm["cubin"]) > 1000


class FakeDriver:
    """A GPU's driver, as far as a launch asks it."""

    def get_current_device(self) -> int:
        return -1  # where tensors of a CPU are

    def get_current_stream(self, device: int) -> int:
        return 1000 + device

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[tuple[Any, ...]]]]:
    """Triton's own way to a launch, up to the last call, which notes what it is given; and a form, as if compiled."""
    from triton.compiler import CompiledKernel
    from triton.runtime import driver

    from nanoinfer.kernels import paged_attention as kernels

    calls: list[tuple[Any, ...]] = []
    form = CompiledKernel.__new__(CompiledKernel)
    form.__dict__ |= {"module": "loaded", "function": 77, "packed_metadata": (4, 1, 0), "name": "fake", "src": None}
    form._run = lambda *call: calls.append(call)
    monkeypatch.setattr(kernels._write_kernel, "_do_compile", lambda *args: form)
    monkeypatch.setattr(kernels.Launcher, "trusted", True)
    kernels._write_kernel.device_caches.clear()
    monkeypatch.setattr(driver, "_active", FakeDriver())
    yield form, calls
    kernels._write_kernel.device_caches.clear()


def write_often(launcher: Any, times: int, device: str = "cpu") -> None:
    pools, slots = torch.zeros(4, 2, 2, 16, 16, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    for _ in range(times):
        launcher((2, 1, 1), (*pools, slots), (32, 32), H=2, D=16, PAGE=16, HD_POWER=32)


@pytest.mark.skipif(RUNS_HERE, reason="needs a Triton that compiles, and no driver of its own")
def test_a_direct_launch_is_the_call_that_triton_makes(launched: tuple[Any, list[tuple[Any, ...]]]) -> None:
    from nanoinfer.kernels import paged_attention as kernels

    _, calls = launched
    launcher = kernels.Launcher(kernels._write_kernel, num_warps=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_often(launcher, 4)
    assert len(launcher._compiled) == 1
    assert len(calls) == 4
    first, *others = ([type(each) if isinstance(each, Tensor) else each for each in (*c[:6], *c[9:])] for c in calls)
    assert all(other == first for other in others)
    assert first[:5] == [2, 1, 1, 999, 77]
    assert calls[3][6:9] == (None, None, None)


@pytest.mark.skipif(RUNS_HERE, reason="needs a Triton that compiles, and no driver of its own")
@pytest.mark.parametrize("change", ["order", "one more", "no _run", "no driver"])
def test_another_way_to_launch_is_noticed(
    launched: tuple[Any, list[tuple[Any, ...]]], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All launches are then Triton's own, with one warning, whatever the number of kernels."""
    from nanoinfer.kernels import paged_attention as kernels

    form, calls = launched
    if change == "no driver":
        monkeypatch.setattr("nanoinfer.kernels.launcher.driver", None)
    elif change == "no _run":
        monkeypatch.setattr(type(form), "run", lambda self, *call: calls.append(call))
        del form._run
    else:
        at = slice(3, 5) if change == "order" else slice(3, 3)
        put = [77, 999] if change == "order" else [1]
        runs = property(lambda self: lambda *call: self._run(*call[: at.start], *put, *call[at.stop :]))
        monkeypatch.setattr(type(form), "run", runs)
    first, second = (kernels.Launcher(kernels._write_kernel, num_warps=4) for _ in range(2))
    with pytest.warns(RuntimeWarning, match="in a way that is not known here") as caught:
        write_often(first, 4)
    write_often(second, 4)
    assert len(caught) == 1
    assert len(calls) == 8
    assert not first._compiled
    assert not second._compiled


@pytest.mark.gpu
def test_this_triton_launches_in_the_known_way() -> None:
    """No warning, and from the third time on by the compiled form."""
    from nanoinfer.kernels import paged_attention as kernels

    launcher = kernels.Launcher(kernels._write_kernel, num_warps=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        write_often(launcher, 3, "cuda")
    torch.cuda.synchronize()
    assert kernels.Launcher.trusted
    assert len(launcher._compiled) == 1
