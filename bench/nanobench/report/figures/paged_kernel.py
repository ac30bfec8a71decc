"""The paged kernel alone: time and share of the copy bandwidth over the context, a batch size a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
from nanobench.report.values import seconds, share

UNSPLIT = "paged, block 16, splits 1"
Line = tuple[str, Sequence[KernelTime]]


def kernels(report: KernelReport, stem: str) -> Drawing:
    """SDPA with and without a mask, the kernel as the engine runs it and unsplit, and a peer's where it was there."""
    batches = sorted({t.batch for t in report.times})
    contexts = sorted({t.context for t in report.times})

    def draw() -> Figure:
        figure, axes = sheet(5.6, 2, len(batches), sharex=True, sharey="row")
        for column, batch in zip(axes.T, batches, strict=True):
            for name, times in _lines(report, batch):
                x, style = [t.context for t in times], _style(name)
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


def _lines(report: KernelReport, batch: int) -> list[Line]:
    """What is drawn at a batch size: the names of the legend, and times in the order of contexts."""
    here = sorted((t for t in report.times if t.batch == batch), key=lambda t: t.context)
    found: list[Line] = [
        ("SDPA, dense", [t for t in here if t.arm == "sdpa"]),
        ("SDPA, dense, mask", [t for t in here if t.arm == "sdpa, mask"]),
        ("paged, not split", [t for t in here if t.arm == UNSPLIT]),
        ("paged", [t for t in here if t.chosen]),
        ("FlashInfer, paged", [t for t in here if t.arm.startswith("flashinfer")]),
    ]
    return [(name, times) for name, times in found if times]


def _style(name: str) -> dict[str, Any]:
    styles: dict[str, dict[str, Any]] = {
        "SDPA, dense": {"color": GREYS[0], "marker": "s"},
        "SDPA, dense, mask": {"color": GREYS[0], "marker": "s", "linestyle": ":"},
        "paged, not split": {"color": ACCENT, "marker": "v", "linestyle": ":"},
        "paged": {"color": ACCENT, "marker": "^", "linewidth": 2.4, "zorder": 5},
        "FlashInfer, paged": {"color": PEERS[0], "marker": "P", "linestyle": (0, (5, 2))},
    }
    return {"linewidth": 1.6, "markersize": 6.5, "markeredgecolor": GROUND, **styles[name]}


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
            for name, times in _lines(report, batch) for t in times if t.context == context
        )  # fmt: skip
        text += f" At batch {batch} and a context of {context}: {named}."
    return text
