"""Figures come out of results files, the same each time, and nothing that was measured or refused is left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.autograd import DeviceType

from nanobench.micro.timeline import MARK, HostEvent, Kernel, StepTimeline, Timeline, engines_named, measure, pick
from nanobench.report.figures import style
from nanobench.report.figures.timeline import busy
from nanobench.report.plot import drawings, load, plot
from nanobench.systems import OTHERS, UNFUSED
from nanoinfer.llm import ENGINES
from tests.bench.samples import MACHINE, failed, ladder, report, result, saved

KINDS = ("throughput", "bandwidth", "itl")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    plot([saved(ladder(), folder / "in" / "gpu.json")], folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_is_an_svg_and_a_page_of_numbers(drawn: Path, kind: str) -> None:
    for name in (f"gpu-{kind}.svg", f"gpu-{kind}.md"):
        assert (drawn / name).stat().st_size > 500, name
    assert len(list(drawn.glob("*.*"))) == 2 * len(KINDS)


def test_another_process_draws_the_same_bytes(drawn: Path, tmp_path: Path) -> None:
    source = saved(ladder(), tmp_path / "in" / "gpu.json")
    program = "import sys; from pathlib import Path; from nanobench.report.plot import plot;"
    program += "plot([Path(sys.argv[1])], Path(sys.argv[2]))"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", program, source, tmp_path], check=True, env=environment)
    for path in drawn.glob("*.*"):
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
    assert "date>" not in (drawn / "gpu-itl.svg").read_text(encoding="utf-8")


def test_a_figure_has_a_ground_of_its_own(drawn: Path) -> None:
    """The same on every page: nothing asks for the reader's theme, and the first shape covers the whole figure."""
    for path in drawn.glob("*.svg"):
        svg = path.read_text(encoding="utf-8")
        assert "prefers-color-scheme" not in svg
        grounds = re.findall(r'<path d="([^"]*)"[^>]*style="fill: (#?\w+)', svg)
        shape, color = next((shape, color) for shape, color in grounds if color != "none")
        assert color == style.GROUND
        size = [float(x) for x in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0]]
        points = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", shape)]
        for axis, whole in enumerate(size):
            assert min(point[axis] for point in points) < 1
            assert max(point[axis] for point in points) > whole - 1


def test_another_result_draws_another_figure(drawn: Path, tmp_path: Path) -> None:
    other = report(*ladder().results[:-1], result("dense", 256, 0.003))
    for drawing in drawings(saved(other, tmp_path / "in" / "gpu.json")):
        style.write(drawing, tmp_path)
    for kind in KINDS:
        assert (drawn / f"gpu-{kind}.svg").read_bytes() != (tmp_path / f"gpu-{kind}.svg").read_bytes()


def test_what_has_no_numbers_is_named(drawn: Path) -> None:
    page = (drawn / "gpu-throughput.md").read_text(encoding="utf-8")
    for status in ("over budget", "out of memory", "failed", "missing"):
        assert re.search(rf"^\| \w+ \| \d+ \| {status} \|", page, re.M), status  # in the table
        assert re.search(rf"^- .*{status} \(", page, re.M), status  # and with its reason
    assert "RuntimeError: no" in page


def test_the_table_has_every_case(drawn: Path) -> None:
    page = (drawn / "gpu-throughput.md").read_text(encoding="utf-8")
    for r in ladder().results:
        assert f"| {r.case.engine} | {r.case.batch} |" in page


def test_a_gap_stays_a_gap() -> None:
    made = report(result("dense", 1, 0.002), failed("dense", 2, "failed", "no"), result("dense", 4, 0.002))
    from nanobench.report.figures.throughput import throughput

    figure = throughput(made, "gpu", "random:gpt2").draw()
    (line,) = (line for line in figure.axes[0].lines if line.get_label() == "dense")
    assert [y == y for y in line.get_ydata()] == [True, False, True]  # noqa: PLR0124  # nan is unlike itself


