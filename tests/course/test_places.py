"""Functions of exercises run in the engine: right ones give its tokens, and mistakes show in them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from nanocourse.exercises import answers, chapters, sources
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.swap import has_place, swapped
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.paged import choose_splits
from nanoinfer.engine.graphs import ladder, pick
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from tests.conftest import SMALL, STD, prompts_of
from tests.course.learner_files import EXERCISES

pytestmark = pytest.mark.usefixtures("no_collection")
PLACED = [one for one in EXERCISES if has_place(one) and one.spec.kernel is None]
Tokens = list[tuple[int, ...]]


@functools.cache
def model(n_layer: int = 1, n_head: int = 2, n_embd: int = 32, n_positions: int = 80) -> GPT2:
    return random_model(ModelConfig(n_layer, n_head, n_embd, n_positions, vocab_size=101), seed=7, std=STD)


def rows(*counts: int, **more: Any) -> list[SamplingParams]:
    """Rows of these many new tokens each, greedy ones unless a temperature is given."""
    more = {"temperature": 0, "ignore_eos": True, **more}
    return [SamplingParams(max_tokens=count, seed=at, **more) for at, count in enumerate(counts)]


def generated(of: GPT2, lengths: list[int], params: list[SamplingParams], **settings: Any) -> Tokens:
    with LLM(of, **settings) as llm:
        return [done.token_ids for done in llm.generate(prompts_of(lengths, of.config.vocab_size), params)]


def naive(id: str) -> Tokens:
    """Greedy, filtered and stopped rows, at once; then with prompts in pieces, and a row that waits."""
    filtered = SamplingParams(max_tokens=7, seed=5, top_k=20, top_p=0.8, ignore_eos=True)
    stopped = SamplingParams(max_tokens=9, seed=6, temperature=0.7, stop_token_ids=(3, 4, 5, 6, 7, 8, 9))
    of, lengths, params = random_model(SMALL, seed=3, std=STD), [3, 11, 1, 3, 11], [*rows(9), filtered, *[stopped] * 3]
    pieces = {"max_batch": 2, "max_batched_tokens": 4}
    return [*generated(of, lengths, params, engine="naive"), *generated(of, lengths, params, engine="naive", **pieces)]


def dense(id: str) -> Tokens:
    """Ragged prompts, whole and in chunks, more than there are rows, so that rows are refilled and moved."""
    of, params = model(2, 3, 48, 300), rows(9, 3, 6, 4, 7)
    return [
        token
        for chunk in (None, 4)
        for token in generated(of, [5, 1, 17, 3, 9], params, engine="dense", max_batch=2, prefill_chunk=chunk)
    ]


def paged(id: str) -> Tokens:
    """Texts over several blocks, in a pool so small that rows wait, are refilled and moved."""
    of, params = model(2, 3, 48, 300), rows(40, 20, 30, 36, 25)
    return generated(of, [15, 1, 17, 3, 33], params, engine="paged", max_batch=3, kv_blocks=12)


def graphs(id: str) -> Tokens:
    """Steps that the places record on a CPU too: one short row alone, then ragged ones in a pool that is full."""
    settings = {"max_batch": 3, "max_graph_batch": 3}
    settings |= {"engine": "dense-graph"} if id == "4.3" else {"engine": "paged-graph", "kv_blocks": 6}
    with LLM(model(), **settings) as llm:
        if id == "4.3":
            llm.core.cache.read_multiple = 16
        done = [*llm.generate(prompts_of([1], 101), rows(3))]
        done += llm.generate(prompts_of([15, 1, 17, 20, 3], 101), rows(12, 3, 3, 4, 6))  # two end, and two begin
        return [one.token_ids for one in done]


def queued(id: str) -> Tokens:
    """Sampled rows in a small pool, two of which begin alike, with prompts in pieces."""
    settings = {"kv_blocks": 12, "prefill_chunk": 4, "max_batched_tokens": 9, "prefix_caching": True}
    prompts = prompts_of([15, 1, 17, 20, 3], 101)
    with LLM(model(), engine="paged", max_batch=3, **settings) as llm:
        done = llm.generate([*prompts, prompts[3]], rows(12, 3, 3, 20, 6, 9, temperature=1.0))
        return [one.token_ids for one in done]


class Known:
    """Drafts from texts that are known, each third one wrong."""

    def __init__(self, texts: dict[Any, tuple[int, ...]]) -> None:
        self.texts = texts

    def draft(self, rows: Sequence[Any], limits: Sequence[int]) -> list[list[int]]:
        drafts = []
        for row, limit in zip(rows, limits, strict=True):
            begin = len(row.token_ids)
            right = self.texts[row.request.seed][begin : begin + limit]
            drafts.append([(token + (begin + at) // 3 % 2) % 101 for at, token in enumerate(right)])
        return drafts


def speculative(id: str) -> Tokens:
    """Sampled and greedy rows with drafts, some of them wrong, and a penalised one; 7.5 looks its drafts up."""
    prompts = [[*part, *part[:2]] for part in prompts_of([15, 6, 17, 9, 20], 101)]
    params = [
        *rows(12), *rows(20, temperature=1.0), *rows(9, frequency_penalty=1.5),
        *rows(15, temperature=0.8), *rows(70, temperature=0.7),  # up to the context's end
    ]  # fmt: skip
    params = [SamplingParams(**{**vars(one), "seed": at}) for at, one in enumerate(params, 1)]
    with LLM(model(), engine="dense") as plain:
        texts = {done.seed: done.token_ids for done in plain.generate(prompts, params)}
    drafting = {"speculate": "lookup", "draft_tokens": 4, "adaptive_drafts": False}
    with LLM(model(), engine="dense", max_batch=3, **drafting) as llm:
        if id != "7.5":
            core: Any = llm.core
            core.begin_with(Known(texts))
        done = [*llm.generate(prompts[:2], params[:2]), *llm.generate(prompts, params)]
        assert llm.stats.verify_steps > 20
        assert [one.token_ids for one in done] == [texts[one.seed] for one in done]
        return [one.token_ids for one in done]


RUNS: dict[int, Callable[[str], Tokens]] = {
    1: naive, 2: dense, 3: paged, 4: graphs, 5: queued, 7: speculative
}  # fmt: skip


@functools.cache
def run(chapter: int, id: str) -> Tokens:
    """The engine's own tokens."""
    return RUNS[chapter](id)


