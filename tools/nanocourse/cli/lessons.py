"""`nanoinfer course predict` and `quiz`: guesses and answers that count for nothing, and what came of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanocourse.cli.asking import Lines, ask
from nanoinfer.cli.errors import Refused, refusing

if TYPE_CHECKING:
    from nanocourse.exercises.chapters import Chapter
    from nanocourse.learner.folder import Folder
    from nanocourse.learner.predict import Outcome
    from nanocourse.learner.quiz import Question

Mine = Annotated[Path, typer.Option("--mine", help="Your folder.", metavar="DIR")]
Plain = Annotated[bool, typer.Option("--plain", help="No colours; NO_COLOR in the environment does the same.")]
ChapterNumber = Annotated[int, typer.Argument(help="A chapter's number.", metavar="CHAPTER", show_default=False)]
HERE = Path("my-course")


def predict(
    chapter: ChapterNumber,
    mine: Mine = HERE,
    guesses: Annotated[str | None, typer.Option("--guess", help="Your guesses, with commas between.")] = None,
    plain: Plain = False,
) -> None:
    """Guess a number, then see it measured on this machine beside what arithmetic allows."""
    from nanocourse.learner import predict as predicting
    from nanoinfer.devices import choose_device

    with refusing():
        found, folder = opened(chapter, mine)
        asked = predicting.predictions(found)
        given = numbers(guesses, len(asked))
        progress = folder.load()
    out, device = Lines(plain), choose_device(None)
    for at, prediction in enumerate(asked):
        out.line(f"{at + 1}. {prediction.question}")
        question = f"   Your guess ({prediction.unit}): "
        guess = given[at] if given else ask(question, predicting.parse_guess, "a number above 0")
        if guess is None:
            break
        result = predicting.compare(prediction, guess, device)
        progress.predictions.append(result.to_json(chapter))
        folder.save(progress)
        for text in _beside(result, device.type):
            out.line(f"   {text}")
    score = predicting.calibration(progress.predictions)
    if score is not None:
        count = len(progress.predictions)
        out.line(f"Your guesses so far: {count}, off by a factor of {score:.2f} in the middle (1 is exact).")


def _beside(result: Outcome, device: str) -> list[str]:
    """Guess, bound and measurement, and where they part."""
    told = result.prediction
    return [
        f"guess {result.guess:.4g}, bound {result.bound:.4g}, measured {result.measured:.4g} {told.unit} on {device}",
        f"The bound: {told.bound_says}",
        f"The difference: {told.why(result.bound, result.measured)}",
    ]


def quiz(
    chapter: ChapterNumber,
    mine: Mine = HERE,
    answers: Annotated[str | None, typer.Option("--answers", help="Numbers of options, with commas between.")] = None,
    plain: Plain = False,
) -> None:
    """Questions with wrong options that are real wrong answers. Nothing of it counts."""
    from nanocourse.learner import quiz as quizzing

    with refusing():
        found, folder = opened(chapter, mine)
        asked = quizzing.questions(found)
        given = numbers(answers, len(asked))
        progress = folder.load()
    out, right, done = Lines(plain), 0, 0
    for at, question in enumerate(asked):
        out.line(f"{at + 1}. {question.text}")
        _show_options(out, question)
        options = len(question.answers)
        parse, allowed = partial(_one_of, options), f"a number from 1 to {options}"
        chosen = parse(f"{given[at]:g}") if given else ask("   Your answer: ", parse, allowed)
        if given and chosen is None:
            raise Refused(f"answer {at + 1} must be {allowed}, not {given[at]:g}")
        if chosen is None:
            break
        picked = question.answers[chosen - 1]
        done, right = done + 1, right + picked.correct
        out.line(f"   {'Right' if picked.correct else 'Wrong'}. {picked.feedback}", "good" if picked.correct else "bad")
    progress.quiz[str(chapter)] = {"right": right, "of": done}
    folder.save(progress)
    out.line(f"{right} of {done} right.")


def _show_options(out: Lines, question: Question) -> None:
    for text in filter(None, question.code.split("\n")):
        out.line(f"       {text}")
    for number, answer in enumerate(question.answers, 1):
        out.line(f"   {number}) {answer.text}")


def opened(number: int, mine: Path) -> tuple[Chapter, Folder]:
    """A chapter and the learner's folder. ValueError where there is no such chapter."""
    from nanocourse.exercises.chapters import chapter
    from nanocourse.learner.folder import Folder

    return chapter(number), Folder(mine)


def numbers(text: str | None, count: int) -> list[float] | None:
    """Numbers given with commas, one for each question; None where none were given. Refused where they do not fit."""
    if text is None:
        return None
    from nanocourse.learner.predict import parse_guess

    found = [number for number in map(parse_guess, text.split(",")) if number is not None]
    if len(found) != count or len(text.split(",")) != count:
        raise Refused(f"there are {count} questions: give {count} numbers above 0 with commas between, not {text!r}")
    return found


def _one_of(options: int, text: str) -> int | None:
    return int(text) if text.strip().isdigit() and 1 <= int(text) <= options else None
