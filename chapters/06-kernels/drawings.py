"""The diagrams of chapter 6: `python -m nanobook draw 06-kernels`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes

from nanobench.report.figures.style import ACCENT, GREYS, GRID, MUTED, PEERS, Drawing
from nanobench.report.values import factor
from nanobook.examples import load
from nanobook.figures.sketch import Sketch, charted, sketched

here = Path(__file__).parent
example = load(here / "example.py")
S = example.shape()


def drawings() -> list[Drawing]:
    """All diagrams of the chapter."""
    return [waterfall(), flat(), layer(), early(), gain(), exchange(), words(), cut()]


def waterfall() -> Drawing:
    """A token's time as the chapter shortens it, above the time that its bytes take."""
    measured = example.measured
    names = ("chapter 4's\ncaptured operations", "fused kernels", "fused kernels,\nlaunched early")
    times = [round(1e6 * measured.token(arm)) for arm in ("paged-graph", "fused, none early", "fused")]
    floor = round(1e6 * measured.limit())

    @charted(3.6, left=0.085, top=0.97, bottom=0.17)
    def draw(ax: Axes) -> None:
        for at, time in enumerate(times):
            ax.bar(2 * at, time, color=ACCENT if at == 2 else PEERS[0], width=1.1)
            ax.annotate(f"{time} µs", (2 * at, time), (0, 3), textcoords="offset points", ha="center", fontsize=11)
        for at, (before, after) in enumerate(pairwise(times)):
            ax.bar(2 * at + 1, before - after, bottom=after, color=GRID, width=0.9)
            what = ("fewer\nkernels", "early\nlaunch")[at]
            ax.annotate(f"{what}\n-{before - after} µs", (2 * at + 1, (before + after) / 2), ha="center", va="center",
                        fontsize=9.5)  # fmt: skip
        ax.axhline(floor, color=MUTED, linestyle=":", linewidth=1.5)
        ax.annotate(f"bandwidth limit: {floor} µs", (4.75, floor), (0, 4), textcoords="offset points", fontsize=11)
        ax.set_xticks([0, 2, 4], names)
        ax.grid(visible=False, axis="x")
        ax.set(xlim=(-0.8, 6.9), ylim=(0, 1.12 * times[0]), ylabel="µs a token")

    cells = tuple((name.replace("\n", " "), str(time)) for name, time in zip(names, times, strict=True))
    alt = (
        "What a token of gpt2 takes with one row on an H200: "
        + ", ".join(f"{time} µs with {name}" for name, time in cells)
        + f". At the bandwidth limit it would take {floor} µs."
    )
    header = ("kernels", "µs a token")
    return Drawing("06-kernels/waterfall", "The way down of a token's time", alt, header, cells, draw)


def flat() -> Drawing:
    """The picture to remember: a matrix times more and more rows, in the time that its weights take to be read."""
    found, floor = example.measured.matrix(), example.measured.matrix_floor()

    @charted(3.4, left=0.075, top=0.97, bottom=0.15)
    def draw(ax: Axes) -> None:
        rows, times = zip(*found, strict=True)
        ax.plot(rows, [1e6 * time for time in times], color=ACCENT, marker="o", linewidth=2.0, label="measured")
        ax.axhline(1e6 * floor, color=MUTED, linestyle=":", linewidth=1.5, label="its weights, read at copy speed")
        ax.set_xscale("log", base=2)
        ax.set_xticks(rows, [str(count) for count in rows])
        ax.legend(loc="upper left")
        ax.set(ylim=(0, None), xlabel="rows", ylabel="µs")

    cells = tuple((str(rows), f"{1e6 * time:.2f}") for rows, time in found)
    alt = (
        "The time of a product with the widest matrix of a layer of gpt2 against rows: "
        + ", ".join(f"{time} µs for {rows}" for rows, time in cells)
        + f". Its weights alone would take {1e6 * floor:.2f} µs at the speed at which the device copies memory."
    )
    return Drawing("06-kernels/flat", "A matrix times rows", alt, ("rows", "µs"), cells, draw)


def layer() -> Drawing:
    """A layer by five kernels: what each reads besides weights, and writes."""
    kernels = (
        ("qkv_kernel", "norm, matrix", "queries;\nkeys, values"),
        ("attend_kernel", "scores, sums, join", "attention"),
        ("update_kernel", "projection", "stream"),
        ("up_kernel", "norm, up, GELU", "inner"),
        ("update_kernel", "down", "stream"),
    )

    @sketched(16, 4.0)
    def draw(on: Sketch) -> None:
        on.write((0.2, 0.45), "residual stream")
        on.arrow((3.1, 0.45), (15.9, 0.45), MUTED, 2.0)
        for at, (name, does, gives) in enumerate(kernels):
            x = 4.35 + 2.6 * at
            update = name == "update_kernel"
            on.filled((x - 1.18, 1.35), (2.36, 1.1), ACCENT if update else PEERS[0])
            on.write((x, 1.68), name, size=10, align="center")
            on.write((x, 2.12), does, MUTED, 8.5, "center")
            if update:
                on.arrow((x, 1.33), (x, 0.52), ACCENT)
            elif name != "attend_kernel":
                on.arrow((x, 0.52), (x, 1.33), MUTED)
            on.write((x, 3.05), gives, size=9.5, align="center")
            if at < 4:
                on.arrow((x + 1.2, 1.9), (x + 1.4, 1.9), MUTED)
        on.write((0.2, 1.9), "five kernels")
        on.write((0.2, 3.05), "what each writes")

    alt = (
        "A layer as five kernels in a row under the residual stream. qkv_kernel reads the stream, normalises it and "
        "writes queries, keys and values; attend_kernel writes attention's output; update_kernel adds the projection "
        "of it to the stream; up_kernel reads the stream and writes the inner numbers; update_kernel adds to the "
        "stream what comes down from them."
    )
    rows = tuple((name, does, gives.replace("\n", " ")) for name, does, gives in kernels)
    return Drawing("06-kernels/layer", "A layer in five kernels", alt, ("kernel", "does", "writes"), rows, draw)


