"""Chapter 8's exercises: how strong their checks are, their stubs, hints, quiz, editions, and what they promise."""

from __future__ import annotations

import json
import zlib
from collections.abc import Generator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.authoring import chapter_strength
from nanocourse.exercises import answers, chapters
from nanocourse.exercises.cases import Case
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.swap import has_place
from nanocourse.learner import predict
from nanoinfer.model.config import ModelConfig
from nanoinfer.parallel.shard import Shard
from tests.course.chapter_exercises import (
    edition_is_the_same_exercise,
    editions_are_named_in_no_text,
    enough_of_each_kind,
    figures_are_sums,
    hints_keep_the_solution,
    hints_would_give_away,
    inputs_differ,
    quiz_is_as_jupyterquiz_reads_it,
    section_exists,
    strength_is_as_stored,
    stub_has_signature_and_example,
)

CHAPTER = chapters.chapter(8)
EXERCISES = chapters.exercises(CHAPTER)

each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(chapter_strength.stored(CHAPTER).read_text(encoding="utf-8"))
    return found


class TestStrength:
    @each
    @pytest.mark.strength
    def test_is_as_stored(self, exercise: Exercise, stored: dict[str, Any]) -> None:
        strength_is_as_stored(exercise, stored)

    def test_the_three_figures_are_the_sums(self, stored: dict[str, Any]) -> None:
        figures_are_sums(stored, EXERCISES)

    def test_there_are_enough(self) -> None:
        assert 6 <= len(EXERCISES) <= 8
        assert sum(len(one.real_wrong) for one in EXERCISES) >= 80

    @each
    def test_of_each_kind(self, exercise: Exercise) -> None:
        enough_of_each_kind(exercise)
        assert len(exercise.real_wrong) >= 7

    @each
    def test_no_two_checks_have_the_same_input(self, exercise: Exercise) -> None:
        inputs_differ(exercise)


class TestStubsAndHints:
    @each
    def test_the_stub_has_signature_and_example(self, exercise: Exercise) -> None:
        stub_has_signature_and_example(CHAPTER, exercise)

    @each
    def test_hints_do_not_contain_the_solution(self, exercise: Exercise) -> None:
        hints_keep_the_solution(exercise)

    def test_the_measure_of_hints_would_notice(self) -> None:
        hints_would_give_away("8.5", 'blocks = min(one["blocks"] for one in each)')

    @each
    def test_the_text_has_the_section_that_messages_name(self, exercise: Exercise) -> None:
        section_exists(CHAPTER, exercise)

    def test_none_has_a_place_in_the_engine(self) -> None:
        assert [one.id for one in EXERCISES if has_place(one)] == []


class TestPromises:
    """What the exercises promise of more than one call."""

    @pytest.mark.parametrize("heads, size", [(5, 2), (25, 3), (7, 7), (4, 1)])
    def test_the_parts_of_all_ranks_are_the_whole(self, heads: int, size: int) -> None:
        cut, width = answers.reference("8.1"), heads * 2
        fused = torch.arange(width * 3.0 * width).view(width, 3 * width)
        parts = [cut("h.3.attn.c_attn.weight", fused, heads, rank, size).chunk(3, -1) for rank in range(size)]
        assert torch.cat([torch.cat(third, -1) for third in zip(*parts, strict=True)], -1).equal(fused)
        out = torch.randn(width, width)
        rows = [cut("h.0.attn.c_proj.weight", out, heads, rank, size) for rank in range(size)]
        assert torch.cat(rows).equal(out)
        biases = [cut("h.0.mlp.c_proj.bias", out[0], heads, rank, size) for rank in range(size)]
        assert torch.stack(biases).sum(0).equal(out[0])

    def test_parts_are_those_of_the_engine(self) -> None:
        """Where the engine does not cut at multiples of 64 columns."""
        config = ModelConfig(n_layer=1, n_head=5, n_embd=10, n_positions=4, vocab_size=30)
        cut = answers.reference("8.1")
        shapes = {"attn.c_attn.weight": (10, 30), "attn.c_proj.weight": (10, 10), "mlp.c_fc.bias": (40,)}
        for kind, shape in shapes.items():
            whole = torch.randn(shape)
            for rank in range(3):
                index = Shard(rank, 3).pieces(f"h.0.{kind}", config)
                mine = torch.cat([whole[one] for one in index], -1)
                assert cut(f"h.0.{kind}", whole, 5, rank, 3).equal(mine)

    def test_parts_that_are_cut_make_the_whole_layer(self) -> None:
        cut, layer = answers.reference("8.1"), answers.reference("8.2")
        whole = _whole(heads=5, width=10)
        x = torch.randn(4, 10)
        alone = _reduced([layer(0, x, 5, whole)])[0]
        parts = [{name: cut(f"h.0.{name}", one, 5, rank, 3) for name, one in whole.items()} for rank in range(3)]
        for part in parts:  # whole on every rank, as the layer wants them
            part |= {name: whole[name] for name in ("attn.c_proj.bias", "mlp.c_proj.bias")}
        every = _reduced([layer(rank, x, heads, part) for rank, (heads, part) in enumerate(zip((2, 2, 1), parts))])  # noqa: B905
        assert all(torch.allclose(one, alone, atol=1e-5) for one in every)
        assert torch.allclose(alone, _by_hand(x, whole), atol=1e-5)

    def test_tokens_do_not_depend_on_where_the_vocabulary_is_cut(self) -> None:
        exercise = chapters.exercise("8.4")
        check = next(check for check in exercise.checks if check.wide)
        for at in range(16):
            logits, firsts, vocab, rows = exercise.call(check, Case(f"promise/{at}")).args
            order = sorted(range(len(firsts)), key=firsts.__getitem__)
            whole = torch.cat([logits[rank] for rank in order], 1)
            one = exercise.spec.scene(exercise.function, [whole], [0], vocab, rows)  # type: ignore[misc]
            every = exercise.spec.scene(exercise.function, logits, firsts, vocab, rows)  # type: ignore[misc]
            assert all(tokens.equal(one[0]) for tokens in every)

    def test_no_row_is_lost_and_none_is_on_two(self) -> None:
        exercise = chapters.exercise("8.6")
        for check in exercise.checks:
            for at in range(check.cases):
                replicas, block, worth, history = exercise.call(check, Case(f"promise/{at}")).args
                sent, rows, failed = exercise.function(replicas, block, worth, history)
                asked = {event[1]: event for event in history if event[0] == "ask"}
                assert {row for _, row, *_ in sent} | set(failed) == set(asked)
                assert len(set(failed)) == len(failed)
                for _, row, text, new, limit in sent:
                    assert text[: len(text) - new] == asked[row][2]
                    assert new < limit == asked[row][3]
                ended = {event[1] for event in history if event[0] == "end"}
                assert sum(count for _, count in rows) <= len(set(asked) - set(failed) - ended)

    def test_results_do_not_depend_on_how_the_work_was_cut(self) -> None:
        exercise, lines = chapters.exercise("8.7"), [(f"q{at}", f"prompt {at}") for at in range(7)]
        texts = []
        for shard, runs in (
            (3, [("a", None)]),
            (7, [("a", ("write", 1, 5)), ("b", None)]),
            (1, [("a", None), ("b", None)]),
        ):
            files = exercise.spec.scene(  # type: ignore[misc]
                exercise.function, lines, 5, shard, runs, {}, [1] * len(runs)
            )
            texts.append("".join(files.values()))
        assert len(set(texts)) == 1
        assert texts[0].count("\n") == 7
        seed = zlib.crc32(b"5 q0")
        assert texts[0].split()[:2] == ["q0", f"{zlib.crc32(f'prompt 0 {seed}'.encode()):08x}"]


