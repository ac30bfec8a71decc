"""Blocks and tables: who owns what, who waits, what is refused, and what a poisoned pool shows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.blocks import NULL, BlockAllocator, BlockManager
from nanoinfer.cache.paged import PagedCache, choose_splits
from nanoinfer.engine.engine import Engine, Row
from nanoinfer.engine.stats import Stats
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


def run(model: GPT2, paged: PagedCache, lengths: list[int], new: int | list[int]) -> list[Row]:
    each = [new] * len(lengths) if isinstance(new, int) else new
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in each]
    requests = LLM(model).requests(prompts_of(lengths), params)
    engine = Engine(model, paged, paged.tables.shape[0] - 1)
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


# The block manager, and what the device's tables are told.


def test_growth_takes_blocks_when_texts_need_them(device: torch.device) -> None:
    paged = cache(device, blocks=9)
    blocks = paged.blocks
    assert blocks.reserve(0, 40)
    blocks.grow(0, 16)
    assert blocks.allocator.free_blocks == 7
    blocks.grow(0, 17)
    assert blocks.allocator.free_blocks == 6
    blocks.grow(0, 32)
    assert blocks.allocator.free_blocks == 6
    assert not paged.tables.any()  # until it is updated, before a step
    paged.update()
    assert paged.tables[0].tolist() == [*blocks.owned[0], *[NULL] * 6]
    assert not blocks.begun
    blocks.release(0)
    assert blocks.allocator.free_blocks == 8
    assert not paged.tables[1:].any()


def test_a_reservation_holds_blocks_that_are_not_taken_yet() -> None:
    """P06: exactly enough is enough, and one block less is not."""
    blocks = BlockManager(1 + 5, 16, 4)
    assert blocks.reserve(0, 48)  # three blocks
    blocks.grow(0, 1)
    assert not blocks.reserve(1, 33)
    assert blocks.reserved == 2  # of a refusal nothing stays
    assert blocks.reserve(1, 32)
    blocks.grow(0, 48)
    blocks.grow(1, 32)
    assert blocks.allocator.free_blocks == 0
    blocks.release(0)
    assert not blocks.reserve(0, 49)
    assert blocks.reserve(0, 48)
    assert [blocks.fits(tokens) for tokens in (80, 81)] == [True, False]


def test_what_is_truncated_stays_reserved() -> None:
    """The blocks past a text's new end are free, for this row alone."""
    blocks = BlockManager(1 + 5, 16, 2)
    assert blocks.reserve(0, 48)
    blocks.grow(0, 48)
    for length, owned in ((48, 3), (33, 3), (32, 2), (1, 1), (0, 0)):
        blocks.truncate(0, length)
        assert (len(blocks.owned[0]), blocks.reserved) == (owned, 3 - owned)
        assert not blocks.reserve(1, 33)
    blocks.grow(0, 48)
    assert blocks.reserve(1, 32)


def test_move_takes_table_and_reservation_along(device: torch.device) -> None:
    paged = cache(device, blocks=10)
    blocks = paged.blocks
    for row, length in enumerate((20, 20, 33)):
        assert blocks.reserve(row, 40)
        blocks.grow(row, length)
    paged.update()
    table = paged.tables[2].clone()
    blocks.release(0)
    blocks.move([2], [0])
    paged.move(*torch.tensor([[2], [0]], device=device))
    assert torch.equal(paged.tables[0], table)
    assert (blocks.owned[2], blocks.reservation[2]) == ([], 0)
    blocks.grow(0, 40)
    blocks.grow(1, 20)
    blocks.release(0)
    blocks.release(1)
    assert blocks.allocator.free_blocks == 9
    assert blocks.reserved == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 70)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_tables_are_told_of_every_block_that_is_owned(history: list[tuple[int, int, int]]) -> None:
    """Whatever happens between two updates, each row's table begins with the blocks that it owns, in their order."""
    blocks, lengths = BlockManager(1 + 12, 16, 4), [0] * 4
    tables = [[NULL] * 5 for _ in range(4)]
    for action, row, number in history:
        if action == 0 and not blocks.reservation[row]:
            blocks.reserve(row, number)
        elif action in {1, 2}:
            lengths[row] = min(number, 16 * blocks.reservation[row])
            (blocks.grow if action == 1 else blocks.truncate)(row, lengths[row])
        elif action == 3:
            blocks.release(row)
        elif action == 4:
            assert len({told[:2] for told in blocks.begun}) == len(blocks.begun)  # else the device may write either
            for where, column, block in blocks.begun:
                tables[where][column] = block
            blocks.begun.clear()
            for owned, table in zip(blocks.owned, tables, strict=True):
                assert table[: len(owned)] == owned
        assert blocks.allocator.free_blocks + sum(map(len, blocks.owned)) == 12
        assert blocks.reserved == sum(blocks.reservation) - sum(map(len, blocks.owned))


