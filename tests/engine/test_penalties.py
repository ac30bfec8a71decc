"""Penalties and logprobs: what the rule says, whoever the neighbours are, in captured steps and after a preemption."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoinfer import LLM, Completion, Logprobs, Metrics, SamplingParams
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.naive import Naive, forward_logits
from nanoinfer.cache.paged import PagedCache
from nanoinfer.engine import logprobs as logprobs_module
from nanoinfer.engine import scheduler
from nanoinfer.engine.fake_graph import record
from nanoinfer.engine.logprobs import ScoringModel, logprobs, width
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.sampling import greedy, sample_filtered
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import decode_step, prefill_step
from nanoinfer.model.batch import Chunk, Layout, pack, unpack
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request
from nanoinfer.verify import verify_tokens
from tests.conftest import SMALL, prompts_of

CPU, V, STEPS = torch.device("cpu"), 40, 12
PLAIN = SamplingParams(temperature=0)
KINDS = {
    "plain": PLAIN,
    "penalised": SamplingParams(temperature=0, presence_penalty=0.5, frequency_penalty=1.0),
    "seeded": SamplingParams(temperature=0.8, top_k=10),
    "both": SamplingParams(temperature=1.3, top_p=0.9, frequency_penalty=2.0),
    "rewarded": SamplingParams(temperature=0.7, presence_penalty=-1.5),
}


def request(index: int, params: SamplingParams) -> Request:
    return Request(index, (1, 2, 3), params, 100 + index, STEPS, frozenset())


def logits_of(index: int, step: int, device: torch.device = CPU) -> Tensor:
    """(V,) of one request before its token `step`: most of it is the same at every step, so that tokens come again."""
    drawn = [torch.randn(V, generator=torch.Generator().manual_seed(seed)) for seed in (index, 1000 * index + step + 7)]
    return (2 * drawn[0] + 0.3 * drawn[1]).to(device)


class Rows:
    """Rows 0..n-1 of a batch as the engine keeps them, without a model."""

    def __init__(self, requests: list[Request], device: torch.device = CPU, free: int = 0) -> None:
        self.requests, self.device = requests, device
        self.state = BatchState.empty(len(requests) + free, device)
        self.sampler = PenaltySampler(len(requests) + free, V, device, sample_filtered)
        self.tokens: dict[int, list[int]] = {request.index: [] for request in requests}
        self.records: dict[int, list[Logprobs]] = {request.index: [] for request in requests}
        for slot, each in enumerate(requests):
            self.admit(slot, each)

    def admit(self, slot: int, request: Request, kept: tuple[int, ...] = ()) -> None:
        self.sampler.admit(slot, request, kept)
        state, params = self.state, request.params
        state.row[slot], state.live[slot], state.seed[slot], state.step[slot] = slot, 1, request.seed, len(kept)
        state.top_k[slot], state.temperature[slot], state.top_p[slot] = params.top_k, params.temperature, params.top_p

    def step(self, padding: int = 0) -> None:
        """A token for each row; `padding` rows stand behind them, as in a captured step."""
        live = len(self.requests)
        rows = self.state.at(slice(0, live + padding))
        logits = [logits_of(each.index, len(self.tokens[each.index]), self.device) for each in self.requests]
        logits += [torch.zeros(V, device=self.device)] * padding
        tokens = self.sampler(torch.stack(logits), rows)
        assert tokens.dtype == torch.int64
        rows.step.add_(rows.live)
        values: Any = self.sampler.fetch(range(live)).wait()
        for each, token, numbers in zip(self.requests, tokens.tolist(), values, strict=False):
            self.tokens[each.index].append(token)
            self.records[each.index].append(Logprobs.of_host(numbers, 3))

    def leave(self, slot: int) -> None:
        """The last row moves into the gap."""
        last, device = len(self.requests) - 1, self.device
        if slot < last:
            source, target = torch.tensor([last], device=device), torch.tensor([slot], device=device)
            self.state.move(source, target)
            self.sampler.move(source, target)
            self.requests[slot] = self.requests[last]
        del self.requests[last]
        self.state.free(slice(last, last + 1))


def alone(request: Request, device: torch.device = CPU) -> tuple[list[int], list[Logprobs]]:
    rows = Rows([request], device)
    for _ in range(STEPS):
        rows.step()
    return rows.tokens[request.index], rows.records[request.index]


@pytest.mark.parametrize("kind", KINDS)
def test_the_rule(kind: str, device: torch.device) -> None:
    """By hand: generated tokens alone count, before temperature and filters, each as often as it came."""
    params, own, counts = KINDS[kind], request(3, KINDS[kind]), Counter[int]()
    tokens, _ = alone(own, device)
    state = BatchState.empty(1, CPU)
    state.seed.fill_(own.seed)
    state.top_k.fill_(params.top_k)
    state.temperature.fill_(params.temperature)
    state.top_p.fill_(params.top_p)
    for step, token in enumerate(tokens):
        logits = logits_of(3, step)
        for each, count in counts.items():
            logits[each] -= params.presence_penalty + params.frequency_penalty * count
        assert token == int(sample_filtered(logits[None], state.at(slice(0, 1))))
        state.step.add_(1)
        counts[token] += 1
    assert max(counts.values()) > 1 or params.frequency_penalty  # tokens did come again


def test_penalties_change_tokens() -> None:
    """Else nothing here proves anything: a penalised greedy row repeats itself less."""
    plain, penalised = (alone(request(3, KINDS[kind]))[0] for kind in ("plain", "penalised"))
    assert len(set(penalised)) > len(set(plain))


@pytest.mark.parametrize("first, second", list(product(KINDS, KINDS)))
def test_neighbours_change_nothing(first: str, second: str) -> None:
    """Each pair in both orders, and a third row that leaves ahead of them: tokens and logprobs of the row alone."""
    requests = [request(0, KINDS["both"]), request(1, KINDS[first]), request(2, KINDS[second])]
    rows = Rows(list(requests))
    for step in range(STEPS):
        if step == 4:
            rows.leave(0)  # the last row moves to the front
        if step == 8:
            rows.leave(0)
        rows.step()
    for each in requests:
        tokens, records = alone(each)
        got = rows.tokens[each.index]
        assert got == tokens[: len(got)]
        assert rows.records[each.index] == records[: len(got)]


@pytest.mark.parametrize("kind", ["plain", "seeded"])
def test_rows_without_penalties_have_the_tokens_of_the_base_sampler(kind: str) -> None:
    """To the bit, though other rows have been penalised in their place."""
    rows = Rows([request(0, KINDS["both"]), request(1, KINDS["penalised"])])
    for _ in range(3):
        rows.step()
    rows.leave(0)
    rows.leave(0)
    own = request(5, KINDS[kind])
    rows.requests, rows.tokens[5], rows.records[5] = [own], [], []
    rows.admit(0, own)
    state = rows.state.at(torch.tensor([0]))
    for step in range(STEPS):
        rows.step()
        assert rows.tokens[5][-1] == int(sample_filtered(logits_of(5, step)[None], state))
        state.step.add_(1)


@pytest.mark.parametrize("kept", range(STEPS))
def test_a_preempted_row_goes_on_as_if_nothing_had_been(kept: int) -> None:
    """In another row, which others have left dirty, with what it had kept counted again."""
    own, other = request(1, KINDS["both"]), request(2, KINDS["rewarded"])
    tokens, _ = alone(own)
    rows = Rows([other, own])
    for _ in range(kept):
        rows.step()
    rows.leave(1)
    before = tuple(rows.tokens[1])
    rows.step()
    rows.requests = [own]
    rows.admit(0, own, before)
    assert rows.sampler.counts[0].tolist() == [before.count(token) for token in range(V)]
    for _ in range(kept, STEPS):
        rows.step()
    assert rows.tokens[1] == tokens


def test_padding_rows_do_no_harm(device: torch.device) -> None:
    """Several in one step: they count nothing anywhere, and rows without a part in the step keep what they had."""
    requests = [request(i, KINDS[kind]) for i, kind in enumerate(("penalised", "both"))]
    rows = Rows(list(requests), device, free=4)
    rows.sampler.logprobs[2:6] = -7.0
    for _ in range(STEPS):
        rows.step(padding=3)
    for each in requests:
        assert rows.tokens[each.index] == alone(each, device)[0]
    assert rows.sampler.counts.sum(1).tolist() == [STEPS, STEPS, 0, 0, 0, 0, 0]
    assert bool((rows.sampler.logprobs[2:6] == -7.0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logprobs_are_raw(dtype: torch.dtype, device: torch.device) -> None:
    """The same at all temperatures, filters and penalties; in float32, whatever the logits are in."""
    logits = torch.stack([logits_of(i, 0, device) for i in range(4)]).to(dtype)
    for temperature, top_k in ((0.0, 0), (0.5, 5), (1.0, 5), (2.0, 5)):
        params = SamplingParams(temperature=temperature, top_k=top_k, presence_penalty=2.0, frequency_penalty=2.0)
        rows = Rows([request(i, params) for i in range(4)], device)
        for _ in range(3):
            tokens = rows.sampler(logits, rows.state.at(slice(0, 4)))
            expected = logits.double().log_softmax(-1)
            assert torch.equal(logprobs(logits, tokens), rows.sampler.logprobs[:4])
            values: Any = rows.sampler.fetch([2, 0]).wait()
            for row, numbers in zip((2, 0), values, strict=True):
                got, token = Logprobs.of_host(numbers, 5), int(tokens[row])
                assert (got.token_id, len(got.top)) == (token, 5)
                assert got.logprob == pytest.approx(float(expected[row, token]), abs=1e-5)
                assert [p for _, p in got.top] == pytest.approx(expected[row].topk(5).values.tolist(), abs=1e-5)
                assert [p for _, p in got.top] == pytest.approx([float(expected[row, i]) for i, _ in got.top], abs=1e-5)
                assert len(dict(got.top)) == 5


def test_ids_survive_float32() -> None:
    """Those of GPT-2, and the largest that there may be."""
    for vocab_size in (50_257, 2**24):
        logits = torch.zeros(1, vocab_size)
        logits[0, -1] = 9.0
        numbers = logprobs(logits, torch.tensor([vocab_size - 2]))
        assert numbers.shape == (1, width(vocab_size))
        assert Logprobs.of_host(numbers[0].tolist(), 0)[::2] == (vocab_size - 2, ())
        assert Logprobs.of_host(numbers[0].tolist(), 20).top[0][0] == vocab_size - 1
    few = Logprobs.of_host(
        logprobs(torch.zeros(1, 8), torch.tensor([5]))[0].tolist(), 20
    )  # fewer ids than are asked for
    assert few.token_id == 5
    assert sorted(i for i, _ in few.top) == list(range(8))


def test_a_captured_sampler_is_replayed() -> None:
    """No wait for the device, no shape that depends on values; counts, weights and rows may change between replays."""
    eager, replayed = (Rows([request(i, KINDS[k]) for i, k in enumerate(KINDS)]) for _ in range(2))
    held = torch.zeros(len(KINDS), V)
    rows = replayed.state.at(slice(0, len(KINDS)))
    counts, left = replayed.sampler.counts, replayed.sampler.logprobs
    with torch.inference_mode():
        graph, tokens = record(lambda: replayed.sampler(held, rows))
    for step in range(STEPS):
        if step == 5:
            for each in (eager, replayed):
                each.admit(0, request(0, KINDS["penalised"]), (3, 3, 4))
        held.copy_(torch.stack([logits_of(i, step) for i in range(len(KINDS))]))
        expected = eager.sampler(held, eager.state.at(slice(0, len(KINDS))))
        graph.replay()
        assert torch.equal(tokens, expected)
        for of in (eager, replayed):
            of.state.step.add_(of.state.live)
    assert torch.equal(eager.sampler.counts, counts)  # where they were before the capture
    assert torch.equal(eager.sampler.logprobs[:-1], left[:-1])
    assert eager.sampler.counts[2].sum() == STEPS


PROMPTS = prompts_of([7, 33, 1, 12])
PARAMS = [
    SamplingParams(temperature=0, presence_penalty=1.0, frequency_penalty=0.5, logprobs=20),
    SamplingParams(temperature=0.8, top_k=20, logprobs=0),
    SamplingParams(temperature=1.2, top_p=0.9, frequency_penalty=-1.0, logprobs=2),
    SamplingParams(temperature=0),
]


def cache_of(kind: str) -> Any:
    if kind == "naive":
        return Naive(4, 60, CPU)
    if kind == "dense":
        return DenseCache(SMALL, 4, 60, CPU, torch.float32)
    return PagedCache(SMALL, 4, 60, 17, 16, CPU, torch.float32)


def begin(cache: Any) -> BatchState:
    """Four requests in rows 0 to 3, their prompts not yet read."""
    requests = [Request(i, tuple(PROMPTS[i]), PARAMS[i], 100 + i, 99, frozenset()) for i in range(4)]
    cache.clear(torch.arange(4))
    for row in range(4 if cache.blocks else 0):
        assert cache.blocks.reserve(row, 60)
        cache.blocks.grow(row, 60)
    cache.update()
    state = BatchState.empty(4, CPU)
    state.admit(range(4), requests)
    return state


@torch.inference_mode()
def test_through_a_model(small_model: GPT2) -> None:
    """Prompts in an order of their own, which is not that of the rows: the first token is counted in its own row."""
    cache = cache_of("dense")
    state, sampler = begin(cache), PenaltySampler(4, SMALL.vocab_size, CPU, sample_filtered)
    for row in range(4):
        sampler.admit(row, Request(row, (), PARAMS[row], 0, 99, frozenset()))
    tokens: list[list[int]] = [[] for _ in PROMPTS]
    records: list[list[Logprobs]] = [[] for _ in PROMPTS]

    def note(rows: list[int], new: Tensor) -> None:
        values: Any = sampler.fetch(rows).wait()
        for row, token, numbers in zip(rows, new.tolist(), values, strict=True):
            tokens[row].append(token)
            records[row].append(Logprobs.of_host(numbers, PARAMS[row].logprobs or 0))

    for rows in ([2, 0], [3, 1]):
        chunks = [Chunk(row, 0, PROMPTS[row]) for row in rows]
        layout = cache.layout(3, 40)  # with a padding row
        note(rows, prefill_step(small_model, cache, state, unpack(pack([], chunks, layout, 4), layout), sampler)[:2])
    for _ in range(20):
        note([0, 1, 2, 3], decode_step(small_model, cache, state, 4, 60, sampler))
    done = [
        Completion(
            i, tuple(PROMPTS[i]), tuple(tokens[i]), "", "length", 100 + i, Metrics(0.1, ()),
            logprobs=tuple(records[i]) if PARAMS[i].logprobs is not None else None,
        )
        for i in range(4)
    ]  # fmt: skip
    proof = verify_tokens(lambda text: forward_logits(small_model, text), done, PARAMS)
    assert (proof.tokens, proof.logprobs) == (84, 63)
    for row in range(2):  # penalties did choose, not the logits alone
        changed = [SamplingParams(temperature=p.temperature, top_k=p.top_k, logprobs=p.logprobs) for p in PARAMS]
        if PARAMS[row].penalises:
            with pytest.raises(AssertionError, match="was chosen"):
                verify_tokens(lambda text: forward_logits(small_model, text), done, changed)


@pytest.mark.parametrize("kind", ["naive", "dense", "paged"])
@pytest.mark.parametrize("piece", [1, 16, 33])
@torch.inference_mode()
def test_prompt_logprobs(small_model: GPT2, monkeypatch: pytest.MonkeyPatch, kind: str, piece: int) -> None:
    """Of every token but the first: equal to one plain pass, in pieces too, with prompts and decode rows beside it."""
    monkeypatch.setattr(logprobs_module, "SLICE", 5)
    heads, head = [], GPT2.head
    monkeypatch.setattr(GPT2, "head", lambda model, x: heads.append(len(x)) or head(model, x))
    cache, prompt = cache_of(kind), PROMPTS[1]
    plain_cache = cache_of(kind)
    state, plain_state = begin(cache), begin(plain_cache)
    found: list[Logprobs] = []
    for start in range(0, len(prompt), piece):
        end = min(start + piece, len(prompt))
        # Row 0 begins with the first piece and then goes on; row 2 begins with it too, and is over.
        going = [0] if start else []
        others = [] if start else [Chunk(0, 0, PROMPTS[0]), Chunk(2, 0, PROMPTS[2])]
        chunks = [*others, Chunk(1, start, prompt[start:end], end == len(prompt))]
        layout = Layout.of(going, chunks, 60)
        batch = unpack(pack(going, chunks, layout, 4), layout)
        at = range(layout.tokens - (end - start), layout.tokens)
        following = prompt[start + 1 : end + 1]
        if following:
            scoring = ScoringModel(small_model, torch.tensor(at[: len(following)]), torch.tensor(following))
            tokens = prefill_step(scoring, cache, state, batch, greedy)
            found += [Logprobs.of_host(each, 4) for each in scoring.scores.tolist()]
        else:
            tokens = prefill_step(small_model, cache, state, batch, greedy)
        assert torch.equal(tokens, prefill_step(small_model, plain_cache, plain_state, batch, greedy))
    assert torch.equal(state.integers, plain_state.integers)
    assert max(heads) <= 5
    scored = SamplingParams(max_tokens=0, prompt_logprobs=4)
    done = Completion(
        0, tuple(prompt), (), "", "length", 0, Metrics(0.1, ()), prompt_logprobs=(None, *found)
    )  # fmt: skip
    assert verify_tokens(lambda text: forward_logits(small_model, text), [done], scored).logprobs == len(prompt) - 1


@torch.inference_mode()
def test_a_step_that_only_scores(small_model: GPT2) -> None:
    """No token is wanted of it: no sampler runs, and no row of the state changes."""
    cache = cache_of("dense")
    state = begin(cache)
    before = state.integers.clone()
    chunks = [Chunk(1, 0, PROMPTS[1], complete=False)]
    layout = Layout.of([], chunks, 60)
    batch, at = unpack(pack([], chunks, layout, 4), layout), torch.arange(32)
    never: Any = None
    scoring = ScoringModel(small_model, at, torch.tensor(PROMPTS[1][1:]))
    tokens = prefill_step(scoring, cache, state, batch, never)
    assert tokens.shape == (0,)
    assert torch.equal(state.integers, before)
    right = forward_logits(small_model, torch.tensor([PROMPTS[1]]))[0, :-1]
    torch.testing.assert_close(scoring.scores, logprobs(right, torch.tensor(PROMPTS[1][1:])), rtol=0, atol=1e-4)


ENGINES: dict[str, dict[str, Any]] = {
    "pieces": {"engine": "dense", "max_batch": 3, "prefill_chunk": 16},
    "preempted": {"engine": "paged", "max_batch": 6, "kv_blocks": 8, "preemption": True, "prefix_caching": True},
}


@pytest.mark.parametrize("name", ENGINES)
def test_through_an_engine(small_model: GPT2, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Rows that wait, move and are computed again, samples and echoes too: all tokens and records are right."""
    monkeypatch.setattr(scheduler, "AHEAD", 1)
    echo = SamplingParams(max_tokens=0, prompt_logprobs=5)
    asked = [
        SamplingParams(temperature=0, max_tokens=30),
        replace(PARAMS[1], max_tokens=30, n=3, prompt_logprobs=0),
        replace(PARAMS[2], max_tokens=30, n=2, ignore_eos=True),
        echo,
        replace(PARAMS[0], max_tokens=30),  # the youngest of those that go on: it has to give its room back
        echo,
    ]
    llm = LLM(small_model, **ENGINES[name])
    done = llm.generate([*PROMPTS, *prompts_of([30, 1], seed=2)], asked)
    assert [(c.index, c.sample) for c in done] == [
        (0, 0),
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 1),
        (3, 0),
        (4, 0),
        (5, 0),
    ]
    proof = verify_tokens(LLM(small_model).forward_logits, done, [asked[c.index] for c in done])
    assert (proof.tokens, proof.logprobs) == (210, 6 * 30 + 3 * 32 + 11)
    assert (llm.stats.preemptions > 0) == (name == "preempted")
    assert all(c.metrics.ttft_s > 0 and c.finish_reason == "length" for c in done)
