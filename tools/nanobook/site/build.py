"""Build the site: write its pages into a folder, and have Sphinx make HTML of them; a warning is an error."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from nanobook.site import listing, shelf
from nanobook.site.objects import Index
from nanobook.site.pages import Pages
from nanocourse.exercises.chapters import root

HERE = Path(__file__).parent
MARK = ".nanoinfer-book"  # holds the digest of what a site was built from
NEEDED = ("sphinx", "myst_nb", "furo")


class Unbuilt(Exception):
    """The site cannot be built; the message is one sentence."""


def missing() -> list[str]:
    """Packages of the extra `docs` that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def built(to: Path) -> bool:
    """Whether `to` holds the site of this very book."""
    mark = to / MARK
    return mark.is_file() and mark.read_text(encoding="utf-8") == shelf.digest(root())


def build(to: Path, say: Callable[[str], None] = lambda _: None) -> Path:
    """Build the site into `to`; return its first page. Unbuilt where a package is missing or a page is wrong.

    What `to` held before is replaced if it was a site of ours; another folder that is not empty is refused.
    """
    if lacking := missing():
        raise Unbuilt(f"the site needs {', '.join(lacking)}: pip install 'nanoinfer[docs]'")
    if to.exists() and not (to / MARK).is_file() and any(to.iterdir()):
        raise Unbuilt(f"{to} is not empty, and is no site of this book: name another folder")
    from sphinx.cmd.build import build_main

    book = root()
    with TemporaryDirectory() as folder:
        pages, html, told = Path(folder) / "pages", Path(folder) / "html", io.StringIO()
        say(f"{write(book, pages)} pages")
        # Sphinx writes its warnings to the standard error that it finds.
        with redirect_stderr(told):
            options = ["-q", "-W", "--keep-going", "-c", str(HERE), "-d", str(Path(folder) / "trees")]
            code = build_main([*options, str(pages), str(html)])
        if code:
            raise Unbuilt(f"a page of the book is wrong: {told.getvalue().replace(folder, '').strip()}")
        (html / MARK).write_text(shelf.digest(book), encoding="utf-8")
        shutil.rmtree(to, ignore_errors=True)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(html, to)
    return to / "index.html"


def write(book: Path, to: Path) -> int:
    """Write all pages, and what they include; return how many pages there are."""
    parts = shelf.parts(book)
    names = [page for part in parts for page in part.pages]
    engine = shelf.engine_root()
    modules = [name for names in shelf.source().values() for name in names]
    pages = Pages(book, {*names, "README.md"}, Index(engine, modules))
    shutil.copytree(book / "figures", to / "figures", ignore=shutil.ignore_patterns("*.md"))
    for name in names:
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".py"):
            source = engine / name if name.startswith("nanoinfer/") else book / name
            shutil.copyfile(source, target)
            target.with_suffix(".md").write_text(listing.page(name, source), encoding="utf-8")
        elif name.endswith(".ipynb"):
            target.write_text(_notebook(pages, name, book / name), encoding="utf-8")
        else:
            text = (book / name).read_text(encoding="utf-8")
            beside = name.endswith("/README.md") and name != "chapters/README.md"  # that one names all of the engine
            target.write_text(pages.text(name, text, beside=beside), encoding="utf-8")
    (to / "index.md").write_text(_index(book, pages, parts), encoding="utf-8")
    return len(names) + 1


def _notebook(pages: Pages, name: str, path: Path) -> str:
    """A notebook whose text is treated like a page's."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    titled = False
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = pages.text(name, "".join(cell["source"]))
            cell["source"] = re.sub(r"\A# ", "## ", text) if titled else text
            titled = titled or text.startswith("# ")
    return json.dumps(notebook)


def _index(book: Path, pages: Pages, parts: list[shelf.Part]) -> str:
    """The first page: the README, and the table of contents."""
    lines = []
    for part in parts:
        lines += ["```{toctree}", f":caption: {part.title}", ":hidden:", ":titlesonly:", ""]
        lines += [page.rpartition(".")[0] for page in part.pages]
        lines += ["```", ""]
    readme = book / "README.md"
    text = pages.text("README.md", readme.read_text(encoding="utf-8")) if readme.is_file() else "# nanoinfer\n"
    return "\n".join([text, "", *lines])