def test_bytes_are_those_of_the_tensors(device: torch.device) -> None:
    paged = cache(device, blocks=7)
    size = sum(t.numel() * t.element_size() for t in (paged.k, paged.v))
    assert PagedCache.bytes(CONFIG, 7, 16, torch.float32) == size


@pytest.mark.parametrize("most", [1, 5, 11, 300])
def test_a_captured_prefill_pads_no_more_than_its_ladder(most: int) -> None:
    """Whatever the number of rows is, tokens are padded to the next total; as many rows as tokens are one, too."""
    paged = cache(torch.device("cpu"), blocks=2, max_batch=most, max_len=1024)
    shapes = paged.shapes(most, 2048)
    totals = sorted({total for _, total in shapes})
    assert totals[:5] == [16, 32, 64, 128, 256]
    for tokens in range(1, 2049):
        for rows in {1, 2, 7, 9, 65, 100, most, tokens}:
            if rows <= min(most, tokens):
                _, total = next(each for each in shapes if each[0] >= rows and each[1] >= tokens)
                assert total == min(each for each in totals if each >= tokens)


# The engine over it: a full pool makes requests wait, and nothing is lost.


@pytest.mark.parametrize("blocks", [1 + 4, 1 + 6, 1 + 9, 1 + 40])
def test_a_small_pool_makes_requests_wait(model: GPT2, device: torch.device, blocks: int) -> None:
    """Seven requests through pools of every size, down to one that holds a single long row at a time."""
    lengths, new = [30, 1, 50, 9, 20, 3, 33], [10, 20, 5, 30, 1, 40, 9]
    paged = cache(device, blocks)
    rows = run(model, paged, lengths, new)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in new]
    expected = LLM(model, engine="naive").generate(prompts_of(lengths), params)
    assert [tuple(row.token_ids) for row in rows] == [c.token_ids for c in expected]
    assert paged.blocks.allocator.free_blocks == blocks - 1
    assert paged.blocks.reserved == 0


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("blocks", [1 + 5, 1 + 7, 1 + 40])
def test_a_small_pool_makes_young_rows_give_way(
    model: GPT2, device: torch.device, monkeypatch: pytest.MonkeyPatch, blocks: int, lag: int, mixed: bool
) -> None:
    """Sampled rows, admitted with the room of their prompts: tokens, noise and counts are as if each had run alone."""
    monkeypatch.setattr("nanoinfer.engine.scheduler.AHEAD", 1)
    lengths, new = [30, 1, 50, 9, 20, 3, 33], [10, 20, 5, 30, 1, 40, 9]
    params = [SamplingParams(temperature=0.9, seed=i, max_tokens=n, ignore_eos=True) for i, n in enumerate(new)]
    llm, paged, stats = LLM(model, engine="naive"), cache(device, blocks), Stats()
    engine = Engine(model, paged, 4, stats, preemption=True, lag=lag, mixed=mixed, prefill_chunk=25)
    requests = llm.requests(prompts_of(lengths), params)
    rows = {row.request.index: row for settled in engine.generate(requests) for row in settled}
    done = llm.generate(prompts_of(lengths), params)
    assert [tuple(rows[i].token_ids) for i in range(7)] == [c.token_ids for c in done]
    assert (stats.preemptions > 0) == (stats.recomputed_tokens > 0) == (blocks < 41)
    assert (stats.requests, stats.prompt_tokens) == (7, sum(lengths))  # each once, however often it was computed
    assert (stats.new_tokens, stats.dropped_tokens) == (sum(new), 0)
    assert paged.blocks.allocator.free_blocks == blocks - 1
    assert paged.blocks.reserved == 0


