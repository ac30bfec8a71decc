"""Chapter 4's exercises: how strong their checks are, their stubs, hints, quiz, editions and places in the engine."""

from __future__ import annotations

import ast
import json
import re
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nanocourse.authoring import chapter_strength
from nanocourse.checks.check import check_exercise
from nanocourse.checks.results import Failure
from nanocourse.checks.runner import Workers
from nanocourse.exercises import answers, chapters, sources, stubs
from nanocourse.exercises.cases import Case
from nanocourse.exercises.exercise import Check, Exercise
from nanocourse.exercises.outcomes import Returned, local
from nanocourse.exercises.swap import has_place, swapped
from nanocourse.learner import predict
from nanoinfer import LLM
from nanoinfer.engine.graphs import ladder, pick
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import STD, prompts_of
from tests.course.chapter_exercises import (
    edition_is_the_same_exercise,
    editions_are_named_in_no_text,
    enough_of_each_kind,
    figures_are_sums,
    hints_keep_the_solution,
    hints_would_give_away,
    inputs_differ,
    quiz_is_as_jupyterquiz_reads_it,
    reference_passes_on_a_gpu,
    section_exists,
    squeezed,
    strength_is_as_stored,
)
from tests.engine.fake_graphed import graph_llm, greedy_rows

CHAPTER = chapters.chapter(4)
EXERCISES = chapters.exercises(CHAPTER)
STORED = json.loads(chapter_strength.stored(CHAPTER).read_text(encoding="utf-8"))
PLACED = [one for one in EXERCISES if has_place(one)]
LOADING = chapters.run_file(CHAPTER.folder / "lies" / "loading.py", "loading_of_a_test")
CONFIG = ModelConfig(n_layer=1, n_head=2, n_embd=32, n_positions=80, vocab_size=101)
PARAMS = greedy_rows(12, 3, 3, 4, 6)  # two end together, so that two begin together
PROMPTS = prompts_of([15, 1, 17, 20, 3], CONFIG.vocab_size)

each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(CONFIG, seed=7, std=STD)


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each capture collects garbage, which takes long in a process that has loaded as much as this one."""
    monkeypatch.setattr("nanoinfer.engine.graphs.gc", SimpleNamespace(collect=lambda: 0))


def generated(model: GPT2, engine: str = "paged-graph") -> list[tuple[int, ...]]:
    """Tokens of replayed steps: one short row alone, then ragged ones in a pool that is full, refilled and moved."""
    llm = graph_llm(model, engine, max_batch=3, kv_blocks=6, read_multiple=16)
    told = []
    for prompts, params in ((PROMPTS[1:2], greedy_rows(3)), (PROMPTS, PARAMS)):
        done = llm.generate(prompts, params)
        verify_tokens(llm.forward_logits, done, params)
        told += [row.token_ids for row in done]
    return told


class TestStrength:
    @each
    @pytest.mark.strength
    def test_is_as_stored(self, exercise: Exercise) -> None:
        """Stub, reference, variants, wrong answers and mutants, run as learners' files: what the file says."""
        strength_is_as_stored(exercise, STORED)

    def test_the_three_figures_are_the_sums(self) -> None:
        figures_are_sums(STORED, EXERCISES)

    def test_there_are_enough(self) -> None:
        assert 6 <= len(EXERCISES) <= 8
        assert all(one.spec.kernel is None for one in EXERCISES)  # none needs Triton
        assert sum(len(one.real_wrong) for one in EXERCISES) >= 48

    @each
    def test_of_each_kind(self, exercise: Exercise) -> None:
        enough_of_each_kind(exercise)

    @each
    def test_no_two_checks_have_the_same_input(self, exercise: Exercise) -> None:
        inputs_differ(exercise)

    @pytest.mark.gpu
    @each
    def test_the_reference_passes_on_a_gpu(self, exercise: Exercise, tmp_path: Path) -> None:
        reference_passes_on_a_gpu(exercise, tmp_path)

    def test_what_a_test_must_find_was_wrong_somewhere(self) -> None:
        """4.8: a right test of the page passes all engines that are right there, and fails every liar."""
        marking = LOADING.lies("marking")
        names = {name for check in chapters.exercise("4.8").checks for name in _names(check)}
        liars = "count seed temperature key slot tail length result cache nan ladder lookup cold"  # as the stub says
        assert names - marking.RIGHT.keys() == set(liars.split())
        assert re.findall(r"^ {4}(\w+) {2,}", chapters.exercise("4.8").spec.task, re.M) == liars.split()
        assert names <= marking.RIGHT.keys() | marking.LIARS.keys()
        answer = chapters.exercise("4.8").function
        assert [name for name in sorted(names) if marking.passes(answer, name) != (name in marking.RIGHT)] == []


