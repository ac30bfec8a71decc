"""The time line of one decode step: the host's calls above, the GPU's kernels below, an engine a panel.

And where a step's time goes: a bar an engine, cut by what its kernels are for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from nanobench.micro.step_breakdown import NONE, PARTS, breakdown
from nanobench.report.figures.style import ACCENT, GREYS, GROUND, MUTED, PEERS, Drawing, finish, keys_of, origin, sheet
from nanobench.report.values import model_label, seconds, share, significant

if TYPE_CHECKING:
    from nanobench.micro.timeline import StepTimeline, Timeline

CLOSE_UP = 0.06  # of the longest step: a few launches, one by one
KINDS = ("operator", "launch", "wait")
TRACKS = {"host": 2.0, "launch": 1.0, "gpu": 0.0}


def steps(timeline: Timeline, stem: str) -> Drawing:
    """Whole steps on the left, all with one scale; a part of each, magnified, on the right."""
    gpu = timeline.machine.kind == "cuda"
    longest = max(step.duration_us for step in timeline.steps)

    def draw() -> Figure:
        rows = len(timeline.steps)
        panel = 1.25 if gpu else 0.8
        height = rows * (panel + 0.5) + 1.7
        figure, axes = sheet(height, rows, 2, width_ratios=(2.1, 1))
        for (whole, part), step in zip(axes, timeline.steps, strict=True):
            begin, span = step.duration_us * 0.25, longest * CLOSE_UP
            _panel(whole, step, gpu, (0, longest * 1.01))
            _panel(part, step, gpu, (begin, begin + span))
            whole.set_title(_caption(step, gpu), fontsize=10.5)
            whole.xaxis.set_major_locator(MaxNLocator(6, prune="upper"))
            part.set_yticklabels([])
            part.xaxis.set_major_locator(MaxNLocator(3, prune="upper"))
            part.set_title("magnified", fontsize=10.5)
            whole.axvspan(begin, begin + span, color=ACCENT, alpha=0.18, linewidth=0)
        for ax in axes[-1]:
            ax.set_xlabel("µs since the step began")
        keys = [Patch(color=MUTED, label="operator of torch")]
        if gpu:
            keys += [Patch(color=ACCENT, label="launch"), Patch(color=PEERS[0], label="kernel")]
            keys.append(Patch(facecolor=GROUND, edgecolor=MUTED, hatch="////", label="host waits"))
        margins = {"left": 0.118, "top": 1 - 0.75 / height, "bottom": 0.98 / height}
        note = f"{decoding(timeline)}; the profiler slows the host down\n{origin(timeline)}"
        return finish(figure, note, margins | {"hspace": 0.62, "wspace": 0.08}, keys, at=0.1, high=0.998)

    title = f"A decode step as a time line, {model_label(timeline.model)} on {timeline.machine.device}"
    rows = tuple(_row(step, gpu) for step in timeline.steps)
    header = (
        "engine",
        "a step alone",
        "with the profiler",
        "operators",
        "launches",
        "kernels",
        "they take",
        "GPU busy",
    )
    alt = f"{title}. " + " ".join(f"{_caption(step, gpu)}." for step in timeline.steps)
    notes = () if gpu else ("kernels: measured on a CPU, where the host does all the work itself",)
    return Drawing(stem if "steps" in stem else f"{stem}-steps", title, alt, header, rows, draw, notes)


def _panel(ax: Axes, step: StepTimeline, gpu: bool, window: tuple[float, float]) -> None:
    """Bars of one step; launches in a track of their own, since they lie within operators."""
    tracks = TRACKS if gpu else {"host": 0.0}
    of = {kind: [(e.start_us, e.duration_us) for e in step.host if e.kind == kind] for kind in KINDS}
    ax.set_xlim(*window)

    def bars(track: str, spans: list[tuple[float, float]], color: str, **options: Any) -> None:
        # One shape a track keeps the file small. Bars thinner than a pixel keep their place and grow pale; snapped to
        # pixels, some of them would vanish.
        low, high = tracks[track] - 0.36, tracks[track] + 0.36
        seen = [(s, s + d) for s, d in spans if s + d >= window[0] and s <= window[1]]
        if seen:
            boxes = np.array([[(s, low), (s, high), (e, high), (e, low)] for s, e in seen])  # (bars, 4, 2)
            options = {"facecolor": color, "linewidth": 0, "snap": False, **options}
            ax.add_patch(PathPatch(Path.make_compound_path_from_polys(boxes), **options))

    bars("host", of["operator"], MUTED, edgecolor=GROUND, linewidth=0.25)
    if gpu:
        bars("launch", of["launch"], ACCENT)
        bars("launch", of["wait"], GROUND, edgecolor=MUTED, hatch="////", linewidth=0.6)
        bars("gpu", [(k.start_us, k.duration_us) for k in step.kernels], PEERS[0])
    ax.set_yticks(list(tracks.values()), ["operators", "launches", "GPU"] if gpu else ["operators"], fontsize=10)
    ax.set_ylim(-0.6, max(tracks.values()) + 0.6)
    ax.grid(axis="y", visible=False)


def decoding(timeline: Timeline) -> str:
    """What the steps of a time line are of."""
    of = f"{model_label(timeline.model)}, {timeline.dtype}, B = {timeline.batch}"
    return f"{of}, {timeline.context} tokens of context"


def _caption(step: StepTimeline, gpu: bool) -> str:
    operators, launches = step.count("operator"), step.count("launch")
    if not gpu:
        return f"{step.engine}: {operators} operators in {significant(step.duration_us)} µs"
    launched = f"{launches} launch{'' if launches == 1 else 'es'}"
    return f"{step.engine}: {launched}, {len(step.kernels)} kernels; the GPU is busy {share(step.busy)}"


def _row(step: StepTimeline, gpu: bool) -> tuple[str, ...]:
    taken = significant(sum(kernel.duration_us for kernel in step.kernels))
    on_gpu = (str(step.count("launch")), str(len(step.kernels)), f"{taken} µs", share(step.busy)) if gpu else ("–",) * 4
    times = (f"{significant(step.unprofiled_us)} µs", f"{significant(step.duration_us)} µs")
    return (step.engine, *times, str(step.count("operator")), *on_gpu)


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
