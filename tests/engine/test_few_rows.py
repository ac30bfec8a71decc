"""The fused decode step against the plain one: in the interpreter's process on a CPU, compiled on a GPU.

K.. are names of the list of defects of kernels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoinfer import SamplingParams
from nanoinfer.cache.naive import forward_logits
from nanoinfer.cache.paged import PagedCache
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import decode_step
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import STD, passed_in_the_interpreter, prompts_of
from tests.engine.fake_graphed import PARAMS, Rerun, graph_llm, greedy_rows, runner_of, tokens

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
RUNS_HERE = INTERPRETED or DEVICE.type == "cuda"
here = pytest.mark.skipif(not RUNS_HERE, reason="runs in the interpreter's process, or on a GPU")

triton = pytest.importorskip("triton", reason="there are no wheels of Triton here")

CONFIG = ModelConfig(n_layer=2, n_head=4, n_embd=48, n_positions=100, vocab_size=211)  # heads of 12: no power of two
WIDE = ModelConfig(n_layer=1, n_head=2, n_embd=128, n_positions=100, vocab_size=101)  # of 64
MAX_LEN = 100


@pytest.mark.skipif(RUNS_HERE, reason="this is that process")
@pytest.mark.long
def test_in_the_interpreter() -> None:
    assert passed_in_the_interpreter(__file__) >= 10


def some_model(config: ModelConfig = CONFIG) -> GPT2:
    return random_model(config, seed=1, std=STD, device=DEVICE)


def rows_of(
    model: GPT2, lengths: Sequence[int | None], sampled: bool = False, block: int = 16
) -> tuple[PagedCache, BatchState]:
    """Rows that have fed so many tokens, None for padding; blocks in any order, and NaN where nothing was written."""
    config, B, each = model.config, len(lengths), -(-MAX_LEN // block)
    cache = PagedCache(config, B, MAX_LEN, B * each + 1, block, DEVICE, torch.float32)
    state, generator = BatchState.empty(B, DEVICE), torch.Generator().manual_seed(3)
    cache.k[:, 1:], cache.v[:, 1:] = float("nan"), float("nan")
    order = torch.randperm(B * each, generator=generator) + 1
    kinds = [(0.0, 0, 1.0), (0.8, 0, 1.0), (1.0, 20, 1.0), (1.2, 0, 0.7), (0.7, 5, 0.9), (0.0, 3, 0.5)]
    for b, length in enumerate(lengths):
        if length is None:
            continue
        cache.tables[b] = order[b * each : (b + 1) * each].int()
        temperature, k, p = kinds[b % len(kinds)] if sampled else kinds[0]
        state.integers[:, b] = torch.tensor([(7 * b + 3) % config.vocab_size, length, 5, 1, 100 + b, k, b])
        state.floats[:, b] = torch.tensor([temperature, p])
        t = torch.arange(length)
        where = cache.tables[b].cpu().long()[t // block]
        for pool in (cache.k, cache.v):
            data = torch.randn(config.n_layer, length, config.n_head, config.head_size, generator=generator)
            pool[:, where, :, t % block] = data.transpose(0, 1).to(DEVICE)
    return cache, state


def fused_of(model: GPT2, cache: Any, state: BatchState) -> Any:
    from nanoinfer.kernels.fused_forward import FusedForward

    return FusedForward(model, cache, state)


def streamed_of(model: GPT2, cache: Any, state: BatchState) -> Any:
    from nanoinfer.kernels.streamed import fused_forwards

    return fused_forwards(model, cache, state)[1]


Maker = Callable[[GPT2, Any, BatchState], Any]
both = pytest.mark.parametrize("make", [fused_of, streamed_of])


def compare(model: GPT2, lengths: Sequence[int | None], make: Maker, sampled: bool = False, block: int = 16) -> None:
    """One step both ways: the same logits, the same state afterwards, and the same keys and values everywhere."""
    from nanoinfer.kernels import sampling

    def spy(logits: Tensor, rows: BatchState) -> Tensor:
        seen.append(logits[: len(lengths)].clone())
        return sampling.sample(logits, rows)

    seen: list[Tensor] = []
    B, live = len(lengths), [b for b, length in enumerate(lengths) if length is not None]
    (plain_cache, plain_state), (cache, state) = (rows_of(model, lengths, sampled, block) for _ in range(2))
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
    cache, state = rows_of(model, lengths, sampled, block)
    make(model, cache, state).decode(B, MAX_LEN, spy)  # a sampler of another kind reads logits
    assert torch.equal(state.integers, plain_state.integers)
    torch.testing.assert_close(seen[1][live], seen[0][live], rtol=1e-4, atol=1e-4)


@here
@both
@pytest.mark.parametrize("lengths", [[0], [99], [31, 32], [63, 0, 64], [5, None, 98, None], [7 * i for i in range(9)]])
def test_step(make: Maker, lengths: list[int | None]) -> None:
    """First and last position, edges of tiles and blocks, padding rows, and a number of rows that is no power of 2."""
    compare(some_model(), lengths, make)


@here
@both
def test_sampled_rows(make: Maker) -> None:
    """Greedy, sampled and filtered rows side by side: those without filters are chosen without logits."""
    compare(some_model(), [40, 3, 17, 64, 2, 9, None, 33], make, sampled=True)


@here
@both
def test_sixteen_rows_of_wide_heads_in_large_blocks(make: Maker) -> None:
    compare(some_model(WIDE), [6 * i for i in range(16)], make, sampled=True, block=32)


@here
def test_more_rows_than_a_program_takes() -> None:
    compare(some_model(WIDE), [i % 97 for i in range(70)], streamed_of, sampled=True)


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


def fused_llm(model: GPT2, **settings: Any) -> Any:
    """An `LLM` of engine fused that replays on a CPU, under the interpreter."""
    llm = graph_llm(model, "fused", recorder=Rerun(), **settings)
    runner: Any = runner_of(llm)
    runner.forwards, runner.pinned = [fused_of(llm.model, runner.cache, runner.state)], True
    if INTERPRETED:
        from nanoinfer.engine.sampling import Samplers
        from nanoinfer.kernels import sampling

        llm.core.samplers = Samplers(*[sampling.sample] * 3)._replace(scoring=llm.core.samplers.scoring)
    return llm


@here
def test_generation(small_model: GPT2) -> None:
    """Rows that come, sample, filter and end at different times, refilled: the oracle's tokens, all but few fused."""
    model = small_model.to(DEVICE)
    llm = fused_llm(model, max_batch=2)
    lengths, params = [4, 1, 30], [replace(p, max_tokens=n) for p, n in zip(PARAMS, (2, 4, 3), strict=False)]
    done = llm.generate(prompts_of(lengths), params)
    print(verify_tokens(lambda text: forward_logits(model, text.to(DEVICE)), done, params))
    assert set(llm.stats.computed_by) == {"fused"}
    assert llm.stats.computed_by["fused"] == llm.stats.decode_steps > 0


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's process")
def test_engine_persistent_says_why_it_uses_other_kernels(small_model: GPT2) -> None:
    from nanoinfer.engine.sampling import Samplers
    from nanoinfer.kernels import sampling
    from nanoinfer.kernels.persistent import forwards_of

    llm = graph_llm(small_model, "persistent", recorder=Rerun(), max_batch=2)
    runner: Any = runner_of(llm)
    runner.forwards, runner.pinned = forwards_of("persistent")(llm.model, runner.cache, runner.state), True
    plain = [sampling.unfiltered, sampling.unfiltered, sampling.sample]
    llm.core.samplers = Samplers(*plain)._replace(scoring=llm.core.samplers.scoring)
    done = llm.generate(prompts_of([4, 9]), params := greedy_rows(3, 2))
    verify_tokens(lambda text: forward_logits(small_model, text), done, params)
    assert set(llm.stats.computed_by) == {"fused: one launch a token needs a GPU"}


