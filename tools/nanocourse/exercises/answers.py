"""Right and wrong answers by name, for notebooks: to read, to call, and to switch on in the engine.

from nanocourse.exercises import answers
with answers.mistake("1.1", "no-mask"):
    LLM(engine="naive").generate("Once upon a time")
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from nanocourse.exercises import chapters, sources
from nanocourse.exercises.exercise import Exercise, Function, Wrong
from nanocourse.exercises.swap import swapped


def exercises(chapter: int) -> dict[str, str]:
    """Ids and titles of a chapter's exercises. ValueError where it has none."""
    return {one.id: one.spec.title for one in chapters.exercises(chapters.chapter(chapter))}


def names(id: str) -> dict[str, str]:
    """The wrong answers of an exercise, each with its misconception in one sentence."""
    return {wrong.name: wrong.says for wrong in chapters.exercise(id).wrong}


def reference(id: str) -> Function:
    """The right answer, a function of the exercise's signature; a kernel as the engine launches it."""
    return sources.reference_function(chapters.exercise(id))


def wrong(id: str, name: str) -> Function:
    """A wrong answer, a function of the exercise's signature. ValueError where there is none of that name."""
    exercise = chapters.exercise(id)
    return sources.answer_function(exercise, _find(exercise, name))


def source(id: str, name: str) -> str:
    """A wrong answer's source, as a learner would have written it."""
    exercise = chapters.exercise(id)
    return sources.answer_source(exercise, _find(exercise, name))


def mistake(id: str, name: str) -> AbstractContextManager[None]:
    """The engine makes this mistake until the block ends. ValueError where the exercise has no place in it."""
    exercise = chapters.exercise(id)
    return swapped(exercise, sources.answer_function(exercise, _find(exercise, name)))


def quiz(chapter: int) -> Path:
    """The chapter's quiz, a file that jupyterquiz's `display_quiz` reads."""
    return chapters.chapter(chapter).exercises / "quiz.json"


def _find(exercise: Exercise, name: str) -> Wrong:
    for wrong in exercise.wrong:
        if wrong.name == name:
            return wrong
    known = ", ".join(wrong.name for wrong in exercise.wrong)
    raise ValueError(f"exercise {exercise.id} has no wrong answer {name!r}; it has {known}")
