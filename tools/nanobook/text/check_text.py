"""Fills numbers, tables and excerpts into the pages from results files and the source, and finds stale ones.

There are two kinds of marker. Both are comments, which no reader sees. A number is followed by its marker:
`21,899 tok/s<!--= h200-gpu dense B=64 tok/s -->`; cogapp handles whole lines only, so these are processed here, and
`?<!--= ... -->` asks for a new one. A table or an excerpt is a cogapp block: `<!--[[[cog table("h200-gpu") ]]]-->`, its
lines, `<!--[[[end]]]-->`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cogapp.cogapp import Cog  # type: ignore[import-untyped]

from nanobook.figures.stale import stale
from nanobook.text import page_blocks as blocks
from nanobook.text.commands import broken_commands
from nanobook.text.lint import UNIT, hand_typed
from nanobook.text.marker_values import value

VALUE = rf"(?:\?|\d{{4}}-\d\d-\d\d|\d[\d,.]* to \d[\d,.]*×|[-−]?\d[\d,]*(?:\.\d+)?(?:[ \u00a0]?(?:{UNIT}|launches))?)"
INLINE = re.compile(rf"(?<![\d.,])(?P<value>{VALUE})(?P<marker><!--=(?P<words>[^>]*?)-->)")


@dataclass(frozen=True)
class Fault:
    """A place in a page that does not agree with the files, or that no file stands behind."""

    page: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.what}"


def pages(root: Path) -> list[Path]:
    """The pages of the book: the chapters' texts and slides, and others that have a block that is generated."""
    chapters = sorted((root / "chapters").glob("**/*.md"))
    texts = {"README.md", "slides.md"}
    made = [page for page in chapters if page.name in texts or "[[[cog" in page.read_text(encoding="utf-8")]
    return [page for page in (root / "README.md", root / "CONTRIBUTING.md", *made) if page.is_file()]


def filled(page: Path, root: Path) -> str:
    """The page with every marked number, table and excerpt made anew. ValueError if a marker names nothing."""
    results = root / "bench" / "results"
    lines = []
    for at, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        if "<!--=" in line and len(INLINE.findall(line)) != line.count("<!--="):
            raise ValueError(f"{_name(page, root)}:{at}: a marker stands behind no number (or `?`, if it is new)")
        try:
            lines.append(INLINE.sub(lambda m: value(m["words"], results) + m["marker"], line))
        except ValueError as error:
            raise ValueError(f"{_name(page, root)}:{at}: {error}") from None
    cog, out = Cog(), io.StringIO()
    cog.options.begin_spec, cog.options.end_spec = "<!--[[[cog", "]]]-->"
    cog.options.end_output = "<!--[[[end]]]-->"

    def say(make: Callable[..., list[str]]) -> Callable[..., None]:
        def write(*arguments: object, **options: object) -> None:
            cog.cogmodule.outl("\n".join(make(blocks.Place(page, root), *arguments, **options)))

        return write

    known: dict[str, object] = {name: say(make) for name, make in blocks.BLOCKS.items()}
    try:
        cog.process_file(io.StringIO("\n".join(lines)), out, fname=_name(page, root), globals=known)
    except Exception as error:  # cogapp wraps what a block raises into a traceback of several lines
        at = getattr(cog.cogmodule, "firstLineNum", 1)
        cause = str(error).strip().splitlines()[-1].removeprefix("ValueError: ")
        raise ValueError(f"{_name(page, root)}:{at}: {cause}") from None
    return out.getvalue()


def check(root: Path, *, just_filled: bool = False) -> list[Fault]:
    """All faults of all pages: stale parts, unless just filled in; numbers typed by hand; commands that do not work."""
    faults = []
    for page in pages(root):
        name, text = _name(page, root), page.read_text(encoding="utf-8")
        try:
            new = text if just_filled else filled(page, root)
            faults += [Fault(name, line, what) for line, what in _stale(text, new)]
        except ValueError as error:
            faults.append(Fault(name, _line_of(str(error)), f"a marker that cannot be filled in: {error}"))
        faults += [Fault(name, line, what) for line, what in hand_typed(text, INLINE)]
        faults += [Fault(name, line, what) for line, what in broken_commands(text)]
    faults += [Fault(f"figures/{name}", 1, what) for name, what in stale(root)]
    return sorted(faults, key=lambda fault: (fault.page, fault.line))


def fill(root: Path) -> list[Path]:
    """Fill in every page. Returns those that changed."""
    changed = []
    for page in pages(root):
        text = filled(page, root)
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            changed.append(page)
    return changed


def _stale(old: str, new: str) -> list[tuple[int, str]]:
    """Numbers of the lines that differ, and how."""
    before, after = old.split("\n"), new.split("\n")
    if len(before) != len(after):
        pairs = enumerate(zip(before, after, strict=False))
        at = next((i for i, (x, y) in pairs if x != y), min(len(before), len(after)))
        return [(at + 1, "stale: the generated lines differ in number; run `python -m nanobook prose`")]
    return [
        (i, f"stale: the page has {x.strip()!r}, the files say {y.strip()!r}")
        for i, (x, y) in enumerate(zip(before, after, strict=True), 1)
        if x != y
    ]


def _name(page: Path, root: Path) -> str:
    return page.relative_to(root).as_posix()


def _line_of(message: str) -> int:
    found = re.search(r":(\d+)", message)
    return int(found[1]) if found else 1
