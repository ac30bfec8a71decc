"""`nanoinfer course verify` and `similar`: what students claim, run again; whose files are alike, to be looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from nanocourse.cli.console import Lines, refusing
from nanocourse.cli.options import Plain

Folder = Annotated[Path, Option(help="The release's autograder folder.", metavar="DIR")]


def verify(
    submission: Annotated[Path, Argument(help="A student's folder or zip.", metavar="SUBMISSION")],
    assignment: Folder = Path("autograder"),
    input: Annotated[str | None, Option(help="One input, by its name in a message.", metavar="NAME")] = None,
    plain: Plain = False,
) -> int:
    """Run again what a student claims in questions.md: inputs on the file handed in, receipts recomputed."""
    from nanocourse.grade.isolation.bubblewrap import told
    from nanocourse.release.submitted import asked, read, submitted
    from nanocourse.release.verify import claims, own_number, replayed, verified

    out, good, seen = Lines(plain), True, 0
    with refusing():
        exercises, found = asked(assignment), read(submission)
        if input is not None and not any(input.startswith(f"{one.id}/") for one in exercises):
            raise ValueError(f"input must begin with one of {', '.join(one.id for one in exercises)}, not {input!r}")
        text, own = (claims(found), own_number(found)) if input is None else (input, "")
        for one in exercises:
            if one.file not in text and f"{one.id}/" not in text:
                continue
            with submitted(found, str(submission), one) as of:
                lines = list(verified(of, text, own) if input is None else replayed(of, input))
                out.line(f"{one.id} {one.spec.title}: {of.shown}; {told()}")
                for line, kind in lines:
                    out.line(f"  {line}", kind)
                    good, seen = good and kind != "bad", seen + 1
    if not seen:
        out.line("No receipt and no input is claimed: questions.md holds what `course check --receipt` printed")
    return 0 if good else 1


def similar(
    submissions: Annotated[Path, Argument(help="A folder with one folder or zip a student.", show_default=False)],
    assignment: Folder = Path("autograder"),
    most: Annotated[int, Option(help="Lines for an exercise.", min=1)] = 10,
    plain: Plain = False,
) -> None:
    """List files of a class that are alike, or like a public answer: to be looked at by a person, never a verdict."""
    from nanocourse.exercises.chapters import chapter
    from nanocourse.exercises.stubs import stub
    from nanocourse.grade.collect import collect
    from nanocourse.grade.grade_class import entries
    from nanocourse.release.similar import alike, copied_folders
    from nanocourse.release.submitted import asked

    out = Lines(plain)
    with refusing():
        exercises = asked(assignment)
        found = {entry.id: collect(entry.path) for entry in entries(submissions)[0]}
    out.line("To be looked at by a person: short functions are alike, and nothing here says who wrote them.", "quiet")
    for names in copied_folders(found):
        out.line(f"{', '.join(names)}: progress.json has the same number, which is drawn for each folder")
    for exercise in exercises:
        pairs = alike(exercise, found, stub(exercise, chapter(exercise.chapter)))
        usual = f"; right answers by different hands have up to {pairs[0].usual:.0%} in common" if pairs else ""
        out.line(f"{exercise.id} {exercise.spec.title}: {len(pairs) or 'no'} pairs{usual}")
        for one in pairs[:most]:
            out.line(f"  {one.share:4.0%}  {one.one} and {one.other}")
        if len(pairs) > most:
            out.line(f"  and {len(pairs) - most} more: --most {len(pairs)}", "quiet")
