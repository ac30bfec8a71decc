"""The diagrams of chapter 8, from its running example and its results: `python -m nanobook draw 08-parallel`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from nanobench.report.figures.style import ACCENT, MUTED, PEERS, Drawing
from nanobench.report.values import seconds
from nanobook.examples import load
from nanobook.figures.sketch import Sketch, charted, sketched
from nanoinfer.model.config import PRESETS
from nanoinfer.parallel.shard import Shard

here = Path(__file__).parent
example = load(here / "example.py")
run, measured = example.run, example.measured
RANKS = (PEERS[0], ACCENT, PEERS[1])  # a colour each


def drawings() -> list[Drawing]:
    """All diagrams of the chapter."""
    computed = [paper(), layer(), heads(), ring(), overwritten(), shards()]
    return [*computed, reduces(), overtakes()]


def grid(on: Sketch, at: tuple[float, float], numbers: Any, colors: list[list[str | None]]) -> None:
    """A matrix of whole numbers in squares, its upper left corner at `at`."""
    for row, line in enumerate(numbers):
        for column, number in enumerate(line):
            on.filled((at[0] + column, at[1] + row), (1, 1), colors[row][column], str(int(number)), 10)


def paper() -> Drawing:
    """The picture to remember: columns first, then rows, and one sum."""
    A, B, x = example.A, example.B, example.X
    h = (x @ A).relu()
    terms = [h[own] @ B[own] for own in (slice(0, 2), slice(2, 4))]
    columns = [RANKS[0], RANKS[0], RANKS[1], RANKS[1]]

    @sketched(27, 10.2)
    def draw(on: Sketch) -> None:
        grid(on, (0.6, 2.9), [x], [[None] * 4])
        on.write((2.6, 4.5), "x, on both", MUTED, 10, "center")
        grid(on, (6.0, 1.4), A, [columns] * 4)
        on.write((8.0, 0.8), "A, cut by columns", align="center")
        grid(on, (11.4, 2.9), [h], [columns])
        on.write((13.4, 4.8), "h, negatives 0,\neach rank alone", MUTED, 10, "center")
        grid(on, (16.8, 1.4), B, [[color] * 4 for color in columns])
        on.write((18.8, 0.8), "B, cut by rows", align="center")
        for y, term, color, name in zip((1.4, 4.7), terms, RANKS, ("rank 0's term", "rank 1's term"), strict=False):
            grid(on, (22.2, y), [term], [[color] * 4])
            on.write((24.2, y - 0.6), name, MUTED, 10, "center")
        on.write((24.2, 3.1), "+", size=14, align="center")
        on.arrow((24.2, 5.8), (24.2, 7.4), MUTED, 1.6)
        on.write((23.8, 6.6), "one all-reduce", size=10, align="right")
        grid(on, (22.2, 7.5), [h @ B], [[PEERS[1]] * 4])
        on.write((24.2, 9.1), "y, on both", MUTED, 10, "center")
        on.write((0.6, 7.3), "rank 0 has two columns of A and two rows of B", RANKS[0], 10.5)
        on.write((0.6, 8.3), "rank 1 has the others", RANKS[1], 10.5)
        for at, sign in ((5.3, "·"), (10.7, "="), (16.1, "·"), (21.5, "=")):
            on.write((at, 3.4), sign, size=13, align="center")

    told = [" ".join(str(int(n)) for n in row) for row in (h, *terms, h @ B)]
    alt = (
        "A row x times a matrix of four columns, negative numbers set to 0, times a matrix of four rows. Rank 0 has "
        f"the first two columns of the one and the first two rows of the other. h is {told[0]}; the ranks' terms are "
        f"{told[1]} and {told[2]}; their sum, one all-reduce, is {told[3]}."
    )
    rows = (("h", told[0]), ("rank 0's term", told[1]), ("rank 1's term", told[2]), ("the sum", told[3]))
    return Drawing("08-parallel/paper", "By columns, then by rows, then one sum", alt, ("what", "numbers"), rows, draw)


def layer() -> Drawing:
    """A layer on two ranks: the same stream on both, and two places where they meet."""
    config = PRESETS["gpt2-xl"]
    own = [Shard(rank, 2).config(config) for rank in range(2)]

    @sketched(16, 6.6)
    def draw(on: Sketch) -> None:
        for rank, y in enumerate((1.2, 5.4)):
            color, part = RANKS[rank], own[rank]
            on.arrow((0.2, y), (15.8, y), MUTED, 2.2)
            away = 1 if rank == 0 else -1
            told = f"rank {rank}: residual stream, {config.n_embd:,} numbers a token"
            on.write((0.2, y - 0.45 * away), told, color, 10)
            for at, (left, one, two) in enumerate((
                (1.3, f"norm, c_attn,\n{part.n_head} heads", "rows of\nattn.c_proj"),
                (8.6, f"norm, c_fc, GELU,\n{part.inner:,} columns", "rows of\nmlp.c_proj"),
            )):  # fmt: skip
                inside = y + 1.15 * away
                on.arrow((left, y), (left, inside - 0.42 * away), MUTED)
                on.filled((left - 1.0, inside - 0.42), (2.6, 0.84), color, one)
                on.arrow((left + 1.6, inside), (left + 2.1, inside), MUTED)
                on.filled((left + 2.1, inside - 0.42), (1.8, 0.84), color, two)
                on.arrow((left + 3.9, inside), (left + 4.75, 3.3 - 0.38 * away), color)
                on.arrow((left + 5.3, 3.3 - 0.38 * away), (left + 6.0, y + 0.08 * away), PEERS[1])
                if rank == 0:
                    on.box((left + 5.05, 3.3), (1.9, 0.7), "all-reduce", accent=True)
                    on.write((left - 0.4, 3.3), ("attention", "MLP")[at], MUTED, 10.5)

    alt = (
        f"A layer of gpt2-xl on two ranks. Each has the whole residual stream. Rank 0 computes {own[0].n_head} heads "
        f"and {own[0].inner} columns of the MLP, rank 1 {own[1].n_head} heads and {own[1].inner} columns. Twice "
        "a layer each has a term of an update; an all-reduce adds the terms, and the sum is added to both streams."
    )
    rows = tuple((str(rank), str(part.n_head), str(part.inner)) for rank, part in enumerate(own))
    return Drawing(
        "08-parallel/layer", "A layer on two ranks", alt, ("rank", "heads", "columns of the MLP"), rows, draw
    )


def heads() -> Drawing:
    """c_attn of the small model by heads, as it must be cut and as it must not."""
    config = PRESETS["small"]
    H, first = config.n_head, Shard(0, 2).heads(config).stop
    names = [f"{kind}{head}" for kind in "qkv" for head in range(H)]
    ways = (("in each third", [0 if n % H < first else 1 for n in range(3 * H)]),
            ("straight", [0 if n < 3 * first else 1 for n in range(3 * H)]))  # fmt: skip

    @sketched(16, 3.6)
    def draw(on: Sketch) -> None:
        for row, (name, owners) in enumerate(ways):
            y = 0.5 + 1.45 * row
            on.write((0.2, y + 0.35), f"cut {name}")
            for at, owner in enumerate(owners):
                x = 3.1 + 0.82 * at + 0.12 * (at // H)
                on.filled((x, y), (0.82, 0.7), RANKS[owner], names[at], 10)
        on.write((3.1, 1.5), "each rank has the query, the key and the value of its heads", MUTED, 9.5)
        on.write((3.1, 2.95), f"rank 0 has all queries and keys 0 to {3 * first - H - 1}, and no value", MUTED, 9.5)
        on.write((3.1, 0.22), "rank 0", RANKS[0], 9.5)
        on.write((4.3, 0.22), "rank 1", RANKS[1], 9.5)

    alt = (
        f"The columns of c_attn of a model with {H} heads, by heads: queries q0 to q{H - 1}, then keys, then values. "
        f"Cut in each third, rank 0 has queries, keys and values of heads 0 to {first - 1}, and rank 1 those of the "
        f"others. Cut straight, rank 0 has all queries and keys 0 to {3 * first - H - 1}, and rank 1 the rest."
    )
    of = lambda owners, rank: " ".join(n for n, o in zip(names, owners, strict=True) if o == rank)  # noqa: E731
    rows = tuple((name, of(owners, 0), of(owners, 1)) for name, owners in ways)
    return Drawing("08-parallel/heads", "Where a fused matrix is cut", alt, ("cut", "rank 0", "rank 1"), rows, draw)


def ring() -> Drawing:
    """Three ranks, four steps: what each sends to the next, and what it has then."""
    start = [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [100.0, 200.0, 300.0]]
    steps, _ = run.ring(start)
    have, states = [list(row) for row in start], [[list(row) for row in start]]
    for at, step in enumerate(steps):
        for one in step:
            to = have[(one.sender + 1) % 3]
            to[one.part] = to[one.part] + one.numbers[0] if at < 2 else one.numbers[0]
        states.append([list(row) for row in have])

    @sketched(16, 6.2)
    def draw(on: Sketch) -> None:
        for at, state in enumerate(states):
            x = 1.5 + 3.0 * at
            title = "at first" if at == 0 else f"{'add' if at < 3 else 'pass on'}, step {at}"
            on.write((x + 1.05, 0.35), title, MUTED, 10, "center")
            for rank, row in enumerate(state):
                y = 0.9 + 1.7 * rank
                if at == 0:
                    on.write((0.2, y + 0.35), f"rank {rank}")
                came = {(one.sender + 1) % 3: one.part for one in steps[at - 1]} if at else {}
                for part, number in enumerate(row):
                    done = number == sum(r[part] for r in start)
                    color = PEERS[1] if done else ACCENT if came.get(rank) == part else None
                    on.filled((x + 0.7 * part, y), (0.7, 0.7), color, f"{number:g}")
            for one in steps[at] if at < len(steps) else ():
                start_y, end_y = (0.9 + 1.7 * rank + 0.35 for rank in (one.sender, (one.sender + 1) % 3))
                on.arrow((x + 2.14, start_y), (x + 2.98, end_y), MUTED, 1.2)
        on.write((1.5, 5.85), "orange: what has just been added to; green: complete; an arrow: one message", MUTED, 9.5)

    lines = tuple((str(at + 1), *(f"{one.sender} sends part {one.part}: {one.numbers[0]:g}" for one in step))
                  for at, step in enumerate(steps))  # fmt: skip
    told = "; ".join(f"step {a}: {b}, {c}, {d}" for a, b, c, d in lines)
    alt = (
        "A ring of three ranks that sum three numbers. In two steps each sends one number to the next, which adds it; "
        f"in two more each passes on a complete one. {told}."
    )
    return Drawing("08-parallel/ring", "A ring all-reduce", alt, ("step", "rank 0", "rank 1", "rank 2"), lines, draw)


def reduces() -> Drawing:
    """What an all-reduce takes, against rows."""
    rows, kinds = measured.reduce_rows(), measured.kinds()
    styles = (PEERS[1], "v", "-"), (PEERS[0], "^", "-"), (MUTED, "s", ":"), (MUTED, "D", "-"), (ACCENT, "o", "-")
    looks = dict(zip(kinds, styles, strict=False))

    @charted(3.4, left=0.08, top=0.96, bottom=0.16)
    def draw(ax: Axes) -> None:
        for kind, (color, marker, line) in looks.items():
            times = [1e6 * measured.reduce_s(kind, n) for n in rows]
            ax.plot(rows, times, color=color, marker=marker, linestyle=line, linewidth=2.0, label=measured.KINDS[kind])
        ax.set_xscale("log", base=2)
        ax.set_xticks(rows, [str(n) for n in rows])
        ax.legend(loc="upper left", ncols=2)
        ax.set(ylim=(0, None), xlabel=f"sequences, each {measured.width():,} numbers of two bytes", ylabel="µs")

    cells = tuple((str(n), *(seconds(measured.reduce_s(kind, n)) for kind in kinds)) for n in rows)
    each = [", ".join(f"{measured.KINDS[k]} {t}" for k, t in zip(kinds, line, strict=True)) for _, *line in cells]
    told = "; ".join(f"{n} sequence{'s' * (n > 1)}: {times}" for n, times in zip(rows, each, strict=True))
    alt = f"What an all-reduce over two GPUs takes, inside a captured graph, against sequences. {told}."
    header = ("sequences", *(measured.KINDS[kind] for kind in kinds))
    return Drawing("08-parallel/reduces", "What an all-reduce takes", alt, header, cells, draw)


def overtakes() -> Drawing:
    """How many times as fast a step is on two GPUs as on one: measured, and by the formula."""
    models = measured.models()
    looks = dict(zip(models, ((ACCENT, "o"), (PEERS[0], "s"), (PEERS[1], "^"), (PEERS[2], "D")), strict=False))

    @charted(4.0, left=0.09, top=0.96, bottom=0.13)
    def draw(ax: Axes) -> None:
        for model, (color, marker) in looks.items():
            rows = measured.rows_measured(model)
            ax.plot(rows, [measured.gain(model, n) for n in rows], color=color, marker=marker, linewidth=2.2,
                    label=measured.short(model))  # fmt: skip
            ends = [[measured.predicted(model, n, all_halves) for n in rows] for all_halves in (False, True)]
            ax.fill_between(
                rows, *ends, color=color, alpha=0.12, linewidth=0, label=f"{measured.short(model)}, formula"
            )
        ax.axhline(1, color=MUTED, linewidth=1.3)
        ax.text(measured.rows_measured(models[0])[0], 0.985, "one GPU", va="top", fontsize=9.5)
        ax.set_xscale("log", base=2)
        every = sorted({n for model in models for n in measured.rows_measured(model)})
        ax.set_xticks(every, [str(n) for n in every])
        ax.legend(loc="lower right")
        ax.set(ylim=(0, None), xlabel="sequences", ylabel="times as fast on two GPUs")

    cells = tuple((measured.short(model), str(n),
                   *(f"{measured.predicted(model, n, all_halves):.2f}" for all_halves in (False, True)),
                   f"{measured.gain(model, n):.2f}")
                  for model in models for n in measured.rows_measured(model))  # fmt: skip
    told = "; ".join(
        f"{model}, {n} sequence{'s' * (n != '1')}: {g} measured, {a} to {b} by the formula"
        for model, n, a, b, g in cells
    )
    alt = f"How many times as fast a step is on two GPUs as on one, against sequences. {told}."
    return Drawing("08-parallel/overtakes", "Where two GPUs overtake one", alt,
                   ("model", "sequences", "bytes halve", "all halves", "measured"), cells, draw)  # fmt: skip


def overwritten() -> Drawing:
    """One buffer a rank: the next sum's number arrives before the last one was read."""

    @sketched(16, 4.5)
    def draw(on: Sketch) -> None:
        for row, (buffers, y) in enumerate(((1, 0.6), (2, 2.6))):
            on.write((0.2, y + 0.05), ("one buffer", "two, in turn")[row])
            for rank in range(2):
                line = y + 0.75 * rank
                on.write((2.6, line), f"rank {rank}", RANKS[rank], 10)
                events = (((4.0, "writes 1"), (6.4, "reads 10"), (8.8, "writes 2")),
                          ((4.0, "writes 10"), (11.2, "reads 2" if buffers == 1 else "reads 1")))[rank]  # fmt: skip
                for x, text in events:
                    wrong = text == "reads 2"
                    color = ACCENT if wrong else PEERS[1] if "reads" in text else None
                    on.filled((x, line - 0.28), (1.9, 0.56), color, text)
            told = "its sum is 12" if buffers == 1 else "its sum is 11"
            on.write((13.3, y + 0.75), told, ACCENT if buffers == 1 else PEERS[1], 9.5)

    sums = [example.one_shot(1 + n, n) for n in (1, 2)]
    alt = (
        "Two ranks add 1 and 10. Rank 0 writes 1, reads 10, and writes 2 for the next sum, while rank 1 is late. With "
        "one buffer a rank, rank 1 then reads 2 and has 12. With two buffers in turn, 2 goes to the other one, and "
        "rank 1 has 11."
    )
    rows = tuple((str(n + 1), str(both[0][0]), str(both[1][0])) for n, both in enumerate(sums))
    header = ("buffers", "rank 0's sum", "rank 1's sum")
    return Drawing("08-parallel/overwritten", "What a peer still reads", alt, header, rows, draw)


