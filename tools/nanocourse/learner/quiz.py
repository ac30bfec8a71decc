"""A chapter's quiz: jupyterquiz's JSON, asked in a terminal. It never counts for marks."""

from __future__ import annotations

import json
from dataclasses import dataclass

from nanocourse.exercises.chapters import Chapter


@dataclass(frozen=True)
class Answer:
    """One option. mistake: the wrong answer that it stands for, as "1.1 no-mask"; empty for the right option."""

    answer: str
    correct: bool
    feedback: str
    mistake: str = ""


@dataclass(frozen=True)
class Question:
    """One question with its options, of which exactly one is right."""

    text: str
    answers: tuple[Answer, ...]


def questions(chapter: Chapter) -> tuple[Question, ...]:
    """The quiz of a chapter; empty if it has none."""
    path = chapter.exercises / "quiz.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return tuple(Question(one["question"], tuple(Answer(**option) for option in one["answers"])) for one in found)
