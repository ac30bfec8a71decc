"""What users met before a step was a list of tokens, each a test. Others stand where their module is tested.

Tokens of a second GPU: tests/gpu/test_second_gpu.py. NaN of an old text: test_dense.py. A temperature next to zero, and
streams of a closed LLM: test_llm.py. Closed streams, and slow readers: test_engine.py. Another tokenizer or end of
text: test_weights.py. Files that count as used memory: test_devices.py. The host's time for a prefill: test_batch.py;
Triton's way to launch: test_paged_attention.py; weights that have moved: test_graphs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

import nanoinfer.engine.engine
import nanoinfer.llm
from nanoinfer import LLM, SamplingParams
from nanoinfer.config import ENGINES, RECIPES
from nanoinfer.model.batch import Batch, Chunk
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2, Attend
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import prompts_of
from tests.engine.fake_graphed import graph_llm, idle

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PLAIN = [engine for engine, recipe in RECIPES.items() if recipe.launch == "eager"]


@pytest.fixture(scope="module")
def long_model() -> GPT2:
    """Small, and with room for a prompt of 1,000 tokens."""
    return random_model(ModelConfig(n_layer=1, n_head=2, n_embd=16, n_positions=1024, vocab_size=211), seed=1)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens went through the model in each of its calls."""
    counts: list[int] = []
    hidden = GPT2.hidden

    def counting(self: GPT2, batch: Batch, attend: Attend) -> Tensor:
        counts.append(len(batch.token_ids))
        return hidden(self, batch, attend)

    monkeypatch.setattr(GPT2, "hidden", counting)
    return counts


@pytest.mark.parametrize("long_first", [False, True])
@pytest.mark.parametrize("budget", [None, 2048])
@pytest.mark.parametrize("engine", PLAIN)
def test_a_ragged_prefill_computes_the_tokens_that_exist(
    long_model: GPT2, computed: list[int], engine: str, budget: int | None, long_first: bool
) -> None:
    """31 prompts of 10 tokens and one of 900 were 28,800."""
    prompts = [[7] * 10] * 31 + [[8] * 900]
    llm = LLM(long_model, engine=engine, max_batched_tokens=budget)
    llm.generate(prompts[::-1] if long_first else prompts, SamplingParams(max_tokens=1))
    assert 1210 <= sum(computed) <= 1.05 * 1210


@pytest.mark.parametrize("chunk", [None, 64])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_long_prompt_holds_no_row_up_for_more_than_a_step(
    long_model: GPT2, monkeypatch: pytest.MonkeyPatch, engine: str, mixed: bool, chunk: int | None
) -> None:
    """Between two tokens of a running row: at most one step of prompts, within the budget, and one of running rows.

    Chunks made it worse, since all of a prompt's ran before the next token. mixed is as engines in pages on a GPU.
    """
    llm = LLM(long_model, engine=engine, max_batched_tokens=256, max_batch=4, prefill_chunk=chunk)
    core, given = llm.core, [0]
    core.scheduler.mixed = mixed
    prefill, decode = core.runner.prefill, core.runner.decode

    def count_prefill(going: list[int], chunks: list[Chunk], sampler: Any) -> Tensor:
        given[0] += len(going) + sum(len(chunk.token_ids) for chunk in chunks)
        return prefill(going, chunks, sampler)

    def count_decode(batch: int, longest: int, sampler: Any) -> Tensor:
        given[0] += batch
        return decode(batch, longest, sampler)

    monkeypatch.setattr(core.runner, "prefill", count_prefill)
    monkeypatch.setattr(core.runner, "decode", count_decode)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    first, second = llm.requests([[5] * 8, [6] * 1000], params)
    row = core.submit(first)
    while len(row.token_ids) < 2:
        core.step()
    late = core.submit(second)
    pauses = []
    while not late.token_ids:
        given[0], before = 0, len(row.token_ids)
        while len(row.token_ids) == before and not row.ended:
            core.step()
        pauses.append(given[0])
        assert given[0] <= 256 + (0 if mixed else 2)
        if row.ended:
            break
    assert sum(pauses) >= 1000 or row.ended
    assert max(pauses) > (200 if chunk is None else 50)  # the prompt did come in between
    while core.busy:
        core.step()
    assert [len(row.token_ids), len(late.token_ids)] == [20, 20]


PARAMS = [
    SamplingParams(temperature=0, max_tokens=4, ignore_eos=True),
    SamplingParams(max_tokens=4, seed=1, ignore_eos=True),
    SamplingParams(top_k=5, top_p=0.9, max_tokens=4, seed=2, ignore_eos=True),
]


@pytest.mark.parametrize("engine, mixed", [("dense-graph", False), ("paged-graph", False), ("paged-graph", True)])
def test_no_request_captures_after_warm_up(small_model: GPT2, engine: str, mixed: bool) -> None:
    """Sampled, filtered, in pieces, ragged: prefills were captured greedy alone, and the first of each kind waited.

    Tokens are the oracle's: a piece of a prompt is never taken for a whole one, which has graphs by now.
    """
    llm = graph_llm(small_model, engine, max_batch=2, max_batched_tokens=64, prefill_chunk=20, mixed=mixed)
    llm.warm_up()
    captures = llm.stats.captures
    assert captures > 0
    lengths = [3, 50, 1, 17, 60, 2]
    for params in ([each] * len(lengths) for each in PARAMS) if not mixed else ([*PARAMS, *PARAMS],):
        print(verify_tokens(llm.forward_logits, llm.generate(prompts_of(lengths), params), params))
    assert llm.stats.captures == captures
    assert llm.stats.replayed_steps == llm.stats.decode_steps > 0
    if engine == "paged-graph":
        assert llm.stats.replayed_prefills == llm.stats.prefill_steps
        assert not llm.stats.fallbacks
    else:
        assert 0 < llm.stats.replayed_prefills < llm.stats.prefill_steps
        assert [*llm.stats.fallbacks] == ["a piece of a prompt, where prompts are captured whole"]


def test_times_are_the_engine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a step moves by 1, tokenizing by 100, and a reader who takes their time by 1,000.

    The time to the first token begins with the call; what the reader does is in no token's time.
    """
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(nanoinfer.llm, "time", clock)
    monkeypatch.setattr(nanoinfer.engine.engine, "time", clock)

    def taking(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            now[0] += seconds
            return call(*args, **kwargs)

        return timed

    monkeypatch.setattr(GPT2, "forward", taking(1, GPT2.forward))
    llm = LLM(engine="dense", device="cpu", threads=1)
    monkeypatch.setattr(type(llm.tokenizer), "encode", taking(100, type(llm.tokenizer).encode))
    (done,) = llm.generate("One day", GREEDY)
    assert (done.metrics.ttft_s, done.metrics.itl_s) == (101, (1,) * 11)
    stream = llm.stream("One day", GREEDY)
    pieces = [next(stream)]
    idle(llm)
    for piece in stream:
        pieces.append(piece)
        now[0] += 1000
    assert pieces[-1].completion is not None
    assert pieces[-1].completion.metrics == done.metrics
