"""`bench plot`: what is drawn of which file, over what, and where it is written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nanobench.core.presets import PRESETS
from nanobench.core.records import RESULTS, Report, Result, ResultsFile
from nanobench.micro.timeline import StepTimeline, Timeline
from nanobench.report import plot as plots
from nanobench.report.figures import style
from nanobench.report.plot import book_drawings, drawings, own, plot
from tests.bench.samples import MACHINE, STAMP, ladder, load_report, report, result, saved
from tests.cut_text import cut_text

KINDS = ("throughput", "bandwidth", "itl")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    plot([saved(ladder(), folder / "in" / "gpu.json")], folder)
    return folder


def test_a_figure_is_an_svg_and_a_page_with_every_case(drawn: Path) -> None:
    assert {p.name for p in drawn.glob("*.*")} == {f"gpu-{kind}.{ending}" for kind in KINDS for ending in ("svg", "md")}
    page = (drawn / "gpu-throughput.md").read_text(encoding="utf-8")
    for r in ladder().results:
        assert f"| {r.case.engine} | {r.case.batch} |" in page
        if r.status != "ok":
            assert f"| {r.case.engine} | {r.case.batch} | {r.status} |" in page
            assert f"- {r.case.engine}, B = {r.case.batch}: {r.status} ({r.reason})" in page


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
    """The same on every page: nothing asks for the reader's theme, and the ground is the first shape with a colour."""
    for path in drawn.glob("*.svg"):
        svg = path.read_text(encoding="utf-8")
        assert "prefers-color-scheme" not in svg
        assert re.findall(r"fill: (#\w+)", svg)[0] == style.GROUND


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
    ids=["model", "prompt", "size of numbers", "system"],
)  # fmt: skip
def test_what_cannot_be_compared_is_drawn_alone(mine: Result, dtype: str, tmp_path: Path) -> None:
    path = saved(report(mine, device="My Laptop", dtype=dtype), tmp_path / "my" / "m.json")
    made, remark = own(path, [saved(ladder(), tmp_path / "gpu.json")])
    assert {d.name for d in made} == {f"m-{kind}" for kind in KINDS}
    assert remark == f"{path} is drawn alone: no published results have its model, lengths and size of numbers"


@pytest.mark.parametrize(
    ("kind", "model", "preset"),
    [
        ("cuda", "random:gpt2", "gpu"), ("cuda", "random:gpt2-xl", "xl"), ("cpu", "small", "laptop"),
        ("cpu", "random:gpt2", "cpu"),
    ],
)  # fmt: skip
def test_the_command_that_makes_comparable_results_is_named(kind: str, model: str, preset: str, tmp_path: Path) -> None:
    """Of files that their presets made, that of the same kind of machine and model."""
    published = []
    for of, name in (("cuda", "gpu"), ("cuda", "xl"), ("cpu", "laptop"), ("cpu", "cpu"), ("cuda", "full")):
        cases = [c for c in PRESETS[name].cases() if c.engine == "dense"]
        results = [result("dense", c.batch, 0.1).model_copy(update={"case": c}) for c in cases]
        machine = MACHINE.model_copy(update={"kind": of})
        made = report(*results).model_copy(update={"machine": machine, "preset": "gpu" if name == "full" else name})
        published.append(saved(made, tmp_path / f"{name}.json"))
    machine = MACHINE.model_copy(update={"kind": kind})
    mine = report(result("dense", 1, 0.1, model=model, prompt=7)).model_copy(update={"machine": machine})
    _, remark = own(saved(mine, tmp_path / "m.json"), published)
    assert remark.endswith(f". `python -m bench run --preset {preset}` makes some that can be laid over {preset}.json")


