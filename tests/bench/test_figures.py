"""How figures of measurements look: lines that can be told apart, names that can be read, gaps that stay gaps."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nanobench.report.figures import style
from nanobench.report.figures.throughput import _seen, name_lines, throughput
from nanobench.report.plot import drawings
from nanobench.systems import OTHERS
from nanoinfer.config import ENGINES
from tests.bench.samples import failed, report, result, saved


def test_every_system_has_a_look_of_its_own() -> None:
    names = [*ENGINES, *OTHERS]
    found = style.looks(names, "paged-graph")
    assert len({look["marker"] for look in found.values()}) == len(names)
    assert len({found[name]["color"] for name in ENGINES}) == len(ENGINES)
    assert all(found[name]["linestyle"] != "-" for name in OTHERS)
    assert found["paged-graph"]["linewidth"] > found["dense-graph"]["linewidth"]
    assert found["paged-graph-unfused"]["color"] == found["paged-graph"]["color"] == style.ACCENT
    assert found["paged-graph-unfused"]["linestyle"] == ":"
    assert [style.newest_of(["naive", "dense", "vllm"], wanted) for wanted in (None, "naive")] == ["dense", "naive"]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_lines_and_names_differ_from_the_ground_by_contrast() -> None:
    assert all(contrast(color, style.GROUND) >= 3 for color in (*style.GREYS, *style.PEERS))
    assert all(contrast(color, style.GROUND) >= 4.5 for color in (*style.RUNGS.values(), style.TEXT, style.MUTED))


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
    names = sorted(ax.texts, key=lambda text: text.get_position()[1])
    boxes = [text.get_window_extent(renderer) for text in names]
    assert [text.get_text() for text in names] == [*(f"number {n}" for n in range(10)), "alone"]
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert names[-1].get_position()[1] <= 1
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_a_gap_stays_a_gap() -> None:
    made = report(result("dense", 1, 0.002), failed("dense", 2, "failed", "no"), result("dense", 4, 0.002))
    figure = throughput(made, "gpu", "random:gpt2").draw()
    (line,) = (line for line in figure.axes[0].lines if line.get_label() == "dense")
    assert [y == y for y in line.get_ydata()] == [True, False, True]  # noqa: PLR0124  # nan is unlike itself


@pytest.mark.parametrize(
    ("peers", "seen"),
    [
        (
            {"transformers": (0.004, 0.002), "transformers-nocache": (0.006, 0.001)},
            r"dense: (2\.00|1\.99)× transformers at B = 1, about 1× at B = 8",
        ),
        ({"transformers": (0.002, 0.004)}, r"dense: about 1× transformers at B = 1, (2\.00|1\.99)× at B = 8"),
        ({}, ""),
    ],
)
def test_a_figure_of_throughput_says_what_is_seen(peers: dict[str, tuple[float, float]], seen: str) -> None:
    """Beside the peer that is fastest at the smallest batch."""
    steps = {"naive": (0.001, 0.001), "dense": (0.002, 0.002), **peers}
    results = [result(name, batch, each[batch > 1]) for name, each in steps.items() for batch in (1, 8)]
    assert re.fullmatch(seen, _seen(results, "dense"))


def test_several_prompt_lengths_make_the_context_figure(tmp_path: Path) -> None:
    cases = [
        result(e, b, 0.001 * (1 + p / 500), prompt=p) for e in ("naive", "dense") for b in (1, 8) for p in (1, 500)
    ]
    (drawing,) = drawings(saved(report(*cases), tmp_path / "h200-context.json"))
    assert drawing.name == "h200-context"
    assert len(drawing.rows) == 8
    assert re.search(r"\((1\.99|2\.00|2\.01)×\)", drawing.alt)
    assert len(drawing.draw().axes) == 2
