"""Figures come out of results files, the same each time, and nothing that was measured or refused is left out."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch.autograd import DeviceType

from nanobench.core.presets import PRESETS
from nanobench.core.records import RESULTS, Report, Result, ResultsFile
from nanobench.micro.timeline import MARK, HostEvent, Kernel, StepTimeline, Timeline, engines_named, measure, pick
from nanobench.report.figures import style
from nanobench.report.figures.throughput import _seen, name_lines
from nanobench.report.figures.timeline import busy
from nanobench.report.plot import book_drawings, drawings, load, own, plot, published
from nanobench.systems import OTHERS
from nanoinfer.config import ENGINES
from tests.bench.samples import MACHINE, STAMP, failed, ladder, load_report, report, result, saved
from tests.cut_text import cut_text

KINDS = ("throughput", "bandwidth", "itl")
ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "figures" / "bench"


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


def test_own_results_are_laid_over_in_their_own_folder(drawn: Path, tmp_path: Path) -> None:
    mine = report(result("dense", 1, 0.1), result("naive", 4, 0.1), device="My Laptop", dtype="float16")
    path, said = saved(mine, tmp_path / "my" / "m.json"), list[str]()
    plot([saved(ladder(), tmp_path / "in" / "gpu.json")], mine=path, say=said.append)
    figures = tmp_path / "my" / "figures"
    assert {p.stem for p in figures.iterdir()} == {*(f"m-{kind}" for kind in KINDS), "m-over-gpu-throughput"}
    assert (figures / "m-over-gpu-throughput.svg").read_bytes() != (drawn / "gpu-throughput.svg").read_bytes()
    assert not said
    assert [p.name for p in tmp_path.rglob("*.svg") if p.parent != figures] == []


@pytest.mark.parametrize(
    ("mine", "dtype"),
    [
        (result("dense", 1, 0.1, model="small"), "bfloat16"), (result("dense", 1, 0.1, prompt=32), "bfloat16"),
        (result("dense", 1, 0.1), "float32"), (result("vllm", 1, 0.1), "bfloat16"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_drawn_alone(mine: Result, dtype: str, tmp_path: Path) -> None:
    """Another model, another prompt, numbers of another size, a system that the other file does not have."""
    path = saved(report(mine, device="My Laptop", dtype=dtype), tmp_path / "my" / "m.json")
    made, remark = own(path, [saved(ladder(), tmp_path / "gpu.json")])
    assert {d.name for d in made} == {f"m-{kind}" for kind in KINDS}
    assert remark == f"{path} is drawn alone: no published results have its model, lengths and size of numbers"


@pytest.mark.parametrize(
    ("kind", "model", "preset", "file"),
    [
        ("cuda", "random:gpt2", "gpu", "h200-gpu.json"), ("cuda", "random:gpt2-xl", "xl", "h200-xl.json"),
        ("cpu", "small", "laptop", "cpu-small.json"), ("cpu", "random:gpt2", "cpu", "cpu.json"),
    ],
)  # fmt: skip
def test_the_command_that_makes_comparable_results_is_named(
    kind: str, model: str, preset: str, file: str, tmp_path: Path
) -> None:
    """And it is true: the published file is of that preset's cases."""
    machine = MACHINE.model_copy(update={"kind": kind})
    mine = report(result("dense", 1, 0.1, model=model, prompt=7)).model_copy(update={"machine": machine})
    _, remark = own(saved(mine, tmp_path / "m.json"), published(RESULTS))
    assert f". `python -m bench run --preset {preset}` makes some that can be laid over {file}" in remark
    cases = {r.case for r in Report.load(RESULTS / file).results}
    assert cases <= set(PRESETS[preset].cases())


@pytest.mark.parametrize("name", ["cpu-small", "steps"])
def test_a_cpu_has_no_graph_engines_in_its_figures(name: str, tmp_path: Path) -> None:
    engines = ("naive", "dense", "dense-graph-unfused", "paged-graph")
    machine = MACHINE.model_copy(update={"kind": "cpu"})
    made: ResultsFile = report(*(result(engine, 1, 0.002) for engine in engines)).model_copy(
        update={"machine": machine}
    )
    if name == "steps":
        lines = [StepTimeline(engine=e, duration_us=30, unprofiled_us=20, host=(), kernels=()) for e in engines]
        made = Timeline(
            **STAMP | {"machine": machine}, dtype="float32", seed=0, model="small", batch=1, context=8, steps=lines
        )
    path = saved(made, tmp_path / f"{name}.json")
    for drawing in drawings(path):
        assert "graph" not in drawing.alt
        assert {row[0] for row in drawing.rows} == {"naive", "dense"}
        assert drawing.notes[-1].startswith("dense-graph-unfused, paged-graph: left out; a CPU captures no graphs")
    assert drawings(path, "paged-graph") == []
    assert all("left out" not in note for drawing in drawings(path, "dense") for note in drawing.notes)


