"""Where a decode step's time goes: a bar an engine, cut by what its kernels are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from nanobench.micro.step_breakdown import NONE, PARTS, breakdown
from nanobench.report.figures.style import ACCENT, GREYS, MUTED, PEERS, Drawing, finish, keys_of, origin, sheet
from nanobench.report.figures.timeline import decoding
from nanobench.report.values import model_label, seconds, share, significant

if TYPE_CHECKING:
    from nanobench.micro.timeline import StepTimeline, Timeline

HATCHES = ("", "//", "", "..", "", "xx", "")


def step_breakdown(timeline: Timeline, stem: str) -> Drawing | None:
    """The engines that replay graphs, each as one bar; None where the file has none of them, or no kernels."""
    steps = [step for step in timeline.steps if step.engine.endswith("-graph") and step.kernels]
    if not steps:
        return None
    parts = {step.engine: breakdown(step) for step in steps}

    def draw() -> Figure:
        height = 1.95 + 0.75 * len(steps)
        figure, ((ax,),) = sheet(height)
        colors = (PEERS[0], PEERS[1], ACCENT, PEERS[2], PEERS[3], GREYS[1])
        for y, step in enumerate(steps):
            left = 0.0
            for at, part in enumerate(parts[step.engine]):
                width = 1e6 * part.seconds
                color = "none" if part.name == NONE else colors[at]
                ax.barh(y, width, left=left, height=0.55, color=color, edgecolor=MUTED, linewidth=0.7,
                        hatch=HATCHES[at], label=part.name if y == 0 else None)  # fmt: skip
                if width > 22:
                    ax.text(left + width / 2, y - 0.37, significant(width, 2), ha="center", va="bottom", fontsize=9.5)
                left += width
        ax.set_yticks(range(len(steps)), [step.engine for step in steps])
        ax.set_ylim(len(steps) - 0.5, -0.65)
        ax.set_xlabel("µs of one decode step")
        ax.grid(axis="y", visible=False)
        note = f"{decoding(timeline)}; shares by the profiler, times without it\n{origin(timeline)}"
        margins = {"left": 0.145, "top": 1 - 0.62 / height, "bottom": 0.98 / height}
        return finish(figure, note, margins, keys_of(ax), at=0.11, columns=4, spacing=1.2)

    title = f"Breakdown of a replayed decode step, {model_label(timeline.model)} on {timeline.machine.device}"
    rows = tuple(
        (step.engine, *(f"{seconds(part.seconds)} ({share(part.share)})" for part in parts[step.engine]))
        for step in steps
    )
    return Drawing(f"{stem}-breakdown", title, _alt(title, steps, timeline), ("engine", *PARTS), rows, draw)


def _alt(title: str, steps: list[StepTimeline], timeline: Timeline) -> str:
    text = f"{title}, batch {timeline.batch}, {timeline.context} tokens of context."
    for step in steps:
        told = "; ".join(f"{part.name} {share(part.share)}" for part in breakdown(step))
        text += f" {step.engine}, {seconds(step.unprofiled_us / 1e6)} in all: {told}."
    return text