def shards() -> Drawing:
    """A file of prompts, its shards, and the one moment at which a result is there."""
    names = ["0-999", "1000-1999", "2000-2999", "3000-3999"]
    states = ("there", "being written, under another name", "there", "not begun")

    @sketched(16, 4.6)
    def draw(on: Sketch) -> None:
        on.write((0.2, 0.35), "prompts.jsonl, by lines", MUTED, 10)
        on.write((5.6, 0.35), "whichever worker is free", MUTED, 10)
        on.write((9.6, 0.35), "the folder of results", MUTED, 10)
        for at, (name, state) in enumerate(zip(names, states, strict=True)):
            y = 0.75 + 0.92 * at
            on.filled((0.2, y), (3.4, 0.7), None, name, 10)
            color = (PEERS[1], ACCENT, PEERS[1], None)[at]
            if at < 3:
                on.arrow((3.6, y + 0.35), (5.6, y + 0.35), MUTED)
                on.box((6.7, y + 0.35), (2.2, 0.6), f"worker {at % 2}")
                on.arrow((7.8, y + 0.35), (9.6, y + 0.35), MUTED)
            on.filled((9.6, y), (6.2, 0.7), color, state, 10, None if color else MUTED)

    alt = (
        "A file of prompts, cut into four shards by line numbers. The first and the third are there in the folder of "
        "results, the second is being written under another name, and the fourth has not been begun. If the run is "
        "killed now, the next one computes the second and the fourth."
    )
    rows = tuple(zip(names, states, strict=True))
    return Drawing("08-parallel/shards", "Shards of a batch", alt, ("lines", "state"), rows, draw)
