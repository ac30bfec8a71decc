"""What a cogapp block of a page can hold: a table of results, the ledger, a figure, an excerpt, a program's output."""

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
    batches_of,
    engine_label,
    engines_of,
    floor_tokens_per_s,
    models_of,
    prompts_of,
    rate,
)
from nanobook.examples import EXAMPLE
from nanobook.examples import printed as lines_of
from nanobook.text.ledger import BATCHES
from nanobook.text.ledger import ledger as ledger_of
from nanobook.text.query import QUANTITIES, load


@dataclass(frozen=True)
class Place:
    """The page that a block stands in."""

    page: Path
    root: Path

    def load(self, name: str) -> Report:
        return load(name, self.root / "bench" / "results")


def results_table(
    place: Place, name: str, quantity: str = "tok/s", *, model: str | None = None, batches: tuple[int, ...] = (),
    engines: tuple[str, ...] = (), prompt: int | None = None, floor: bool = False,
) -> list[str]:  # fmt: skip
    """An engine a row, a batch size a column; a case without a number says why."""
    report = place.load(name)
    model = model or models_of(report)[0]
    results = [r for r in report.results if r.case.model.removeprefix("random:") == model.removeprefix("random:")]
    prompt = prompt if prompt is not None else prompts_of(results)[0]
    results = [r for r in results if r.case.prompt_tokens == prompt]
    read, show = QUANTITIES[quantity]
    columns = batches or tuple(batches_of(results))
    rows = []
    for engine in engines or tuple(engines_of(results)):
        of = {r.case.batch: r for r in results if r.case.engine == engine}
        cells = []
        for batch in columns:
            r = of.get(batch)
            number = read(r) if r is not None else None
            cells.append("–" if r is None else show(number) if number is not None else r.status)
        rows.append([engine_label(engine), *cells])
    if floor and quantity == "tok/s":
        limits = [floor_tokens_per_s([r for r in results if r.case.batch == batch]) for batch in columns]
        rows.append(["bandwidth floor", *(rate(limit) if limit else "–" for limit in limits)])
    return table(["", *(f"B = {batch}" for batch in columns)], rows)


def ledger(place: Place, name: str, *, model: str | None = None, batches: tuple[int, ...] = BATCHES) -> list[str]:
    """Each rung's added lines, gains and losses."""
    return table(*ledger_of(place.load(name), model, batches))


def figure(place: Place, name: str) -> list[str]:
    """A figure with its alt text, on the reader's own background."""
    page = place.root / "figures" / f"{name}.md"
    if not page.is_file():
        raise ValueError(f"no figure {name!r}: draw it with `python -m bench plot`")
    (alt,) = (line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("Alt text: "))
    folder = os.path.relpath(place.root / "figures", place.page.parent).replace(os.sep, "/")
    return [picture(name, alt.removeprefix("Alt text: "), folder + "/")]


def excerpt(place: Place, name: str, *, doc: bool = True, begin: str = "", end: str = "") -> list[str]:
    """A function, a class or a method of the source, fenced: `nanoinfer.engine.step:decode_step`.

    doc=False leaves the docstring out. begin, end: how the one line starts with which a part begins, and ends.
    ValueError where the name or the line is not there.
    """
    module, _, path = name.partition(":")
    file = place.root.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        raise ValueError(f"excerpt {name!r}: there is no module {module}")
    source = file.read_text(encoding="utf-8")
    node: ast.AST = ast.parse(source)
    for part in path.split("."):
        node = _child(node, part, name)
    assert isinstance(node, ast.stmt)
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)])
    keep = set(range(first, (node.end_lineno or first) + 1))
    if not doc and isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
        keep -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = [line for at, line in enumerate(source.split("\n"), 1) if at in keep]
    if begin or end:
        top = _line(lines, begin or end, name)
        lines = lines[top : (_line(lines, end, name) if end else top) + 1]
    return ["```python", *textwrap.dedent("\n".join(lines)).split("\n"), "```"]


def _line(lines: list[str], start: str, name: str) -> int:
    """The one line that starts so. ValueError where none or several do."""
    found = [at for at, line in enumerate(lines) if line.strip().startswith(start)]
    if len(found) != 1:
        raise ValueError(f"excerpt {name!r}: {len(found) or 'no'} lines start with {start!r}; it must be one")
    return found[0]


def _child(node: ast.AST, part: str, name: str) -> ast.AST:
    for child in getattr(node, "body", []):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == part:
            return child
        targets = child.targets if isinstance(child, ast.Assign) else [getattr(child, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == part for target in targets):
            return child  # type: ignore[no-any-return]
    raise ValueError(f"excerpt {name!r}: there is no {part!r} in it")


def printed(place: Place, name: str) -> list[str]:
    """What a function of the chapter's own example.py prints, fenced; `lies/shown:slot` is another file beside it."""
    file, _, function = name.rpartition(":")
    return ["```text", *lines_of(place.page.parent / (f"{file}.py" if file else EXAMPLE), function), "```"]


def strength(place: Place) -> list[str]:
    """How strong each chapter's checks are: what was caught, of all that was tried."""
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


BLOCKS: dict[str, Callable[..., list[str]]] = {
    "table": results_table, "ledger": ledger, "figure": figure, "excerpt": excerpt, "printed": printed,
    "strength": strength,
}  # fmt: skip
