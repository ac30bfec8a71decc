"""`nanoinfer course`: stubs, checks, hints, predictions and quizzes, in a folder of the learner's own."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from nanocourse.cli.claims import similar, verify
from nanocourse.cli.console import Lines, patience, refusing
from nanocourse.cli.grade import grade
from nanocourse.cli.guesses import predict, quiz
from nanocourse.cli.options import HERE, ChapterNumber, Mine, Plain, folder_at, opened
from nanocourse.cli.release import oral, release
from nanoinfer.cli.errors import Refused
from nanoinfer.cli.terminal import write

if TYPE_CHECKING:
    from nanocourse.exercises.chapters import Chapter
    from nanocourse.exercises.exercise import Exercise
    from nanocourse.learner.folder import Folder

EPILOG = """\
Examples:

nanoinfer course start 1

nanoinfer course check 1

nanoinfer course check 1.4

nanoinfer course hint 1.4

Exit code: 0 where all that was checked passed, 1 where it did not, 2 refused, 130 stopped by Ctrl-C."""

app = typer.Typer(
    help="Exercises: stubs, checks that say what is wrong, hints, predictions, a quiz.",
    epilog=EPILOG,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def start(chapter: ChapterNumber, mine: Mine = HERE, plain: Plain = False) -> None:
    """Write a chapter's stubs into your folder, and name the first that is not solved, in the order of the text.

    What is there already stays as it is.
    """
    from nanocourse.exercises.chapters import first

    out = Lines(plain)
    with refusing():
        found, folder = opened(chapter, mine)
        for path, new in folder.start(found):
            out.line(f"{'written' if new else 'kept   '}  {_shown(path)}")
        progress, every = folder.load(), folder.exercises(found)
        one, page, section = first(found, [one for one in every if progress.of(one.id).last != "passed"] or every)
    file = _shown(folder.file(found, one))
    out.line(f"Next in the order of the text is {file} (section {section} of {page}).")
    out.line(f"Then: nanoinfer course check {one.id}{_option(mine)}")


@app.command()
def check(
    target: Annotated[str, Argument(help="A chapter, or an exercise: 1 or 1.4.", metavar="CHAPTER")],
    more: Annotated[list[str] | None, Argument(help="Exercises of it.", show_default=False)] = None,
    mine: Mine = HERE,
    device: Annotated[str | None, Option(help="cpu or cuda alone; both where there is a GPU.")] = None,
    as_json: Annotated[bool, Option("--json", help="One JSON object an exercise and line, for programs.")] = False,
    receipt: Annotated[bool, Option("--receipt", help="Say what was run: files, checks, lines, inputs.")] = False,
    plain: Plain = False,
) -> int:
    """Check your code: a line an exercise; where one fails, what was expected, what came, and where first."""
    from nanocourse.grade.isolation.system import ending_strays

    out, passed = Lines(plain), True
    with refusing(), ending_strays():
        found, folder, chosen = _chosen([target, *(more or ())], mine)
        from nanocourse.learner.check_folder import run_checks
        from nanocourse.learner.report import result_lines

        for one, result in run_checks(folder, found, chosen, device, patience()):
            if as_json:
                write(json.dumps(result.to_json()) + "\n")
            else:
                for text, kind in result_lines(result, one, found, receipt):
                    out.line(text, kind)
            passed = passed and result.status == "passed"
    return 0 if passed else 1


@app.command()
def hint(id: Annotated[str, Argument(help="An exercise: 1.4.")], mine: Mine = HERE, plain: Plain = False) -> None:
    """The next hint of an exercise: what always holds, then where to look, then pseudocode."""
    with refusing():
        _, folder, (one,) = _chosen([id], mine, single=True)
        progress, hints = folder.load(), one.spec.hints
        number = progress.of(one.id).hints = min(progress.of(one.id).hints + 1, len(hints))
        folder.note(progress)
    out = Lines(plain)
    out.line(f"{one.id} {one.spec.title}, hint {number} of {len(hints)}")
    for text in hints[number - 1].split("\n"):
        out.line(f"    {text}")
    if number < len(hints):
        out.line(f"The next one: nanoinfer course hint {one.id}{_option(mine)}", "quiet")


@app.command()
def status(mine: Mine = HERE, plain: Plain = False) -> None:
    """How far you are: exercises, tries, hints, guesses."""
    from nanocourse.exercises.chapters import chapters
    from nanocourse.learner.report import status_lines

    with refusing():
        folder = folder_at(mine)
        lines = [line for one in chapters() if folder.chapter(one).is_dir() for line in status_lines(folder, one)]
    for text, kind in lines or [(f"Nothing is begun in {mine}: nanoinfer course start 1{_option(mine)}", "")]:
        Lines(plain).line(text, kind)


for command in (predict, quiz, grade, release, oral, verify, similar):
    app.command()(command)


@app.command()
def strength(
    chapter: ChapterNumber,
    write: Annotated[bool, Option("--write", help="Store the figures beside the exercises.")] = False,
    plain: Plain = False,
) -> int:
    """Measure the checks themselves: wrong answers caught, mutants killed, correct variants passed."""
    from nanocourse.authoring.chapter_strength import run
    from nanocourse.exercises import chapters

    with refusing():
        found = chapters.chapter(chapter)
    return 0 if run(found, write, Lines(plain).line) else 1


def _chosen(words: list[str], mine: Path, single: bool = False) -> tuple[Chapter, Folder, list[Exercise]]:
    """The exercises meant by `1`, `1.4`, `1.4 1.5`, `1 1.4` or `1 4`."""
    from nanocourse.exercises.moved import told

    match = re.fullmatch(r"(\d+)(?:\.(\d+))?", words[0])
    if not match or (single and match[2] is None):
        raise Refused(f"an exercise is a chapter and a number, as 1.4, not {words[0]!r}")
    wanted = [word.removeprefix(f"{match[1]}.") for word in words[match[2] is None :]]
    for number in wanted:
        if sentence := told(f"{match[1]}.{number}"):
            raise Refused(sentence)
    chapter, folder = opened(int(match[1]), mine)
    every = folder.exercises(chapter)
    for number in set(wanted) - {str(one.number) for one in every}:
        raise Refused(f"chapter {chapter.number} has the exercises {every[0].id} to {every[-1].id}, and no {number!r}")
    return chapter, folder, [one for one in every if not wanted or str(one.number) in wanted]


def _option(mine: Path) -> str:
    return "" if mine == HERE else f" --mine {shlex.quote(str(mine))}"


def _shown(path: Path) -> str:
    """A path as short as it can be said."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