def early() -> Drawing:
    """Two kernels one after the other: without early launch, and with it."""
    # (kernel, from, to, what): a schema, in no unit.
    plain = ((0, 0.0, 1.0, "start"), (0, 1.0, 3.2, "weights"), (0, 3.2, 4.4, "product"),
             (1, 5.0, 6.0, "start"), (1, 6.0, 8.2, "weights"), (1, 8.2, 9.4, "product"))  # fmt: skip
    ahead = ((0, 0.0, 1.0, "start"), (0, 1.0, 3.2, "weights"), (0, 3.2, 4.4, "product"),
             (1, 1.2, 2.2, "start"), (1, 2.2, 4.4, "weights"), (1, 4.6, 5.8, "product"))  # fmt: skip
    colors = {"start": GREYS[1], "weights": PEERS[0], "product": ACCENT}

    def panel(on: Sketch, y: float, title: str, spans: tuple[tuple[int, float, float, str], ...]) -> None:
        on.write((0.2, y + 0.1), title)
        for kernel, begin, end, what in spans:
            corner = (4.2 + 1.15 * begin, y + 0.75 * kernel - 0.25)
            on.filled(corner, (1.15 * (end - begin) - 0.05, 0.62), colors[what])
            on.write((corner[0] + 1.15 * (end - begin) / 2, corner[1] + 0.31), what, size=9, align="center")

    @sketched(16, 4.3)
    def draw(on: Sketch) -> None:
        panel(on, 0.5, "one begins when\nthe other has ended", plain)
        panel(on, 2.6, "launched early:\nweights first, then wait", ahead)
        x = 4.2 + 1.15 * 4.5
        on.ax.plot((x, x), (2.25, 3.85), color=MUTED, linewidth=1.3, linestyle=":")
        on.write((x + 0.05, 4.05), "the wait: all that the first kernel wrote is there", MUTED, 9, "center")

    alt = (
        "Two kernels, one above the other, against time; no unit. Above, the second one starts, loads its weights and "
        "multiplies after the first has done all three. Below, it starts and loads its weights while the first is "
        "still at work, waits for the first one's end, and only multiplies after it."
    )
    rows = tuple((side, str(kernel + 1), what) for side, spans in (("plain", plain), ("early", ahead))
                 for kernel, _, _, what in spans)  # fmt: skip
    return Drawing("06-kernels/early", "A kernel that begins before the one ahead of it has ended", alt,
                   ("launch", "kernel", "in order"), rows, draw)  # fmt: skip


def gain() -> Drawing:
    """Throughput of `fused` over chapter 4's engine, by rows."""
    found = example.measured.gains()

    @charted(3.0, left=0.075, top=0.97, bottom=0.17)
    def draw(ax: Axes) -> None:
        places = range(len(found))
        ax.bar(places, found.values(), color=ACCENT, width=0.6)
        ax.axhline(1, color=MUTED, linestyle=":", linewidth=1.5)
        for at, value in enumerate(found.values()):
            ax.annotate(factor(value), (at, value), (0, 3), textcoords="offset points", ha="center", fontsize=9)
        ax.set_xticks(places, [str(rows) for rows in found])
        ax.set(ylim=(0, 2.7), xlabel="rows", ylabel="fused / paged-graph")

    cells = tuple((str(rows), factor(value)) for rows, value in found.items())
    alt = "Tokens a second of fused over those of paged-graph, by rows: " + ", ".join(
        f"{value} with {rows}" for rows, value in cells
    )
    header = ("rows", "fused / paged-graph")
    return Drawing("06-kernels/gain", "What fused gains by rows", alt + ".", header, cells, draw)


