"""What a mask costs: which kernel SDPA runs and for how long.

And the paged kernel alone: time and share of the copy bandwidth over the context, a batch size a column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nanobench.micro.attention import AttentionReport, Backend
from nanobench.micro.paged_kernel import KernelReport, KernelTime
from nanobench.report.figures.style import (
    ACCENT,
    GREYS,
    GROUND,
    PEERS,
    TEXT,
    Drawing,
    finish,
    keys_of,
    origin,
    sheet,
    written_out,
)
from nanobench.report.figures.throughput import plain_log
from nanobench.report.values import seconds, share, significant

KERNELS = {
    "CUDNN_ATTENTION": "cuDNN", "FLASH_ATTENTION": "FlashAttention", "EFFICIENT_ATTENTION": "efficient",
    "MATH": "plain",
}  # fmt: skip
MASKS = {"none": "no mask", "is_causal": "is_causal", "boolean": "boolean mask", "additive": "additive mask"}


def masks(report: AttentionReport, stem: str) -> Drawing:
    """A bar a mask, a panel a shape, with the kernel's name."""
    of: defaultdict[str, list[Backend]] = defaultdict(list)
    for b in report.backends:
        of[b.shape].append(b)

    def draw() -> Figure:
        counts = list(map(len, of.values()))
        bars = [max(counts[i : i + 2]) for i in range(0, len(counts), 2)]  # in each row of panels
        height = 0.36 * sum(bars) + 0.62 * len(bars) + 0.55
        figure, axes = sheet(height, len(bars), 2, height_ratios=bars)
        for at, (ax, (shape, found)) in enumerate(zip(axes.flat, of.items(), strict=False)):
            times = [1e6 * b.seconds.median for b in found]
            colors = [GREYS[0] if b.mask in ("none", "is_causal") else ACCENT for b in found]
            ax.barh(range(len(found)), times, height=0.62, color=colors)
            for y, (b, time) in enumerate(zip(found, times, strict=True)):
                ax.text(time, y, f"  {significant(time)} µs, {_kernel(b)}", va="center", fontsize=10)
            ax.set_yticks(range(len(found)), [MASKS[b.mask] for b in found])
            ax.set_ylim(bars[at // 2] - 0.4, -0.6)
            ax.set_xlim(0, 2.25 * max(times))
            ax.grid(visible=False)
            ax.set_xticks([])
            ax.spines["bottom"].set_visible(False)
            ax.set_title(shape)
        for ax in axes.flat[len(of) :]:
            ax.set_visible(False)
        margins = {"left": 0.165, "right": 0.99, "top": 1 - 0.36 / height, "bottom": 0.6 / height}
        note = f"one layer of gpt2's heads (12 of 64), {report.dtype}, medians of 7\n{origin(report)}"
        return finish(figure, note, margins | {"hspace": 0.42, "wspace": 0.42})

    title = f"SDPA and its masks on {report.machine.device}"
    rows = tuple((b.shape, MASKS[b.mask], _kernel(b), seconds(b.seconds.median)) for b in report.backends)
    alt = f"{title}: " + "; ".join(f"{row[0]}, {row[1]}: {row[3]} by {row[2]}" for row in rows) + "."
    return Drawing(f"{stem}-masks", title, alt, ("shape", "mask", "kernel", "time"), rows, draw)


def _kernel(b: Backend) -> str:
    return KERNELS.get(b.backend, b.backend)


LOOK: dict[str, Any] = {"linewidth": 1.6, "markersize": 6.5, "markeredgecolor": GROUND}
LINES: dict[str, tuple[Callable[[KernelTime], bool], dict[str, Any]]] = {  # in the legend: of which times, and its look
    "SDPA, dense": (lambda t: t.arm == "sdpa", {"color": GREYS[0], "marker": "s"}),
    "SDPA, dense, mask": (lambda t: t.arm == "sdpa, mask", {"color": GREYS[0], "marker": "s", "linestyle": ":"}),
    "paged, not split": (
        lambda t: t.arm == "paged, block 16, splits 1", {"color": ACCENT, "marker": "v", "linestyle": ":"},
    ),
    "paged": (lambda t: t.chosen, {"color": ACCENT, "marker": "^", "linewidth": 2.4, "zorder": 5}),
    "FlashInfer, paged": (
        lambda t: t.arm.startswith("flashinfer"), {"color": PEERS[0], "marker": "P", "linestyle": (0, (5, 2))},
    ),
}  # fmt: skip


def kernels(report: KernelReport, stem: str) -> Drawing:
    """SDPA with and without a mask, the kernel as the engine runs it and unsplit, and a peer's where it was there."""
    batches = sorted({t.batch for t in report.times})
    contexts = sorted({t.context for t in report.times})

    def draw() -> Figure:
        figure, axes = sheet(5.6, 2, len(batches), sharex=True, sharey="row")
        for column, batch in zip(axes.T, batches, strict=True):
            for name, times in _lines(report, batch).items():
                x, style = [t.context for t in times], {**LOOK, **LINES[name][1]}
                column[0].plot(x, [1e6 * t.seconds.median for t in times], label=name, **style)
                column[1].plot(x, [100 * t.bytes_share for t in times], **style)
            _bytes(column[0], report, batch, contexts)
            column[0].set_title(f"B = {batch}")
            column[1].set_xlabel("tokens of context")
            column[1].axhline(100, color=TEXT, linewidth=1.4)
        (times, *_), (shares, *_) = axes
        written_out(times, contexts)
        times.set_yscale("log")
        times.set_ylim(bottom=1)  # below lie the bytes of few rows: no kernel is as fast
        plain_log(times)
        times.set_ylabel("µs")
        shares.set_ylim(0, 110)
        shares.set_ylabel("% of copy bandwidth")
        repeats = len(report.times[0].seconds.samples)
        what = f"12 heads of 64, bfloat16, random contents, L2 cold, in a CUDA graph; medians of {repeats}"
        speed = f"copy {report.copy_bytes_per_s / 1e12:.2f} TB/s, Triton {report.machine.triton}"
        margins = {"left": 0.082, "top": 0.845, "bottom": 0.175, "hspace": 0.1, "wspace": 0.08}
        note = f"{what}\n{speed}, {origin(report)}"
        return finish(figure, note, margins, keys_of(times), at=0.07, columns=3, spacing=1.6)

    title = f"One layer's attention at decode, gpt2's heads on {report.machine.device}"
    header = ("B", "context", "variant", "time", "10–90%", "of the copy bandwidth")
    rows = [
        (
            str(t.batch), str(t.context), t.arm + (" (the engine's)" if t.chosen else ""), seconds(t.seconds.median),
            f"{seconds(t.seconds.p10)} – {seconds(t.seconds.p90)}", share(t.bytes_share),
        )
        for t in report.times
    ]  # fmt: skip
    notes = tuple(f"{name}: {reason}" for name, reason in report.left_out.items())
    return Drawing(stem if "kernel" in stem else f"{stem}-kernels", title, _alt(report, title), header, tuple(rows),
                   draw, notes)  # fmt: skip


def _lines(report: KernelReport, batch: int) -> dict[str, list[KernelTime]]:
    """What is drawn at a batch size: the names of the legend, and times in the order of contexts."""
    here = sorted((t for t in report.times if t.batch == batch), key=lambda t: t.context)
    return {name: found for name, (fits, _) in LINES.items() if (found := list(filter(fits, here)))}


def _bytes(ax: Axes, report: KernelReport, batch: int, contexts: Sequence[int]) -> None:
    """The time that a copy takes for as many bytes. It also writes, so that reading alone can be faster."""
    one = next(t for t in report.times if t.batch == batch)
    a_token = one.seconds.median * one.bytes_share / one.context
    least = [1e6 * a_token * context for context in contexts]
    ax.plot(contexts, least, color=TEXT, linewidth=1.4, zorder=2, label="at copy speed")


def _alt(report: KernelReport, title: str) -> str:
    text = f"{title}, cold L2, in a captured graph."
    for batch in sorted({t.batch for t in report.times}):
        context = max(t.context for t in report.times if t.batch == batch)
        named = "; ".join(
            f"{name} {seconds(t.seconds.median)}"
            for name, times in _lines(report, batch).items() for t in times if t.context == context
        )  # fmt: skip
        text += f" At batch {batch} and a context of {context}: {named}."
    return text
