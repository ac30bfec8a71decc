"""Results in words, for a terminal and for a screen reader: no line depends on colours or symbols."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from nanocourse.checks.results import CheckResult, ExerciseResult
from nanocourse.exercises.chapters import Chapter, read
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import FROM
from nanocourse.learner.folder import Folder, Tries
from nanocourse.learner.predict import calibration

Line = tuple[str, str]  # text, and what it is: "good", "bad", "quiet" or ""
STYLE = {"passed": "good", "failed": "bad", "hung": "bad", "crashed": "bad", "refused": "bad"}
WIDTH, PRINTED_LINES = 116, 8


def result_lines(result: ExerciseResult, exercise: Exercise, chapter: Chapter, receipt: bool = False) -> Iterator[Line]:
    """One exercise: a line with its status, what went wrong, if anything did, and the receipt where it is wanted."""
    where = f" (on {result.receipt.device})" if result.receipt.device != "cpu" else ""
    yield f"{result.id} {result.title}: {result.status}{where}", STYLE.get(result.status, "")
    if result.problem:
        yield from _indented(result.problem)
    failed = [(at, check) for at, check in enumerate(result.checks, 1) if check.status not in ("passed", "not begun")]
    for at, check in failed[:1]:
        yield from _check_lines(at, result.receipt.registered, check, receipt)
    if len(failed) > 1:
        yield from _indented("Failed as well: " + ", ".join(one.name for _, one in failed[1:]))
    if result.mistake is not None:
        known = "Close to a known mistake" if result.close else "A known mistake"
        yield from _indented(f'{known}, {result.mistake[0]}. It assumes: "{result.mistake[1]}"')
    if failed:
        section = exercise.spec.section
        page, _ = read(chapter, section)
        yield from _indented(f"Read: {page}, section {section}. A hint: nanoinfer course hint {result.id}")
    elif result.status == "not begun":
        yield from _indented(f"{result.file} is the untouched stub")
    yield from _printed(f"Your code printed{', on that input' * result.on_input}:", result.printed)
    if receipt:
        yield from _indented(receipt_text(result), style="quiet")


def status_lines(folder: Folder, chapter: Chapter) -> Iterator[Line]:
    """How far a learner is in a chapter: a line for each exercise, then quiz and guesses."""
    yield f"Chapter {chapter.number}: {chapter.title}", ""
    progress = folder.load()
    for exercise in folder.exercises(chapter):
        path = folder.file(chapter, exercise)
        tries = progress.exercises.get(exercise.id, Tries())
        state = "no file" if not path.is_file() else "not checked yet" if not tries.tries else tries.last
        if state == "passed" and not tries.holds(path):
            state = "changed since it passed"
        more = f"tries {tries.tries}, hints {tries.hints} of {len(exercise.spec.hints)}"
        yield f"  {exercise.id} {exercise.spec.title}: {state}; {more}", "good" if state == "passed" else ""
    quiz = progress.quiz.get(str(chapter.number))
    if quiz:
        yield f"  Quiz: {quiz['right']} of {quiz['of']} right", ""
    own = [one for one in progress.predictions if one.get("chapter") == chapter.number]
    score = calibration(own)
    if score is not None:
        yield f"  Guesses: {len(own)}, median error: a factor of {score:.2f}", ""


def _check_lines(at: int, of: int, check: CheckResult, receipt: bool) -> Iterator[Line]:
    """What a failed check requires, and the smallest input that shows the failure."""
    yield from _indented(f"Check {at} of {of}, {check.name}: {check.says}")
    if check.note:
        yield from _indented(f"But: {check.note}")
    failure = check.failure
    if failure is None:
        return
    if failure.inputs:
        yield "    With " + ("the smallest input found" if failure.shrunk else "this input") + ":", ""
    for name, value in failure.inputs:
        yield from _indented(f"{name} = {value}" if name else value, "      ")
    place = f"At {failure.where}" if failure.where else "As a whole"
    if re.search(r"\d", failure.where) or FROM in failure.expected:
        place += " (places count from 0)"
    yield from _indented(f"{place}: expected {failure.expected}, got {failure.got}")
    if failure.again and receipt:
        yield from _indented(f"This input is {failure.again}")


def receipt_text(result: ExerciseResult) -> str:
    """The receipt in one line: what was run to get the result."""
    receipt = result.receipt
    files = ", ".join(f"{name} {digest[:12]}" for name, digest in receipt.files) or "no file"
    counts = f"{receipt.registered} registered, {receipt.collected} collected, {receipt.run} run"
    passed = sum(check.status == "passed" for check in result.checks)
    parts = ", ".join(receipt.reference_parts) or "nothing"
    edition = f"; edition {receipt.edition}" if receipt.edition else ""
    return (
        f"Receipt: {files}; checks: {counts}, {passed} passed; your lines: {receipt.lines_run} of {receipt.lines} ran; "
        f"called from the package: {parts}; device {receipt.device}{edition}; inputs {receipt.own or 'of all'}"
    )


def _printed(head: str, text: str) -> Iterator[Line]:
    """What the learner's code printed."""
    lines = text.splitlines()
    if lines:
        yield f"    {head}", ""
        for line in lines[:PRINTED_LINES]:
            yield f"      {line[:WIDTH]}", "quiet"
        if len(lines) > PRINTED_LINES:
            yield f"      ... and {len(lines) - PRINTED_LINES} lines more", "quiet"


def _indented(text: str, indent: str = "    ", style: str = "") -> Iterator[Line]:
    """A text, wrapped. Line breaks in it become spaces."""
    flat = " ".join(text.split("\n"))
    wrapped = textwrap.TextWrapper(WIDTH, indent, indent + "  ", break_long_words=False, break_on_hyphens=False)
    yield from ((line, style) for line in wrapped.wrap(flat))
