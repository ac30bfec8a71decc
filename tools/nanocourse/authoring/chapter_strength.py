"""The strength of a whole chapter: every exercise measured, three figures, and the file that stores them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nanocourse.authoring.strength import Strength, measure
from nanocourse.exercises.chapters import Chapter, exercises

SCHEMA, SCHEMA_VERSION = "nanoinfer.course.strength", 1
FIGURES = {"wrong_answers": "caught", "mutants": "killed", "correct_variants": "passed"}


def stored(chapter: Chapter) -> Path:
    """The file that stores a chapter's figures."""
    return chapter.exercises / "strength.json"


def run(chapter: Chapter, write: bool, say: Callable[[str, str], None]) -> bool:
    """Measure every exercise and print what was found. Returns whether there was no problem."""
    results = []
    for exercise in exercises(chapter):
        result = measure(exercise)
        results.append(result)
        for line in matrix_lines(result, [check.name for check in exercise.checks]):
            say(line, "")
        for problem in result.problems:
            say(f"  {exercise.id}: {problem}", "bad")
    data = to_json(chapter, results)
    say(in_words(data), "")
    if write:
        stored(chapter).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return not any(result.problems for result in results)


def to_json(chapter: Chapter, results: Sequence[Strength]) -> dict[str, Any]:
    """Figures of the chapter, then of each exercise with its matrix."""
    each = [result.to_json() for result in results]
    totals = {name: {key: sum(one[name][key] for one in each) for key in each[0][name]} for name in FIGURES}
    return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "chapter": chapter.number, **totals, "exercises": each}


def in_words(data: dict[str, Any]) -> str:
    """The three figures in one line."""
    parts = [
        f"{name.replace('_', ' ')} {data[name][verb]} of {data[name]['of']} {verb}" for name, verb in FIGURES.items()
    ]
    return f"Chapter {data['chapter']}: " + ", ".join(parts)


def matrix_lines(result: Strength, checks: Sequence[str]) -> list[str]:
    """Which check rejects which wrong answer, marked with an x."""
    width = max(map(len, result.wrong), default=0)
    lines = [f"{result.id}: checks {', '.join(f'{chr(97 + at)} {name}' for at, name in enumerate(checks))}"]
    for name, rejected in result.wrong.items():
        lines.append(f"  {name:<{width}}  " + " ".join("x" if check in rejected else "." for check in checks))
    lines.append(
        f"  mutants {result.killed} of {result.mutants} killed, {result.equivalent} no mistakes; correct variants "
        f"{sum(result.right.values())} of {len(result.right)} passed; lessons {len(result.lessons)}"
    )
    return lines
