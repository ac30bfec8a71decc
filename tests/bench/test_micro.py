"""The kernel benchmark's variants, run on a CPU by the reference; its figures."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nanobench.core.records import RESULTS, Spread
from nanobench.micro import attention, graph_timing
from nanobench.micro import attention_variants as variants
from nanobench.micro import paged_kernel as kernels
from nanobench.micro.attention import AttentionReport, Backend, ReadLength
from nanobench.micro.paged_kernel import KernelReport, KernelTime
from nanobench.report.plot import drawings, load
from nanoinfer.cache.paged import choose_splits
from nanoinfer.kernels.paged_attention_torch import gather_pages
from tests.bench.samples import STAMP, saved

CPU = torch.device("cpu")


@pytest.fixture
def contents(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    monkeypatch.setattr(variants, "COLD_BYTES", 1e6)
    torch.manual_seed(0)
    return variants.contents(3, 128, CPU)


def test_every_variant_attends_to_the_same(contents: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, dense = contents
    made, absent = variants.attention_variants(q, dense)
    names = [variant.name for variant in made]
    splits = choose_splits(3, variants.HEADS, 128)
    assert [variant.name for variant in made if variant.chosen] == [f"paged, block 16, splits {splits}"]
    assert "paged, block 16, splits 1" in names
    assert {"sdpa", "sdpa, mask", "paged, block 64, splits 1"} <= set(names)
    assert absent.keys() <= {"flashinfer"}
    for i in range(len(dense)):  # each call its own copy, or the L2 would not be cold
        expected = F.scaled_dot_product_attention(q.float(), dense[i, 0].float(), dense[i, 1].float())
        for variant in made:
            got = variant.call(i).view_as(q).float()
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2, msg=variant.name)


def test_pages_lie_in_another_order(contents: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, dense = contents
    pages = variants.Pages.of(dense, 16)
    assert pages.tables.flatten().tolist() != sorted(pages.tables.flatten().tolist())
    assert torch.equal(gather_pages(pages.pools[1, 0], pages.tables), dense[1, 0])


def test_a_wrong_variant_is_not_timed(
    contents: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "_paged", lambda q, pages, splits: lambda i: q + 1)
    with pytest.raises(AssertionError, match="paged, block 16"):
        variants.attention_variants(*contents)


class FakeFlashInfer(ModuleType):
    """`flashinfer` with its wrapper: attention by the indices that it was planned with."""

    def __init__(self) -> None:
        super().__init__("flashinfer")
        self.__spec__ = importlib.machinery.ModuleSpec("flashinfer", None)
        self.layouts: list[Any] = []
        fake = self

        class BatchDecodeWithPagedKVCacheWrapper:
            def __init__(self, workspace: torch.Tensor, layout: str, **buffers: Any) -> None:
                assert workspace.dtype == torch.uint8
                fake.layouts.append((layout, buffers["use_cuda_graph"]))

            def plan(self, indptr: Any, indices: Any, last: Any, heads: int, kv_heads: int, size: int, page: int,
                     **dtypes: Any) -> None:  # fmt: skip
                assert (heads, kv_heads, size) == (variants.HEADS, variants.HEADS, variants.HEAD_SIZE)
                assert dtypes == {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
                widths = (indptr[1:] - indptr[:-1]).tolist()
                assert last.tolist() == [page] * len(widths)  # whole pages
                self.tables = indices.view(len(widths), widths[0])

            def run(self, q: torch.Tensor, pools: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
                k, v = (gather_pages(pool, self.tables) for pool in pools)
                return F.scaled_dot_product_attention(q[:, :, None], k, v)[:, :, 0]

        self.BatchDecodeWithPagedKVCacheWrapper = BatchDecodeWithPagedKVCacheWrapper


def test_flashinfer_where_it_is_installed(
    contents: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeFlashInfer()
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    made, absent = variants.attention_variants(*contents)
    assert not absent
    assert made[-1].name == "flashinfer, block 16"
    assert fake.layouts == [("HND", True)]  # our layout of pages, and fit for a captured graph


def test_flashinfer_where_it_is_not(
    contents: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "find_spec", lambda name: None)
    made, absent = variants.attention_variants(*contents)
    assert absent == {"flashinfer": "flashinfer is not installed: pip install 'nanoinfer[flashinfer]'"}
    assert not any("flashinfer" in variant.name for variant in made)

    class Broken(FakeFlashInfer):
        @property
        def BatchDecodeWithPagedKVCacheWrapper(self) -> Any:
            raise RuntimeError("ninja: build stopped\nand more")

        @BatchDecodeWithPagedKVCacheWrapper.setter
        def BatchDecodeWithPagedKVCacheWrapper(self, value: Any) -> None:
            pass

    monkeypatch.setattr(variants, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "flashinfer", Broken())
    assert variants.attention_variants(*contents)[1] == {"flashinfer": "ninja: build stopped"}


def test_a_cpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a CUDA GPU"):
        kernels.measure("cpu", tmp_path / "k.json")
    assert not (tmp_path / "k.json").exists()


def test_every_case_is_timed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that passes for a GPU: graphs are calls, and the variants take turns."""
    replayed: list[int] = []

    def captured(call: Any, calls: int) -> Any:
        for i in range(calls):
            call(i)
        return SimpleNamespace(replay=lambda: replayed.append(calls))

    gpu = SimpleNamespace(type="cuda")
    monkeypatch.setattr(graph_timing, "captured", captured)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(kernels, "choose_device", lambda name: gpu)
    monkeypatch.setattr(kernels, "copy_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(kernels, "stamp", lambda device: STAMP)
    monkeypatch.setattr(kernels, "contents", lambda batch, context, device: variants.contents(batch, context, CPU))
    monkeypatch.setattr(kernels, "BATCHES", (2,))
    monkeypatch.setattr(kernels, "CONTEXTS", (64, 128))
    monkeypatch.setattr(variants, "COLD_BYTES", 1e6)
    kernels.measure("cuda", tmp_path / "k.json")
    made = KernelReport.load(tmp_path / "k.json")
    names = [t.arm for t in made.times if t.context == 128]
    assert names[:2] == ["sdpa", "sdpa, mask"]
    assert sum(t.chosen for t in made.times) == 2
    assert all(len(t.seconds.samples) == kernels.REPEATS and t.seconds.median > 0 for t in made.times)
    assert len(replayed) == len(made.times) * kernels.REPEATS * graph_timing.REPLAYS


def kernel_report(**changes: Any) -> KernelReport:
    times = []
    for batch in (1, 64):
        for context in (128, 1024):
            size = 2 * batch * context * 768 * 2 / 4e12
            splits = 8 if batch == 1 else 2
            named = (("sdpa", False), ("sdpa, mask", False), ("paged, block 16, splits 1", False),
                     (f"paged, block 16, splits {splits}", True), ("flashinfer, block 16", False))  # fmt: skip
            for i, (name, chosen) in enumerate(named):
                seconds = Spread.of([size + (5 + i) * 1e-6] * 7)
                times.append(KernelTime(batch=batch, context=context, arm=name, chosen=chosen, seconds=seconds,
                                        bytes_share=size / seconds.median))  # fmt: skip
    known: dict[str, Any] = {**STAMP, "copy_bytes_per_s": 4e12, "times": tuple(times), **changes}
    return KernelReport(**known)


def test_the_kernels_figure(tmp_path: Path) -> None:
    path = saved(kernel_report(left_out={"flashinfer": "not installed"}), tmp_path / "h200-kernels.json")
    (drawing,) = drawings(path)
    assert drawing.name == "h200-kernels"
    assert len(drawing.rows) == 20
    assert "At batch 64 and a context of 1024: SDPA, dense " in drawing.alt
    assert "FlashInfer, paged" in drawing.alt
    assert drawing.notes == ("flashinfer: not installed",)
    figure = drawing.draw()
    assert len(figure.axes) == 4
    above = {line.get_label(): line for line in figure.axes[0].lines}
    assert set(above) == {"SDPA, dense", "SDPA, dense, mask", "paged, not split", "paged", "FlashInfer, paged",
                          "at copy speed"}  # fmt: skip
    assert list(above["at copy speed"].get_ydata()) == pytest.approx([2 * c * 1536 / 4e6 for c in (128, 1024)])
    chosen = [1e6 * t.seconds.median for t in kernel_report().times if t.chosen and t.batch == 1]
    assert list(above["paged"].get_ydata()) == pytest.approx(chosen)
    assert not drawings(path, "paged")  # no engine's own


def test_the_files_of_the_repository_are_drawn() -> None:
    path = RESULTS / "h200-kernels.json"
    assert isinstance(load(path), KernelReport)
    (drawing,) = drawings(path)
    assert drawing.draw().axes


def test_the_figures_of_masks(tmp_path: Path) -> None:
    def spread(us: float) -> Spread:
        return Spread.of([us * 1e-6] * 7)

    shapes = (("prefill", 1, 512, 512, ("none", "is_causal", "boolean")), ("decode", 64, 1, 1024, ("none", "additive")))
    backends = [
        Backend(what=what, mask=mask, batch=b, queries=q, keys=k, backend="CUDNN_ATTENTION", seconds=spread(10 + i))
        for what, b, q, k, names in shapes for i, mask in enumerate(names)
    ]  # fmt: skip
    lengths = [
        ReadLength(model="gpt2", batch=b, context=c, read_all_s=spread(3000), read_multiple_s=spread(1500 + c))
        for b in (1, 256) for c in (64, 1000)
    ]  # fmt: skip
    made = AttentionReport(dtype="bfloat16", backends=tuple(backends), read_lengths=tuple(lengths), **STAMP)
    masks, reads = drawings(saved(made, tmp_path / "h200-attention.json"))
    assert (masks.name, reads.name) == ("h200-attention-masks", "h200-attention-reads")
    assert ("decode, B = 64, 1 × 1024", "additive mask", "cuDNN", "11.0 µs") in masks.rows
    assert ("256", "64", "3.00 ms", "1.56 ms", "1.92×") in reads.rows
    assert len(masks.draw().axes) == len(reads.draw().axes) == 2


def test_attention_is_measured_over_live_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A padding row reads one slot: steps over such rows would look fast and show nothing."""
    seen: list[tuple[int, int]] = []
    step = attention.decode_step

    def watched(model: Any, cache: Any, state: Any, batch: int, longest: int, sampler: Any) -> Any:
        seen.append((int(state.live[:batch].sum()), int(state.position[:batch].min())))
        return step(model, cache, state, batch, longest, sampler)

    monkeypatch.setattr(attention, "decode_step", watched)
    monkeypatch.setattr(attention, "REPEATS", 1)
    monkeypatch.setattr(attention, "STEPS", 2)
    monkeypatch.setitem(attention.PRESETS, "gpt2", attention.PRESETS["tiny"].__class__(n_layer=1, n_head=2, n_embd=16))
    with torch.inference_mode():
        found = attention._read_lengths(CPU, torch.float32)
    assert {(r.batch, r.context) for r in found} == {(b, c) for b in (1, 8) for c in (64, 500, 1000)}
    assert {live for live, _ in seen} == {1, 8}
    assert {position for _, position in seen} == {64, 65, 500, 501, 1000, 1001}
