"""What every chapter's exercises are held to, whatever they are about. Each function asserts one thing."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nanocourse.authoring import chapter_strength, strength
from nanocourse.checks.check import check_exercise
from nanocourse.checks.known_mistakes import Tells
from nanocourse.checks.runner import Workers
from nanocourse.exercises import answers, chapters, sources, stubs
from nanocourse.exercises.cases import Case
from nanocourse.exercises.chapters import Chapter
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import Returned, local
from nanocourse.learner import quiz

WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|\d+(?:\.\d+)?|[^\s\w]")


def runs_of(words: list[str], length: int = 6) -> list[tuple[str, ...]]:
    """All runs of so many words that stand one behind the other."""
    return [tuple(words[at : at + length]) for at in range(len(words) - length + 1)]


def code_words(source: str) -> list[str]:
    """Names, numbers and signs of code, without comments and docstrings."""
    kinds = (tokenize.NAME, tokenize.NUMBER, tokenize.OP)
    return [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type in kinds]


def squeezed(text: str) -> str:
    """Without what breaking a value into lines adds: spaces, and a comma behind the last item."""
    return re.sub(r",([]}])", r"\1", re.sub(r"\s", "", text))


def stub_has_signature_and_example(chapter: Chapter, exercise: Exercise) -> None:
    source = stubs.stub(exercise, chapter)
    (mine,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    (theirs,) = ast.parse(sources.function_source(exercise.function)).body
    assert isinstance(theirs, ast.FunctionDef)
    assert ast.dump(mine.args) == ast.dump(theirs.args)
    assert f'NotImplementedError("{exercise.mark} ' in source
    assert max(map(len, source.splitlines())) <= 120
    outcome = local(exercise.oracle, exercise.example())
    assert isinstance(outcome, Returned)
    assert squeezed(f"-> {stubs.literal(outcome.value)}") in squeezed(source)


def hints_keep_the_solution(exercise: Exercise) -> None:
    """No run of six words or signs of a right answer stands in a hint."""
    correct = [sources.function_source(exercise.function)]
    correct += [sources.answer_source(exercise, right) for right in exercise.right]
    runs = {run for source in correct for run in runs_of(code_words(source))}
    assert len(exercise.spec.hints) == 3
    for hint in exercise.spec.hints:
        assert not runs & set(runs_of(WORD.findall(hint))), hint


def hints_would_give_away(id: str, hint: str) -> None:
    """The measure of hints notices this one."""
    runs = set(runs_of(code_words(sources.function_source(chapters.exercise(id).function))))
    assert runs & set(runs_of(WORD.findall(hint)))


def strength_is_as_stored(exercise: Exercise, stored: dict[str, Any]) -> None:
    """Stub, reference, variants, wrong answers and mutants, run as learners' files: what the chapter's file says."""
    result = strength.measure(exercise)
    assert result.problems == []
    (own,) = (one for one in stored["exercises"] if one["id"] == exercise.id)
    assert json.loads(json.dumps(result.to_json())) == own


def figures_are_sums(stored: dict[str, Any], exercises: Sequence[Exercise]) -> None:
    for name, verb in chapter_strength.FIGURES.items():
        for key in (verb, "of"):
            assert stored[name][key] == sum(one[name][key] for one in stored["exercises"])
        assert stored[name][verb] == stored[name]["of"]  # all, as demanded
    assert [one["id"] for one in stored["exercises"]] == [one.id for one in exercises]


def enough_of_each_kind(exercise: Exercise) -> None:
    assert len(exercise.real_wrong) >= 5
    assert len(exercise.right) >= 3
    assert len({wrong.name for wrong in exercise.wrong}) == len(exercise.wrong)
    for wrong in exercise.wrong:
        assert wrong.origin.strip()
        assert wrong.says.endswith("."), wrong.name
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", wrong.name)
    assert all(check.says.endswith(".") for check in exercise.checks)
    assert all(exercise.equivalent.values())


def inputs_differ(exercise: Exercise) -> None:
    """No two checks have the same input."""
    seen = set()
    for check in exercise.checks:
        for at in range(check.cases):
            asked = exercise.call(check, Case(f"course/{check.name}/{at}"))
            if not any(callable(a) for a in asked.args):
                shown = repr([a.tolist() if isinstance(a, torch.Tensor) else a for a in asked.args])
                assert shown not in seen
                seen.add(shown)


def reference_passes_on_a_gpu(exercise: Exercise, folder: Path) -> None:
    path = folder / exercise.file
    source = sources.whole_file(exercise, exercise.function, sources.function_source(exercise.function))
    path.write_text(source, encoding="utf-8")
    with Workers("cuda") as workers:
        result = check_exercise(exercise, path, workers.take, device="cuda")
    assert result.status == "passed", result


def edition_is_the_same_exercise(chapter: Chapter, id: str, name: str) -> None:
    """The right answer agrees with the plain form's, and every wrong answer is still told apart by a check."""
    plain = chapters.exercise(id)
    other = plain.as_edition(name)
    assert other.edition is not None
    compile(stubs.stub(other, chapter), "stub", "exec")
    if plain.spec.scene is not None:
        an_edition_is_played_in_the_same_scene(plain, other)
        return
    adapted = other.edition.of(plain.function)
    caught = dict.fromkeys((wrong.name for wrong in plain.real_wrong), False)
    for check in other.checks:
        for at in range(check.cases):
            case = Case(f"course/{check.name}/{at}")
            expected = other.expected(other.call(check, case))
            assert other.compare(check, expected, local(adapted, other.call(check, case))) is None
            for wrong in plain.real_wrong:
                function = other.edition.of(sources.answer_function(plain, wrong))
                got = local(function, other.call(check, case))
                caught[wrong.name] |= other.compare(check, expected, got) is not None
    assert all(caught.values()), caught
    tells = Tells(other, "course")
    assert all(len(found) == tells.needed for found in tells.found.values())


