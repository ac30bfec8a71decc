"""`bench plot`: what is drawn of which file, over what, where it is written, and that it can be read."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from nanobench.core.records import RESULTS, Result
from nanobench.report import plot as plots
from nanobench.report.figures.throughput import _seen, throughput
from nanobench.report.plot import book_drawings, drawings, own, plot
from nanoinfer.config import ENGINES
from tests.bench.samples import failed, ladder, report, result, saved
from tests.cut_text import cut_text

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    plot([saved(ladder(), folder / "in" / "gpu.json")], folder)
    return folder


def test_a_figure_is_an_svg_and_a_page_with_every_case(drawn: Path) -> None:
    assert {p.name for p in drawn.glob("*.*")} == {"gpu-throughput.svg", "gpu-throughput.md"}
    page = (drawn / "gpu-throughput.md").read_text(encoding="utf-8")
    for r in ladder().results:
        assert f"| {r.case.engine} | {r.case.batch} |" in page
        if r.status != "ok":
            assert f"| {r.case.engine} | {r.case.batch} | {r.status} |" in page
            assert f"- {r.case.engine}, B = {r.case.batch}: {r.status} ({r.reason})" in page


def test_own_results_are_laid_over_in_their_own_folder(drawn: Path, tmp_path: Path) -> None:
    mine = report(result("dense", 1, 0.1), result("naive", 4, 0.1), device="My Laptop", dtype="float16")
    path, said = saved(mine, tmp_path / "my" / "m.json"), list[str]()
    plot([saved(ladder(), tmp_path / "in" / "gpu.json")], mine=path, say=said.append)
    figures = tmp_path / "my" / "figures"
    assert {p.stem for p in figures.iterdir()} == {"m-throughput", "m-over-gpu-throughput"}
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
    assert [d.name for d in made] == ["m-throughput"]
    assert remark == f"{path} is drawn alone: no published results have its model, lengths and size of numbers"


def test_a_chapter_has_figures_without_later_rungs(tmp_path: Path) -> None:
    path = saved(ladder(), tmp_path / "gpu.json")
    made = drawings(path, "naive")
    assert [d.name for d in made] == ["gpu-naive-throughput"]
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
    shown = [tmp_path / f"{name}.md" for name in ("gpu-throughput", "gpu-naive-throughput")]
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


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_what_readers_are_told_to_type_leaves_a_clean_checkout() -> None:
    """README's, the benchmark's and the chapters' lines write into my-bench, which git ignores."""
    pages = [ROOT / "README.md", ROOT / "bench" / "README.md", *sorted((ROOT / "chapters").glob("*/README.md"))]
    text = "\n".join(page.read_text("utf-8").split("## To make the book's files again")[0] for page in pages)
    commands = re.findall(r"^python -m bench (?:run|load|plot) .*$", text, re.M)
    assert any(" plot " in command for command in commands)
    for command in commands:
        assert "--out" not in command  # `run` and `load` write into my-bench, and `plot` beside its file
        assert " plot " not in command or re.search(r" --(mine|results) my-bench/[\w-]+\.json", command)
    subprocess.run(["git", "-C", ROOT, "check-ignore", "-q", "my-bench/figures/laptop.svg"], check=True)


def test_a_gap_stays_a_gap() -> None:
    made = report(result("dense", 1, 0.002), failed("dense", 2, "failed", "no"), result("dense", 4, 0.002))
    figure = throughput(made, "gpu", "random:gpt2").draw()
    (line,) = (line for line in figure.axes[0].lines if line.get_label() == "dense")
    assert [y == y for y in line.get_ydata()] == [True, False, True]  # noqa: PLR0124  # nan is unlike itself


def test_on_a_cpu_engines_of_the_same_code_are_one_curve(tmp_path: Path) -> None:
    results = [result(name, batch, 0.002) for name in (*ENGINES, "transformers") for batch in (1, 8)]
    made = report(*results)
    cpu = made.model_copy(update={"machine": made.machine.model_copy(update={"kind": "cpu"})})
    for drawing in drawings(saved(cpu, tmp_path / "laptop.json")):
        assert {row[0] for row in drawing.rows} == {"naive", "dense", "paged", "transformers"}
        assert cut_text(drawing) == []
    labels = {str(line.get_label()) for line in drawings(tmp_path / "laptop.json")[0].draw().axes[0].lines}
    assert {"dense, dense-graph", "paged, paged-graph, …"} < labels


def test_a_figure_of_throughput_says_what_is_seen() -> None:
    """Beside the peer that is fastest at the smallest batch, and beyond the spread; nothing without a peer."""
    steps = {"naive": (1, 1), "dense": (2, 2), "transformers": (4, 2), "transformers-nocache": (6, 1)}
    results = [result(name, batch, each[batch > 1] / 1000) for name, each in steps.items() for batch in (1, 8)]
    assert re.fullmatch(r"dense: (2\.00|1\.99)× transformers at B = 1", _seen(results, "dense"))
    assert _seen([r for r in results[:6] if r.case.batch == 8], "dense") == "Decode throughput against batch size"
    assert _seen(results[:4], "dense") == ""
