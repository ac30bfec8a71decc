"""The diagrams of chapter 5, drawn from its running example: `python -m nanobook draw 05-queue`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from nanobench.report.figures.style import ACCENT, GREYS, GROUND, MUTED, PEERS, TEXT, Drawing
from nanobook.examples import load
from nanobook.figures.sketch import Sketch, charted, sketched

here = Path(__file__).parent
example = load(here / "example.py")
clock = example.clock
ROWS = 4
TEXTS = ("Once upon a time there was a king who had", "Once upon a time there was a king who")
BLOCK = 4  # tokens, in the picture of shared blocks


def drawings() -> list[Drawing]:
    """All diagrams of the chapter."""
    return [static_continuous(), chunks(), shared(), waiting()]


def static_continuous() -> Drawing:
    """The picture to remember: the same requests, and how long rows are idle."""
    runs = {"static: the next batch waits for the longest row of this one": example.twelve(True),
            "continuous: a request that ends leaves its row to the next one": example.twelve(False)}  # fmt: skip
    end = 1e3 * max(run.seconds for run in runs.values())

    def bars(ax: Axes, run: Any) -> None:
        ax.add_patch(Rectangle((0, -0.5), 1e3 * run.seconds, ROWS, facecolor="#e8c9b8", hatch="///", edgecolor=GROUND))
        for number, lane, start, last in clock.lanes(run):
            color = PEERS[number % len(PEERS)]
            ax.barh(lane, 1e3 * (last - start), left=1e3 * start, height=0.82, color=color, edgecolor=GROUND, zorder=3)
            if last - start > 4e-3:
                ax.text(1e3 * (start + last) / 2, lane, str(number), color=GROUND, ha="center", va="center",
                        fontsize=9.5, zorder=4)  # fmt: skip
        for number, row in enumerate(run.rows):
            ax.plot(1e3 * row.asked, ROWS - 0.28, marker="v", color=PEERS[number % len(PEERS)], markersize=6)
        ax.axvline(1e3 * run.seconds, color=TEXT, linewidth=1.2)

    @charted(4.6, 2, share="x", left=0.085, top=0.93, bottom=0.12, hspace=0.32)
    def draw(*axes: Axes) -> None:
        for ax, (title, run) in zip(axes, runs.items(), strict=True):
            bars(ax, run)
            ax.set_yticks(range(ROWS), [f"row {n}" for n in range(ROWS)])
            ax.grid(visible=False)
            ax.set(title=f"{title}: {run.idle(ROWS):.0%} idle", ylim=(ROWS - 0.05, -0.55), xlim=(0, end + 1))
        ax.set_xlabel("milliseconds; a triangle is an arrival, a hatched area an idle row")

    alt = "The same twelve requests in a batch of four rows, on one time axis. " + " ".join(
        f"{title.partition(':')[0].capitalize()}: {len(run.steps)} steps, over after {1e3 * run.seconds:.0f} ms, "
        f"{run.idle(ROWS):.0%} of the rows' time is idle." for title, run in runs.items()
    )  # fmt: skip
    found = {number: [run.rows[number] for run in runs.values()] for number in range(len(example.NEW))}
    rows = tuple(
        (str(number), str(example.NEW[number]), f"{1e3 * both[0].asked:.0f} ms",
         *(f"{1e3 * row.times[-1]:.1f} ms" for row in both)) for number, both in found.items()
    )  # fmt: skip
    header = ("request", "new tokens", "arrives", "ends, static", "ends, continuous")
    return Drawing("05-queue/static-continuous", "Static against continuous batching", alt, header, rows, draw)


def chunks() -> Drawing:
    """Steps as wide as they take, with a prompt of 900 tokens at once and in chunks."""
    budgets = (1024, 256, 64)
    asks = [*[clock.Ask(0.0, 8, 120)] * 3, clock.Ask(0.005, 900, 8)]
    runs = {budget: clock.run(asks, clock.engine(4, budget)) for budget in budgets}
    shown = 34.0  # milliseconds

    @charted(3.5, left=0.11, top=0.98, bottom=0.15)
    def draw(ax: Axes) -> None:
        for at, run in enumerate(runs.values()):
            for start, end, fed in run.steps:
                if 1e3 * start < shown:
                    color = ACCENT if fed.get(3, 0) > 1 else GREYS[1]
                    ax.barh(at, 1e3 * (end - start), left=1e3 * start, height=0.5, color=color, edgecolor=GROUND)
            first = 1e3 * run.rows[3].times[0]
            ax.plot(first, at - 0.36, marker="v", color=ACCENT, markersize=8)
            ax.text(first - 0.3, at - 0.37, "its first token", ha="right", va="center", fontsize=9)
        ax.axvline(5, color=MUTED, linestyle=":", linewidth=1.4)
        ax.text(5.2, -0.62, "the prompt arrives", va="center", fontsize=9)
        ax.set_yticks(range(len(budgets)), [f"{budget:,}" for budget in budgets])
        ax.grid(visible=False)
        ax.set(ylabel="tokens a step", ylim=(len(budgets) - 0.55, -0.8), xlim=(0, shown))
        ax.set_xlabel("milliseconds; each box is a step, after which every decoding sequence has a new token")

    cells = tuple(
        (f"{budget:,}", f"{1e3 * max(run.gaps(0)):.1f} ms", f"{1e3 * run.waits[3]:.1f} ms")
        for budget, run in runs.items()
    )
    told = "; ".join(f"{budget} tokens a step: {gap}, first token after {first}" for budget, gap, first in cells)
    alt = (
        f"Steps of three decoding sequences, on a time axis, as a prompt of 900 tokens arrives, drawn in color. "
        f"The longest gap between a sequence's tokens, and the prompt's own first token: {told}."
    )
    header = ("tokens a step", "longest gap of the three", "first token of the prompt")
    return Drawing("05-queue/chunks", "A long prompt in chunks", alt, header, cells, draw)


def shared() -> Drawing:
    """Two texts that begin alike: which blocks are one, and which are each row's own."""
    words = [text.replace(" ", " ·").split(" ") for text in TEXTS]
    cut = [[text[at : at + BLOCK] for at in range(0, len(text), BLOCK)] for text in words]
    full = [len(text) // BLOCK for text in words]
    same = sum(a == b for a, b in zip(*cut, strict=True) if len(a) == BLOCK)

    def block(on: Sketch, x: float, y: float, tokens: list[str], color: str, note: str) -> None:
        for at, token in enumerate((tokens + [""] * BLOCK)[:BLOCK]):
            on.filled((x + 1.02 * at, y), (1.0, 0.62), color if token else None, token, 9)
        on.write((x, y + 0.86), note, MUTED, 8.8)

    @sketched(16, 4.7)
    def draw(on: Sketch) -> None:
        for row in range(2):
            y = 0.4 + 3.0 * row
            on.write((0.25, y + 0.31), f"sequence {row}")
            own = cut[row][-1]
            block(on, 11.4, y, own, PEERS[row], "not full: its own")
        for at in range(same):
            block(on, 2.2 + 4.6 * at, 1.75, cut[0][at], ACCENT, "full, and two owners")
        for row in range(2):
            y = 0.4 + 3.0 * row
            for at in range(same):
                x = 2.2 + 4.6 * at + 2.04
                on.arrow((2.0, y + 0.31), (x, 1.72 if row == 0 else 2.85), MUTED, 1.1)
            on.arrow((2.0, y + 0.31), (11.3, y + 0.31), MUTED, 1.1)

    alt = (
        f"Two sequences, '{TEXTS[0]}' and '{TEXTS[1]}', in blocks of {BLOCK} words. The first {same} blocks are full "
        "and the same: one each in the pool, with two owners. The last block is not full, so each sequence has its own."
    )
    rows = tuple(
        (str(row), str(at), " ".join(tokens), "both" if at < same else "one", "yes" if at < full[row] else "no")
        for row in range(2) for at, tokens in enumerate(cut[row])
    )  # fmt: skip
    return Drawing("05-queue/shared", "Blocks of two texts that begin alike", alt,
                   ("sequence", "block", "words", "owners", "full"), rows, draw)  # fmt: skip


def waiting() -> Drawing:
    """Throughput and waiting against the rate, from the runs on the simulated clock."""
    shares = example.RATES
    runs = [example.mixture(share) for share in shares]
    done = [len(run.rows) / run.seconds / example.capacity() for run in runs]
    p50, p99 = ([1e3 * clock.quantile(run.waits, share) for run in runs] for share in (0.5, 0.99))

    @charted(3.7, 1, 2, left=0.065, top=0.92, bottom=0.145, wspace=0.18)
    def draw(left: Axes, right: Axes) -> None:
        at = [100 * share for share in shares]
        left.plot(at, [100 * share for share in done], color=GREYS[2], marker="o", linewidth=2)
        left.plot((0, 100, 105), (0, 100, 100), color=MUTED, linestyle=":", linewidth=1.3)
        left.set(title="answered, % of the capacity", ylim=(0, 115))
        right.plot(at, p99, color=ACCENT, marker="v", linewidth=2.2, label="p99")
        right.plot(at, p50, color=PEERS[0], marker="s", linewidth=1.8, label="p50")
        right.legend(loc="upper left")
        right.set(title="first token, ms", ylim=(0, 1.2 * p99[-2]))
        for ax in (left, right):
            ax.set(xlim=(0, 108), xlabel="asked for, % of the capacity")

    cells = tuple(
        (f"{share:.0%}", f"{d:.0%}", f"{a:.1f} ms", f"{b:.1f} ms")
        for share, d, a, b in zip(shares, done, p50, p99, strict=True)
    )
    told = "; ".join(f"at {a} the engine answers {b}, and p99 of the first token is {d}" for a, b, _, d in cells)
    alt = f"Left what is answered and right the first token's time, against the rate of arrivals: {told}."
    return Drawing("05-queue/waiting", "Latency explodes before throughput saturates", alt,
                   ("asked", "answered", "first token, p50", "p99"), cells, draw)  # fmt: skip
