"""The fused decode step against the plain one. K.. are names of the list of defects of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoinfer import SamplingParams
from nanoinfer.cache.captured import CapturedPaged
from nanoinfer.cache.none import forward_logits
from nanoinfer.engine.penalties import AllSamplers
from nanoinfer.engine.samplers import greedy
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import decode_step
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2, Layer
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import STD, prompts_of
from tests.engine.fake_graphed import PARAMS, Rerun, graph_llm, greedy_rows, tokens
from tests.engine.kernel_cases import DEVICE, INTERPRETED, here

pytest.importorskip("triton", reason="there are no wheels of Triton here")

from triton import knobs

from nanoinfer.kernels import sampling
from nanoinfer.kernels.fused_forward import FusedForward, compiled
from nanoinfer.kernels.streamed import fused_forwards

CONFIG = ModelConfig(n_layer=2, n_head=4, n_embd=48, n_positions=100, vocab_size=211)  # heads of 12: no power of two
WIDE = ModelConfig(n_layer=1, n_head=2, n_embd=128, n_positions=100, vocab_size=101)  # of 64
MAX_LEN = 100


def some_model(config: ModelConfig = CONFIG) -> GPT2:
    return random_model(config, seed=1, std=STD, device=DEVICE)


def rows_of(model: GPT2, lengths: Sequence[int | None], block: int = 16) -> tuple[CapturedPaged, BatchState]:
    """Rows that have fed so many tokens, None for padding; blocks in any order, and NaN where nothing was written."""
    config, B, each = model.config, len(lengths), -(-MAX_LEN // block)
    cache = CapturedPaged(config, B, MAX_LEN, B * each, block, torch.device(DEVICE), torch.float32)
    state, generator = BatchState.empty(B, torch.device(DEVICE)), torch.Generator().manual_seed(3)
    cache.k[:, 1:], cache.v[:, 1:] = float("nan"), float("nan")
    order = torch.randperm(B * each, generator=generator) + 1
    kinds = [(0.0, 0, 1.0), (0.8, 0, 1.0), (1.0, 20, 1.0), (1.2, 0, 0.7), (0.7, 5, 0.9), (0.0, 3, 0.5)]
    for b, length in enumerate(lengths):
        if length is None:
            continue
        cache.tables[b] = order[b * each : (b + 1) * each].int()
        temperature, k, p = kinds[b % len(kinds)]
        state.integers[:, b] = torch.tensor([(7 * b + 3) % config.vocab_size, length, 5, 1, 100 + b, k, b])
        state.floats[:, b] = torch.tensor([temperature, p])
        t = torch.arange(length)
        where = cache.tables[b].cpu().long()[t // block]
        for pool in (cache.k, cache.v):
            data = torch.randn(config.n_layer, length, config.n_head, config.head_size, generator=generator)
            pool[:, where, :, t % block] = data.transpose(0, 1).to(DEVICE)
    return cache, state


Maker = Callable[[GPT2, Any, BatchState], Any]


def streamed_of(model: GPT2, cache: Any, state: BatchState) -> Any:
    return fused_forwards(model, cache, state)[1]


both = pytest.mark.parametrize("make", [FusedForward, streamed_of])


def compare(model: GPT2, lengths: Sequence[int | None], make: Maker, block: int = 16) -> None:
    """One step both ways: the same logits, the same state afterwards, and the same keys and values everywhere."""

    def spy(logits: Tensor, rows: BatchState) -> Tensor:
        seen.append(logits[: len(lengths)].clone())
        return sampling.sample(logits, rows)

    seen: list[Tensor] = []
    B, live = len(lengths), [b for b, length in enumerate(lengths) if length is not None]
    (plain_cache, plain_state), (cache, state) = (rows_of(model, lengths, block) for _ in range(2))
    expected = decode_step(model, plain_cache, plain_state, B, MAX_LEN, spy)
    forward = make(model, cache, state)
    assert forward.why_not(B, sampling.sample) is None
    got = forward.decode(B, MAX_LEN, sampling.sample)
    assert torch.equal(got, expected)
    assert got.data_ptr() == state.token.data_ptr()
    assert torch.equal(state.integers, plain_state.integers)
    assert not cache.splits_done.any()
    for pool, plain in ((cache.k, plain_cache.k), (cache.v, plain_cache.v)):
        assert torch.equal(pool[:, 1:].isnan(), plain[:, 1:].isnan())
        torch.testing.assert_close(pool[:, 1:], plain[:, 1:], rtol=1e-4, atol=1e-4, equal_nan=True)
    cache, state = rows_of(model, lengths, block)
    make(model, cache, state).decode(B, MAX_LEN, spy)  # a sampler of another kind reads logits
    assert torch.equal(state.integers, plain_state.integers)
    torch.testing.assert_close(seen[1][live], seen[0][live], rtol=1e-4, atol=1e-4)


@here
@both
@pytest.mark.parametrize(
    "lengths", [[0], [99], [31, 32], [63, 0, 64], [5, None, 98, None, 33], [7 * i for i in range(9)]]
)
def test_step(make: Maker, lengths: list[int | None]) -> None:
    """First and last position, edges of tiles and blocks, padding rows, and a number of rows that is no power of 2.

    Greedy, sampled and filtered rows stand side by side: those without filters are chosen without logits.
    """
    compare(some_model(), lengths, make)


@here
@pytest.mark.parametrize("make, rows, block", [(FusedForward, 16, 32), (streamed_of, 16, 32), (streamed_of, 70, 16)])
def test_many_rows_of_wide_heads(make: Maker, rows: int, block: int) -> None:
    """The most rows that one program takes, and more where there are several."""
    compare(some_model(WIDE), [6 * i % 97 for i in range(rows)], make, block=block)


@here
@both
def test_a_step_repeats_its_bits(make: Maker) -> None:
    """K06: no sum has an order that depends on who came first."""
    model, seen = some_model(), []
    for _ in range(3 if INTERPRETED else 100):
        cache, state = rows_of(model, [99, 64, 33])
        forward = make(model, cache, state)
        for _ in range(1 if INTERPRETED else 5):
            state.position[:3] = torch.tensor([99, 64, 33])
            forward.decode(3, MAX_LEN, lambda logits, rows: logits.argmax(-1))
            seen.append(forward.logits[:3, : CONFIG.vocab_size].clone())
            state.token[:3] = torch.tensor([3, 10, 17])
    assert all(torch.equal(seen[0], other) for other in seen)


@here
@both
def test_a_first_compilation_is_told_once(
    make: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line; not where Triton's cache has these kernels, nor where it interprets them."""
    cache, state = rows_of(some_model(), [3])
    assert not (INTERPRETED and FusedForward(some_model(), cache, state).uncompiled)
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    forward = make(some_model(), cache, state)
    getattr(forward, "fused", forward).uncompiled = not compiled().exists()
    for _ in range(2):
        forward.decode(1, MAX_LEN, greedy)
    (told,) = caplog.records
    assert told.levelname == "WARNING"
    assert "compiling the kernels of engine fused" in told.message
    assert "\n" not in told.message
    assert compiled().exists()


