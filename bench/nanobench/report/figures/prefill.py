"""TTFT against the prompt's length: the step launched kernel by kernel, and the same replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nanobench.report.figures.style import ACCENT, GROUND, MUTED, Drawing, finish, keys_of, origin, sheet
from nanobench.report.values import factor, model_label, seconds

if TYPE_CHECKING:
    from nanobench.micro.graphs import GraphsReport, Prefill

VARIANTS = ("eager", "graph", "graph, fused")


def prefill(report: GraphsReport, stem: str) -> Drawing | None:
    """A panel a batch size; filled marks where a graph was replayed. None where nothing was measured."""
    found = report.prefills
    batches = sorted({p.batch for p in found})
    if not found:
        return None

    def draw() -> Figure:
        figure, (axes,) = sheet(4.2, 1, len(batches), sharey=True)
        looks = dict(zip(VARIANTS, ((MUTED, "s", "-"), (ACCENT, "v", ":"), (ACCENT, "v", "-")), strict=True))
        for ax, batch in zip(axes, batches, strict=True):
            for variant, (color, marker, line) in looks.items():
                points = _points(found, batch, variant)
                x = [p.tokens for p in points]
                ms, low, high = ([1e3 * getattr(p.ttft_s, of) for p in points] for of in ("median", "p10", "p90"))
                ax.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
                ax.plot(x, ms, color=color, linestyle=line, linewidth=2.0, label=variant)
                for p, at in zip(points, ms, strict=True):
                    empty = variant != "eager" and p.bare_s is None
                    ax.plot(p.tokens, at, marker, color=color, markersize=7,
                            markerfacecolor=GROUND if empty else color)  # fmt: skip
            ax.set_xscale("log", base=2)
            ticks = sorted({p.tokens for p in found})
            ax.set_xticks(ticks, [str(n) for n in ticks])
            ax.minorticks_off()
            ax.set_title(f"{batch} prompt{'s' if batch > 1 else ''}")
            ax.set_xlabel("tokens of a prompt")
        axes[0].set_ylim(0, 1.08e3 * max(p.ttft_s.p90 for p in found))
        axes[0].set_ylabel("TTFT, ms")
        keys = keys_of(axes[0])
        if any(p.arm != VARIANTS[0] and p.bare_s is None for p in found):
            hollow: dict[str, Any] = {"marker": "v", "linestyle": "", "fillstyle": "none", "markersize": 7}
            keys.append(Line2D([], [], color=ACCENT, label="too large for a graph: run eagerly", **hollow))
        what = f"{model_label(report.model)}, {report.dtype}, the paged engine"
        note = f"{what}; medians, 10–90% of whole calls for one token\n{origin(report)}"
        return finish(figure, note, {"left": 0.075, "top": 0.83, "bottom": 0.25, "wspace": 0.08}, keys)

    title = f"TTFT by prompt length, eager and replayed, {model_label(report.model)} on {report.machine.device}"
    rows = tuple(
        (str(p.batch), str(p.tokens), p.arm, seconds(p.ttft_s.median), seconds(p.bare_s) if p.bare_s else "–")
        for p in found
    )
    header = ("prompts", "tokens", "variant", "TTFT", "the replay alone")
    return Drawing(f"{stem}-prefill", title, _alt(title, found, batches), header, rows, draw)


def _points(found: tuple[Prefill, ...], batch: int, variant: str) -> list[Prefill]:
    return sorted((p for p in found if p.batch == batch and p.arm == variant), key=lambda p: p.tokens)


def _alt(title: str, found: tuple[Prefill, ...], batches: list[int]) -> str:
    text = f"{title}, in linear time from zero."
    for batch in batches:
        eager, fused = (_points(found, batch, variant) for variant in (VARIANTS[0], VARIANTS[2]))
        told = [
            f"{a.tokens} tokens {seconds(a.ttft_s.median)} eager and {seconds(b.ttft_s.median)} replayed "
            f"({factor(a.ttft_s.median / b.ttft_s.median)})"
            for a, b in zip(eager, fused, strict=True)
            if b.bare_s is not None
        ]
        text += f" With {batch} prompt{'s' if batch > 1 else ''}: {'; '.join(told)}."
        beyond = [str(b.tokens) for b in fused if b.bare_s is None]
        if beyond:
            text += f" At {' and '.join(beyond)} tokens there is no graph."
    return text
