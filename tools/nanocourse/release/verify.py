"""What a student claims, run again: the inputs and receipts in their questions.md, on the file that they handed in.

A receipt is recomputed where it is of this very file. An input is played on the file as it is, beside what is right.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from nanocourse.checks.check import check_exercise, shown_input, status_of
from nanocourse.checks.replay import NAME, OWN, input_of, seed_of
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import told
from nanocourse.grade.collect import PROGRESS, QUESTIONS, Collected, printable
from nanocourse.learner.report import Line, receipt_text
from nanocourse.release.submitted import Submitted

RECEIPT = re.compile(r"Receipt: (?P<file>[\w-]+\.py) (?P<hash>[0-9a-f]{12})[,;].*?; inputs (?P<own>[0-9a-f]{8}|of all)")


def claims(found: Collected) -> str:
    """What stands in the submission's questions.md, in one line; empty if there is none."""
    texts = [data.decode("utf-8", "replace") for path, data in sorted(found.files.items()) if path.name == QUESTIONS]
    return " ".join(" ".join(re.sub(r"^[\s>]+", "", line) for line in text.splitlines()) for text in texts)


def own_number(found: Collected) -> str:
    """The student's number, by their progress file; empty if it has none."""
    for path, data in sorted(found.files.items()):
        if path.name == PROGRESS:
            try:
                own = json.loads(data).get("own", "")
            except (ValueError, AttributeError):
                continue
            return own if isinstance(own, str) and OWN.fullmatch(own) else ""
    return ""


def inputs(text: str, exercise: Exercise) -> list[str]:
    """The names of this exercise's inputs in a text, each once."""
    names = (name.rstrip(".,:") for name in NAME.findall(text))
    return list(dict.fromkeys(name for name in names if name.startswith(f"{exercise.id}/")))


def verified(of: Submitted, text: str, own: str) -> Iterator[Line]:
    """What came of each claim in a text about this exercise; a line that is "bad" for each that is not so."""
    for match in RECEIPT.finditer(text):
        if match["file"] == of.exercise.file:
            yield from _receipt(of, " ".join(match[0].split()), match["hash"], match["own"], own)
    for name in inputs(text, of.exercise):
        yield from replayed(of, name)


def _receipt(of: Submitted, claimed: str, digest: str, number: str, own: str) -> Iterator[Line]:
    if own and number not in (own, "of all"):
        yield f"The receipt is of inputs {number}, and the progress file is of {own}", "bad"
    if not hashlib.sha256(of.source).hexdigest().startswith(digest):
        yield f"The receipt is of another version of {of.exercise.file}, {digest}: it cannot be recomputed", ""
        return
    if "device cpu" not in claimed:
        yield f"The receipt is of a GPU, and is not recomputed: {printable(claimed)}", ""
        return
    of.runner()
    seed = seed_of(number if OWN.fullmatch(number) else "")
    again = receipt_text(check_exercise(of.exercise, of.path, of.start, seed=seed))
    if again == claimed:
        yield f"The receipt is as it comes out again: {again}", "good"
    else:
        yield f"The receipt is another one: claimed: {claimed[:600]}", "bad"
        yield f"                            again:   {again}", "bad"


def replayed(of: Submitted, name: str) -> Iterator[Line]:
    """One input, what is right for it, and what the file makes of it. ValueError for a name of no input."""
    try:
        check, case = input_of(of.exercise, name)
        asked = of.exercise.call(check, case)
        expected = of.exercise.expected(asked)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"{name[:200]!r} names no input of exercise {of.exercise.id}") from error
    got = of.runner().call(of.exercise.call(check, case))
    status = status_of(of.exercise, check, expected, got)
    yield f"Input {name}, check {check.name}: {check.says}", ""
    for argument, value in shown_input(of.exercise, asked):
        yield f"  {argument} = {value}" if argument else f"  {value}", "quiet"
    yield f"  Right is {told(check.looked_at(expected))}", ""
    yield f"  The file that was handed in: {status}; it gives {told(check.looked_at(got))}", ""