def fused_llm(model: GPT2, **settings: Any) -> Any:
    """An `LLM` of engine fused that replays on a CPU, under the interpreter."""
    llm = graph_llm(model, "fused", recorder=Rerun(), **settings)
    core: Any = llm.core
    core.forwards, core.pinned = [FusedForward(llm.model, core.cache, core.state)], True
    if INTERPRETED:
        llm.core.samplers = AllSamplers(*[sampling.sample] * 3, llm.core.samplers.scoring)
    return llm


def proven(llm: Any, lengths: Sequence[int], params: list[SamplingParams], model: GPT2 | None = None) -> set[str]:
    """What computed the decode steps of a generation with the oracle's tokens."""
    done, oracle = llm.generate(prompts_of(list(lengths)), params), model or llm.model
    verify_tokens(lambda text: forward_logits(oracle, text.to(DEVICE)), done, params)
    assert llm.stats.computed_by.total() == llm.stats.decode_steps > 0
    return set(llm.stats.computed_by)


@here
def test_generation(small_model: GPT2) -> None:
    """Rows that come, sample, filter and end at different times, refilled; penalties and logprobs read its logits."""
    llm = fused_llm(small_model.to(DEVICE), max_batch=2)
    params = [replace(p, max_tokens=n) for p, n in zip(PARAMS, (2, 4, 3), strict=False)]
    assert proven(llm, [4, 1, 30], params) == {"fused"}
    scored = [replace(each, logprobs=3, frequency_penalty=1.5 * i) for i, each in enumerate(greedy_rows(3, 3))]
    assert proven(llm, [5, 12], scored) == {"fused"}


@here
def test_weights_that_move_are_taken_again(small_model: GPT2) -> None:
    """A graph knows addresses, and the fused step copies besides: both are made anew."""
    model, other = (random_model(small_model.config, seed=seed, std=STD, device=DEVICE) for seed in (1, 2))
    llm, params = fused_llm(model, max_batch=1), greedy_rows(3)
    tokens(llm, [4], params)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.data = theirs.data
    llm.core.model.layers[:] = [Layer.of(block) for block in model.h]  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match="has moved"):
        proven(llm, [4], params, other)


def test_why_not() -> None:
    config = ModelConfig(n_layer=1, n_head=1, n_embd=160, n_positions=16, vocab_size=64)
    cache = CapturedPaged(config, 1, 16, 1, 16, torch.device("cpu"), torch.float32)
    forward = FusedForward(random_model(config, seed=0), cache, BatchState.empty(1, torch.device("cpu")))
    assert forward.why_not(17, greedy) == "more rows than the fused kernels take"
    assert forward.why_not(1, greedy) == "a head size that the fused kernels do not know"
