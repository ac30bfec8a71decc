"""`nanoinfer read 1 --slides`: a chapter's slides as one HTML file, and as Markdown for Marp.

Marp takes every comment on a slide for a speaker's note. Our markers are comments too, so they are cut out here.
"""

from __future__ import annotations

import base64
import html
import os
import re
from pathlib import Path
from typing import Any

HEAD = re.compile(r"\A---\n.*?\n---\n", re.S)
OURS = re.compile(r"^<!--\[\[\[.*?\]\]\]-->\n?|<!--(?:=| exempt:).*?-->", re.M | re.S)
NOTE = re.compile(r"<!--\s*(.*?)\s*-->", re.S)
FIGURE = re.compile(r"(?<=\]\()[^)\s]+\.svg(?=\))")
IMAGE = re.compile(r"!\[(?:[wh]:\d+ )?([^\]]*)\]\([^)]*\.svg\)")
SIZE = re.compile(r"\b([wh]):(\d+) ?")  # as Marp writes it, ahead of an image's alternative text
MONOSPACE = 1164 / 0.605  # pixels for a line of code, by the width of a letter
WRAPPED, WIDEST = 76, 98  # columns, above which labelled texts are wrapped, and all lines
LABELLED = re.compile(r".{22}  \S")  # a label, or none, in 24 columns


def slides(page: Path) -> list[str]:
    """The Markdown of each slide, notes included, without our markers."""
    return re.split(r"^---\n", HEAD.sub("", OURS.sub("", page.read_text(encoding="utf-8"))), flags=re.M)


def write(page: Path, folder: Path) -> Path:
    """Write a deck as HTML and as Markdown for Marp, whose figures stay where they are. Returns the HTML file."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{page.parent.name}.html"
    made.write_text(deck(page), encoding="utf-8")
    text = OURS.sub("", page.read_text(encoding="utf-8"))
    text = FIGURE.sub(lambda found: Path(os.path.relpath(page.parent / found[0], folder)).as_posix(), text)
    made.with_suffix(".md").write_text(text, encoding="utf-8")
    return made


def deck(page: Path) -> str:
    """The deck as one HTML file that loads nothing."""
    from docutils.utils.math.latex2mathml import tex2mathml
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    def formula(text: str, options: dict[str, bool]) -> str:
        return str(tex2mathml(text, as_block=options["display_mode"]))

    md = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, renderer=formula)
    md.add_render_rule("fence", lambda self, tokens, at, options, env: _code(tokens[at]))
    md.add_render_rule("image", lambda self, tokens, at, options, env: _image(page.parent, tokens[at]))
    sections = []
    for slide in slides(page):
        notes = "".join(md.render(found[1]) for found in NOTE.finditer(slide))
        sections.append(f"<section>{md.render(NOTE.sub('', slide))}<aside>{notes}</aside></section>")
    template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    return template.replace("TITLE", page.parent.name).replace("SLIDES", "\n".join(sections))


def _code(token: Any) -> str:
    """Code in color, in letters of a size at which its longest line fits; an output of labelled texts is wrapped."""
    from pygments import formatters, highlight, lexers  # type: ignore[import-untyped]

    text = token.content.rstrip("\n")
    columns = max(map(len, text.split("\n")))
    long = [line for line in text.split("\n") if len(line) > WRAPPED]
    if columns > WIDEST or (columns > WRAPPED and all(map(LABELLED.match, long))):
        told = re.sub(r"(?<=.{76})\n {24}(?=\S)", " ", text).split("\n")
        return f'<pre class="told">{"".join(f"<div>{html.escape(line)}</div>" for line in told)}</pre>'
    code = highlight(
        text, lexers.get_lexer_by_name(token.info or "text"), formatters.HtmlFormatter(nowrap=True, noclasses=True)
    )
    return f'<pre style="font-size: {min(30, MONOSPACE / columns):.1f}px">{code}</pre>'


def _image(folder: Path, token: Any) -> str:
    style = "".join(f"{'width' if side == 'w' else 'height'}: {n}px;" for side, n in SIZE.findall(token.content))
    data = base64.b64encode((folder / token.attrs["src"]).read_bytes()).decode()
    alt = html.escape(SIZE.sub("", token.content))
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{alt}" style="{style}">'
