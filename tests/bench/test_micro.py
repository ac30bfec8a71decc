"""The kernel benchmarks' variants, run on a CPU by the reference; their files and figures; who needs a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from nanobench.cli import app
from nanobench.core import timing
from nanobench.measures import NAMES, Measure
from nanobench.micro import paged_kernel as kernels
from nanobench.micro.paged_kernel import KernelReport
from nanobench.report.plot import drawings
from nanoinfer.cache.paged import choose_splits
from tests.bench.samples import STAMP

CPU = torch.device("cpu")


def test_every_measurement_is_a_command_that_says_what_it_is() -> None:
    listed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for name in NAMES:
        own = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
        assert (own.exit_code, "--out" in own.output) == (0, True), name
        assert Measure(name).help.endswith(".")
        assert f"{name} " in listed
        assert Measure(name).help in listed
        assert Measure(name).help in own.output


@pytest.fixture
def contents(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    monkeypatch.setattr(kernels, "COLD_BYTES", 1e6)
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    torch.manual_seed(0)
    return kernels.contents(3, 128, CPU)


def test_every_variant_attends_to_the_same(contents: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, dense = contents
    absent: dict[str, str] = {}
    made, chosen = kernels.attention_variants(q, dense, absent)
    assert chosen == f"paged, block 16, splits {choose_splits(3, kernels.HEADS, 128)}"
    assert {"sdpa", "sdpa, mask", "paged, block 64, splits 1", chosen} <= made.keys()
    assert absent == {"flashinfer": "flashinfer is not installed: pip install 'nanoinfer[flashinfer]'"}
    for i in range(len(dense)):  # each call its own copy, or the L2 would not be cold
        expected = F.scaled_dot_product_attention(q.float(), dense[i, 0].float(), dense[i, 1].float())
        for name, call in made.items():
            torch.testing.assert_close(call(i).view_as(q).float(), expected, rtol=2e-2, atol=2e-2, msg=name)
    tables = kernels.Pages.of(dense, 16).tables.flatten().tolist()
    assert tables != sorted(tables)  # pages lie in another order


def test_a_wrong_variant_is_not_timed(contents: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_paged", lambda q, pages, splits: lambda i: q + 1)
    with pytest.raises(AssertionError, match="paged, block 16"):
        kernels.attention_variants(*contents, {})


@pytest.mark.usefixtures("contents")
def test_every_case_is_timed_written_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that passes for a GPU: graphs are calls, and the variants take turns."""
    replayed: list[int] = []
    monkeypatch.setattr(timing, "captured", lambda call, calls: SimpleNamespace(replay=lambda: replayed.append(calls)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    made = kernels.contents
    for name, stand_in in {
        "cuda": lambda name, otherwise: SimpleNamespace(type="cuda"), "copy_bandwidth": lambda device: 1e9,
        "stamp": lambda device: STAMP, "BATCHES": (2,), "CONTEXTS": (64, 128),
        "contents": lambda batch, context, device: made(batch, context, CPU),
    }.items():  # fmt: skip
        monkeypatch.setattr(kernels, name, stand_in)
    path = tmp_path / "k.json"
    kernels.measure("cuda", path)
    made = KernelReport.load(path)
    assert [t.arm for t in made.times if t.context == 128][:2] == ["sdpa", "sdpa, mask"]
    assert sum(t.chosen for t in made.times) == 2
    assert all(len(t.seconds.samples) == kernels.REPEATS and t.seconds.median > 0 for t in made.times)
    assert len(replayed) == len(made.times) * kernels.REPEATS * timing.REPLAYS
    (drawing,) = drawings(path)
    lines = {line.get_label(): line.get_ydata() for line in drawing.draw().axes[0].lines}
    assert list(lines["paged"]) == pytest.approx([1e6 * t.seconds.median for t in made.times if t.chosen])