def test_what_can_never_fit_is_refused_before_anything_runs(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(model, engine="paged", kv_blocks=4)
    fits = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    with monkeypatch.context() as patch:
        patch.setattr(GPT2, "forward", None)
        with pytest.raises(ValueError, match="prompt 1 may grow to 65 tokens, which 4 blocks of 16 cannot hold"):
            llm.generate(prompts_of([50, 51, 2]), fits)
    done = llm.generate(prompts_of([50, 50, 2]), fits)
    print(verify_tokens(llm.forward_logits, done, fits))


def test_an_engine_whose_pool_is_too_small_says_so(model: GPT2, device: torch.device) -> None:
    """`LLM` checks before; an engine that was put together by hand must neither wait for ever nor begin the others."""
    engine = Engine(model, cache(device, blocks=3), 4)
    requests = LLM(model).requests(prompts_of([5, 50]), SamplingParams(max_tokens=20, ignore_eos=True))
    with pytest.raises(ValueError, match="prompt 1 may grow to 70 tokens, which 2 blocks of 16 cannot hold"):
        list(engine.generate(requests))
    assert not engine.busy


@pytest.mark.parametrize("preemption", [False, True])
@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("mixed", [False, True])
def test_poisoned_pool(
    model: GPT2,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    mixed: bool,
    chunk: int | None,
    preemption: bool,
) -> None:
    """P01, P02, P08: the pool is full of NaN, and so is every block that is free, at every step."""
    monkeypatch.setattr("nanoinfer.engine.scheduler.AHEAD", 1)

    class Poisoned(PagedCache):
        def update(self) -> None:
            super().update()
            free = [block for block in range(self.k.shape[1]) if not self.blocks.allocator.owned[block]]
            self.k[:, free] = float("nan")
            self.v[:, free] = float("nan")

    requests = LLM(model).requests(
        prompts_of([30, 1, 50, 9, 20, 3, 33]), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    )
    results = []
    for kind in (PagedCache, Poisoned):
        paged = kind(CONFIG, 3, 128, 8 if preemption else 12, 16, device, torch.float32)
        paged.k.fill_(float("nan"))
        paged.v.fill_(float("nan"))
        engine = Engine(model, paged, 3, prefill_chunk=chunk, mixed=mixed, preemption=preemption)
        rows = {row.request.index: row for settled in engine.generate(requests) for row in settled}
        results.append([tuple(rows[i].token_ids) for i in range(7)])
        assert (engine.stats.preemptions > 0) == preemption
    assert results[0] == results[1]
    expected = LLM(model, engine="naive").generate(
        prompts_of([30, 1, 50, 9, 20, 3, 33]), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    )
    assert results[0] == [c.token_ids for c in expected]


def test_the_last_block_and_other_rows_stay_untouched(model: GPT2, device: torch.device) -> None:
    """G01: padding that wraps around would write into the last block; a sentinel there survives a ragged batch."""
    paged = cache(device, 30)
    paged.k[:, 29] = 7.0
    paged.v[:, 29] = 7.0
    run(model, paged, [30, 1, 50], 20)
    assert bool((paged.k[:, 29] == 7).all())
    assert bool((paged.v[:, 29] == 7).all())


def test_the_pool_takes_what_can_be_used_as_far_as_memory_goes(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step computes stays free, and a tenth of the rest; a pool of one block that does not fit is refused."""
    one = PagedCache.bytes(CONFIG, 1, 16, torch.float32)
    step = 256 * 16 * CONFIG.inner + 3 * 12 * CONFIG.padded_vocab
    for free, blocks in ((None, 3 * 19), (10**9, 3 * 19), (step + 40 * one, 36), (2 * one, 1)):
        monkeypatch.setattr("nanoinfer.cache.make_cache.free_memory", lambda device, free=free: free)
        llm = LLM(model, engine="paged", max_batch=3, max_batched_tokens=256)
        assert str(llm.core.cache.blocks) == f"{blocks} blocks of 16"
    monkeypatch.setattr("nanoinfer.cache.make_cache.free_memory", lambda device: 2 * one - 1)
    with pytest.raises(ValueError, match=r"a pool of 1 blocks takes .* GB free: lower kv_blocks"):
        LLM(model, engine="paged", max_batch=3)


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
