"""Draw every figure of the text from results files: `python -m bench plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from nanobench.core.records import RESULTS, Report
from nanobench.micro.attention import AttentionReport
from nanobench.micro.graphs import GraphsReport
from nanobench.micro.paged_kernel import KernelReport
from nanobench.micro.timeline import Timeline
from nanobench.report.figures.bandwidth import bandwidth_share
from nanobench.report.figures.latency import context, itl
from nanobench.report.figures.masks import masks, reads
from nanobench.report.figures.paged_kernel import kernels
from nanobench.report.figures.prefill import prefill
from nanobench.report.figures.step_breakdown import step_breakdown
from nanobench.report.figures.style import Drawing, write
from nanobench.report.figures.throughput import throughput
from nanobench.report.figures.timeline import steps
from nanobench.report.values import models_of, prompts_of, stem_of
from nanoinfer.llm import ENGINES

Held = Report | Timeline | KernelReport | AttentionReport | GraphsReport


def load(path: Path) -> Held | None:
    """What a results file holds; None where nothing of it is drawn. ValueError for no such file."""
    if not path.is_file():
        raise ValueError(f"no results file {path}")
    for kind in (Report, Timeline, KernelReport, AttentionReport, GraphsReport):
        try:
            return kind.model_validate_json(path.read_bytes())  # type: ignore[attr-defined, no-any-return]
        except ValidationError:
            continue
    return None


def drawings(path: Path, newest: str | None = None, mine: Report | None = None) -> list[Drawing]:
    """All figures that the file `path` is good for; for a chapter, with its engine in colour and no later rungs.

    A chapter's figures carry its engine in their names. None where the file does not know that engine.
    """
    found = load(path)
    name = f"{path.stem}-{newest}" if newest else path.stem
    if isinstance(found, Report):
        return _of_report(found, name, newest, mine)
    if isinstance(found, Timeline):
        known = [step for step in found.steps if _no_later(step.engine, newest)]
        if newest and newest not in [step.engine for step in known]:
            return []
        whole = steps(found.model_copy(update={"steps": tuple(known)}), name)
        split = step_breakdown(found, name) if newest is None else None
        return [whole, split] if split else [whole]
    if newest:
        return []  # what follows knows no engines
    made: list[Drawing | None] = []
    if isinstance(found, KernelReport):
        made = [kernels(found, name)]
    elif isinstance(found, GraphsReport):
        made = [prefill(found, name)]
    elif isinstance(found, AttentionReport):
        made = [masks(found, name), reads(found, name)]
    return [drawing for drawing in made if drawing is not None]


def _of_report(found: Report, name: str, newest: str | None, mine: Report | None) -> list[Drawing]:
    if newest and not any(r.status == "ok" for r in found.find(engine=newest)):
        return []
    found = found.model_copy(update={"results": tuple(r for r in found.results if _no_later(r.case.engine, newest))})
    made: list[Drawing | None] = []
    for model in models_of(found):
        stem = stem_of(name, found, model)
        measured = [r for r in found.find(model=model) if r.status == "ok"]
        if not measured:
            continue  # nothing to draw: every case of the model is over budget, failed or missing
        if len(prompts_of(measured)) > 1:
            made.append(context(found, stem, model, newest))
            continue
        made += [
            throughput(found, stem, model, newest, mine),
            bandwidth_share(found, stem, model, newest),
            itl(found, stem, model, newest),
        ]
    return [drawing for drawing in made if drawing is not None]


def plot(results: Sequence[Path], out: Path, newest: str | None = None, mine: Path | None = None) -> list[Path]:
    """Draw the figures of all results files into `out`; by default of those under bench/results but second runs."""
    if newest is not None and newest not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {newest!r}")
    own = _mine(mine) if mine is not None else None
    written: list[Path] = []
    for path in results or published(RESULTS):
        made = drawings(path, newest, own)
        if not made and results:
            raise ValueError(f"{path} holds nothing that is drawn: no report of this schema, and no time line")
        for drawing in made:
            written += write(drawing, out)
    return written


def _no_later(engine: str, newest: str | None) -> bool:
    """Whether an engine stands in a chapter's figure: peers do, and our rungs up to the chapter's own."""
    engine = engine.removesuffix("-unfused")
    if newest is None or engine not in ENGINES:
        return True
    return ENGINES.index(engine) <= ENGINES.index(newest)


def published(folder: Path) -> list[Path]:
    """The files whose figures the text shows: second runs are there to be compared with the first."""
    return [path for path in sorted(folder.glob("*.json")) if not path.stem.endswith("-second")]


def _mine(path: Path) -> Report:
    """The reader's own report, with something in it."""
    report = load(path)
    if not isinstance(report, Report) or not any(r.status == "ok" for r in report.results):
        raise ValueError(f"{path} is no report of `python -m bench run` with results in it")
    return report