def test_own_results_are_laid_over(drawn: Path, tmp_path: Path) -> None:
    mine = report(result("dense", 1, 0.1, model="small"), device="My Laptop")
    plot([saved(ladder(), tmp_path / "in" / "gpu.json")], tmp_path, mine=saved(mine, tmp_path / "in" / "mine.json"))
    assert (tmp_path / "gpu-throughput.svg").read_bytes() != (drawn / "gpu-throughput.svg").read_bytes()
    assert (tmp_path / "gpu-bandwidth.svg").read_bytes() == (drawn / "gpu-bandwidth.svg").read_bytes()


def test_lines_differ_by_marker_and_from_the_ground_by_contrast() -> None:
    names = ["naive", "dense", "transformers-nocache", "transformers", "transformers-static-compile"]
    found = style.looks(names, None)
    assert len({look["marker"] for look in found.values()}) == len(names)
    assert len({look["color"] for look in found.values()}) == len(names)
    assert all(contrast(color, style.GROUND) >= 3 for color in (style.ACCENT, *style.GREYS, *style.PEERS))
    assert all(contrast(color, style.GROUND) >= 4.5 for color in (style.TEXT, style.MUTED))
    assert style.newest_of(names) == "dense"
    assert style.newest_of(names, "naive") == "naive"


def test_every_system_has_a_look_of_its_own() -> None:
    names = [*ENGINES, *OTHERS]
    found = style.looks(names, "paged-graph")
    assert len({look["marker"] for look in found.values()}) == len(names)
    others = [found[name]["color"] for name in OTHERS if name not in UNFUSED]
    assert len(set(others)) == len(others)
    assert found["paged-graph-unfused"]["color"] == found["paged-graph"]["color"] == style.ACCENT
    assert found["paged-graph-unfused"]["linestyle"] == ":"


def test_a_chapter_shows_no_later_variant(tmp_path: Path) -> None:
    names = ("paged", "dense-graph-unfused", "dense-graph", "paged-graph-unfused")
    path = saved(report(*(result(name, 1, 0.002) for name in names)), tmp_path / "gpu.json")
    shown = {row[0] for row in drawings(path, "dense-graph")[0].rows}
    assert shown == {"paged", "dense-graph-unfused", "dense-graph"}


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_several_prompt_lengths_make_the_context_figure(tmp_path: Path) -> None:
    cases = [
        result(e, b, 0.001 * (1 + p / 500), prompt=p) for e in ("naive", "dense") for b in (1, 8) for p in (1, 500)
    ]
    (drawing,) = drawings(saved(report(*cases), tmp_path / "h200-context.json"))
    assert drawing.name == "h200-context"
    assert len(drawing.rows) == 8
    assert "(2.00×)" in drawing.alt or "(1.99×)" in drawing.alt or "(2.01×)" in drawing.alt
    assert len(drawing.draw().axes) == 2


def test_a_chapter_has_figures_without_later_rungs(tmp_path: Path) -> None:
    path = saved(ladder(), tmp_path / "gpu.json")
    made = drawings(path, "naive")
    assert [d.name for d in made] == ["gpu-naive-throughput", "gpu-naive-bandwidth", "gpu-naive-itl"]
    assert {row[0] for d in made for row in d.rows} == {"naive", "transformers"}
    assert drawings(path, "paged") == []  # the file does not know it
    with pytest.raises(ValueError, match="engine must be one of naive"):
        plot([path], tmp_path, "fast")


def test_files_of_no_figure_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(ValueError, match=r"odd\.json"):
        plot([tmp_path / "odd.json"], tmp_path)
    with pytest.raises(ValueError, match="no results file"):
        plot([tmp_path / "none.json"], tmp_path)


def event(name: str, start: float, end: float, device: Any = DeviceType.CPU, parent: Any = None) -> Any:
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), device_type=device, cpu_parent=parent
    )


