"""Draw every figure of the text from results files: `python -m bench plot`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nanobench.core.presets import PRESETS
from nanobench.core.records import RESULTS, Case, Report
from nanobench.load.records import LoadReport
from nanobench.micro.attention import AttentionReport
from nanobench.micro.graphs import GraphsReport
from nanobench.micro.paged_kernel import KernelReport
from nanobench.micro.timeline import Timeline
from nanobench.report.figures.attention import kernels, masks
from nanobench.report.figures.context import context
from nanobench.report.figures.load import load as rates
from nanobench.report.figures.prefill import prefill
from nanobench.report.figures.style import Drawing, write
from nanobench.report.figures.throughput import throughput
from nanobench.report.figures.timeline import step_breakdown, steps
from nanobench.report.schemas import load
from nanobench.report.values import engines_of, models_of, prompts_of, stem_of
from nanoinfer.config import ENGINES, RECIPES

BOOK = Path("figures/bench")  # where the book's figures of measurements are
DRAWN: dict[Any, tuple[Callable[[Any, str], Drawing | None], ...]] = {  # what knows no engines
    KernelReport: (kernels,), GraphsReport: (prefill,), LoadReport: (rates,), AttentionReport: (masks,),
}  # fmt: skip


def drawings(path: Path, newest: str | None = None) -> list[Drawing]:
    """All figures that the file `path` is good for; for a chapter, with its engine drawn wide and no later rungs.

    A chapter's figures carry its engine in their names. None where the file does not know that engine. On a CPU
    engines that record their steps run the code of those that do not: they are left out.
    """
    found = load(path)
    name = f"{path.stem}-{newest}" if newest else path.stem
    if isinstance(found, Report):
        return _of_report(found, name, newest)
    if not isinstance(found, Timeline):
        return _noted([draw(found, name) for draw in DRAWN.get(type(found), ()) if not newest])
    engines, kind = [step.engine for step in found.steps], found.machine.kind
    known = tuple(step for step in found.steps if _shown(step.engine, newest, kind))
    if not known or (newest and newest not in engines):
        return []
    made = [steps(found.model_copy(update={"steps": known}), name), None if newest else step_breakdown(found, name)]
    return _noted(made, _left_out(engines, newest, kind))


def _of_report(found: Report, name: str, newest: str | None, mine: Report | None = None) -> list[Drawing]:
    """mine: cases to lay over, and then only the figures with some of them."""
    kind = found.machine.kind
    notes = _left_out(engines_of(found.results), newest, kind)
    results = tuple(r for r in found.results if _shown(r.case.engine, newest, kind))
    if newest and not any(r.status == "ok" and r.case.engine == newest for r in results):
        return []
    found, made = found.model_copy(update={"results": results}), list[Drawing | None]()
    for model in models_of(found):
        what = found, stem_of(name, found, model), model, newest
        lengths = prompts_of(r for r in found.find(model=model) if r.status == "ok")  # none: nothing is measured
        if mine is not None:
            made += [throughput(*what, mine)] if len(lengths) == 1 and mine.find(model=model) else []
        elif lengths:
            made.append((context if len(lengths) > 1 else throughput)(*what))
    return _noted(made, notes)


def _noted(made: Sequence[Drawing | None], notes: tuple[str, ...] = ()) -> list[Drawing]:
    """Those that there are, with further notes."""
    return [replace(drawing, notes=(*drawing.notes, *notes)) for drawing in made if drawing is not None]


def plot(
    results: Sequence[Path],
    out: Path | None = None,
    newest: str | None = None,
    mine: Path | None = None,
    say: Callable[[str], object] = print,
) -> list[Path]:
    """Draw the figures of results files, or those of `mine`; without either, the book's own anew.

    out: by default figures/bench for published results, and `figures` beside any other file.
    """
    if newest is not None and newest not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {newest!r}")
    if mine is not None:
        drawn, remark = own(mine, results or published(RESULTS), newest)
        if remark:
            say(remark)
        return [file for drawing in drawn for file in write(drawing, out or mine.parent / "figures")]
    made = [(drawing, out or _beside(path)) for path in results for drawing in _some(path, newest)]
    if not results:
        shown = {page.stem for page in (out or BOOK).glob("*.md")}  # all, in a folder without figures
        engines = (None, *ENGINES) if shown and newest is None else (newest,)
        known = book_drawings(RESULTS, engines)
        made = [(drawing, out or BOOK) for drawing in known if not shown or drawing.name in shown]
    return [file for drawing, folder in made for file in write(drawing, folder)]


def _beside(path: Path) -> Path:
    return BOOK if path.resolve().parent == RESULTS else path.parent / "figures"


def own(path: Path, others: Sequence[Path], newest: str | None = None) -> tuple[list[Drawing], str]:
    """The figures of a reader's own results, and those of `others` with comparable cases of theirs laid over.

    Comparable are cases of the same model, engine, prompt and new tokens, in numbers of the same size. Where there are
    none, the second of the two is a sentence that says so, and which command makes some.
    """
    mine = load(path)
    if not isinstance(mine, Report) or not any(r.status == "ok" for r in mine.results):
        raise ValueError(f"{path} is no report of `python -m bench run` with results in it")
    made, over = _some(path, newest), []
    reports = {other.name: found for other in others if isinstance(found := load(other), Report)}
    for name, found in reports.items():
        stem = f"{path.stem}-over-{Path(name).stem}"
        over += _of_report(found, stem, newest, _comparable(mine, found))
    if over or not any(drawing.name.endswith("throughput") for drawing in made):
        return [*made, *over], ""
    remark = f"{path} is drawn alone: no published results have its model, lengths and size of numbers"
    cases = {name: set(preset.cases()) for name, preset in PRESETS.items() if len(preset.prompt_tokens) == 1}
    plain = [(name, r) for name, r in reports.items() if {c.case for c in r.results} <= cases.get(r.preset, set())]
    if plain:
        kind, models = mine.machine.kind, models_of(mine)
        fits = [(r.machine.kind == kind, models_of(r) == models, len(r.results)) for _, r in plain]
        name, best = plain[fits.index(max(fits))]
        remark += f". `python -m bench run --preset {best.preset}` makes some that can be laid over {name}"
    return made, remark


def book_drawings(folder: Path, engines: Sequence[str | None] = (None, *ENGINES)) -> Iterator[Drawing]:
    """All figures of the published results in `folder`. engines: of which chapters; None for those of no chapter."""
    return (drawing for path in published(folder) for newest in engines for drawing in drawings(path, newest))


def _some(path: Path, newest: str | None) -> list[Drawing]:
    """The figures of a file, at least one."""
    if not (made := drawings(path, newest)):
        raise ValueError(f"{path} holds nothing that is drawn{f' of {newest}' if newest else ''}")
    return made


def _comparable(mine: Report, other: Report) -> Report:
    """The cases of `mine` that `other` has too, at whatever batch size."""

    def shape(case: Case, dtype: str) -> tuple[object, ...]:
        return case.model, case.engine, case.prompt_tokens, case.new_tokens, getattr(torch, dtype).itemsize

    shapes = {shape(r.case, other.dtype) for r in other.results if r.status == "ok"}
    same = (r for r in mine.results if r.status == "ok" and shape(r.case, mine.dtype) in shapes)
    return mine.model_copy(update={"results": tuple(r for r in same if _shown(r.case.engine, None, mine.machine.kind))})


def _shown(engine: str, newest: str | None, kind: str) -> bool:
    """Whether a figure has an engine: peers, and our rungs up to the chapter's own; on a CPU none with graphs."""
    engine = engine.removesuffix("-unfused")
    if engine not in ENGINES:
        return True
    if kind == "cpu" and RECIPES[engine].launch == "graph":
        return False
    return newest is None or ENGINES.index(engine) <= ENGINES.index(newest)


def _left_out(engines: Sequence[str], newest: str | None, kind: str) -> tuple[str, ...]:
    """The note on engines that only a GPU's figure would have."""
    names = [name for name in engines if _shown(name, newest, "cuda") and not _shown(name, newest, kind)]
    return (f"{', '.join(names)}: left out; a CPU captures no graphs, so they run as without them",) if names else ()


def published(folder: Path) -> list[Path]:
    """The files whose figures the text shows: second runs are there to be compared with the first."""
    return [path for path in sorted(folder.glob("*.json")) if not path.stem.endswith("-second")]
