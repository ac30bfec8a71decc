"""Build the site: write its pages into a folder and run Sphinx on them. Every warning is an error."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from nanobook.site import contents, source_page
from nanobook.site.pages import Pages
from nanobook.site.source_index import Index
from nanobook.syllabus import engine_root
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
    """Whether `to` holds the site of this book as it is now."""
    mark = to / MARK
    return mark.is_file() and mark.read_text(encoding="utf-8") == contents.digest(root())


def build(to: Path, at_page: Callable[[str, int], object] = lambda page, steps: None) -> Path:
    """Build the site into `to`; return its first page. Unbuilt where a package is missing or a page is wrong.

    at_page: called with a page's name as the page is read, and as it is written, and with how many calls there will be.
    A site that was built into `to` before is replaced; any other folder that is not empty is refused.
    """
    if lacking := missing():
        raise Unbuilt(f"the site needs {', '.join(lacking)}: pip install 'nanoinfer[docs]'")
    if to.exists() and not (to / MARK).is_file() and any(to.iterdir()):
        raise Unbuilt(f"{to} is not empty, and holds no site of this book: name another folder")
    to.parent.mkdir(parents=True, exist_ok=True)  # or minutes of building would be lost
    from sphinx.application import Sphinx
    from sphinx.errors import SphinxError
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    book = root()
    with TemporaryDirectory() as folder:
        pages, html, told = Path(folder) / "pages", Path(folder) / "html", io.StringIO()
        write(book, pages)
        try:
            with patch_docutils(HERE), docutils_namespace():
                trees = Path(folder) / "trees"
                sphinx = Sphinx(pages, HERE, html, trees, "html", status=None, warning=told, warningiserror=True)
                for event in ("source-read", "html-page-context"):
                    sphinx.connect(event, lambda app, page, *_: at_page(page, 2 * len(app.env.found_docs)))
                sphinx.build()
        except SphinxError as error:
            raise Unbuilt(f"a page of the book is wrong: {str(error).replace(folder, '')}") from error
        if sphinx.statuscode:
            raise Unbuilt(f"a page of the book is wrong: {told.getvalue().replace(folder, '').strip()}")
        for recording in book.glob("chapters/*/recordings/*.html"):
            shutil.copyfile(recording, html / recording.relative_to(book))
        (html / MARK).write_text(contents.digest(book), encoding="utf-8")
        shutil.rmtree(to, ignore_errors=True)
        shutil.move(html, to)
    return to / "index.html"


def write(book: Path, to: Path) -> None:
    """Write all pages, and the files that they include."""
    parts = contents.parts(book)
    names = [page for part in parts for page in part.pages]
    modules = [name for names in contents.source().values() for name in names]
    pages = Pages(book, {*names, "README.md"}, Index(modules))
    shutil.copytree(book / "figures", to / "figures", ignore=shutil.ignore_patterns("*.md"))
    for name in names:
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".py"):
            source = engine_root() / name if name.startswith("nanoinfer/") else book / name
            shutil.copyfile(source, target)
            target.with_suffix(".md").write_text(source_page.page(name, source), encoding="utf-8")
        elif name.endswith(".ipynb"):
            target.write_text(_notebook(pages, name, book / name), encoding="utf-8")
        else:
            text = (book / name).read_text(encoding="utf-8")
            beside = re.match(r"chapters/\d\d.*/README\.md", name)  # the other pages name the whole engine
            target.write_text(pages.text(name, text, beside=bool(beside)), encoding="utf-8")
    (to / "index.md").write_text(_index(book, pages, parts), encoding="utf-8")


def _notebook(pages: Pages, name: str, path: Path) -> str:
    """A notebook, its text rewritten as a page's is."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    titled = False
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = pages.text(name, "".join(cell["source"]))
            cell["source"] = re.sub(r"\A# ", "## ", text) if titled else text
            titled = titled or text.startswith("# ")
    return json.dumps(notebook)


def _index(book: Path, pages: Pages, parts: list[contents.Part]) -> str:
    """The first page: the README, and the table of contents."""
    lines = []
    for part in parts:
        lines += ["```{toctree}", f":caption: {part.title}", ":hidden:", ":titlesonly:", ""]
        lines += [page.rpartition(".")[0] for page in part.pages]
        lines += ["```", ""]
    readme = book / "README.md"
    text = pages.text("README.md", readme.read_text(encoding="utf-8")) if readme.is_file() else "# nanoinfer\n"
    return "\n".join([text, "", *lines])
