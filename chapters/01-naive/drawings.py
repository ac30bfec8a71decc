"""The diagrams of chapter 1, drawn from its running example: `python -m nanobook draw 01-naive`."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from nanobench.report.figures.style import ACCENT, GROUND, MUTED, TEXT, Drawing
from nanobook.examples import load
from nanobook.figures.sketch import Sketch, charted, sketched
from nanobook.running import word

here = Path(__file__).parent
run, boxes = load(here / "running.py"), load(here / "boxes.py")


def drawings() -> list[Drawing]:
    """All diagrams of the chapter."""
    return [boxes.one_step(), attention(), boxes.block(), filters(), boxes.again_and_again()]


def attention() -> Drawing:
    """Scores and weights of one head of row 0; the cells that the mask hides are hatched."""
    watch, words = run.watched(), [word(i) for i in run.rows()[0]]
    scores, weights = watch.scores[run.HEAD].tolist(), watch.weights[run.HEAD].tolist()

    @sketched(10, 4.4)
    def draw(on: Sketch) -> None:
        on.write((0.1, 0.68), "queries", MUTED, 9.5)
        for panel, table in enumerate((scores, weights)):
            left = 1.55 + 4.9 * panel
            title = "weights: softmax of what is left" if panel else "scores: q · k / sqrt(D)"
            on.write((left - 0.1, 0.28), title, size=11)
            on.write((left - 0.1, 0.68), "keys", MUTED, 9.5)
            for at, name in enumerate(words):
                on.write((left + 0.5 + 1.08 * at, 1.02), name, align="center")
                on.write((left + 0.5 + 1.08 * at, 1.3), f"position {at}", MUTED, 8.5, "center")
                on.write((left - 0.18, 1.98 + 0.9 * at), name, align="right")
                for key in range(3):
                    corner = (left + 1.08 * key, 1.58 + 0.9 * at)
                    cell(on.ax, corner, table[at][key], hidden=key > at, weight=panel == 1)

    shown = "; ".join(
        f"{name} reads " + ", ".join(f"{words[key]} with {weights[query][key]:.2f}" for key in range(query + 1))
        for query, name in enumerate(words)
    )
    alt = (
        f"Attention of row 0 in layer {run.LAYER}, head {run.HEAD}: a table of scores, three queries by three keys, "
        f"with the keys at later positions hidden, and a table of weights. {shown}."
    ).replace('"', "'")
    rows = tuple(
        (name.replace('"', "'"), *(f"{s:.2f}" for s in scores[at]), *(f"{p:.2f}" for p in weights[at]))
        for at, name in enumerate(words)
    )
    header = ("query", *(f"score, key {at}" for at in range(3)), *(f"weight, key {at}" for at in range(3)))
    return Drawing("01-naive/attention", "Attention with a mask of positions", alt, header, rows, draw)


def cell(ax: Axes, corner: tuple[float, float], value: float, *, hidden: bool, weight: bool) -> None:
    """One query and key: hatched where the mask hides it, filled by its weight otherwise."""
    if weight and not hidden:
        ax.add_patch(Rectangle(corner, 1.0, 0.8, facecolor=ACCENT, alpha=0.1 + 0.55 * value, edgecolor="none"))
    look = {"facecolor": "none", "edgecolor": MUTED, "hatch": "////" if hidden else None, "linewidth": 1.0}
    ax.add_patch(Rectangle(corner, 1.0, 0.8, zorder=3, **look))
    back = {"facecolor": GROUND, "edgecolor": "none", "pad": 1.5} if hidden and not weight else None
    text, color = ("" if hidden and weight else f"{value:.2f}"), (MUTED if hidden else TEXT)
    middle = (corner[0] + 0.5, corner[1] + 0.4)
    ax.text(*middle, text, ha="center", va="center", fontsize=10.5, zorder=4, bbox=back, color=color)


def filters() -> Drawing:
    """Row 1's candidates after temperature, top-k and top-p; what a filter drops is hollow."""
    lines = run.candidates()
    names = [word(line.token_id) for line in lines]
    everything = [True] * len(lines)
    after_k = [line.after_k or line.cooled for line in lines]
    panels = (
        ("temperature 1", [line.plain for line in lines], everything),
        (f"temperature {run.TEMPERATURE}", [line.cooled for line in lines], everything),
        (f"then top-k {run.TOP_K}", after_k, [line.in_k for line in lines]),
        (f"then top-p {run.TOP_P}", after_k, [line.kept for line in lines]),
    )

    @charted(3.9, 1, 4, share="y", left=0.1, top=0.9, bottom=0.16, wspace=0.13)
    def draw(*axes: Axes) -> None:
        for ax, (title, values, kept) in zip(axes, panels, strict=True):
            fills = [ACCENT if stays else GROUND for stays in kept]
            edges = [ACCENT if stays else MUTED for stays in kept]
            ax.barh(range(len(lines)), values, height=0.66, color=fills, edgecolor=edges, linewidth=1.2)
            ax.set_xticks([0, 0.1, 0.2], ["0", "0.1", "0.2"])
            ax.set_yticks(range(len(lines)), names)
            ax.grid(axis="y", visible=False)
            ax.set(title=title, xlim=(0, 0.29), ylim=(len(lines) - 0.4, -0.6))
        axes[0].set_xlabel('probability after "The fox"; hollow: dropped', loc="left")

    kept_words = ", ".join(name for name, line in zip(names, lines, strict=True) if line.kept)
    alt = (
        "Probabilities of the eleven best tokens after The fox, in four panels: as they are; with temperature "
        f"{run.TEMPERATURE}, which makes large ones larger; after top-k {run.TOP_K}, which drops the last three; and "
        f"after top-p {run.TOP_P}, which keeps {kept_words}."
    ).replace('"', "'")
    rows = []
    for name, line in zip(names, lines, strict=True):
        after = f"{line.after_k:.3f}" if line.in_k else "dropped"
        cells = (f"{line.plain:.3f}", f"{line.cooled:.3f}", after, "kept" if line.kept else "dropped")
        rows.append((name.replace('"', "'"), *cells))
    header = ("token", "p", f"/ {run.TEMPERATURE}", f"top-k {run.TOP_K}", f"top-p {run.TOP_P}")
    return Drawing("01-naive/filters", "Temperature, top-k and top-p, in this order", alt, header, tuple(rows), draw)
