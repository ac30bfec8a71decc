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
    from nanocourse.release import teacher
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
    if risk := teacher.risk(planned):
        out.line(f"  {risk}", "bad")
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
    plant: Annotated[Path | None, Option(help="Write their file here, with one mistake in it.", metavar="FILE")] = None,
    plain: Plain = False,
) -> None:
    """Questions about a learner's own lines, each with what is true; the same ones for the same secret and file."""
    from nanocourse.grade.assignment import load_secret
    from nanocourse.grade.isolation.bubblewrap import told
    from nanocourse.release.oral.draw import learners, questions
    from nanocourse.release.oral.truth import lines_that_ran, planted, source_of, truths
    from nanocourse.release.submitted import asked, read, submitted

    out = Lines(plain)
    with refusing():
        if plant is not None and (plant.exists() or not plant.parent.is_dir()):
            raise ValueError(f"plant must be a file that is not there yet, in a folder that is: not {plant}")
        known = {one.id: one for one in asked(assignment)}
        if id not in known:
            raise ValueError(f"exercise must be one of {', '.join(known)}, not {id!r}")
        with submitted(read(submission), str(submission), known[id]) as of:
            secret, source = load_secret(assignment), source_of(of)
            learners(of.exercise, source)
            ran = lines_that_ran(of)
            drawn = questions(of.exercise, source, secret, again, ran)
            out.line(f"{id} {of.exercise.spec.title}: {of.shown}; {told()}")
            for at, question in enumerate(drawn, 1):
                out.line(f"{at}. Line {question.line}: {question.code}", "good")
                out.line(f"   {question.text}")
                out.line(f"   Listen for: {question.listen}", "quiet")
                for text in truths(of, question):
                    out.line(f"   True: {text}", "quiet")
            if plant is not None:
                changed, what = planted(of, secret, ran)
                plant.write_text(changed, encoding="utf-8")
                out.line(f"A mistake is in {plant}, and nobody has seen it: five minutes to find it", "good")
                for text in what:
                    out.line(f"   True: {text}", "quiet")