@pytest.mark.parametrize("name", ["cpu-small", "steps"])
def test_a_cpu_has_no_graph_engines_in_its_figures(name: str, tmp_path: Path) -> None:
    engines = ("naive", "dense", "dense-graph-unfused", "paged-graph")
    stamp = STAMP | {"machine": MACHINE.model_copy(update={"kind": "cpu"})}
    made: ResultsFile = report(*(result(engine, 1, 0.002) for engine in engines)).model_copy(update=stamp)
    if name == "steps":
        lines = [StepTimeline(engine=e, duration_us=30, unprofiled_us=20, host=(), kernels=()) for e in engines]
        made = Timeline(dtype="float32", seed=0, model="small", batch=1, context=8, steps=lines, **stamp)
    path = saved(made, tmp_path / f"{name}.json")
    for drawing in drawings(path):
        assert "graph" not in drawing.alt
        assert {row[0] for row in drawing.rows} == {"naive", "dense"}
        assert drawing.notes[-1].startswith("dense-graph-unfused, paged-graph: left out; a CPU captures no graphs")
    assert drawings(path, "paged-graph") == []
    assert all("left out" not in note for drawing in drawings(path, "dense") for note in drawing.notes)


def test_a_chapter_has_figures_without_later_rungs(tmp_path: Path) -> None:
    path = saved(ladder(), tmp_path / "gpu.json")
    made = drawings(path, "naive")
    assert [d.name for d in made] == [f"gpu-naive-{kind}" for kind in KINDS]
    assert {row[0] for d in made for row in d.rows} == {"naive", "transformers"}
    assert drawings(path, "paged") == []  # the file does not know it
    with pytest.raises(ValueError, match="engine must be one of naive"):
        plot([path], tmp_path, "fast")
    names = ("paged", "dense-graph-unfused", "dense-graph", "paged-graph-unfused")
    saved(report(*(result(name, 1, 0.002) for name in names)), path)
    assert {row[0] for row in drawings(path, "dense-graph")[0].rows} == set(names[:3])


def test_the_books_figures_are_drawn_anew_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file: those that are there, a chapter's own included."""
    monkeypatch.setattr(plots, "RESULTS", tmp_path / "results")
    saved(ladder(), tmp_path / "results" / "gpu.json")
    saved(report(result("dense", 1, 0.1)), tmp_path / "results" / "gpu-second.json")
    shown = [tmp_path / f"{name}.md" for name in ("gpu-itl", "gpu-naive-throughput")]
    for page in shown:
        page.write_text("stale", encoding="utf-8")
    assert set(plot([], tmp_path)) == {*shown, *(page.with_suffix(".svg") for page in shown)}
    assert "stale" not in shown[0].read_text(encoding="utf-8") + shown[1].read_text(encoding="utf-8")


def test_files_of_no_figure_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(ValueError, match=r"odd\.json"):
        plot([tmp_path / "odd.json"], tmp_path)
    with pytest.raises(ValueError, match="no results file"):
        plot([tmp_path / "none.json"], tmp_path)


@pytest.mark.long
def test_no_text_of_the_books_figures_is_cut() -> None:
    assert {drawing.name: cut for drawing in book_drawings(RESULTS) if (cut := cut_text(drawing))} == {}


@pytest.mark.long
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
    text = "\n".join(page.read_text("utf-8").split("## To make the book's files again")[0] for page in pages)
    lines = [
        shlex.split(line, comments=True) for line in re.findall(r"^python -m bench (?:run|load|plot) .*$", text, re.M)
    ]
    assert any("plot" in words for words in lines)
    for words in lines:
        if "plot" in words:
            done = subprocess.run([sys.executable, *words[1:]], cwd=copy, capture_output=True, text=True, check=True)
            assert {Path(made).parent for made in done.stdout.splitlines()} == {Path("my-bench/figures")}, words
            continue
        assert "--out" not in words  # to where its default is
        if "load" in words:
            saved(load_report(), copy / "my-bench" / "load.json")
        else:
            preset = words[words.index("--preset") + 1]
            like = {"gpu": "h200-gpu", "laptop": "cpu-small", "context": "cpu-context"}[preset]
            saved(Report.load(RESULTS / f"{like}.json"), copy / "my-bench" / f"{preset}.json")
    assert subprocess.check_output([*git, "status", "--porcelain"], text=True) == ""
