"""`nanoinfer read`: the book in a browser, or a chapter in the terminal."""

from __future__ import annotations

import re
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanoinfer.cli.errors import Refused
from nanoinfer.cli.terminal import is_terminal, remark, write

if TYPE_CHECKING:
    from rich.progress import Progress

EPILOG = """\
Examples:

nanoinfer read

nanoinfer read 2

nanoinfer read 2 --terminal

nanoinfer read 2 --slides

nanoinfer read --to site --no-open"""


def read(
    chapter: Annotated[int | None, typer.Argument(help="Open this chapter.", metavar="[CHAPTER]")] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Build the site into this folder, not into one of its own.")
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address, and open no browser.")] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="Print the chapter's text here instead.")] = False,
    slides: Annotated[
        bool, typer.Option("--slides", help="Show the chapter's slides: arrow keys turn them, n shows the notes.")
    ] = False,
) -> int:
    """Open the book, with the source beside the text. It is built the first time, and works without a network."""
    from nanobook.site import build
    from nanocourse.exercises.chapters import root

    try:
        text = _chapter_text(root(), chapter)
    except FileNotFoundError as error:
        raise Refused(str(error)) from error
    for option in [name for name, chosen in (("--slides", slides), ("--terminal", terminal)) if chosen]:
        if text is None:
            raise Refused(f"{option} needs a chapter: nanoinfer read 1 {option}")
    if slides:
        assert text is not None
        text = text.with_name("slides.md")
        if not text.is_file():
            raise Refused(f"chapter {chapter} has no slides yet")
    if terminal:
        assert text is not None
        return _print(text)
    folder = to or Path(typer.get_app_dir("nanoinfer")) / ("slides" if slides else "book")
    try:
        if slides:
            assert text is not None
            return _open(_deck(text, folder), no_open)
        if not build.built(folder):
            remark("nanoinfer: building the book, once ...")
            with _bar() as bar:
                task = bar.add_task("")
                build.build(folder, lambda page, steps: bar.update(task, description=page, total=steps, advance=1))
    except build.Unbuilt as error:
        raise Refused(f"{error}; `nanoinfer read 1 --terminal` needs nothing") from error
    except OSError as error:
        elsewhere = "" if to else "; --to DIR builds the book elsewhere"
        what = f"{error.filename or folder} cannot be written: {error.strerror or error}"
        raise Refused(what + elsewhere) from error
    return _open(folder / ("index.html" if text is None else f"chapters/{text.parent.name}/README.html"), no_open)


def _deck(text: Path, folder: Path) -> Path:
    """Write the slides of a chapter; Unbuilt where a package is missing."""
    from nanobook import slides
    from nanobook.site import build

    if lacking := build.missing():
        raise build.Unbuilt(f"slides need {', '.join(lacking)}: pip install 'nanoinfer[docs]'")
    return slides.write(text, folder)


def _open(page: Path, no_open: bool) -> int:
    """Print where a page is, and open it."""
    write(f"{page.resolve()}\n")
    if not no_open and not webbrowser.open(page.resolve().as_uri()):
        remark("nanoinfer: no browser could be opened; the page above can be")
    return 0


def _bar() -> Progress:
    """How much of the site is built, and its page at work; silent where standard error is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not is_terminal(sys.stderr))


def _chapter_text(book: Path, chapter: int | None) -> Path | None:
    """The text of a chapter. Refused if there is no such chapter."""
    from nanobook.site import contents

    texts = {int(folder.name[:2]): folder / "README.md" for folder in contents.chapter_folders(book)}
    if chapter is not None and chapter not in texts:
        raise Refused(f"the chapters are {', '.join(map(str, texts))}, and there is no {chapter}")
    return texts[chapter] if chapter is not None else None


def _print(text: Path) -> int:
    """Print a chapter's text; in place of a figure stands its alt text, and nothing is folded."""
    from rich.console import Console
    from rich.markdown import Markdown

    from nanobook.site.pages import MARKERS, PICTURE
    from nanobook.slides import HEAD, IMAGE

    told = PICTURE.sub(lambda found: f"*Figure: {found[2]}*", text.read_text(encoding="utf-8"))
    told = IMAGE.sub(r"*Figure: \1*", HEAD.sub("", told))
    told = re.sub(r"<details><summary>(.*?)</summary>\n\n(.*?)\n\n</details>", r"**\1.** \2", told, flags=re.S)
    console = Console()
    plain = re.sub(r"\n{3,}", "\n\n", MARKERS.sub("", told))
    if console.is_terminal:
        console.print(Markdown(plain))
    else:
        write(plain)
    return 0


def add(to: typer.Typer) -> None:
    """Plug `nanoinfer read` in."""
    to.command("read", epilog=EPILOG)(read)
