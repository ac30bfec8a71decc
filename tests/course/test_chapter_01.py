"""Chapter 1's exercises: how strong their checks are, their stubs, hints, quiz, editions and place in the engine."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from nanocourse.authoring import chapter_strength
from nanocourse.exercises import answers, chapters, sources, stubs
from nanocourse.exercises.cases import Case
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import Returned, local
from nanocourse.exercises.swap import has_place, swapped
from nanocourse.learner import predict, quiz
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.naive import FullContext
from nanoinfer.model.batch import Chunk, Layout, pack, unpack
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from tests.conftest import SMALL, STD, prompts_of
from tests.course.chapter_exercises import (
    edition_is_the_same_exercise,
    enough_of_each_kind,
    figures_are_sums,
    hints_keep_the_solution,
    hints_would_give_away,
    reference_passes_on_a_gpu,
    section_exists,
    strength_is_as_stored,
    wrong_options_are_wrong_answers,
)

CHAPTER = chapters.chapter(1)
EXERCISES = chapters.exercises(CHAPTER)
IDS = [exercise.id for exercise in EXERCISES]
STORED = json.loads(chapter_strength.stored(CHAPTER).read_text(encoding="utf-8"))
each = pytest.mark.parametrize("exercise", EXERCISES, ids=IDS)


@each
@pytest.mark.strength
def test_strength_is_as_stored(exercise: Exercise) -> None:
    """Stub, reference, variants, wrong answers and mutants, run as learners' files; nothing but what the file says."""
    strength_is_as_stored(exercise, STORED)


def test_the_three_figures_are_the_sums() -> None:
    figures_are_sums(STORED, EXERCISES)


@each
def test_there_are_enough_of_each_kind(exercise: Exercise) -> None:
    enough_of_each_kind(exercise)


def test_there_is_a_lesson() -> None:
    lessons = [wrong for exercise in EXERCISES for wrong in exercise.wrong if wrong.lesson]
    assert lessons


@each
def test_no_two_checks_have_the_same_input(exercise: Exercise) -> None:
    seen = set()
    for check in exercise.checks:
        for at in range(check.cases):
            asked = exercise.call(check, Case(f"course/{check.name}/{at}"))
            if not any(callable(argument) for argument in asked.args):
                shown = repr([a.tolist() if isinstance(a, Tensor) else a for a in asked.args])
                assert (shown, check.part) not in seen
                seen.add((shown, check.part))


