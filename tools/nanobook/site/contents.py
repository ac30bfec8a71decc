"""The table of contents of the site: pages, notebooks and source files in the order in which they are read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanobook.source import folder_of
from nanobook.syllabus import ENGINE, engine_root, file_of, syllabus

SKIPPED = {"questions.md", "slides.md", "strength.json"}
TEACHING = ("teacher.md", "written.md", "criteria.md")  # of a chapter
BESIDE = ("prerequisites", "reading", "exam-1-4", "exam-5-8")  # TEACHING.md, in chapters/teaching
LINK = re.compile(r"\]\(([^)#\s]+\.py)\)")


@dataclass(frozen=True)
class Part:
    """A part of the table of contents: Markdown pages, notebooks, or source files, as paths from the book's root."""

    title: str
    pages: tuple[str, ...]


def chapter_folders(book: Path) -> list[Path]:
    """Folders of the chapters that have a text, in order."""
    return [path.parent for path in sorted(book.glob("chapters/??-*/README.md"))]


def parts(book: Path) -> list[Part]:
    """The table of contents."""
    texts = [f"chapters/{folder.name}/README.md" for folder in chapter_folders(book)]
    texts += _there(book, "chapters/bridge/README.md")
    more = [f"chapters/{folder.name}/{name}" for folder in chapter_folders(book) for name in _more(folder)]
    found = [
        Part("The book", _there(book, "chapters/README.md", *texts)),
        Part("Beside the chapters", _there(book, *more)),
        Part("Notebooks", tuple(f"notebooks/{path.name}" for path in sorted(book.glob("notebooks/*.ipynb")))),
        Part("Measuring", _there(book, "bench/README.md")),
        Part("Serving", _there(book, "chapters/SERVING.md", "chapters/WATCHING.md", "chapters/batches.md")),
        Part("Teaching", tuple(_teaching(book))),
        *(Part(title, tuple(map(file_of, modules))) for title, modules in source().items()),
    ]
    small = sorted({path for text in texts for path in _linked(book, text)})
    return [part for part in [*found, Part("The chapters' own files", tuple(small))] if part.pages]


def source() -> dict[str, tuple[str, ...]]:
    """The engine's modules by title, chapter by chapter, then those of no chapter; the command line is left out."""
    known = syllabus()
    listed = {module for chapter in known.chapters for module in chapter.modules}
    outside = (module for name in known.outside if name[0] != "_" and name != "cli" for module in _modules(name))
    around = tuple(module for module in outside if module not in listed)
    chapters = {f"Source of chapter {c.number}: {c.title}": c.modules + c.labs for c in known.chapters}
    return {**chapters, "Source of no chapter": around}


def _modules(name: str) -> list[str]:
    """The module of that name, or those of the package."""
    folder = (engine_root() / file_of(name)).with_suffix("")
    inside = sorted(path.stem for path in folder.glob("*.py") if path.stem[0] != "_")
    return [f"{name}.{stem}" for stem in inside] or [name]


def digest(book: Path) -> str:
    """A digest of everything that the site is made from. When it changes, the site must be built again."""
    sums = hashlib.sha256()
    for path in sorted([*_files(book), *folder_of(ENGINE).rglob("*.py"), *Path(__file__).parent.rglob("*")]):
        if path.is_file() and path.suffix != ".pyc":
            sums.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return sums.hexdigest()


def _files(book: Path) -> Iterator[Path]:
    for folder, pattern in (("chapters", "**/*"), ("figures", "**/*"), ("notebooks", "*.ipynb")):
        yield from (path for path in (book / folder).glob(pattern) if "__pycache__" not in path.parts)
    yield from (path for path in (book / "README.md", book / "bench" / "README.md") if path.is_file())


def _there(book: Path, *names: str) -> tuple[str, ...]:
    return tuple(name for name in names if (book / name).is_file())


def _more(folder: Path) -> list[str]:
    beside = sorted(path.name for path in folder.glob("*.md") if path.name not in {"README.md", *TEACHING, *SKIPPED})
    return [*beside, *sorted(path.relative_to(folder).as_posix() for path in folder.glob("recordings/README.md"))]


def _teaching(book: Path) -> Iterator[str]:
    yield from _there(book, "chapters/TEACHING.md")
    for folder in chapter_folders(book):
        yield from _there(book, *(f"chapters/{folder.name}/{name}" for name in TEACHING))
    yield from _there(book, *(f"chapters/teaching/{name}.md" for name in BESIDE))
    yield from _there(book, "chapters/01-naive/exercises/FORMAT.md")


def _linked(book: Path, text: str) -> Iterator[str]:
    """Python files in a chapter's folder that its text links to."""
    folder = (book / text).parent
    for name in LINK.findall((book / text).read_text(encoding="utf-8")):
        path = (folder / name).resolve()
        if path.is_file() and path.is_relative_to(folder.resolve()):
            yield path.relative_to(book.resolve()).as_posix()
