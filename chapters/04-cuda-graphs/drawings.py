"""The diagrams of chapter 4, drawn from its running example: `python -m nanobook draw 04-cuda-graphs`."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from nanobench.report.figures.style import ACCENT, GREYS, GROUND, MUTED, PEERS, TEXT, Drawing
from nanobook.examples import load
from nanobook.figures.sketch import Sketch, charted, sketched
from nanoinfer.engine.late import LAG

here = Path(__file__).parent
example = load(here / "example.py")
KEYS = ("4 rows, 1 column", "2 rows, 1 column", "1 row, 1 column", "4 rows, 16 columns")
NODES = ("positions, slots", "embeddings", "norm", "matrix", "write K, V", "attention", "head", "sampling", "advance")
HELD = {"the state": "moves", "keys, values": "moves", "block tables": "moves", "weights": "stays"}
LINES = {"positions, slots": (0, 2), "embeddings": (0, 3), "write K, V": (1,), "attention": (1, 2), "matrix": (3,),
         "head": (3,), "norm": (3,), "sampling": (0,), "advance": (0,)}  # fmt: skip


def drawings() -> list[Drawing]:
    """All diagrams of the chapter."""
    return [recording(), behind(), rungs()]


def recording() -> Drawing:
    """A dict of recordings; one of them as a list of launches; the memory whose addresses it holds."""

    @sketched(16, 9.4)
    def draw(on: Sketch) -> None:
        for x, title in ((0.25, "the dict"), (5.3, "one graph: launches in order"), (11.6, "memory that stays put")):
            on.ax.text(x, 0.5, title, fontsize=11.5)
        for at, key in enumerate(KEYS):
            on.filled((0.25, 0.95 + 1.0 * at), (4.0, 0.75), ACCENT if at == 0 else None)
            on.ax.text(0.45, 1.34 + 1.0 * at, key, va="center", fontsize=9.5)
        on.ax.text(0.25, 5.35, "replay() is one call;\nPython does not run", fontsize=9.5, color=MUTED, va="top")
        on.ax.add_patch(FancyArrowPatch((4.3, 1.33), (5.2, 1.33), arrowstyle="-|>", mutation_scale=12, color=ACCENT))
        held = {name: 1.3 + 1.95 * at for at, name in enumerate(HELD)}
        for name, y in held.items():
            moves = HELD[name] == "moves"
            on.filled((11.6, y - 0.35), (4.1, 1.2), PEERS[0] if moves else GREYS[1])
            on.ax.text(11.8, y + 0.02, name, va="center", fontsize=10)
            told = "what is in it changes" if moves else "nothing in it changes"
            on.ax.text(11.8, y + 0.5, told, va="center", fontsize=8.2)
        for at, node in enumerate(NODES):
            y = 0.95 + 0.92 * at
            on.filled((5.3, y), (2.7, 0.68), ACCENT)
            on.ax.text(5.45, y + 0.35, node, va="center", fontsize=9)
            for line in LINES[node]:
                end = (11.5, list(held.values())[line] + 0.25)
                on.ax.plot((8.05, end[0]), (y + 0.34, end[1]), color=MUTED, linewidth=0.9, alpha=0.75)

    alt = (
        f"Left a dict with the keys {'; '.join(KEYS)}. The first leads to one graph: launches in order, "
        f"{', '.join(NODES)}. Lines lead from them to the memory whose addresses they hold: the state, keys and values "
        "and block tables, whose contents change while the addresses do not, and the weights, which do not change."
    )
    rows = tuple((node, ", ".join(list(HELD)[line] for line in LINES[node])) for node in NODES)
    return Drawing(
        "04-cuda-graphs/recording", "What a captured step holds", alt, ("launch", "reads or writes"), rows, draw
    )


def behind() -> Drawing:
    """The host launches a step, and looks at tokens: of the same step, or of one some steps ago."""
    steps, lags = 6, (0, LAG)
    work, look = 1.0, 0.3  # a replay; what the host does for a step

    def plan(lag: int) -> tuple[list[float], list[float]]:
        """When the host launches each step, and when the GPU begins it."""
        launched, begun, now, free = [], [], 0.0, 0.0
        for step in range(steps):
            launched.append(now)
            begun.append(max(now + look, free))
            free = begun[-1] + work
            now += look
            if step >= lag:
                now = max(now, begun[step - lag] + work)
        return launched, begun

    @charted(3.7, 2, share="x", left=0.08, top=0.92, bottom=0.03, hspace=0.42)
    def draw(*axes: Axes) -> None:
        for ax, lag in zip(axes, lags, strict=True):
            launched, begun = plan(lag)
            for step in range(steps):
                ax.barh(1, look, left=launched[step], height=0.55, color=ACCENT)
                ax.barh(0, work, left=begun[step], height=0.55, color=PEERS[0], edgecolor=GROUND)
                ax.text(begun[step] + work / 2, 0, f"step {step}", ha="center", va="center", fontsize=9, color=GROUND)
                ax.text(launched[step] + look / 2, 1.36, str(step), ha="center", va="bottom", fontsize=9)
                if step - lag >= 0:
                    end = begun[step - lag] + work
                    ax.plot((end, end), (0.28, 0.72), color=MUTED, linestyle=":", linewidth=1.4)
            ax.set_yticks((0, 1), ("GPU", "host"))
            ax.set_xticks([])
            ax.grid(visible=False)
            ax.set(ylim=(-0.5, 1.9), xlim=(0, steps * (work + look) + 0.1))
            ax.set_title(
                f"the host waits for the step that it has launched {lag or 'just'} {'steps ago' if lag else 'now'}"
            )

    ends = [plan(lag)[1][-1] + work for lag in lags]
    alt = (
        f"Host and GPU over {steps} steps. Above, the host waits for each step's tokens before it launches the next, "
        f"so the GPU is idle between steps. Below it waits for the tokens of {LAG} steps ago, and the GPU goes from "
        "step to step without a gap."
    )
    rows = tuple((f"{lag}", f"{end:.1f}") for lag, end in zip(lags, ends, strict=True))
    return Drawing("04-cuda-graphs/behind", "The host some steps behind", alt, ("lag", "time of all steps"), rows, draw)


def rungs() -> Drawing:
    """Ladders: the rows that are computed, by the rows that live."""
    top, shown = 64, ("powers of two", "1, 2, 4, 8, then by 16", "this engine's")

    def rows_of(name: str, batch: int) -> int:
        return min((n for n in example.LADDERS[name](top) if n >= batch), default=0)

    @charted(3.6, left=0.085, top=0.97, bottom=0.145)
    def draw(ax: Axes) -> None:
        batches = range(1, top + 1)
        looks = ((MUTED, "--"), (PEERS[0], ":"), (ACCENT, "-"))
        for name, (color, line) in zip(shown, looks, strict=True):
            ax.step(batches, [rows_of(name, b) for b in batches], where="mid", color=color, linestyle=line,
                    linewidth=2.2 if line == "-" else 1.8, label=name)  # fmt: skip
        ax.plot(batches, batches, color=TEXT, linewidth=1.0, label="every size")
        ax.set_xticks((1, 8, 16, 24, 32, 40, 48, 56, 64))
        ax.set_yticks((1, 8, 16, 24, 32, 40, 48, 56, 64))
        ax.legend(loc="upper left")
        ax.set(xlim=(1, top), ylim=(0, top + 2), xlabel="live rows", ylabel="rows computed")

    cells = tuple((str(b), *(str(rows_of(name, b)) for name in shown)) for b in (1, 3, 9, 17, 33, 40, 49, 64))
    told = "; ".join(f"{name} {rows_of(name, 33)}" for name in shown)
    alt = (
        f"Rows that are computed against rows that live, up to {top}, as steps above the diagonal. For 33 live rows: "
        f"{told}."
    )
    return Drawing("04-cuda-graphs/ladders", "Three ladders", alt, ("live rows", *shown), cells, draw)
