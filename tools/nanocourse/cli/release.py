"""`nanoinfer course release` and `oral`: an assignment from a chapter, and questions about a learner's own file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanocourse.cli.asking import Lines
from nanocourse.cli.lessons import ChapterNumber, Plain
from nanoinfer.cli.errors import Refused, refusing

if TYPE_CHECKING:
    from nanocourse.release.plan import Plan
    from nanocourse.release.teacher import Strength


def release(
    chapter: ChapterNumber,
    to: Annotated[Path, typer.Option("--to", help="A folder that is empty or not there yet.", metavar="DIR")],
    only: Annotated[
        str | None, typer.Option("--only", help="Exercises, with commas: 1.2,1.4; all of them else.")
    ] = None,
    points: Annotated[
        str | None, typer.Option("--points", help="What exercises are worth: 1.2=10,1.4=20; 10 each else.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="A text that names the variant, and stands for its secret.")
    ] = None,
    strength: Annotated[
        bool, typer.Option(help="Run the known wrong answers on the variant's own inputs; takes a minute.")
    ] = True,
    plain: Plain = False,
) -> None:
    """Make an assignment of a chapter: a tree for students, an autograder, notes for the teacher."""
    from nanocourse.release import plan as plans
    from nanocourse.release import release as releases

    out = Lines(plain)
    with _refusing():
        planned = plans.plan(chapter, only, points, variant)
        releases.check_target(to)
        measured = _measured(planned) if strength else None
        releases.release(planned, to, measured)
    count = f"{len(planned.exercises)} exercise{'s' * (len(planned.exercises) > 1)}"
    out.line(f"{planned.assignment.title}: {count}, {planned.assignment.points:g} points")
    for name, what in (
        ("student", "for students, without answers; they also need the file in wheel"),
        ("wheel", "the package, which contains the answers"),
        ("autograder.zip", "for Gradescope; autograder is the same, unpacked"),
        ("autograder/secret.txt", "the secret of the hidden inputs: keep it"),
        ("teacher/README.md", "notes of this release: read them first"),
    ):
        out.line(f"  {to / name}: {what}")
    for id, edition in planned.editions.items():
        out.line(f"  {id} comes in the edition {edition}")
    if measured:
        caught, of = sum(one[1] for one in measured), sum(one[2] for one in measured)
        out.line(f"  hidden inputs of this variant reject {caught} of {of} known wrong answers")
    for text in planned.warnings:
        out.line(f"Note: {text}", "bad")


def oral(
    submission: Annotated[Path, typer.Argument(help="A learner's file, folder or zip.", metavar="SUBMISSION")],
    id: Annotated[str, typer.Argument(help="An exercise: 1.4.", metavar="EXERCISE")],
    assignment: Annotated[
        Path, typer.Option("--assignment", help="The release's autograder folder.", metavar="DIR")
    ] = Path("autograder"),
    again: Annotated[int, typer.Option("--again", help="1, 2, ...: other questions about the same file.", min=0)] = 0,
    plain: Plain = False,
) -> None:
    """Three questions about a learner's own lines, the same ones for the same secret and file."""
    from nanocourse.release.oral import draw as asked

    out = Lines(plain)
    with _refusing():
        exercise, file, questions = asked.of_submission(submission, id, assignment, again)
    out.line(f"{exercise.id} {exercise.spec.title}: {file}")
    for at, question in enumerate(questions, 1):
        out.line(f"{at}. Line {question.line}: {question.code}", "good")
        out.line(f"   {question.text}")
        out.line(f"   Listen for: {question.listen}", "quiet")


def _measured(plan: Plan) -> Strength:
    from nanocourse.grade.variant_strength import variant_strength

    found = variant_strength(plan.assignment, plan.secret)
    return [(one.id, one.caught, one.total, one.missed) for one in found]


@contextmanager
def _refusing() -> Iterator[None]:
    """A ValueError becomes one sentence that names the option, and so does a folder that cannot be written."""
    try:
        with refusing():
            yield
    except Refused as error:
        raise Refused(re.sub(r"^(to|only|points|variant|assignment)(?= )", r"--\1", str(error))) from error
    except OSError as error:
        raise Refused(f"{error.filename or 'the folder'} cannot be used: {error.strerror or error}") from error