@here
def test_what_it_does_not_serve_is_counted_and_right(small_model: GPT2) -> None:
    model, lengths = small_model.to(DEVICE), [1 + i for i in range(17)]
    llm = fused_llm(model, max_batch=17)
    done = llm.generate(prompts_of(lengths), params := greedy_rows(*[2] * 17))
    verify_tokens(lambda text: forward_logits(model, text.to(DEVICE)), done, params)
    assert llm.stats.computed_by == {"op by op: more rows than the fused kernels take": llm.stats.decode_steps}


@here
def test_penalties_and_logprobs_read_its_logits(small_model: GPT2) -> None:
    model = small_model.to(DEVICE)
    llm = fused_llm(model, max_batch=2)
    params = [
        SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=3),
        SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, frequency_penalty=1.5),
    ]
    done = llm.generate(prompts_of([5, 12]), params)
    verify_tokens(lambda text: forward_logits(model, text.to(DEVICE)), done, params)
    assert set(llm.stats.computed_by) == {"fused"}


@here
def test_weights_that_move_are_taken_again(small_model: GPT2) -> None:
    """A graph knows addresses, and the fused step copies besides: both are made anew."""
    model = random_model(small_model.config, seed=1, std=STD, device=DEVICE)
    llm, params = fused_llm(model, max_batch=1), greedy_rows(3)
    tokens(llm, [4], params)
    other = random_model(small_model.config, seed=2, std=STD, device=DEVICE)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.data = theirs.data
    from nanoinfer.model.gpt2 import Layer

    runner = runner_of(llm)
    runner.model.layers[:] = [Layer.of(block) for block in model.h]  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match="has moved"):
        done = llm.generate(prompts_of([4]), params)
    verify_tokens(lambda text: forward_logits(other, text.to(DEVICE)), done, params)


