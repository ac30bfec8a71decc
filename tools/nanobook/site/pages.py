"""A page of the book for Sphinx: links that lead to pages, figures with their numbers, source beside each section."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from nanobook.site.source_index import Index, Named
from nanobook.syllabus import syllabus

PICTURE = re.compile(r'<img src="([^"]+)\.svg" width="\d+" alt="([^"]*)">')
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
REMOTE_IMAGE = re.compile(r"\[?!\[[^\]]*\]\(https?:[^)]*\)(?:\]\([^)]*\))?")
STILL = re.compile(r"\[!\[([^\]]*)\]\([^)]*\)\]\(([^)]*\.html)\)")  # of a recording: a picture that opens it
FRAME = '<iframe class="recording" src="{0}" title="{1}" loading="lazy"></iframe>\n\n<a href="{0}">The whole page</a>'
MARKERS = re.compile(r"^<!--\[\[\[.*?\]\]\]-->\n?|<!--.*?-->", re.M | re.S)
SECTION = re.compile(r"(?=^## )", re.M)
MOST = 3  # definitions beside a section
LONGEST = 70  # lines of a definition that is shown there


class Pages:
    """Rewrites Markdown. pages: all pages of the site, as paths from the book's root, with their own suffix."""

    def __init__(self, book: Path, pages: set[str], index: Index) -> None:
        self.book, self.pages, self.index = book, pages, index
        self.chapter_of = syllabus().chapter_of

    def text(self, name: str, markdown: str, beside: bool = False) -> str:
        """The Markdown of one page. beside: show the source that a section mentions beside the section."""
        sections = SECTION.split(markdown)
        if beside:
            sections = [part if at == 0 else self._beside(name, part) for at, part in enumerate(sections)]
        text = MARKERS.sub("", "".join(sections))
        text = REMOTE_IMAGE.sub("", text)
        text = STILL.sub(lambda found: FRAME.format(found[2], found[1]), text)
        text = outside_code(text, lambda prose: LINK.sub(lambda found: self._link(name, found), prose))
        text = one_title(text)
        return PICTURE.sub(lambda found: self._picture(name, found[1], found[2]), text)

    def _beside(self, name: str, section: str) -> str:
        """A section with its source right after the heading; the style sheet moves it to the side."""
        heading, _, body = section.partition("\n")
        number = int(name.split("/")[1][:2])
        known = [named for named in self.index.of(section) if (self.chapter_of(named.module) or 0) <= number]
        shown = [named for named in known if named.lines <= LONGEST][:MOST]
        if not shown:
            return section
        blocks = [line for named in shown for line in _source(named, name, section)]
        opened = ['<details class="beside" open>', "<summary>The source of this section</summary>", ""]
        return "\n".join([heading, "", *opened, *blocks, "</details>", "", body])

    def _link(self, name: str, found: re.Match[str]) -> str:
        """A link to a page of the book or to another site; of any other link only the words are kept."""
        words, target = found[1], found[2]
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, _, fragment = target.partition("#")
        meant = os.path.normpath((PurePosixPath(name).parent / path).as_posix()).replace(os.sep, "/")
        if meant not in self.pages and f"{meant}/README.md" in self.pages:
            meant = f"{meant}/README.md"
        if meant not in self.pages:
            return words
        page = relative(name, "index.md" if meant == "README.md" else meant)
        page = f"{page.removesuffix('.py')}.md" if page.endswith(".py") else page
        return f"[{words}]({page}{'#' + fragment if fragment else ''})"

    def _picture(self, name: str, target: str, alt: str) -> str:
        """A figure, and its numbers in a table that opens."""
        figure = os.path.normpath((PurePosixPath(name).parent / target).as_posix()).replace(os.sep, "/")
        image = [f"```{{image}} {target}.svg", f":alt: {alt}", "```", ""]
        page = self.book / f"{figure}.md"
        rows = [r for r in page.read_text(encoding="utf-8").split("\n") if r.startswith("|")] if page.is_file() else []
        if not rows:
            return "\n".join(image)
        details = ['<details class="numbers"><summary>The figure in numbers</summary>', "", *rows, "", "</details>"]
        return "\n".join([*image, *details])


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change the text outside fenced blocks."""
    pieces = re.split(r"(^```.*?^```[^\S\n]*$)", text, flags=re.M | re.S)
    return "".join(piece if at % 2 else change(piece) for at, piece in enumerate(pieces))


def one_title(text: str) -> str:
    """The first heading of level one is the page's title; other headings of that level become sections."""
    first, found, rest = text.partition("\n# ")
    if text.startswith("# "):
        first, found, rest = "", "", text
    title, _, rest = rest.partition("\n")
    return f"{first}{found}{title}\n" + outside_code(rest, lambda prose: re.sub(r"^# ", "## ", prose, flags=re.M))


def relative(page: str, target: str) -> str:
    """The relative path from a page's folder to another path of the book."""
    return os.path.relpath(target, PurePosixPath(page).parent).replace(os.sep, "/")


def _source(named: Named, page: str, section: str) -> list[str]:
    """A definition of the source, included by name: if it no longer exists, the site cannot be built.

    Of one that the section quotes whole there is only the link.
    """
    link = [f"[{named.file}: `{named.path}`](#{named.anchor})", ""]
    if re.search(rf'cog excerpt\("nanoinfer\.{named.module}:{named.path}"(, doc=False)?\)', section):
        return link
    code = [
        f"```{{literalinclude}} {relative(page, named.file)}",
        f":pyobject: {named.path}",
        ":lineno-match:",
        "```",
        "",
    ]
    return [*link, *code]
