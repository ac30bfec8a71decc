"""The time line of one decode step: the host's calls above, the GPU's kernels below, an engine a panel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from nanobench.report.figures.style import ACCENT, GROUND, MUTED, PEERS, Drawing, finish, origin, sheet
from nanobench.report.values import model_label, share, significant

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