def _whole(heads: int, width: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(8)
    shapes = {
        "ln_1.weight": (width,), "ln_1.bias": (width,), "attn.c_attn.weight": (width, 3 * width),
        "attn.c_attn.bias": (3 * width,), "attn.c_proj.weight": (width, width), "attn.c_proj.bias": (width,),
        "ln_2.weight": (width,), "ln_2.bias": (width,), "mlp.c_fc.weight": (width, 4 * width),
        "mlp.c_fc.bias": (4 * width,), "mlp.c_proj.weight": (4 * width, width), "mlp.c_proj.bias": (width,),
    }  # fmt: skip
    return {name: torch.randn(*shape, generator=draw) for name, shape in shapes.items()}


def _reduced(ranks: list[Generator[Tensor, Tensor, Tensor]]) -> list[Tensor]:
    """All ranks' programs, two all-reduces each."""
    terms = [next(rank) for rank in ranks]
    terms = [rank.send(torch.stack(terms).sum(0)) for rank in ranks]
    returned = []
    for rank in ranks:
        with pytest.raises(StopIteration) as ended:
            rank.send(torch.stack(terms).sum(0))
        returned.append(ended.value.value)
    return returned


def _by_hand(x: Tensor, part: dict[str, Tensor]) -> Tensor:
    """The block of chapter 1, whole."""

    def norm(of: Tensor, name: str) -> Tensor:
        return F.layer_norm(of, of.shape[-1:], part[f"{name}.weight"], part[f"{name}.bias"])

    def linear(of: Tensor, name: str) -> Tensor:
        return of @ part[f"{name}.weight"] + part[f"{name}.bias"]

    q, k, v = (one.view(len(x), 5, 2).transpose(0, 1) for one in linear(norm(x, "ln_1"), "attn.c_attn").chunk(3, -1))
    scores = (q @ k.mT / 2**0.5).masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
    h = x + linear((scores.softmax(-1) @ v).transpose(0, 1).flatten(1), "attn.c_proj")
    return h + linear(F.gelu(linear(norm(h, "ln_2"), "mlp.c_fc"), approximate="tanh"), "mlp.c_proj")


class TestEditions:
    def test_each_has_one_besides_the_printed_form(self) -> None:
        assert all(one.editions for one in EXERCISES)

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
        assert set(found) == {"memory", "part", "pipe", "busiest"}
        for prediction in found.values():
            assert prediction.question.endswith("?")
            assert all(prediction.why(1.0, measured) for measured in (0.1, 1.0, 10.0))
        assert [found[name].bound(cpu) for name in ("memory", "part", "pipe", "busiest")] == [0.5, 0.5, 100, 0]
        assert 0.7 < found["memory"].measure(cpu) < 0.95
        assert 2 <= found["busiest"].measure(cpu) <= 6
        assert found["part"].measure(cpu) > 0
        assert found["pipe"].measure(cpu) > 0