def test_a_step_is_cut_out_of_the_profile() -> None:
    """Three marked steps: the one of median length is taken, with the outermost operators and with its kernels."""
    mark = event(MARK, 100, 200)
    outer = event("aten::linear", 110, 150, parent=mark)
    events = [
        event(MARK, 0, 90), mark, event(MARK, 300, 900), event(MARK, 115, 190, DeviceType.CUDA),
        outer, event("aten::addmm", 112, 149, parent=outer), event("cudaLaunchKernel", 120, 125, parent=outer),
        event("cudaEventSynchronize", 160, 190, parent=mark), event("cudaGetDevice", 155, 156, parent=mark),
        event("gemm", 130, 150, DeviceType.CUDA), event("late", 350, 360, DeviceType.CUDA),
    ]  # fmt: skip
    step = pick("dense", events, 50.0)
    assert step.duration_us == 100
    assert [(e.name, e.kind, e.start_us) for e in step.host] == [
        ("aten::linear", "operator", 10), ("cudaLaunchKernel", "launch", 20), ("cudaEventSynchronize", "wait", 60),
    ]  # fmt: skip
    assert [(k.name, k.start_us, k.duration_us) for k in step.kernels] == [("gemm", 30, 20)]
    assert busy(step) == 0.2


def test_a_step_begins_where_the_last_ones_tokens_have_been_copied() -> None:
    """The host is ahead: what it marks as one step is on the GPU the end of one and the beginning of another."""

    def copy(end: float) -> Any:
        return event("Memcpy DtoH (Device -> Pinned)", end - 2, end, DeviceType.CUDA)

    kernels = [event(name, at, at + 5, DeviceType.CUDA) for at, name in enumerate("abcdefgh")]
    for place, kernel in enumerate(kernels):
        start = (105, 110, 115, 125, 131, 140, 150, 160)[place]
        kernel.time_range = SimpleNamespace(start=start, end=start + 5)
    events = [event(MARK, 100, 118), event(MARK, 118, 195), copy(122), copy(145), copy(190), *kernels]
    step = pick("paged-graph", events, 50.0)
    assert (step.duration_us, [k.name for k in step.kernels][-1][:6]) == (45, "Memcpy")
    assert [k.name for k in step.kernels][:-1] == ["g", "h"]
    events.append(copy(220))  # after the last mark: what the host had launched before
    assert pick("paged-graph", events, 50.0) == step


def test_a_step_of_the_small_model_is_profiled(tmp_path: Path) -> None:
    made = measure("cpu", tmp_path / "steps.json", "small", 2, 4, engines_named("dense"))
    (step,) = made.steps
    assert len(step.host) > 50
    assert not step.kernels
    assert all(0 <= e.start_us < step.duration_us for e in step.host)
    assert load(tmp_path / "steps.json") == made
    with pytest.raises(ValueError, match="engine must be one of naive, dense"):
        engines_named("dense,fast")


def test_the_time_line_is_drawn(tmp_path: Path) -> None:
    host = (HostEvent(name="aten::x", kind="operator", start_us=1, duration_us=5),)
    kernels = (Kernel(name="k", start_us=2, duration_us=10), Kernel(name="k", start_us=7, duration_us=10))
    step = StepTimeline(engine="dense", duration_us=30, unprofiled_us=20, host=host, kernels=kernels)
    assert busy(step) == 0.5  # kernels that overlap are not counted twice
    for kind in ("cuda", "cpu"):
        machine = MACHINE.model_copy(update={"kind": kind})
        made = Timeline(
            date="2026-01-02", commit="0123456789ab", dtype="float32", seed=0, model="small", batch=1, context=8,
            machine=machine, steps=(step,),
        )  # fmt: skip
        path = tmp_path / f"{kind}.json"
        path.write_text(made.model_dump_json(), encoding="utf-8")
        (drawing,) = drawings(path)
        assert drawing.draw().axes
        assert bool(drawing.notes) == (kind == "cpu")