@each
def test_the_stub_has_the_references_signature(exercise: Exercise) -> None:
    source = stubs.stub(exercise, CHAPTER)
    (mine,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    (theirs,) = ast.parse(sources.function_source(exercise.function)).body
    assert isinstance(theirs, ast.FunctionDef)
    assert ast.dump(mine.args) == ast.dump(theirs.args)
    assert ast.get_docstring(mine) == ast.get_docstring(theirs)
    assert len(mine.body) == 2  # the docstring and the error
    assert f'NotImplementedError("{exercise.mark} ' in source
    assert "SPDX-License-Identifier: MIT-0\n" in source
    assert max(map(len, source.splitlines())) <= 120


@each
def test_the_example_is_what_the_reference_gives(exercise: Exercise) -> None:
    outcome = local(exercise.function, exercise.example())
    assert isinstance(outcome, Returned)
    assert f"-> {stubs.literal(outcome.value)}" in stubs.stub(exercise, CHAPTER)


@each
def test_hints_do_not_contain_the_solution(exercise: Exercise) -> None:
    hints_keep_the_solution(exercise)


def test_the_measure_of_hints_would_notice() -> None:
    hints_would_give_away("1.4", "try before = probs.cumsum(-1) - probs for it")


@each
def test_the_text_has_the_section_that_messages_name(exercise: Exercise) -> None:
    section_exists(CHAPTER, exercise)


@each
def test_editions_are_the_same_exercise(exercise: Exercise) -> None:
    for edition in exercise.editions:
        edition_is_the_same_exercise(CHAPTER, exercise.id, edition.name)


def test_at_least_two_exercises_have_an_edition() -> None:
    assert sum(bool(exercise.editions) for exercise in EXERCISES) >= 2


def test_editions_are_named_in_no_text() -> None:
    text = (CHAPTER.folder / "README.md").read_text(encoding="utf-8")
    for exercise in EXERCISES:
        for edition in exercise.editions:
            assert edition.name not in text


def test_the_quiz_is_as_jupyterquiz_reads_it() -> None:
    wrong_options_are_wrong_answers(CHAPTER)
    rights = [question.right for question in quiz.questions(CHAPTER)]
    assert len(set(rights)) > 1


def test_predictions_have_bounds_that_arithmetic_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for prediction in predict.predictions(CHAPTER):
        assert prediction.question.endswith("?")
        for measured in (0.1, 1.0, 10.0):
            assert prediction.why(1.0, measured)
    longer_pass, longer_text, more_rows, _ = predict.predictions(CHAPTER)
    assert 8 < longer_pass.bound(cpu) < 16
    assert 15 < longer_text.bound(cpu) < 16.5
    assert more_rows.bound(cpu) == 8


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(SMALL, seed=3, std=STD)


PARAMS = [
    SamplingParams(max_tokens=9, temperature=0, ignore_eos=True),
    SamplingParams(max_tokens=7, seed=5, top_k=20, top_p=0.8, ignore_eos=True),
    SamplingParams(max_tokens=9, seed=6, temperature=0.7, stop_token_ids=(3, 4, 5, 6, 7, 8, 9)),
]


def tokens(model: GPT2, **settings: int) -> list[tuple[int, ...]]:
    """Greedy, filtered and stopped rows of different lengths, in one batch."""
    with LLM(model, engine="naive", **settings) as llm:
        return [done.token_ids for done in llm.generate(prompts_of([3, 11, 1]), PARAMS)]


@pytest.mark.parametrize("exercise", [e for e in EXERCISES if has_place(e)], ids=lambda e: e.id)
def test_the_reference_in_its_place_changes_no_token(exercise: Exercise, model: GPT2) -> None:
    before, calls = tokens(model), 0

    def count() -> None:
        nonlocal calls
        calls += 1

    with swapped(exercise, exercise.function, count):
        assert tokens(model) == before
        assert tokens(model, max_batch=2, max_batched_tokens=4) == before  # prompts in pieces, rows that wait
    assert calls > 0
    now = calls
    assert tokens(model) == before
    assert calls == now  # the place is given back


SEEN = ["1.1 no-mask", "1.2 norm-after", "1.3 last-column", "1.4 unsorted", "1.5 sign", "1.6 first-logits"]


@pytest.mark.parametrize("mistake", SEEN)
def test_a_mistake_that_is_switched_on_is_seen(mistake: str, model: GPT2) -> None:
    before = tokens(model)
    with answers.mistake(*mistake.split(" ")):
        assert tokens(model) != before


@pytest.mark.parametrize("mistake", ["stop-left-out", "last-place-unused"])
def test_a_loop_that_ends_too_early_says_so(mistake: str, model: GPT2) -> None:
    with (
        LLM(model, engine="naive") as llm,
        answers.mistake("1.6", mistake),
        pytest.raises(RuntimeError, match=r"the loop gave \d tokens of 9, and none of them is a stop token"),
    ):
        llm.generate(prompts_of([3, 11]), PARAMS[2])


def test_a_mistake_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"exercise 1\.7 has no place"), answers.mistake("1.7", "one-a-layer"):
        pass
    with pytest.raises(ValueError, match="no wrong answer 'x'; it has rows-not-positions"):
        answers.wrong("1.1", "x")


class Operations(TorchDispatchMode):
    """Counts operations that make numbers; views and index ranges do not."""

    FREE = ("view", "unbind", "transpose", "expand", "slice", "select", "t.", "arange", "detach", "alias", "unsqueeze")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        name = str(func).removeprefix("aten.").removeprefix("_unsafe_")
        self.count += not name.startswith(self.FREE)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("length", [1, 9])
def test_cost_is_what_the_engine_does(length: int) -> None:
    """The reference of 1.7 against torch's own counter of operations and against the operations themselves."""
    config = ModelConfig(n_layer=3, n_head=2, n_embd=32, n_positions=40, vocab_size=128)
    model = random_model(config, seed=0)
    layout = Layout.of([], chunks := [Chunk(0, 0, range(length))])
    batch = unpack(pack([], chunks, layout, dummy=1), layout)
    counted = answers.reference("1.7")({"n_layer": 3, "n_embd": 32, "vocab_size": 128}, length, 4)
    plain = sdpa_kernel(SDPBackend.MATH)  # the counter does not know a CPU's fused kernel
    with torch.no_grad(), plain, FlopCounterMode(display=False) as flops:
        model(batch, FullContext())
    assert flops.get_total_flops() == counted["flops"]
    with torch.no_grad(), Operations() as operations:
        model(batch, FullContext())
    assert operations.count == counted["launches"]  # attention on a CPU is one operation
    unused = (config.n_positions - length) * config.n_embd
    assert counted["bytes"] == (config.parameters - unused) * 4


@pytest.mark.gpu
@each
def test_the_reference_passes_on_a_gpu(exercise: Exercise, tmp_path: Path) -> None:
    reference_passes_on_a_gpu(exercise, tmp_path)
