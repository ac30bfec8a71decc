"""Blocks and tables: who owns what, who waits, what is refused, and what a poisoned pool shows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.blocks import NULL, BlockAllocator
from nanoinfer.cache.paged import PagedCache, choose_splits
from nanoinfer.engine.engine import Engine, Row
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import STD, prompts_of

CONFIG = ModelConfig(n_layer=2, n_head=3, n_embd=48, n_positions=300, vocab_size=211)


@pytest.fixture(scope="module")
def model(device: torch.device) -> GPT2:
    return random_model(CONFIG, seed=7, std=STD, device=device)


def cache(device: torch.device, blocks: int, max_batch: int = 4, max_len: int = 128) -> PagedCache:
    return PagedCache(CONFIG, max_batch, max_len, blocks, 16, device, torch.float32)


def run(model: GPT2, memory: PagedCache, lengths: list[int], new: int | list[int]) -> list[Row]:
    each = [new] * len(lengths) if isinstance(new, int) else new
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in each]
    requests = LLM(model).requests(prompts_of(lengths), params)
    engine = Engine(model, memory, memory.tables.shape[0] - 1)
    rows = {row.request.index: row for settled in engine.generate(requests) for row in settled}
    return [rows[i] for i in range(len(lengths))]


# The allocator: invariants over long random histories.


@given(st.integers(1, 20), st.lists(st.integers(0, 30), max_size=200))
@settings(max_examples=200, deadline=None)
def test_invariants(blocks: int, history: list[int]) -> None:
    """No block is owned twice, free and owned make all, and the null block is never handed out."""
    allocator = BlockAllocator(blocks)
    owned: list[int] = []
    for action in history:
        if action % 3 and allocator.free_blocks:
            block = allocator.allocate()
            assert block not in owned
            assert NULL < block < blocks
            owned.append(block)
        elif owned:
            allocator.free(owned.pop(action % len(owned)))
        assert allocator.free_blocks + len(owned) == blocks - 1


def test_exhaustion_and_misuse_are_errors() -> None:
    allocator = BlockAllocator(3)
    first, second = allocator.allocate(), allocator.allocate()
    assert {first, second} == {1, 2}
    with pytest.raises(RuntimeError, match="no free block"):
        allocator.allocate()
    allocator.free(first)
    for wrong in (first, NULL, 3, -1):
        with pytest.raises(ValueError, match=f"block {wrong} is not owned"):
            allocator.free(wrong)
    assert allocator.allocate() == first


# The cache: promises, growth, moves.


def test_growth_takes_blocks_when_texts_need_them(device: torch.device) -> None:
    memory = cache(device, blocks=9)
    memory.admit(0, 40)
    memory.grow([16])
    assert memory.allocator.free_blocks == 7
    memory.grow([17])
    assert memory.allocator.free_blocks == 6
    memory.grow([32])
    assert memory.allocator.free_blocks == 6
    assert memory.tables[0, :3].count_nonzero() == 2
    memory.release([0])
    assert memory.allocator.free_blocks == 8
    assert not memory.tables.any()


def test_a_promise_holds_blocks_that_are_not_taken_yet(device: torch.device) -> None:
    """P06: exactly enough is enough, and one block less is not."""
    memory = cache(device, blocks=1 + 5)
    memory.admit(0, 48)  # three blocks
    memory.grow([1])
    assert memory.can_admit(32)
    assert not memory.can_admit(33)
    memory.admit(1, 32)
    memory.grow([48, 32])
    assert memory.allocator.free_blocks == 0
    memory.release([0])
    assert memory.can_admit(48)
    assert not memory.can_admit(49)


def test_move_takes_table_and_promise_along(device: torch.device) -> None:
    memory = cache(device, blocks=10)
    for row in range(3):
        memory.admit(row, 40)
    memory.grow([20, 20, 33])
    table = memory.tables[2].clone()
    memory.release([0])
    memory.move([2], [0])
    assert torch.equal(memory.tables[0], table)
    assert not memory.tables[2].any()
    memory.grow([40, 20])
    memory.release([0])
    memory.release([1])
    assert memory.allocator.free_blocks == 9


def test_bytes_are_those_of_the_tensors(device: torch.device) -> None:
    memory = cache(device, blocks=7)
    size = sum(t.numel() * t.element_size() for t in (memory.k, memory.v))
    assert PagedCache.bytes(CONFIG, 7, 16, torch.float32) == size


# The engine over it: a full pool makes requests wait, and nothing is lost.


@pytest.mark.parametrize("blocks", [1 + 4, 1 + 6, 1 + 9, 1 + 40])
def test_a_small_pool_makes_requests_wait(model: GPT2, device: torch.device, blocks: int) -> None:
    """Seven requests through pools of every size, down to one that holds a single long row at a time."""
    lengths, new = [30, 1, 50, 9, 20, 3, 33], [10, 20, 5, 30, 1, 40, 9]
    memory = cache(device, blocks)
    rows = run(model, memory, lengths, new)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in new]
    expected = LLM(model, engine="naive").generate(prompts_of(lengths), params)
    assert [tuple(row.token_ids) for row in rows] == [c.token_ids for c in expected]
    assert memory.allocator.free_blocks == blocks - 1
    assert not memory.tables.any()


def test_what_can_never_fit_is_refused_before_anything_runs(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(model, engine="paged", kv_blocks=4)
    fits = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    with monkeypatch.context() as patch:
        patch.setattr(GPT2, "forward", None)
        with pytest.raises(ValueError, match="prompt 1 may grow to 65 tokens, which 4 blocks of 16 cannot hold"):
            llm.generate(prompts_of([50, 51, 2]), fits)
    done = llm.generate(prompts_of([50, 50, 2]), fits)
    print(verify_tokens(llm.forward_logits, done, fits))


def test_an_engine_whose_memory_is_too_small_says_so(model: GPT2, device: torch.device) -> None:
    """`LLM` never makes such a pair; an engine put together by hand must not wait for ever."""
    with pytest.raises(RuntimeError, match="no room"):
        run(model, cache(device, blocks=3), [50], 20)


def test_poisoned_pool(model: GPT2, device: torch.device) -> None:
    """P01, P02, P08: the pool is full of NaN, and every block that is given back is filled with NaN again."""

    class Poisoned(PagedCache):
        def release(self, rows: Sequence[int]) -> None:
            for block in [block for row in rows for block in self.owned[row]]:
                self.k[:, block] = float("nan")
                self.v[:, block] = float("nan")
            super().release(rows)

    lengths = [30, 1, 50, 9, 20, 3, 33]
    clean = run(model, cache(device, 12, max_batch=3), lengths, 20)
    memory = Poisoned(CONFIG, 3, 128, 12, 16, device, torch.float32)
    memory.k.fill_(float("nan"))
    memory.v.fill_(float("nan"))
    poisoned = run(model, memory, lengths, 20)
    assert [row.token_ids for row in poisoned] == [row.token_ids for row in clean]


def test_poisoned_pool_in_chunks(model: GPT2, device: torch.device) -> None:
    """The same for prompts that come in chunks: pages of a context that goes on hold NaN past its end."""
    memory = cache(device, 40, max_batch=4)
    memory.k.fill_(float("nan"))
    memory.v.fill_(float("nan"))
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    llm = LLM(model, engine="naive")
    requests = llm.requests(prompts_of([30, 1, 70, 9]), params)
    engine = Engine(model, memory, 4, prefill_chunk=20)
    rows = {row.request.index: row for settled in engine.generate(requests) for row in settled}
    expected = llm.generate(prompts_of([30, 1, 70, 9]), params)
    assert [tuple(rows[i].token_ids) for i in range(4)] == [c.token_ids for c in expected]


def test_the_last_block_and_other_rows_stay_untouched(model: GPT2, device: torch.device) -> None:
    """G01: padding that wraps around would write into the last block; a sentinel there survives a ragged batch."""
    memory = cache(device, 30)
    memory.k[:, 29] = 7.0
    memory.v[:, 29] = 7.0
    run(model, memory, [30, 1, 50], 20)
    assert bool((memory.k[:, 29] == 7).all())
    assert bool((memory.v[:, 29] == 7).all())


def test_waste_of_both_caches() -> None:
    """On a ragged batch, what is reserved beyond the tokens that exist: arithmetic, by the caches' own formulas."""
    lengths = [20, 40, 100, 300]
    config, dtype = ModelConfig(n_layer=12, n_head=12, n_embd=768), torch.bfloat16
    token = 2 * 12 * 768 * 2
    blocks = sum(-(-n // 16) for n in lengths)
    paged = PagedCache.bytes(config, blocks, 16, dtype) - sum(lengths) * token
    dense = 4 * 1024 * token - sum(lengths) * token
    assert paged < 4 * 16 * token  # less than one block a row
    assert dense > 20 * paged


def test_splits() -> None:
    """A power of two, few where rows are many or short, and the same while a context grows within a power of two."""
    assert choose_splits(1, 12, 1024) == 16
    assert choose_splits(64, 12, 1024) == 1
    assert choose_splits(512, 12, 1024) == 1
    assert choose_splits(1, 12, 1) == 1
    assert {choose_splits(8, 12, n) for n in range(513, 1025)} == {8}
    for batch in (1, 3, 64, 300):
        values = [choose_splits(batch, 12, n) for n in range(1, 1025)]
        assert values == sorted(values)
        assert all(v & (v - 1) == 0 for v in values)
