"""The cogapp blocks of a page: results table, ledger, figure, excerpt, program output, strength of the checks."""

from __future__ import annotations

import ast
import json
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanobench.core.records import Report
from nanobench.report.figures.words import picture, table
from nanobench.report.values import (
    engine_label,
    engines_of,
    limit_tokens_per_s,
    models_of,
    prompts_of,
    rate,
)
from nanobook import examples
from nanobook.rung import reading_order
from nanobook.source import Definition, docstring_lines, lines_of, parse
from nanobook.syllabus import syllabus
from nanobook.text.ledger import ledger as ledger_of
from nanobook.text.marker_values import QUANTITIES, RUNGS_RUN, load


@dataclass(frozen=True)
class Place:
    """The page that a block is in."""

    page: Path
    root: Path

    def load(self, name: str) -> Report:
        return load(name, self.root / "bench" / "results")


def results_table(
    place: Place, name: str, quantity: str = "tok/s", *, batches: tuple[int, ...], engines: tuple[str, ...] = (),
    bandwidth_limit: bool = False,
) -> list[str]:  # fmt: skip
    """A row for each engine, a column for each batch size; a case without a number says why."""
    report = place.load(name)
    model = models_of(report)[0].removeprefix("random:")
    results = [r for r in report.results if r.case.model.removeprefix("random:") == model]
    results = [r for r in results if r.case.prompt_tokens == prompts_of(results)[0]]
    read, show = QUANTITIES[quantity]
    rows = []
    for engine in engines or tuple(engines_of(results)):
        of = {r.case.batch: r for r in results if r.case.engine == engine}
        cells = []
        for batch in batches:
            r = of.get(batch)
            number = read(r) if r is not None else None
            cells.append("–" if r is None else show(number) if number is not None else r.status)
        rows.append([engine_label(engine), *cells])
    if bandwidth_limit and quantity == "tok/s":
        limits = [limit_tokens_per_s([r for r in results if r.case.batch == batch]) for batch in batches]
        rows.append(["bandwidth limit", *(rate(limit) if limit else "–" for limit in limits)])
    return table(["", *(f"B = {batch}" for batch in batches)], rows)


def ledger(place: Place, name: str) -> list[str]:
    """Each engine's added lines, gains and losses."""
    return table(*ledger_of(place.load(name)))


def figure(place: Place, name: str) -> list[str]:
    """A figure with its alt text: `bench/h200-xl-throughput`, or `bench/rungs-throughput` of the run of all engines."""
    name = name.replace("bench/rungs-", f"bench/{RUNGS_RUN}-")
    page = place.root / "figures" / f"{name}.md"
    if not page.is_file():
        raise ValueError(f"no figure {name!r}: draw it with `python -m bench plot` or `python -m nanobook draw`")
    (alt,) = (line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("Alt text: "))
    shown = os.path.relpath(place.root / "figures" / name, place.page.parent).replace(os.sep, "/")
    return [picture(shown, alt.removeprefix("Alt text: "))]


def excerpt(place: Place, name: str, *, doc: bool = True, begin: str = "", end: str = "") -> list[str]:
    """A function, a class or a method of the source, fenced: `nanoinfer.engine.step:decode_step`.

    doc=False leaves out the docstring. begin, end: only the part between the one lines that start so is shown.
    ValueError if the name or a line does not exist.
    """
    module, _, path = name.partition(":")
    file = place.root.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        raise ValueError(f"excerpt {name!r}: there is no module {module}")
    node: ast.AST = parse(file)
    for part in path.split("."):
        node = _child(node, part, name)
    assert isinstance(node, ast.stmt)
    keep = set(lines_of(node)).difference(*(() if doc else map(docstring_lines, ast.walk(node))))
    lines = [line for at, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1) if at in keep]
    if begin or end:
        top = _line(lines, begin or end, name)
        lines = lines[top : (_line(lines, end, name) if end else top) + 1]
    return ["```python", *textwrap.dedent("\n".join(lines)).split("\n"), "```"]


def _line(lines: list[str], start: str, name: str) -> int:
    """The one line that starts so. ValueError if none or several do."""
    found = [at for at, line in enumerate(lines) if line.strip().startswith(start)]
    if len(found) != 1:
        raise ValueError(f"excerpt {name!r}: {len(found) or 'no'} lines start with {start!r}; it must be one")
    return found[0]


def _child(node: ast.AST, part: str, name: str) -> ast.AST:
    for child in getattr(node, "body", []):
        if isinstance(child, Definition) and child.name == part:
            return child
        targets = child.targets if isinstance(child, ast.Assign) else [getattr(child, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == part for target in targets):
            return child  # type: ignore[no-any-return]
    raise ValueError(f"excerpt {name!r}: there is no {part!r} in it")


def printed(place: Place, name: str) -> list[str]:
    """What a function of the chapter's example.py prints, fenced; `lies/shown:slot` names another file beside it."""
    file, _, function = name.rpartition(":")
    return [
        "```text",
        *examples.printed(place.page.parent / (f"{file}.py" if file else examples.EXAMPLE), function),
        "```",
    ]


def strength(place: Place) -> list[str]:
    """How strong each chapter's checks are: how much was caught of all that was tried."""
    rows = []
    for path in sorted(place.root.glob("chapters/*/exercises/strength.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        wrong, mutants, variants = found["wrong_answers"], found["mutants"], found["correct_variants"]
        rows.append(
            [
                str(found["chapter"]),
                f"{wrong['caught']} of {wrong['of']}",
                f"{mutants['killed']} of {mutants['of']}",
                f"{variants['passed']} of {variants['of']}",
            ]
        )
    return table(["chapter", "wrong answers caught", "mutants killed", "correct variants passed"], rows)


def lanes(place: Place) -> list[str]:
    """How long each lane of continuous integration took when `.ci/run` last ran it."""
    lines = (place.root / ".ci" / "seconds.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.partition("\t")[::2] for line in lines]
    return table(["lane", "seconds"], [[f"`{command}`", seconds] for seconds, command in rows])


def rung_table(place: Place, number: int) -> list[str]:
    """The files that chapter `number` adds, in reading order, with their lines of code."""
    return ["```text", *textwrap.dedent(reading_order(syllabus(), number, number)).splitlines(), "```"]


BLOCKS: dict[str, Callable[..., list[str]]] = {
    "table": results_table, "ledger": ledger, "figure": figure, "excerpt": excerpt, "printed": printed,
    "rung": rung_table, "strength": strength, "lanes": lanes,
}  # fmt: skip