def test_the_book_s_figures_are_drawn_anew_and_no_others(tmp_path: Path) -> None:
    """Without a file: those that are there, a chapter's own included."""
    for name in ("cpu-itl", "cpu-context-naive"):
        (tmp_path / f"{name}.md").write_text("stale", encoding="utf-8")
    plot([], tmp_path)
    for name in ("cpu-itl", "cpu-context-naive"):
        assert (tmp_path / f"{name}.md").read_bytes() == (FIGURES / f"{name}.md").read_bytes()
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_what_readers_are_told_to_type_leaves_a_clean_checkout(tmp_path: Path) -> None:
    """README's, the benchmark's and the chapters' lines, in a copy: a file in place of each `run`, each `plot` run."""
    copy = tmp_path / "copy"
    git = ["git", "-C", str(copy), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for name in subprocess.check_output(["git", "-C", str(ROOT), "ls-files"], text=True).splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "a copy"]):
        subprocess.run([*git, *arguments], check=True)
    pages = [ROOT / "README.md", ROOT / "bench" / "README.md", *sorted((ROOT / "chapters").glob("*/README.md"))]
    plots = 0
    for page in pages:
        text = page.read_text(encoding="utf-8").split("## To make the book's files again")[0]
        for line in re.findall(r"^python -m bench (?:run|load|plot) .*$", text, re.M):
            words = shlex.split(line, comments=True)
            if "run" in words:
                preset = words[words.index("--preset") + 1]
                assert "--out" not in words  # to where its default is
                like = {"gpu": "h200-gpu", "laptop": "cpu-small", "context": "cpu-context"}[preset]
                saved(Report.load(RESULTS / f"{like}.json"), copy / "my-bench" / f"{preset}.json")
            elif "load" in words:
                assert "--out" not in words
                saved(load_report(), copy / "my-bench" / "load.json")
            else:
                done = subprocess.run(
                    [sys.executable, *words[1:]], cwd=copy, capture_output=True, text=True, check=True
                )
                plots += 1
                assert {Path(made).parent for made in done.stdout.splitlines()} == {Path("my-bench/figures")}, line
    assert plots == 6
    assert subprocess.check_output([*git, "status", "--porcelain"], text=True) == ""


def test_lines_differ_by_marker_and_from_the_ground_by_contrast() -> None:
    names = ["naive", "dense", "transformers-nocache", "transformers", "transformers-static-compile"]
    found = style.looks(names, None)
    assert len({look["marker"] for look in found.values()}) == len(names)
    assert all(contrast(color, style.GROUND) >= 3 for color in (style.ACCENT, *style.GREYS, *style.PEERS))
    assert all(contrast(color, style.GROUND) >= 4.5 for color in style.RUNGS.values())  # names have them, too
    assert all(contrast(color, style.GROUND) >= 4.5 for color in (style.TEXT, style.MUTED))
    assert style.newest_of(names) == "dense"
    assert style.newest_of(names, "naive") == "naive"


def test_every_system_has_a_look_of_its_own() -> None:
    names = [*ENGINES, *OTHERS]
    found = style.looks(names, "paged-graph")
    assert len({look["marker"] for look in found.values()}) == len(names)
    rungs = [found[name]["color"] for name in ENGINES]
    assert len(set(rungs)) == len(rungs)
    assert all(found[name]["linestyle"] != "-" for name in OTHERS)
    assert found["paged-graph"]["linewidth"] > found["dense-graph"]["linewidth"]
    assert found["paged-graph-unfused"]["color"] == found["paged-graph"]["color"] == style.ACCENT
    assert found["paged-graph-unfused"]["linestyle"] == ":"


def test_names_stand_beside_their_lines_and_not_on_each_other() -> None:
    """Ten lines that end at the same place, and one that ends elsewhere."""
    figure = Figure(figsize=(8, 5))
    figure.subplots_adjust(right=0.7)
    ax = figure.subplots()
    for n in range(10):
        ax.plot([1, 2], [1, 8 + n / 100], label=f"number {n}")
    ax.plot([1, 2], [1, 9], label="alone")
    name_lines(ax)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    boxes = sorted((text.get_window_extent(renderer) for text in ax.texts), key=lambda box: box.y0)
    assert len(boxes) == 11
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert max(text.get_position()[1] for text in ax.texts) <= 1
    assert [text.get_text() for text in sorted(ax.texts, key=lambda text: text.get_position()[1])][-1] == "alone"
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)


@pytest.mark.parametrize(
    ("peers", "seen"),
    [
        ({"transformers": (0.004, 0.002), "transformers-nocache": (0.006, 0.001)}, r"2\.00×|1\.99×, about 1×"),
        ({"transformers": (0.002, 0.004)}, r"about 1×, 2\.00×|1\.99×"),
        ({}, ""),
    ],
)
def test_a_figure_of_throughput_says_what_is_seen(peers: dict[str, tuple[float, float]], seen: str) -> None:
    """Beside the peer that is fastest at the smallest batch."""
    steps = {"naive": (0.001, 0.001), "dense": (0.002, 0.002), **peers}
    results = [result(name, batch, each[batch > 1]) for name, each in steps.items() for batch in (1, 8)]
    few, _, many = seen.partition(", ")
    expected = rf"dense: ({few}) transformers at B = 1, ({many}) at B = 8" if seen else ""
    assert re.fullmatch(expected, _seen(results, "dense"))


def test_no_text_of_the_books_figures_is_cut() -> None:
    assert {drawing.name: cut for drawing in book_drawings(RESULTS) if (cut := cut_text(drawing))} == {}


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