def _names(check: Check) -> set[str]:
    """All engines that a check may try."""
    return {name for at in range(40) for name in check.make(Case(f"any/{at}")).args[0]}


class TestStubsAndHints:
    @each
    def test_the_stub_has_signature_and_example(self, exercise: Exercise) -> None:
        source = stubs.stub(exercise, CHAPTER)
        (mine,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
        (theirs,) = ast.parse(sources.function_source(exercise.function)).body
        assert isinstance(theirs, ast.FunctionDef)
        assert ast.dump(mine.args) == ast.dump(theirs.args)
        assert ast.get_docstring(mine) == ast.get_docstring(theirs)
        assert f'NotImplementedError("{exercise.mark} ' in source
        assert "SPDX-License-Identifier: MIT-0\n" in source
        assert max(map(len, source.splitlines())) <= 120
        outcome = local(exercise.oracle, exercise.example())
        assert isinstance(outcome, Returned)
        assert squeezed(f"-> {stubs.literal(outcome.value)}") in squeezed(source)

    @each
    def test_hints_do_not_contain_the_solution(self, exercise: Exercise) -> None:
        hints_keep_the_solution(exercise)

    def test_the_measure_of_hints_would_notice(self) -> None:
        hints_would_give_away("4.4", "try size for size in sizes if size >= batch first")

    @each
    def test_the_text_has_the_section_that_messages_name(self, exercise: Exercise) -> None:
        section_exists(CHAPTER, exercise)


class TestMessages:
    """What a learner is told where a step, or a test, breaks down."""

    def failure(self, folder: Path, id: str, old: str, new: str) -> Failure:
        exercise = chapters.exercise(id)
        right = sources.function_source(exercise.function)
        assert right.count(old) == 1
        path = folder / exercise.file
        path.write_text(sources.whole_file(exercise, exercise.function, right.replace(old, new)), encoding="utf-8")
        with Workers("cpu") as workers:
            result = check_exercise(exercise, path, workers.take)
        return next(check.failure for check in result.checks if check.failure)

    def test_a_step_that_raises_does_not_show_the_answer(self, tmp_path: Path) -> None:
        told = self.failure(tmp_path, "4.1", 'host["read"]\n', 'device["read"].tolist()\n')
        assert (told.where, told.expected) == ("", "a result")
        assert told.got.startswith("CaptureRefused: ")
        assert "moving" not in repr(told)

    def test_a_value_that_is_not_sorted_does_not_show_the_others(self, tmp_path: Path) -> None:
        told = self.failure(tmp_path, "4.1", ', "live", "cache")', ', "live")')
        assert told.where == "kinds"
        assert told.expected.endswith(", live, cache")
        assert "moving" not in repr(told)

    def test_a_slip_in_a_test_is_told_by_its_line(self, tmp_path: Path) -> None:
        told = self.failure(tmp_path, "4.8", "engine.admit(word", "engine.admitt(word")
        assert re.fullmatch(r"AttributeError: .*'admitt' \(line \d+: engine\.admitt\(word, heat, seed\)\)", told.got)

    def test_a_right_engine_that_fails_is_told_by_its_name(self, tmp_path: Path) -> None:
        told = self.failure(tmp_path, "4.8", "assert told[0] == told[1]", "assert told[0] != told[1]")
        assert re.fullmatch(r"RightEngineFailed: engine: AssertionError \(line \d+: assert .*\)", told.got)


class TestPlaces:
    @pytest.mark.parametrize("exercise", PLACED, ids=lambda one: one.id)
    def test_the_reference_gives_the_engines_tokens(self, model: GPT2, exercise: Exercise) -> None:
        before, calls = generated(model), []
        with swapped(exercise, exercise.function, lambda: calls.append(1)):
            assert generated(model) == before
        assert calls

    def test_all_at_once_on_a_cpu(self, model: GPT2) -> None:
        """As `--mine` runs a learner who has done everything; where there is no GPU the engine records all the same."""
        with ExitStack() as stack:
            for exercise in PLACED:
                stack.enter_context(swapped(exercise, exercise.function))
            with LLM(model, engine="paged-graph", max_batch=3) as llm:
                verify_tokens(llm.forward_logits, llm.generate(PROMPTS, PARAMS), PARAMS)
                assert llm.stats.replayed_steps == llm.stats.decode_steps > 0
                assert llm.stats.replayed_prefills == llm.stats.prefill_steps
        with LLM(model, engine="paged-graph", max_batch=3) as llm:
            llm.generate(PROMPTS[0], PARAMS[0])
            assert llm.stats.replayed_steps == 0  # the places are given back

    @pytest.mark.parametrize("exercise", PLACED, ids=lambda one: one.id)
    def test_correct_variants_run_there_too(self, model: GPT2, exercise: Exercise) -> None:
        for right in exercise.right:
            with swapped(exercise, sources.answer_function(exercise, right)):
                generated(model)

    @pytest.mark.filterwarnings("ignore:all graphs are dropped")
    @pytest.mark.parametrize(
        "id, name",
        [
            ("4.2", "entries-rebound"), ("4.2", "ids-are-all"), ("4.2", "rows-forgotten"), ("4.2", "padding-is-a-row"),
            ("4.2", "padding-chooses-for-row-0"), ("4.3", "without-read"),
            ("4.5", "all-rows-alike"), ("4.5", "as-row-0"), ("4.5", "newest-left-out"),
            ("4.6", "straight"), ("4.6", "rebound"), ("4.6", "memory-exchanged"), ("4.7", "the-same-tensor"),
        ],
    )  # fmt: skip
    def test_mistakes_show_there(self, model: GPT2, id: str, name: str) -> None:
        with answers.mistake(id, name), pytest.raises(AssertionError):
            generated(model, "dense-graph" if id == "4.3" else "paged-graph")

    @pytest.mark.parametrize("name", ["by-sixteens", "without-the-maximum", "next-larger"])
    def test_a_ladder_that_is_too_short_costs_graphs(self, model: GPT2, name: str) -> None:
        """The text is right, so what is counted must be, too."""
        with answers.mistake("4.4", name):
            llm = graph_llm(model, "paged-graph", max_batch=3)
            verify_tokens(llm.forward_logits, llm.generate(PROMPTS, PARAMS), PARAMS)
        assert llm.stats.fallbacks["more rows than the largest graph has"] > 0

    def test_the_ladder_is_the_engines(self) -> None:
        mine = answers.reference("4.4")
        for maximum in [*range(80), 100, 255, 256, 257, 500, 512]:
            sizes = ladder(maximum)
            assert mine(maximum, []) == (sizes, [])
            batches = range(1, maximum + 2)
            assert mine(maximum, list(batches))[1] == [pick(sizes, batch) for batch in batches]


class TestEditions:
    def test_at_least_two(self) -> None:
        assert sum(bool(one.editions) for one in EXERCISES) >= 2

    @pytest.mark.parametrize("id, name", [(e.id, one.name) for e in EXERCISES for one in e.editions], ids=str)
    def test_is_the_same_exercise(self, id: str, name: str) -> None:
        edition_is_the_same_exercise(CHAPTER, id, name)

    def test_are_named_in_no_text(self) -> None:
        editions_are_named_in_no_text(CHAPTER)


class TestQuizAndPredictions:
    def test_the_quiz_is_as_jupyterquiz_reads_it(self) -> None:
        quiz_is_as_jupyterquiz_reads_it(CHAPTER)

    def test_predictions_have_bounds_that_arithmetic_gives(self) -> None:
        cpu = torch.device("cpu")
        found = {one.id: one for one in predict.predictions(CHAPTER)}
        assert set(found) == {"padding", "captures", "launches", "replay"}
        for prediction in found.values():
            assert prediction.question.endswith("?")
            assert all(prediction.why(1.0, measured) for measured in (0.1, 1.0, 10.0))
        rows = [pick(ladder(24), batch) or 0 for batch in range(1, 25)]
        assert found["padding"].bound(cpu) == pytest.approx(100 * (1 - 300 / sum(rows)))
        assert 5 < found["padding"].measure(cpu) < 40
        assert found["captures"].bound(cpu) == len(ladder(64))
        assert found["captures"].measure(cpu) > found["captures"].bound(cpu)
        assert found["launches"].measure(cpu) > found["launches"].bound(cpu) > 100
        assert found["replay"].bound(cpu) == 1


def test_the_notebook_walks_and_breaks() -> None:
    path = Path(__file__).parents[2] / "notebooks" / "04-cuda-graphs.py"
    if not path.is_file():
        pytest.skip("not a checkout")
    source = path.read_text(encoding="utf-8")
    assert len(re.findall(r"^# ## \d+\. ", source, re.M)) >= 8
    assert len(re.findall(r"^# ## Break \d+", source, re.M)) >= 3
    for id, name in re.findall(r'answers\.mistake\("([\d.]+)", "([\w-]+)"\)', source):
        assert name in answers.names(id)
