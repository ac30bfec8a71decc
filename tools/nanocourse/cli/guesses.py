"""`nanoinfer course predict` and `quiz`: guesses and answers that count for nothing, and what came of them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from typer import Option

from nanocourse.cli.console import Lines, ask, given, refusing
from nanocourse.cli.options import HERE, ChapterNumber, Mine, Plain, opened


def predict(
    chapter: ChapterNumber,
    mine: Mine = HERE,
    guess: Annotated[str | None, Option(help="Your guesses, with commas between.")] = None,
    plain: Plain = False,
) -> None:
    """Guess a number, then see it measured on this machine beside what arithmetic allows."""
    from nanocourse.learner.predict import calibration, parse_guess, predictions
    from nanoinfer.devices import choose_device

    with refusing():
        found, folder = opened(chapter, mine)
        asked, progress = predictions(found), folder.load()
        guesses = given(guess, [parse_guess] * len(asked))
    out, device = Lines(plain), choose_device(None)
    for at, one in enumerate(asked):
        out.line(f"{at + 1}. {one.question}")
        guessed = guesses[at] if guesses else ask(f"   Your guess ({one.unit}): ", parse_guess)
        if guessed is None:
            break
        bound, measured = one.bound(device), one.measure(device)
        numbers = {"guess": guessed, "bound": bound, "measured": measured}
        progress.predictions.append({"chapter": chapter, "id": one.id, **numbers})
        folder.note(progress)
        told = f"guess {guessed:.4g}, by arithmetic {bound:.4g}, measured {measured:.4g} {one.unit}"
        out.line(f"   {told} on {device.type}")
        out.line(f"   By arithmetic: {one.bound_says}")
        out.line(f"   The difference: {one.why(bound, measured)}")
    if (score := calibration(progress.predictions)) is not None:
        count = len(progress.predictions)
        out.line(f"Your guesses so far: {count}, median error: a factor of {score:.2f} (1 is exact).")


def quiz(
    chapter: ChapterNumber,
    mine: Mine = HERE,
    answers: Annotated[str | None, Option(help="Numbers of options, with commas between.")] = None,
    plain: Plain = False,
) -> None:
    """Questions with wrong options that are real wrong answers. Nothing of it counts."""
    from nanocourse.learner.quiz import questions

    with refusing():
        found, folder = opened(chapter, mine)
        asked, progress = questions(found), folder.load()
        kinds = [partial(_option, len(one.answers)) for one in asked]
        numbers = given(answers, kinds)
    out, right, done = Lines(plain), 0, 0
    for at, (one, kind) in enumerate(zip(asked, kinds, strict=True)):
        out.line(f"{at + 1}. {one.text}")
        for number, option in enumerate(one.answers, 1):
            out.line(f"   {number}) {option.answer}")
        chosen = numbers[at] if numbers else ask("   Your answer: ", kind)
        if chosen is None:
            break
        picked = one.answers[chosen - 1]
        done, right = done + 1, right + picked.correct
        out.line(f"   {'Right' if picked.correct else 'Wrong'}. {picked.feedback}", "good" if picked.correct else "bad")
    if not done:
        out.line("No answer was given.")
        return
    progress.quiz[str(chapter)] = {"right": right, "of": done}
    folder.note(progress)
    out.line(f"{right} of {done} right.")


def _option(options: int, text: str) -> int:
    if not (text.strip().isdigit() and 1 <= int(text) <= options):
        raise ValueError(f"an answer must be a number from 1 to {options}, not {text.strip()!r}")
    return int(text)