def exchange() -> Drawing:
    """Three programs that need each other's values, by a barrier and by words."""
    ready = (1.0, 2.6, 1.6)  # when each has its own value: a schema, in no unit

    def panel(on: Sketch, y: float, title: str, barrier: bool) -> None:
        on.write((0.2, y + 0.75), title)
        met = max(ready) + 1.2
        for who, own in enumerate(ready):
            top = y + 0.55 * who
            end = met if barrier else max(ready) + 0.6
            on.filled((4.6, top), (1.5 * own, 0.42), PEERS[0])
            on.ax.plot((4.6 + 1.5 * own, 4.6 + 1.5 * end), (top + 0.21, top + 0.21), color=MUTED, linewidth=1.2)
            color, told = (GREYS[1], "read") if barrier else (ACCENT, "has it")
            on.filled((4.6 + 1.5 * end, top), (1.5 * 0.6, 0.42), color, told, 9)
            on.write((4.45, top + 0.21), str(who), MUTED, 9, "right")
            if barrier:
                on.filled((4.6 + 1.5 * (end + 0.6), top), (1.5 * 0.6, 0.42), ACCENT, "has it", 9)

    @sketched(16, 4.6)
    def draw(on: Sketch) -> None:
        panel(on, 0.3, "a barrier: store, fence,\ncount, poll the count, read", True)
        panel(on, 2.6, "words: store,\npoll the values themselves", False)
        on.write((4.6, 4.35), "blue: at work; line: waiting for the slowest", MUTED, 9)

    alt = (
        "Three programs with values that are ready at different times. With a barrier all wait until the slowest has "
        "stored, fenced and counted, and then read the values. With words that carry their own proof, the poll that "
        "sees the slowest one's value has it already: there is no fence, no count and no second reading."
    )
    rows = (("barrier", "store, fence, count, poll the count, read"), ("words", "store, poll the values"))
    return Drawing(
        "06-kernels/exchange", "An exchange by a barrier, and by words", alt, ("way", "in order"), rows, draw
    )


def words() -> Drawing:
    """The bits of a stamped and of a counted word."""
    kinds = (
        ("stamped", ((32, "stamp: launch and layer", GREYS[1]), (32, "value: a float32", PEERS[0]))),
        ("counted", ((8, "count", GREYS[1]), (56, "sum in fixed point: 1 is 2 to the 30th", PEERS[0]))),
        ("of the head", ((15, "launch", GREYS[1]), (17, "token id", ACCENT), (32, "score: a float32", PEERS[0]))),
    )

    @sketched(16, 3.6)
    def draw(on: Sketch) -> None:
        for row, (name, fields) in enumerate(kinds):
            y, bit = 0.6 + 1.0 * row, 0
            on.write((0.2, y + 0.3), name)
            for wide, what, color in fields:
                x = 2.6 + 0.2 * bit
                on.filled((x + 0.02, y), (0.2 * wide - 0.04, 0.6), color, what)
                bit += wide
        on.write((2.6, 0.3), "bit 63", MUTED, 9)
        on.write((2.6 + 12.8, 0.3), "bit 0", MUTED, 9, "right")

    alt = (
        "Three words of 64 bits. Stamped: 32 bits of launch and layer over 32 bits of a float32. Counted: 8 bits of "
        "count over 56 of a sum in fixed point. Of the head: 15 bits of launch, 17 of a token id, 32 of its score."
    )
    rows = tuple((name, what, str(wide)) for name, fields in kinds for wide, what, _ in fields)
    return Drawing("06-kernels/words", "Words that prove themselves", alt, ("word", "field", "bits"), rows, draw)


def cut() -> Drawing:
    """Two matrices of an MLP: the first cut by outputs, the second by inputs, so that nothing is told in between."""
    programs = 4
    colors = (PEERS[0], ACCENT, PEERS[1], PEERS[2])

    @sketched(16, 4.6)
    def draw(on: Sketch) -> None:
        on.filled((0.6, 0.6), (0.5, 3.2), GREYS[1])
        on.write((0.85, 4.2), "stream", size=10, align="center")
        for at in range(programs):
            on.filled((2.3 + 0.9 * at, 0.6), (0.86, 3.2), colors[at], str(at), 10)
            on.filled((7.2, 0.6 + 0.8 * at), (0.5, 0.76), colors[at])
            on.filled((9.0, 0.6 + 0.8 * at), (3.0, 0.76), colors[at], str(at), 10)
            on.filled((13.0 + 0.62 * at, 0.6), (0.5, 3.2), colors[at])
        on.write((4.1, 4.2), "up, cut by outputs", size=10, align="center")
        on.write((7.45, 4.2), "inner", size=10, align="center")
        on.write((10.5, 4.2), "down, cut by inputs", size=10, align="center")
        on.write((14.2, 4.2), "shares, to be added", size=10, align="center")
        for begin, end in ((1.2, 2.2), (6.0, 7.1), (7.8, 8.9), (12.1, 12.9)):
            on.arrow((begin, 2.2), (end, 2.2), MUTED)

    alt = (
        "The MLP over four programs. All need the whole stream. The matrix up is cut by its outputs, so each program "
        "has a part of the inner numbers; the matrix down is cut by its inputs, which are those very numbers. So "
        "nothing is exchanged between the two, and each program ends with a share of all outputs: the shares are added."
    )
    rows = (("up", "outputs", "the stream"), ("down", "inputs", "its own inner numbers"))
    header = ("matrix", "cut by", "a program needs")
    return Drawing("06-kernels/cut", "Cut by outputs, then by inputs", alt, header, rows, draw)
