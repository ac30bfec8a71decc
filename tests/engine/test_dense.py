"""The caches of chapters 2 and 3: what they take of the memory, which is refused, and what a mask shows."""

from __future__ import annotations

import gc

import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.captured import CapturedDense
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.paged import PagedCache
from nanoinfer.engine.step import Chunk, Prefill, Prompts, Rows
from nanoinfer.make import FittingMaker
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from tests.conftest import STD, prompts_of

CONFIG = ModelConfig(n_layer=2, n_head=3, n_embd=48, n_positions=300, vocab_size=211)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(CONFIG, seed=7, std=STD)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_those_of_the_tensors(device: torch.device, dtype: torch.dtype) -> None:
    """And by hand: gpt2 in bf16 has 12 layers, 768 wide, key and value, 2 bytes: 36,864 bytes a token."""
    dense, paged = DenseCache(CONFIG, 3, 40, device, dtype), PagedCache(CONFIG, 4, 128, 7, 16, device, dtype)
    assert bytes_of(3 * 40, dtype) == dense.k.nbytes + dense.v.nbytes
    assert bytes_of(7 * 16, dtype) == paged.k.nbytes + paged.v.nbytes
    assert PRESETS["gpt2"].kv_numbers * 2 == 36_864


def bytes_of(tokens: int, dtype: torch.dtype = torch.float32) -> int:
    return tokens * CONFIG.kv_numbers * dtype.itemsize


def test_no_query_sees_nothing(device: torch.device) -> None:
    """M02: a softmax over nothing is NaN in some versions of torch; here a query sees at least itself."""
    chunks, cache = [Chunk(0, 3, [0] * 2), Chunk(1, 0, [0] * 2)], CapturedDense(CONFIG, 3, 40, device, torch.float32)
    prefill = Prefill(chunks)
    packed = prefill.pack(prefill.layout, dummy=3).to(device)
    mask = cache.plan(Prompts.of_packed(packed, prefill.layout)).mask
    assert (mask == 0).sum(-1)[:, 0].tolist() == [[4, 5], [1, 2]]
    where, row = torch.tensor([0, 39], device=device), torch.arange(2, device=device)
    for batch in Rows(where, where, row, row, 1, 39), Batch(where, where, row, torch.arange(3, device=device), 1, 39):
        assert (cache.plan(batch).mask == 0).sum(-1).flatten().tolist() == [1, 40]


def free_is(patch: pytest.MonkeyPatch, count: int | None) -> None:
    patch.setattr("nanoinfer.make.free_memory", lambda device: count)


def test_capacity_is_said_before_anything_is_computed(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that does not fit is refused by its size when the LLM is made; one that fits runs."""
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    free_is(monkeypatch, bytes_of(5 * 120) - 1)
    with monkeypatch.context() as patch:
        patch.setattr(GPT2, "forward", None)
        with pytest.raises(ValueError, match=r"4 rows of 120 tokens takes .* GB, but .* GB free: lower max_batch"):
            LLM(model, engine="dense", max_batch=4, max_len=120)
    assert len(LLM(model, engine="dense", max_batch=3, max_len=120).generate(prompts_of([100] * 4), params)) == 4


def test_rows_that_nobody_asked_for_take_half_of_the_free_memory(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where max_batch is left out: 64, or as many as half of the memory holds, and always one."""
    row = bytes_of(300)
    for free, rows in ((10**12, 64), (2 * 9 * row, 8), (2 * 65 * row - 1, 63), (2 * row, 1)):
        free_is(monkeypatch, free)
        llm = LLM(model, engine="dense")
        assert (llm.max_batch, len(llm.core.cache.k[0])) == (rows, rows)
    assert LLM(model, engine="dense", max_len=100).max_batch == 2  # and a dummy row, in place of one of 300


def test_the_pool_takes_what_can_be_used_as_far_as_memory_goes(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step computes stays free, and a tenth of the rest; a pool of one block that does not fit is refused."""
    one = bytes_of(16)
    step = 256 * 16 * CONFIG.inner + 3 * 12 * CONFIG.padded_vocab
    for free, blocks in ((None, 3 * 19), (10**9, 3 * 19), (step + 40 * one, 36), (2 * one, 1)):
        free_is(monkeypatch, free)
        llm = LLM(model, engine="paged", max_batch=3, max_batched_tokens=256)
        assert str(llm.core.cache.blocks) == f"{blocks} blocks of 16"
    copied = sum(matrix.nbytes for layer in model.layers for matrix, *_ in layer if matrix.dim() == 2)
    for engine, free in (("paged-graph", step + 40 * one), ("fused", step + copied + 40 * one)):
        free_is(monkeypatch, free)
        maker = FittingMaker(engine, model, 3, 300, max_batched_tokens=256, fused=True)
        assert maker.usable_blocks(one) == 36
    free_is(monkeypatch, 2 * one - 1)
    with pytest.raises(ValueError, match=r"a pool of 1 blocks takes .* GB free: lower kv_blocks"):
        LLM(model, engine="paged", max_batch=3)


@pytest.mark.gpu
def test_what_torch_holds_unused_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from nanoinfer.capacity import free_memory

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 100))
    gc.collect()  # of tests before
    device = torch.device("cuda")
    held = torch.empty(2**28, dtype=torch.uint8, device=device)
    before = free_memory(device)
    del held
    assert before is not None
    assert free_memory(device) == before + 2**28
