"""What a mask costs: which kernel SDPA runs and for how long, and a decode step that reads a whole cache or a part."""

from __future__ import annotations

from matplotlib.figure import Figure

from nanobench.micro.attention import AttentionReport, Backend
from nanobench.report.figures.style import ACCENT, GREYS, Drawing, finish, keys_of, origin, sheet
from nanobench.report.values import factor, seconds, significant

KERNELS = {
    "CUDNN_ATTENTION": "cuDNN", "FLASH_ATTENTION": "FlashAttention", "EFFICIENT_ATTENTION": "efficient",
    "MATH": "plain",
}  # fmt: skip
MASKS = {"none": "no mask", "is_causal": "is_causal", "boolean": "boolean mask", "additive": "additive mask"}


def masks(report: AttentionReport, stem: str) -> Drawing:
    """A bar a mask, a panel a shape, with the kernel's name."""
    shapes = list(dict.fromkeys((b.what, b.batch, b.queries, b.keys) for b in report.backends))

    def draw() -> Figure:
        counts = [sum((b.what, b.batch, b.queries, b.keys) == shape for b in report.backends) for shape in shapes]
        bars = [max(counts[i : i + 2]) for i in range(0, len(counts), 2)]  # in each row of panels
        height = 0.36 * sum(bars) + 0.62 * len(bars) + 0.55
        figure, axes = sheet(height, len(bars), 2, height_ratios=bars)
        for ax, shape in zip(axes.flat, shapes, strict=False):
            found = [b for b in report.backends if (b.what, b.batch, b.queries, b.keys) == shape]
            times = [1e6 * b.seconds.median for b in found]
            colors = [GREYS[0] if b.mask in ("none", "is_causal") else ACCENT for b in found]
            ax.barh(range(len(found)), times, height=0.62, color=colors)
            for y, (b, time) in enumerate(zip(found, times, strict=True)):
                ax.text(time, y, f"  {significant(time)} µs, {_kernel(b)}", va="center", fontsize=10)
            ax.set_yticks(range(len(found)), [MASKS[b.mask] for b in found])
            ax.set_ylim(bars[shapes.index(shape) // 2] - 0.4, -0.6)
            ax.set_xlim(0, 2.25 * max(times))
            ax.grid(visible=False)
            ax.set_xticks([])
            ax.spines["bottom"].set_visible(False)
            ax.set_title(_shape(*shape))
        for ax in axes.flat[len(shapes) :]:
            ax.set_visible(False)
        margins = {"left": 0.165, "right": 0.99, "top": 1 - 0.36 / height, "bottom": 0.6 / height}
        note = f"one layer of gpt2's heads (12 of 64), {report.dtype}, medians of 7\n{origin(report)}"
        return finish(figure, note, margins | {"hspace": 0.42, "wspace": 0.42})

    title = f"SDPA and its masks on {report.machine.device}"
    rows = tuple(
        (_shape(b.what, b.batch, b.queries, b.keys), MASKS[b.mask], _kernel(b), seconds(b.seconds.median))
        for b in report.backends
    )
    alt = f"{title}: " + "; ".join(f"{row[0]}, {row[1]}: {row[3]} by {row[2]}" for row in rows) + "."
    return Drawing(f"{stem}-masks", title, alt, ("shape", "mask", "kernel", "time"), rows, draw)


def reads(report: AttentionReport, stem: str) -> Drawing:
    """A decode step at three contexts, where all slots are read and where a multiple is."""
    batches = sorted({r.batch for r in report.read_lengths})

    def draw() -> Figure:
        figure, (axes,) = sheet(3.3, 1, len(batches), sharey=True)
        for ax, batch in zip(axes, batches, strict=True):
            found = sorted((r for r in report.read_lengths if r.batch == batch), key=lambda r: r.context)
            x = [r.context for r in found]
            whole, part = ([1e3 * getattr(r, of).median for r in found] for of in ("read_all_s", "read_multiple_s"))
            ax.plot(x, whole, marker="s", color=GREYS[0], label="all 1024 positions read")
            ax.plot(x, part, marker="^", color=ACCENT, linewidth=2.2, label="up to a multiple of 128")
            ax.set_title(f"B = {batch}")
            ax.set_xlabel("tokens of context")
            ax.set_xlim(-60, 1130)
            ax.set_xticks((0, 500, 1000))
        axes[0].set_ylim(0, 1.12 * axes[0].get_ylim()[1])
        axes[0].set_ylabel("ms a decode step")
        what = f"gpt2, random weights, eager, dense cache of 1024 slots, {report.dtype}, medians of 7"
        margins = {"left": 0.08, "top": 0.79, "bottom": 0.29, "wspace": 0.1}
        return finish(figure, f"{what}\n{origin(report)}", margins, keys_of(axes[0]))

    title = f"How far the dense cache reads, gpt2 on {report.machine.device}"
    rows = tuple(
        (str(r.batch), str(r.context), seconds(r.read_all_s.median), seconds(r.read_multiple_s.median),
         factor(r.read_all_s.median / r.read_multiple_s.median))
        for r in report.read_lengths
    )  # fmt: skip
    parts = [f"batch {row[0]}, context {row[1]}: {row[2]} for all, {row[3]} for a multiple of 128" for row in rows]
    header = ("B", "context", "all read", "a multiple of 128", "gain")
    return Drawing(f"{stem}-reads", title, f"{title}: {'; '.join(parts)}.", header, rows, draw)


def _kernel(b: Backend) -> str:
    return KERNELS.get(b.backend, b.backend)


def _shape(what: str, batch: int, queries: int, keys: int) -> str:
    return f"{what}, B = {batch}, {queries} × {keys}"