def an_edition_is_played_in_the_same_scene(plain: Exercise, other: Exercise) -> None:
    """Its right answer gives what the printed form's gives; that one is wrong in it; known ones are played as ever."""

    def copied(*args: Any) -> Any:
        return plain.function(*args)

    printed = False
    for check in plain.checks:
        for at in range(check.cases):
            case = Case(f"course/{check.name}/{at}")
            expected = plain.expected(plain.call(check, case))
            assert other.compare(check, expected, other.expected(other.call(check, case))) is None
            got = local(other.staged(copied), other.call(check, case))
            printed |= other.compare(check, expected, got) is not None
            known = local(other.known(plain.function), other.call(check, case))
            assert other.compare(check, expected, known) is None
    assert printed


def editions_are_named_in_no_text(chapter: Chapter) -> None:
    text = (chapter.folder / "README.md").read_text(encoding="utf-8")
    assert not [one.name for e in chapters.exercises(chapter) for one in e.editions if f" {one.name} " in text]


def section_exists(chapter: Chapter, exercise: Exercise) -> None:
    """The text has the section that messages name."""
    text = (chapter.folder / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \d+\. {re.escape(exercise.spec.section)}$", text, re.M)


def quiz_is_as_jupyterquiz_reads_it(chapter: Chapter) -> None:
    wrong_options_are_wrong_answers(chapter)
    rights = [question.right for question in quiz.questions(chapter)]
    assert len(set(rights)) == 4
    assert len(rights) >= 8


def wrong_options_are_wrong_answers(chapter: Chapter) -> None:
    """One option of a question is right, each has its feedback, and a wrong one names a known wrong answer."""
    for question in json.loads(answers.quiz(chapter.number).read_text(encoding="utf-8")):
        assert question["type"] == "multiple_choice"
        assert sum(answer["correct"] for answer in question["answers"]) == 1
        for answer in question["answers"]:
            assert answer["answer"]
            assert answer["feedback"]
            if not answer["correct"]:  # a wrong option is a real wrong answer
                id, name = answer["mistake"].split(" ")
                assert name in answers.names(id)
