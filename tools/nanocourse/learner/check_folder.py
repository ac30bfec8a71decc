"""Checks of a learner's files, counted as tries in their folder."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from nanocourse.checks.check import check_exercise
from nanocourse.checks.replay import seed_of
from nanocourse.checks.results import ExerciseResult
from nanocourse.checks.runner import Workers
from nanocourse.exercises.chapters import Chapter
from nanocourse.exercises.exercise import Exercise
from nanocourse.learner.folder import Folder


def devices(asked: str | None) -> list[str]:
    """Where checks run: on the CPU, and on a GPU if there is one. ValueError for a device that is not available."""
    if asked is None:
        return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    if asked not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, not {asked!r}")
    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda is not available: torch finds no CUDA GPU")
    return [asked]


def run_checks(
    folder: Folder,
    chapter: Chapter,
    chosen: Sequence[Exercise],
    device: str | None,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[Exercise, ExerciseResult]]:
    """Results as they come. Those of the first device count as tries and are stored in the folder.

    say: is told what is going on meanwhile.
    """
    where = devices(device)
    if not folder.chapter(chapter).is_dir():
        raise ValueError(f"there is no {folder.chapter(chapter)}: `nanoinfer course start {chapter.number}` makes it")
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Workers(name, len(chosen))) for name in where}
        for exercise in chosen:
            path = folder.file(chapter, exercise)
            for name in where:
                result = run_check(folder, path, exercise, workers[name], name == where[0], True, say)
                yield exercise, result


def run_check(
    folder: Folder,
    path: Path,
    exercise: Exercise,
    workers: Workers,
    counts: bool,
    name_mistakes: bool,
    say: Callable[[str], None],
) -> ExerciseResult:
    """The result of one exercise, on the learner's own inputs. counts: it is a try, and stored in the folder."""
    progress = folder.load()
    progress.own = progress.own or secrets.token_hex(4)
    result = check_exercise(
        exercise, path, workers.take, seed=seed_of(progress.own), device=workers.device,
        name_mistakes=name_mistakes, say=say,
    )  # fmt: skip
    if counts:
        progress.record(result)
        folder.note(progress)
    return result
