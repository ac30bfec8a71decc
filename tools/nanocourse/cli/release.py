"""`nanoinfer course release` and `oral`: an assignment from a chapter, and questions about a learner's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from nanocourse.cli.console import Lines, refusing
from nanocourse.cli.options import ChapterNumber, Plain

WRITTEN = {
    "student": "for students, without answers; they also need the file in wheel",
    "wheel": "the package, which contains the answers",
    "autograder.zip": "for Gradescope; autograder is the same, unpacked",
    "autograder/secret.txt": "the secret of the hidden inputs: keep it",
    "teacher/README.md": "notes of this release: read them first",
}


def release(
    chapter: ChapterNumber,
    to: Annotated[Path, Option(help="A folder that is empty or not there yet.", metavar="DIR")],
    only: Annotated[str | None, Option(help="Exercises, with commas: 1.2,1.4; all of them else.")] = None,
    points: Annotated[str | None, Option(help="What exercises are worth: 1.2=10,1.4=20; 10 each else.")] = None,
    variant: Annotated[str | None, Option(help="A text that names the variant, and stands for its secret.")] = None,
    strength: Annotated[
        bool, Option(help="Run the known wrong answers on the variant's own inputs; takes a minute.")
    ] = True,
    plain: Plain = False,
) -> None:
    """Make an assignment of a chapter: a tree for students, an autograder, notes for the teacher."""
    from nanocourse.grade.variant_strength import variant_strength
    from nanocourse.release import release as making
    from nanocourse.release.plan import plan

    out = Lines(plain)
    with refusing():
        planned = plan(chapter, only, points, variant)
        making.check_target(to)
        measured = variant_strength(planned.assignment, planned.secret) if strength else None
        making.release(planned, to, measured)
    count = f"{len(planned.exercises)} exercise{'s' * (len(planned.exercises) > 1)}"
    out.line(f"{planned.assignment.title}: {count}, {planned.assignment.points:g} points")
    for name, what in WRITTEN.items():
        out.line(f"  {to / name}: {what}")
    for id, edition in planned.editions.items():
        out.line(f"  {id} comes in the edition {edition}")
    if measured:
        caught, total = sum(one.caught for one in measured), sum(one.total for one in measured)
        out.line(f"  hidden inputs of this variant reject {caught} of {total} known wrong answers")
    for text in planned.warnings:
        out.line(f"Note: {text}", "bad")


def oral(
    submission: Annotated[Path, Argument(help="A learner's file, folder or zip.", metavar="SUBMISSION")],
    id: Annotated[str, Argument(help="An exercise: 1.4.", metavar="EXERCISE")],
    assignment: Annotated[Path, Option(help="The release's autograder folder.", metavar="DIR")] = Path("autograder"),
    again: Annotated[int, Option(help="1, 2, ...: other questions about the same file.", min=0)] = 0,
    plain: Plain = False,
) -> None:
    """Three questions about a learner's own lines, the same ones for the same secret and file."""
    from nanocourse.release.oral.draw import of_submission

    with refusing():
        exercise, file, questions = of_submission(submission, id, assignment, again)
    out = Lines(plain)
    out.line(f"{exercise.id} {exercise.spec.title}: {file}")
    for at, question in enumerate(questions, 1):
        out.line(f"{at}. Line {question.line}: {question.code}", "good")
        out.line(f"   {question.text}")
        out.line(f"   Listen for: {question.listen}", "quiet")