def in_place(exercise: Exercise) -> Tokens:
    return RUNS[exercise.chapter](exercise.id)


ENGINES = "naive", "dense", "paged", "dense-graph", "paged-graph"


@functools.cache
def everywhere(engine: str) -> Tokens:
    """Greedy, filtered and warm rows."""
    params = [*rows(9), *rows(6, temperature=1, top_k=20, top_p=0.8), *rows(4, temperature=0.7)]
    return generated(model(2, 3, 48, 300), [15, 1, 17], params, engine=engine, max_batch=2)


@pytest.mark.long
@pytest.mark.filterwarnings("error:.*runs without a graph")
@pytest.mark.parametrize("exercise", [*PLACED, None], ids=lambda one: one.id if one else "all")
@pytest.mark.parametrize("engine", ENGINES)
def test_right_answers_run_in_every_engine(engine: str, exercise: Exercise | None) -> None:
    """References and correct variants, alone; and all references together. An edition has no place in an engine."""
    before = everywhere(engine)
    rights = exercise.right if exercise else ()
    places = [exercise] if exercise else PLACED
    for right in (None, *rights):
        with ExitStack() as stack:
            for one in places:
                stack.enter_context(swapped(one, sources.answer_function(one, right) if right else one.function))
            assert everywhere.__wrapped__(engine) == before


@pytest.mark.parametrize("exercise", PLACED, ids=lambda one: one.id)
def test_right_answers_give_the_engines_tokens(exercise: Exercise) -> None:
    """The reference and every correct variant, also one that computes in float64."""
    for function in (exercise.function, *(sources.answer_function(exercise, right) for right in exercise.right)):
        calls: list[int] = []
        with swapped(exercise, function, lambda calls=calls: calls.append(1)):  # type: ignore[misc]
            assert in_place(exercise) == run(exercise.chapter, exercise.id)
        assert calls


@pytest.mark.parametrize("chapter", RUNS)
def test_all_of_a_chapter_at_once(chapter: int) -> None:
    """As `--mine` runs a learner who has done everything; afterwards the places are given back."""
    calls: list[str] = []
    placed = [one for one in PLACED if one.chapter == chapter]
    with ExitStack() as stack:
        for one in placed:
            stack.enter_context(swapped(one, one.function, functools.partial(calls.append, one.id)))
        assert RUNS[chapter]("") == run(chapter, "")
    assert calls
    calls.clear()
    assert RUNS[chapter]("") == run(chapter, "")
    assert calls == []


# Mistakes that show in tokens, or in an engine that stops.
SEEN = {
    "1.1": "no-mask", "1.2": "norm-after", "1.3": "last-column", "1.4": "unsorted", "1.5": "sign",
    "1.6": "first-logits", "2.2": "padding-to-row-0", "2.3": "padding-seen", "2.4": "padded-length",
    "2.5": "weight-zero", "3.1": "newest-left-out", "3.2": "place-left-out", "3.7": "without-maxima",
    "4.2": "padding-is-a-row", "4.3": "without-read", "4.5": "newest-left-out", "4.6": "rebound",
    "4.7": "the-same-tensor", "5.8": "one-token-again", "7.2": "first-one-unseen", "7.3": "noise-by-step",
    "7.4": "one-position-late",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:all graphs are dropped")
@pytest.mark.parametrize(("id", "name"), SEEN.items())
def test_a_mistake_shows_in_the_engine(id: str, name: str) -> None:
    exercise = chapters.exercise(id)
    before = run(exercise.chapter, id)
    with answers.mistake(id, name):
        try:
            shows = in_place(exercise) != before
        except (AssertionError, LookupError, ValueError, RuntimeError):
            shows = True
    assert shows


def test_plain_functions_are_the_engines() -> None:
    """The ladder and the splits, for all kinds of sizes."""
    sizes_and_picks, splits = answers.reference("4.4"), answers.reference("3.8")
    for maximum in [*range(80), 100, 255, 256, 257, 500, 512]:
        sizes, batches = ladder(maximum), [*range(1, maximum + 2)]
        assert sizes_and_picks(maximum, batches) == (sizes, [pick(sizes, batch) for batch in batches])
    for batch in (1, 2, 7, 8, 64, 85, 86, 300):
        for room in (1, 63, 64, 65, 500, 1024, 5000):
            assert splits(batch, 12, room, [1]) == choose_splits(batch, 12, room)
