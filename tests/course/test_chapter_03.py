"""Chapter 3's exercises: how strong their checks are, their stubs, hints, quiz, editions and places in the engine."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from nanocourse.authoring import chapter_strength
from nanocourse.exercises import answers, chapters, sources, stubs
from nanocourse.exercises.cases import Case
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import Returned, local
from nanocourse.exercises.swap import has_place, swapped
from nanocourse.learner import predict
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.paged import choose_splits
from nanoinfer.devices import has_triton
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
    strength_is_as_stored,
)

CHAPTER = chapters.chapter(3)
EXERCISES = chapters.exercises(CHAPTER)
STORED = json.loads(chapter_strength.stored(CHAPTER).read_text(encoding="utf-8"))
ANYWHERE = [one for one in EXERCISES if one.spec.kernel is None]
PLACED = [one for one in ANYWHERE if has_place(one)]
CONFIG = ModelConfig(n_layer=2, n_head=3, n_embd=48, n_positions=300, vocab_size=211)
PARAMS = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True) for n in (40, 20, 30, 36, 25)]
PROMPTS = prompts_of([15, 1, 17, 3, 33], CONFIG.vocab_size)

each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)
triton = pytest.mark.skipif(not has_triton(), reason="there are no wheels of Triton here")


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(CONFIG, seed=7, std=STD)


def generated(model: GPT2) -> list[tuple[int, ...]]:
    """Tokens of ragged texts over several blocks, in a pool so small that rows wait, are refilled and moved."""
    llm = LLM(model, engine="paged", max_batch=3, kv_blocks=12)
    told = llm.generate(PROMPTS, PARAMS)
    verify_tokens(llm.forward_logits, told, PARAMS)
    return [row.token_ids for row in told]


class TestStrength:
    @each
    @pytest.mark.strength
    def test_is_as_stored(self, exercise: Exercise) -> None:
        """Stub, reference, variants, wrong answers and mutants, run as learners' files: what the file says."""
        if exercise.spec.kernel is not None and not has_triton():
            pytest.skip("there are no wheels of Triton here")
        strength_is_as_stored(exercise, STORED)

    def test_the_three_figures_are_the_sums(self) -> None:
        figures_are_sums(STORED, EXERCISES)

    def test_there_are_enough(self) -> None:
        assert 6 <= len(EXERCISES) <= 8
        assert len(ANYWHERE) >= 5  # without Triton
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

    def test_inputs_are_adversarial(self) -> None:
        """Lengths around a page, 0, 1 and full; permuted tables; NaN wherever no token is; scores that overflow exp."""
        exercise = chapters.exercise("3.6")
        calls = {
            check.name: [exercise.call(check, Case(f"course/{check.name}/{at}")).args for at in range(check.cases)]
            for check in exercise.checks
        }
        around = [(k_pool.shape[2], n) for _, k_pool, _, _, found in calls["around-a-page"] for n in found.tolist()]
        assert {(block, n % block) for block, n in around} >= {(2, 0), (2, 1), (4, 0), (4, 1), (4, 3)}
        for q, k_pool, v_pool, tables, found in calls["short-and-full-rows"]:
            assert {0, 1, tables.shape[1] * k_pool.shape[2]} == set(found.tolist())
            assert bool(k_pool.isnan().any())
            assert bool(v_pool.isnan().any())
            assert q.isfinite().all()
        tables = [found for *_, found, _ in calls["around-a-page"]]
        assert any(bool((found.flatten() != found.flatten().sort().values).any()) for found in tables)
        q, k_pool, _, tables, found = calls["large-scores"][0]
        scores = [
            float(q[row, 0] @ k_pool[tables[row, t // 2], 0, t % 2]) / q.shape[-1] ** 0.5
            for row in range(len(q))
            for t in range(int(found[row]))
        ]
        assert max(map(abs, scores)) > 150
        for q, k_pool, v_pool, tables, _ in calls["half-precision"]:  # near the largest number of float16
            assert k_pool.dtype == v_pool.dtype == torch.float16
            page = k_pool[tables[0, 0]].float()
            assert 59_000 < float((page @ q[0, 0].float()).abs().max()) / q.shape[-1] ** 0.5 < 65_504
            assert 50_000 < float(v_pool[tables[0, 0]].abs().max()) < 65_504


class TestStubsAndHints:
    @each
    def test_the_stub_has_signature_and_example(self, exercise: Exercise) -> None:
        source = stubs.stub(exercise, CHAPTER)
        (mine,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
        (theirs,) = ast.parse(sources.function_source(exercise.function)).body
        assert isinstance(theirs, ast.FunctionDef)
        assert ast.dump(mine.args) == ast.dump(theirs.args)
        assert ast.get_docstring(mine) == ast.get_docstring(theirs)
        assert [ast.unparse(line) for line in mine.decorator_list] == ["triton.jit"] * bool(exercise.spec.kernel)
        assert f'NotImplementedError("{exercise.mark} ' in source
        assert "SPDX-License-Identifier: MIT-0\n" in source
        assert max(map(len, source.splitlines())) <= 120
        outcome = local(exercise.oracle, exercise.example())
        assert isinstance(outcome, Returned)
        assert f"-> {stubs.literal(outcome.value)}" in source

    @each
    def test_hints_do_not_contain_the_solution(self, exercise: Exercise) -> None:
        hints_keep_the_solution(exercise)

    def test_the_measure_of_hints_would_notice(self) -> None:
        hints_would_give_away("3.5", "try higher = max(maximum, *scores) first")

    @each
    def test_the_text_has_the_section_that_messages_name(self, exercise: Exercise) -> None:
        section_exists(CHAPTER, exercise)


class TestPlaces:
    @pytest.mark.parametrize("exercise", PLACED, ids=lambda one: one.id)
    def test_the_reference_gives_the_engines_tokens(self, model: GPT2, exercise: Exercise) -> None:
        before, calls = generated(model), []
        with swapped(exercise, exercise.function, lambda: calls.append(1)):
            assert generated(model) == before
        now = len(calls)
        assert now
        assert generated(model) == before
        assert len(calls) == now  # the place is given back

    def test_all_at_once(self, model: GPT2) -> None:
        """As `--mine` runs a learner who has done everything but the kernel."""
        with ExitStack() as stack:
            for exercise in PLACED:
                stack.enter_context(swapped(exercise, exercise.function))
            generated(model)

    @pytest.mark.parametrize("exercise", PLACED, ids=lambda one: one.id)
    def test_correct_variants_run_there_too(self, model: GPT2, exercise: Exercise) -> None:
        for right in exercise.right:
            with swapped(exercise, sources.answer_function(exercise, right)):
                generated(model)

    @pytest.mark.parametrize(
        "id, name",
        [
            ("3.1", "newest-left-out"), ("3.1", "moved"), ("3.1", "gives-back"), ("3.2", "neighbours"),
            ("3.2", "first-rows-table"), ("3.2", "rows-as-they-come"), ("3.2", "newest-block"),
            ("3.2", "place-left-out"), ("3.7", "averaged"), ("3.7", "without-maxima"), ("3.7", "by-length"),
        ],
    )  # fmt: skip
    def test_mistakes_show_there(self, model: GPT2, id: str, name: str) -> None:
        with answers.mistake(id, name), pytest.raises(AssertionError):
            generated(model)

    def test_a_block_too_many_empties_the_pool(self, model: GPT2) -> None:
        """What takes more than was reserved runs out of blocks, although admission has counted."""
        with answers.mistake("3.1", "always-one"), pytest.raises(RuntimeError, match="no free block"):
            generated(model)

    def test_splits_are_the_engines(self) -> None:
        splits = answers.reference("3.8")
        for batch in (1, 2, 7, 8, 64, 85, 86, 300):
            for room in (1, 63, 64, 65, 500, 1024, 5000):
                assert splits(batch, 12, room, [1]) == choose_splits(batch, 12, room)

    @triton
    def test_the_kernel_in_the_interpreter(self) -> None:
        """The reference and a wrong one as the engine's attention, in a process that interprets."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-c", PLACE]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.split() == ["same", "called", "other"]


PLACE = """
from nanocourse.exercises import answers, chapters, kernels
from nanocourse.exercises.swap import swapped
exercise = chapters.exercise("3.6")
kernel, wrong = answers.reference("3.6"), answers.wrong("3.6", "first-rows-table")
from nanoinfer import LLM, SamplingParams
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model
model = random_model(ModelConfig(n_layer=1, n_head=2, n_embd=32, n_positions=40, vocab_size=50), seed=1, std=0.5)
params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [7, 8]]
def run(engine):
    return [row.token_ids for row in LLM(model, engine=engine).generate(prompts, params)]
naive, calls = run("naive"), []
with swapped(exercise, kernel, lambda: calls.append(1)):
    print("same" if run("paged") == naive else "other")
print("called" if calls else "not called")
with swapped(exercise, wrong):
    print("same" if run("paged") == naive else "other")
"""


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
        room, rows, context, table = predict.predictions(CHAPTER)
        for prediction in (room, rows, context, table):
            assert prediction.question.endswith("?")
            assert all(prediction.why(1.0, measured) for measured in (0.1, 1.0, 10.0))
        assert room.bound(cpu) == pytest.approx(13 * 96 / (16 * (1 + 1 + 1 + 2 * 5 + 3 + 3 + 4 + 6)))
        assert room.measure(cpu) > room.bound(cpu)
        assert 0.7 * rows.bound(cpu) < rows.measure(cpu) < rows.bound(cpu)
        assert (context.bound(cpu), table.bound(cpu)) == (8, 1)


def test_the_notebook_walks_and_breaks() -> None:
    path = Path(__file__).parents[2] / "notebooks" / "03-paged-attention.py"
    if not path.is_file():
        pytest.skip("not a checkout")
    source = path.read_text(encoding="utf-8")
    assert len(re.findall(r"^# ## \d+\. ", source, re.M)) >= 8
    assert len(re.findall(r"^# ## Break \d+", source, re.M)) >= 3
    for id, name in re.findall(r'answers\.mistake\("([\d.]+)", "([\w-]+)"\)', source):
        assert name in answers.names(id)
