"""TTFT, inter-token latency and goodput against the rate of arrivals, a colour a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nanobench.report.figures.style import ACCENT, GROUND, MUTED, PEERS, Drawing, finish, origin, sheet
from nanobench.report.figures.throughput import plain_log
from nanobench.report.values import model_label, seconds, significant

if TYPE_CHECKING:
    from nanobench.load.records import LoadReport, LoadRun

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def load(report: LoadReport, stem: str) -> Drawing | None:
    """Three panels; hollow marks where sends were off. None where no run had a rate with answers."""
    found = [run for run in report.runs if run.asked_per_s and run.ttft and run.itl]
    names = [name for name in report.targets if any(run.target == name for run in found)]
    if not found:
        return None
    looks: dict[str, dict[str, Any]] = {
        name: {"color": colour, "marker": marker, "markersize": 6.0}
        for name, colour, marker in zip(report.targets, (ACCENT, *PEERS * 9), MARKERS * 9, strict=False)
    }

    def draw() -> Figure:
        figure, ((times, gaps, good),) = sheet(4.4, 1, 3)
        times.set_yscale("log")
        for name in names:
            runs = sorted((run for run in found if run.target == name), key=lambda run: run.asked_per_s or 0)
            x = [run.asked_per_s for run in runs]
            hollow = [at for at, run in enumerate(runs) if run.off]
            lines: list[tuple[Any, list[float], str]] = [
                (axes, [1e3 * getattr(getattr(run, of), quantile) for run in runs], style)
                for axes, of in ((times, "ttft"), (gaps, "itl"))
                for quantile, style in (("p50", "-"), ("p99", ":"))
            ]
            for axes, y, style in [*lines, (good, [run.goodput_per_s for run in runs], "-")]:
                axes.plot(x, y, linestyle=style, linewidth=1.8, **looks[name])
                axes.plot(x, y, markevery=hollow, linestyle="", markerfacecolor=GROUND, **looks[name])
        fastest = max(run.asked_per_s or 0 for run in found)
        good.plot([0, fastest], [0, fastest], color=MUTED, linewidth=1, linestyle=(0, (1, 2)), zorder=0)
        for axes, title in ((times, "TTFT, ms"), (gaps, "ITL, ms"), (good, "goodput, requests/s")):
            axes.set_title(title)
            axes.set_xlabel("requests/s asked")
            axes.set_xlim(0, 1.05 * fastest)
            axes.set_ylim(bottom=None if axes is times else 0)
        plain_log(times)
        keys = [Line2D([], [], label=name, linewidth=1.8, **looks[name]) for name in names]
        keys += [Line2D([], [], color=MUTED, label="p50"), Line2D([], [], color=MUTED, linestyle=":", label="p99")]
        if any(run.off for run in found):
            off: dict[str, Any] = {"marker": "o", "linestyle": "", "fillstyle": "none", "label": "off schedule"}
            keys.append(Line2D([], [], color=MUTED, **off))
        note = f"{_what(report)}\n{origin(report)}"
        return finish(figure, note, {"left": 0.07, "top": 0.81, "bottom": 0.27, "wspace": 0.25}, keys, at=0.05)

    title = f"Latency and goodput against the rate, {model_label(report.model)} on {report.machine.device}"
    header = ("target", "requests/s asked", "sent", "ok", "refused", "failed", "TTFT p50", "p90", "p99", "ITL p50",
              "p90", "p99", "goodput/s", "tok/s")  # fmt: skip
    rows = tuple(_row(run) for name in names for run in found if run.target == name)
    notes = [f"{r.target}, {r.plan}: it has no rate" for r in report.runs if r.asked_per_s is None]
    notes += [f"{r.target}, {r.plan}: no answers" for r in report.runs if r.asked_per_s and not r.ttft]
    return Drawing(f"{stem}-rates", title, _alt(title, report, found), header, rows, draw, tuple(notes))


def _what(report: LoadReport) -> str:
    limits, mix = report.limits, report.mix
    lengths = mix.trace or f"prompts {mix.prompt[0]}–{mix.prompt[1]}, new {mix.new[0]}–{mix.new[1]} tokens"
    return (
        f"{model_label(report.model)}; {lengths}; good: TTFT up to {1e3 * limits.ttft_s:g} ms and a request's mean gap"
        f" up to {1e3 * limits.itl_s:g} ms"
    )


def _row(run: LoadRun) -> tuple[str, ...]:
    assert run.ttft
    assert run.itl
    times = (seconds(of) if of else "0" for lat in (run.ttft, run.itl) for of in (lat.p50, lat.p90, lat.p99))
    rates = (run.asked_per_s or 0, run.sent_per_s or 0)
    counts = (run.ok, run.refused, run.failed)
    return (
        run.target + (" (off schedule)" if run.off else ""), *map(significant, rates), *map(str, counts), *times,
        significant(run.goodput_per_s), significant(run.tokens_per_s),
    )  # fmt: skip


def _alt(title: str, report: LoadReport, found: list[LoadRun]) -> str:
    text = f"{title}: three panels, TTFT on a logarithmic axis, inter-token latency and goodput from zero."
    for name in report.targets:
        runs = sorted((run for run in found if run.target == name), key=lambda run: run.asked_per_s or 0)
        told = [
            f"at {significant(run.asked_per_s or 0)} requests/s p99 of TTFT is {seconds(run.ttft.p99)} and goodput"
            f" {significant(run.goodput_per_s)}"
            for run in runs
            if run.ttft
        ]
        text += f" {name}: {'; '.join(told)}." if told else ""
    return text
