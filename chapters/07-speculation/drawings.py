"""The diagrams of chapter 7, from its running example and its results: `python -m nanobook draw 07-speculation`."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from nanobench.report.figures.style import ACCENT, GREYS, GROUND, MUTED, PEERS, TEXT, Drawing
from nanobook.examples import load
from nanobook.figures.sketch import Sketch, charted, sketched
from nanobook.running import decode, word

here = Path(__file__).parent
example = load(here / "example.py")
run, measured = example.run, example.measured
RIGHT, WRONG = PEERS[1], ACCENT
WRAP = 84  # letters of its lines


def drawings() -> list[Drawing]:
    """All diagrams of the chapter."""
    return [verify(), price(), expected(), places(), shown()]


def worse() -> Any:
    """The step of the running example in which some guesses are right, and not all."""
    steps = example.text(heat=run.HEAT).steps
    return next(step for step in steps if 1 < len(step.kept) < len(step.drafts))


def verify() -> Drawing:
    """The picture to remember: k + 1 tokens go in at once, and the first wrong guess ends what is kept."""
    step = worse()
    fed = ["the newest", *map(word, step.drafts)]
    chosen, kept = list(map(word, step.chosen)), len(step.kept)

    guessed = [*fed[1:], "-"]

    @sketched(16, 5.4)
    def draw(on: Sketch) -> None:
        for y, label in ((0.6, "fed"), (2.45, "chosen after it"), (3.65, "guessed"), (4.85, "the new text")):
            on.write((0.2, y), label)
        on.box((9.2, 1.5), (12.8, 0.56), "one step of the model")
        for at, (token, new, guess) in enumerate(zip(fed, chosen, guessed, strict=True)):
            x, own = 3.9 + 2.65 * at, at < kept
            color = (RIGHT if new == guess else WRONG) if own else None
            on.filled((x - 1.1, 0.3), (2.2, 0.6), GREYS[1], token, 10)
            on.arrow((x, 0.92), (x, 1.2), MUTED)
            on.arrow((x, 1.8), (x, 2.12), MUTED)
            on.filled((x - 1.1, 2.15), (2.2, 0.6), RIGHT if own else None, new, 10, None if own else MUTED)
            on.filled((x - 1.1, 3.35), (2.2, 0.6), color, guess, 10, None if own else MUTED)
            if own:
                on.write((x, 3.05), "equal" if new == guess else "not equal: stop here", color, 9, "center")
                on.filled((x - 1.1, 4.55), (2.2, 0.6), RIGHT, new, 10)
            else:
                on.write((x, 4.85), "dropped", MUTED, 9.5, "center")

    alt = (
        f"One step is fed the newest token and {len(step.drafts)} guesses, {', '.join(fed[1:])}, and chooses a token "
        f"after each: {', '.join(chosen)}. Each choice is compared with the guess in its place. {kept - 1} of the "
        f"guesses {'is' if kept == 2 else 'are'} right, so the sequence keeps {', '.join(chosen[:kept])}; what was "
        "chosen after the wrong guess is dropped."
    ).replace('"', "'")
    rows = tuple((a, b, "yes" if at < kept else "no") for at, (a, b) in enumerate(zip(fed, chosen, strict=True)))
    return Drawing("07-speculation/verify", "Guesses, verified in one step", alt, ("fed", "chosen after it", "kept"),
                   rows, draw)  # fmt: skip


def price() -> Drawing:
    """How probable acceptance is, token by token: by rejection sampling across, by the same noise upwards."""
    layers = (11, 8)
    found = {n: [(example.textbook(p, q), example.shared(p, q)) for p, q in example.pairs(n)] for n in layers}

    @charted(3.9, left=0.085, top=0.97, bottom=0.135)
    def draw(ax: Axes) -> None:
        grid = [n / 100 for n in range(101)]
        ax.plot((0, 1), (0, 1), color=MUTED, linewidth=1.3, label="as good as rejection sampling")
        ax.plot(grid, [a / (2 - a) for a in grid], color=MUTED, linestyle=":", linewidth=1.5, label="never below this")
        for n, color, marker in zip(layers, (PEERS[0], ACCENT), ("s", "o"), strict=True):
            ax.plot(*zip(*found[n], strict=True), color=color, marker=marker, markersize=5, linestyle="none", alpha=0.7,
                    label=f"drafts by the first {n} of 12 layers")  # fmt: skip
        ax.legend(loc="upper left")
        ax.set(xlim=(0, 1.005), xlabel="accepted by rejection sampling")
        ax.set(ylim=(0, 1.005), ylabel="accepted with the same noise")

    rows = tuple((f"{n} of 12", f"{mean(a for a, _ in pairs):.3f}", f"{mean(b for _, b in pairs):.3f}",
                  f"{mean(a / (2 - a) for a, _ in pairs):.3f}") for n, pairs in found.items())  # fmt: skip
    told = "; ".join(f"the first {n} layers {a} and {b}, where the worst case is {c}" for n, a, b, c in rows)
    alt = (
        "How probable it is that a draft is accepted, a point for each token of a text: by rejection sampling across, "
        f"with the same noise upwards, between the diagonal and the worst case. On average, drafts by {told}."
    )
    return Drawing("07-speculation/price", "What the same noise costs in acceptance", alt,
                   ("layers of the drafter", "textbook", "same noise", "worst case"), rows, draw)  # fmt: skip


def expected() -> Drawing:
    """Tokens a step by the formula and as measured; and what that is in speed, by rows."""
    alphas, drafts, rows_ = measured.alphas_measured(), measured.drafts_measured(), measured.rows_measured()
    alpha_right, most = alphas[1], drafts[1]
    colors = dict(zip(alphas, (GREYS[1], PEERS[0], ACCENT), strict=True))

    def formula(alpha: float, k: float) -> float:
        return float((1 - alpha ** (k + 1)) / (1 - alpha))

    @charted(4.1, 1, 2, left=0.055, top=0.92, bottom=0.125, wspace=0.14)
    def draw(left: Axes, right: Axes) -> None:
        for alpha in alphas:
            grid = [n / 10 for n in range(10 * drafts[-1] + 3)]
            left.plot(grid, [formula(alpha, k) for k in grid], color=colors[alpha], linewidth=1.8)
            left.text(drafts[-1] + 0.35, formula(alpha, drafts[-1]), f"{alpha:g}", color=colors[alpha], va="center")
            for rows, marker, fill in ((rows_[0], "o", colors[alpha]), (rows_[-1], "v", GROUND)):
                found = [measured.case(measured.XL, rows, alpha, k).tokens_a_step for k in drafts]
                left.plot(drafts, found, color=colors[alpha], marker=marker, markersize=7, linestyle="none",
                          markerfacecolor=fill, markeredgewidth=1.5, zorder=5)  # fmt: skip
        names = f"{rows_[0]} sequence", f"{rows_[-1]} sequences, until the last ends"
        for marker, fill, name in zip(("o", "v"), (TEXT, GROUND), names, strict=True):
            left.plot([], [], color=TEXT, marker=marker, markerfacecolor=fill, linestyle="none", label=name)
        left.plot([], [], color=TEXT, linewidth=1.8, label="the formula")
        left.legend(loc="upper left")
        left.set(title="tokens a step, by drafts and α", ylim=(0, 7.6))
        left.set(xlabel="k, drafts of a sequence in a step", xlim=(0, drafts[-1] + 1.3))
        for model, color, marker in ((measured.XL, ACCENT, "o"), (measured.GPT2, PEERS[0], "s")):
            gains = [measured.case(model, rows, alpha_right, most).gain for rows in rows_]
            name = model.removeprefix("random:")
            right.plot(rows_, gains, color=color, marker=marker, linewidth=2.0, label=f"{name}, speed over plain")
        right.axhline(1, color=MUTED, linewidth=1.3)
        right.axhline(formula(alpha_right, most), color=MUTED, linestyle=":", linewidth=1.5)
        right.text(rows_[-1], formula(alpha_right, most) + 0.1, "tokens a step", ha="right", va="bottom", fontsize=9.5)
        right.text(rows_[0], 0.95, "plain", va="top", fontsize=9.5)
        right.set_xscale("log", base=2)
        right.set_xticks(rows_, [str(rows) for rows in rows_])
        right.legend(loc="lower left")
        right.set(ylim=(0, 4.2), xlabel="sequences", title=f"speed, {most} drafts, α = {alpha_right:g}")

    cells = tuple(
        (model.removeprefix("random:"), str(rows), f"{alpha:g}", str(k), f"{formula(alpha, k):.2f}",
         f"{(one := measured.case(model, rows, alpha, k)).tokens_a_step:.2f}", f"{one.gain:.2f}")
        for model in (measured.XL, measured.GPT2) for rows in rows_ for alpha in alphas for k in drafts
    )  # fmt: skip
    told = "; ".join(
        f"α {a} and {k} drafts: {f} by the formula, {t} measured"
        for name, rows, a, k, f, t, _ in cells if (name, rows) == ("gpt2-xl", str(rows_[0]))
    )  # fmt: skip
    speeds = "; ".join(
        f"{model.removeprefix('random:')} "
        + ", ".join(f"{measured.case(model, rows, alpha_right, most).gain:.2f} at {rows}" for rows in rows_)
        for model in (measured.XL, measured.GPT2)
    )
    alt = (
        "Left, tokens a step by drafts and acceptance rate, the formula as lines and measured ones as points. One "
        f"sequence of gpt2-xl: {told}. Right, speed over plain decoding with {most} drafts at α = {alpha_right:g}, by "
        f"number of sequences: {speeds}."
    )
    header = ("model", "sequences", "α", "drafts", "formula", "tokens a step", "speed over plain")
    return Drawing("07-speculation/expected", "Tokens a step, and what they are in speed", alt, header, cells, draw)


def places() -> Drawing:
    """The slots of a row ahead of a step, after it, and after the next one."""
    made = example.text(heat=run.HEAT)
    number = next(at for at, step in enumerate(made.steps) if step is worse())
    step, after = made.steps[number], made.steps[number + 1]
    begin = made.prompt + sum(len(one.kept) for one in made.steps[1:number])  # tokens in the cache ahead of the step
    newest = made.ids[begin]
    texts = [
        ("before the step", [], []),
        ("after the step", [newest, *step.drafts], [newest, *step.drafts[: len(step.kept) - 1]]),
        ("after the next", [newest, *step.drafts], [newest, *step.kept, *after.drafts]),
    ]
    columns = 3 + max(1 + len(step.drafts), len(step.kept) + 1 + len(after.drafts))

    @sketched(16, 5.0)
    def draw(on: Sketch) -> None:
        _slots(on, texts, made.ids[begin - 3 : begin], begin, columns, len(step.kept))

    words = [word(token) for token in [newest, *step.drafts]]
    alt = (
        f"Slots of a sequence from position {begin - 3} on. A step writes {', '.join(words)} at positions {begin} to "
        f"{begin + len(step.drafts)}; right guesses: {len(step.kept) - 1}; so its text in the cache ends with "
        f"position {begin + len(step.kept) - 1}. The next step writes over what follows."
    ).replace('"', "'")
    rows = tuple((str(begin + at), word, "yes" if at < len(step.kept) else "no") for at, word in enumerate(words))
    return Drawing("07-speculation/places", "Where rejected tokens are", alt, ("position", "written", "of the text"),
                   rows, draw)  # fmt: skip


def _slots(on: Sketch, texts: Any, old: list[int], begin: int, columns: int, kept: int) -> None:
    width = 12.6 / columns
    for at in range(columns):
        on.write((3.2 + width * (at + 0.5), 0.3), str(begin - 3 + at), MUTED, 9, "center")
    for row, (label, written, own) in enumerate(texts):
        y = 0.75 + 1.4 * row
        on.write((0.2, y + 0.35), label)
        for at in range(columns):
            x = 3.2 + width * at
            new = at - 3
            wrong = len(own) <= new < len(written)
            token = old[at] if new < 0 else (*own, *written[len(own) :], *[None] * columns)[new]
            fresh = row == 2 and kept <= new < len(own)
            color = GREYS[1] if new < 0 else WRONG if wrong else PEERS[0] if fresh else RIGHT
            color = None if token is None else color
            on.filled((x + 0.04, y), (width - 0.08, 0.7), color)
            if token is not None:
                on.write((x + width / 2, y + 0.35), word(token), MUTED if wrong else None, 9, "center")
    on.write((3.2, 4.75), "gray: before; green: right; orange: rejected, never read; "
                "blue: the next step's", MUTED, 9)  # fmt: skip


def shown() -> Drawing:
    """A text whose tokens have the color of the step that they came from."""
    made = example.text()
    parts = [[decode([token]).replace("\n", "↵") for token in step.kept] for step in made.steps]
    lines, told = _lines(parts)

    @sketched(WRAP + 2, 3.1 * len(lines) + 3.4)
    def draw(on: Sketch) -> None:
        for number, line in enumerate(lines):
            y = 1.6 + 3.1 * number
            for x, step, piece in line:
                color = (ACCENT, PEERS[0])[step % 2]
                on.ax.add_patch(
                    Rectangle((1 + x, y - 1.1), len(piece), 2.2, facecolor=color, alpha=0.2, edgecolor="none")
                )
                for at, letter in enumerate(piece):
                    on.ax.text(1.5 + x + at, y, letter, ha="center", va="center", fontsize=10.5, color=color,
                            family="DejaVu Sans Mono")  # fmt: skip
        y = 1.6 + 3.1 * len(lines)
        on.write((1, y), f"{told['tokens']} tokens in {told['steps']} steps; one color is one step", MUTED, 9.5)

    alt = (
        f"A text of {told['tokens']} tokens in two alternating colors, one for each step. There are {told['steps']} "
        f"steps: the first ones give a token each, and later ones up to {told['most']}, once the text repeats itself."
    )
    rows = tuple((str(at), "".join(part), str(len(part))) for at, part in enumerate(parts))
    header = ("step", "what it gave", "tokens")
    return Drawing("07-speculation/shown", "A text by its steps", alt, header, rows, draw)


def _lines(parts: list[list[str]]) -> tuple[list[list[tuple[int, int, str]]], dict[str, int]]:
    """Each line's pieces: where they begin, of which step, and their letters."""
    lines: list[list[tuple[int, int, str]]] = [[]]
    x = 0
    for step, part in enumerate(parts):
        for piece in part:
            if x + len(piece) > WRAP:
                lines.append([])
                x = 0
            lines[-1].append((x, step, piece))
            x += len(piece)
    counts = [len(part) for part in parts]
    return lines, {"tokens": sum(counts), "steps": len(counts), "most": max(counts)}
