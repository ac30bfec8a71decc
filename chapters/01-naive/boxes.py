"""The diagrams of chapter 1 that are made of boxes and arrows: a step, a block, and the columns of naive generation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from matplotlib.patches import Rectangle

from nanobench.report.figures.style import ACCENT, GROUND, MUTED, Drawing
from nanobook.examples import load
from nanobook.figures.sketch import Sketch, sketched
from nanobook.running import word

here = Path(__file__).parent
run, cost = load(here / "running.py"), load(here / "cost.py")

PROMPT, NEW = 3, 6  # tokens of the staircase


def one_step() -> Drawing:
    """One row from token ids to the next token, with the shapes on the way and the running example's own words."""
    words, after = [word(i) for i in run.rows()[0]], run.probs(0)
    best = f"{word(int(after.argmax()))}, p = {float(after.max()):.3f}"
    C, layers, V = run.model().config.n_embd, run.model().config.n_layer, len(after)
    stages = (
        ("token ids,\npositions", "(3,)"), ("embeddings", f"(3, {C})"), (f"{layers} blocks", f"(3, {C})"),
        ("the last\ntoken", f"({C},)"), ("head: logits", f"({V},)"),
    )  # fmt: skip

    @sketched(10, 2.9)
    def draw(on: Sketch) -> None:
        for at, (name, shape) in enumerate(stages):
            x = 1.05 + 1.97 * at
            on.box((x, 0.62), (1.62, 0.78), name, accent="last" in name)
            on.write((x, 1.24), shape, MUTED, 10, "center")
            if at:
                on.arrow((x - 1.16, 0.62), (x - 0.81, 0.62), MUTED)
        y = 2.1
        for at, name in enumerate(words):
            x, last = 1.05 + 1.97 * at, at == len(words) - 1
            look = {"facecolor": GROUND, "edgecolor": ACCENT if last else MUTED, "linewidth": 2.0 if last else 1.2}
            on.ax.add_patch(Rectangle((x - 0.81, y - 0.3), 1.62, 0.6, **look))
            on.write((x, y), name, align="center")
            on.write((x, y + 0.46), f"position {at}", MUTED, 9, "center")
        on.arrow((1.86 + 1.97 * (len(words) - 1), y), (7.0, y), ACCENT, 1.8)
        on.write((7.15, y), best)
        on.write((7.15, y + 0.46), "the most probable next token", MUTED, 9)

    alt = (
        f"One step. Token ids and positions of shape (3,) become embeddings and pass {layers} blocks; only the last "
        f"token goes on to the head, which gives {V:,} logits. The tokens are {' '.join(words)}; next comes {best}."
    ).replace('"', "'")
    rows = tuple((name.replace("\n", " "), shape) for name, shape in stages)
    return Drawing("01-naive/step", "One step of the running example", alt, ("stage", "shape"), rows, draw)


def block() -> Drawing:
    """The residual stream as a straight line: two branches read it normalised and add to it."""

    @sketched(10, 2.7)
    def draw(on: Sketch) -> None:
        on.arrow((0.2, 0.7), (9.85, 0.7), ACCENT, 2.6)
        on.write((0.2, 0.32), "residual stream x: added to, never normalised itself")
        circle = {"boxstyle": "circle,pad=0.12", "facecolor": GROUND, "edgecolor": ACCENT}
        for at, layer in enumerate(("attention", "MLP: to 4 C,\nGELU, back to C")):
            left = 0.9 + 4.4 * at
            on.arrow((left, 0.7), (left, 1.58), MUTED)
            on.box((left, 1.95), (1.25, 0.74), "LayerNorm")
            on.arrow((left + 0.63, 1.95), (left + 1.22, 1.95), MUTED)
            on.write((left + 0.92, 1.74), "h", align="center")
            on.box((left + 2.2, 1.95), (1.94, 0.74), layer)
            on.ax.plot([left + 3.17, left + 3.5], [1.95, 1.95], color=MUTED, linewidth=1.3)
            on.arrow((left + 3.5, 1.95), (left + 3.5, 0.86), MUTED)
            on.write((left + 3.42, 1.32), "update", align="right")
            on.ax.text(left + 3.5, 0.7, "+", ha="center", va="center", fontsize=13, zorder=5, bbox=circle)

    alt = (
        "A block. The residual stream x runs straight through. Twice a branch leaves it, goes through a LayerNorm and "
        "a sublayer, attention first and the MLP second, and comes back as an update that is added to the stream. "
        "The stream itself is never normalised."
    )
    rows = (("attention", "LayerNorm of x", "added to x"), ("MLP", "LayerNorm of x", "added to x"))
    return Drawing("01-naive/block", "A pre-LayerNorm block", alt, ("sublayer", "reads", "its update is"), rows, draw)


def staircase(on: Sketch, old: str, told: Callable[[int], str]) -> None:
    """Steps downwards, positions to the right. old: what earlier tokens are. told: what stands beside a step."""
    on.write((1.0, 0.25), "position", MUTED, 9.5)
    for at in range(PROMPT + NEW - 1):
        on.write((1.46 + at, 0.66), str(at), MUTED, 9.5, "center")
    for step in range(NEW):
        y = 0.95 + 0.9 * step
        on.write((0.88, y + 0.39), f"step {step}", align="right")
        for at in range(PROMPT + step):
            on.square((1.0 + at, y), "new" if step == 0 or at == PROMPT + step - 1 else old)
        on.write((9.45, y + 0.39), told(step))


def legend(on: Sketch, entries: Iterable[tuple[float, str, str]], y: float = 0.95 + 0.9 * NEW + 0.32) -> None:
    """Squares and what they are, in a line: where one begins, its kind, and its text."""
    for x, kind, text in entries:
        on.square((x, y), kind)
        on.write((x + 1.05, y + 0.39), text)


def again_and_again() -> Drawing:
    """Steps downwards, positions to the right: what a step computes for the first time, and what once more."""
    total, needed = cost.columns(PROMPT, NEW), cost.cached_columns(PROMPT, NEW)

    @sketched(12.5, 7.7)
    def draw(on: Sketch) -> None:
        staircase(on, "hidden", lambda step: f"{PROMPT + step} columns")
        told = f"computed for the first time: {needed}", f"computed once more: {total - needed}"
        legend(on, ((1.0, "new", told[0]), (6.0, "hidden", told[1])))

    alt = (
        f"Naive generation of {NEW} tokens after a prompt of {PROMPT}: {NEW} steps of {PROMPT} to {PROMPT + NEW - 1} "
        f"columns form a growing staircase. Of its {total} columns {needed} are computed for the first time, and "
        f"{total - needed} once more."
    )
    rows = [
        (str(at), str(PROMPT + at), str(1 if at else PROMPT), str(PROMPT + at - 1 if at else 0)) for at in range(NEW)
    ]
    header = ("step", "columns", "for the first time", "once more")
    return Drawing("01-naive/again", "The same columns again and again", alt, header, tuple(rows), draw)
