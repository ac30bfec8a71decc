"""The arguments that several commands of the course share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from nanoinfer.cli.errors import Refused
from nanoinfer.cli.terminal import remark

if TYPE_CHECKING:
    from nanocourse.exercises.chapters import Chapter
    from nanocourse.learner.folder import Folder


def _folder(given: str | Path) -> Path:
    if not str(given):  # as a path, it would be the current folder
        raise Refused("--mine must name a folder, not ''")
    return Path(given)


ChapterNumber = Annotated[int, Argument(help="A chapter's number.", metavar="CHAPTER", show_default=False)]
Mine = Annotated[Path, Option(help="Your folder.", metavar="DIR", parser=_folder)]
Plain = Annotated[bool, Option("--plain", help="No colours; NO_COLOR in the environment does the same.")]
HERE = Path("my-course")


def opened(number: int, mine: Path) -> tuple[Chapter, Folder]:
    """A chapter and the learner's folder. ValueError where there is no such chapter."""
    from nanocourse.exercises.chapters import chapter

    return chapter(number), folder_at(mine)


def folder_at(mine: Path) -> Folder:
    """The learner's folder, with a remark on each of its files whose exercise has moved.

    Where none is named, it is looked for in the folders above, as git does.
    """
    from nanocourse.learner.folder import PROGRESS, Folder

    places = (HERE, Path.cwd(), *Path.cwd().parents) if mine == HERE else ()
    folder = Folder(next((one for one in places if (one / PROGRESS).is_file()), mine))
    for sentence in folder.moved():
        remark(f"nanoinfer: {sentence}")
    return folder