def test_why_not() -> None:
    from nanoinfer.engine.sampling import greedy
    from nanoinfer.kernels.fused_forward import FusedForward

    config = ModelConfig(n_layer=1, n_head=1, n_embd=160, n_positions=16, vocab_size=64)
    model = random_model(config, seed=0)
    cache = PagedCache(config, 1, 16, 2, 16, torch.device("cpu"), torch.float32)
    forward = FusedForward(model, cache, BatchState.empty(1, torch.device("cpu")))
    assert forward.why_not(17, greedy) == "more rows than the fused kernels take"
    assert forward.why_not(1, greedy) == "a head size that the fused kernels do not know"


KINDS = {"B": "i32", "most": "i32", "stride": "i32", "table_stride": "i32", "eps": "fp32", "scale": "fp32",
         "tables": "*i32", "row": "*i64", "positions": "*i64", "scores": "*fp32", "ids": "*i32", "parts": "*fp32",
         "done": "*i32", "temperatures": "*fp32", "top_ks": "*i64", "top_ps": "*fp32", "seeds": "*i64",
         "steps": "*i64"}  # fmt: skip
CUT = {"ROWS": 16, "COLUMNS": 16, "RUN": 256, "WARPS": 4}
FORMS = {
    "few_rows.qkv_kernel": {"H": 25, "D": 64, "PAGE": 16, **CUT},
    "few_rows.up_kernel": {"C": 768, "N": 3072, **CUT},
    "few_rows.update_kernel": {"K": 3072, "C": 768, **CUT, "COLUMNS": 8, "ROWS": 1},
    "few_rows_attention.attend_kernel":
        {"H": 12, "D": 64, "D_POWER": 64, "PAGE": 16, "TILE": 64, "SPLITS": 16},
    "streamed.add_norm_kernel": {"PARTS": 8, "C": 768, "C_POWER": 1024},
    "streamed.product_kernel": {"KIND": "qkv", "K": 1600, "N": 4800, "H": 25, "D": 64, "PAGE": 16, "ROWS": 64,
                                "COLUMNS": 32, "RUN": 128, "SPLITS": 1, "STAGES": 4},
    "few_rows_head.head_kernel": {"C": 768, "V": 50257, "KEEP": False, **CUT, "COLUMNS": 32, "WARPS": 1},
}  # fmt: skip


@pytest.mark.skipif(INTERPRETED, reason="interpreted kernels cannot be compiled")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", FORMS)
def test_compiles_without_a_gpu(name: str, capability: int) -> None:
    """Down to machine code. K10: nothing is written, and the stream is not read, before the wait."""
    from importlib import import_module

    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, kernel_name = name.split(".")
    kernel = getattr(import_module(f"nanoinfer.kernels.{module}"), kernel_name)
    constants = {**FORMS[name], "EARLY": capability >= 90}
    signature = {each: "constexpr" if each in constants else KINDS.get(each, "*bf16") for each in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, each in enumerate(signature.values()) if each[0] == "*"}
    source = ASTSource(kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert len(compiled.asm["cubin"]) > 1000
    assert compiled.metadata.shared <= {80: 163, 90: 227}[capability] * 1024
    code = compiled.asm["ptx"]
    assert code.count("griddepcontrol.wait") == (capability >= 90)
    if capability >= 90:
        before, after = code.split("griddepcontrol.wait")
        assert not re.search(r"\b(st\.global|atom\.|red\.)", before)
        asked = 2 if name.startswith("streamed") else 5  # weights, or keys and values: ahead of the wait
        assert before.count("ld.global") >= asked
        assert "st.global" in after
        assert "ld.global" in after
