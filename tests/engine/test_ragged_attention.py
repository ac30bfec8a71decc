"""Attention for any number of new tokens a row: the reference against a plain softmax, the Triton kernel against it.

The kernel is compiled on a GPU, and elsewhere runs in Triton's interpreter, in a process of its own: see
test_paged_attention.py. Whatever no token was written to holds NaN, and pools stand between guard zones of NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoinfer.cache.paged import PagedCache
from nanoinfer.engine.fake_graph import record
from nanoinfer.engine.sampling import SAMPLERS
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import prefill_step
from nanoinfer.kernels import paged_attention_torch as reference
from nanoinfer.model.batch import Batch, Chunk, Layout, pack, unpack
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request, SamplingParams
from tests.conftest import SMALL, passed_in_the_interpreter, prompts_of
from tests.engine.test_paged_attention import DEVICE, INTERPRETED, RUNS_HERE, TOLERANCE, guarded, here

# Tokens before the step, and in it: every count around a tile of 16, decode rows, and long rows among short ones.
MIXED = [(0, 1), (0, 2), (5, 15), (16, 16), (31, 17), (0, 40), (70, 1), (100, 40), (1, 1)]


@pytest.mark.skipif(RUNS_HERE, reason="this is that process")
@pytest.mark.long
def test_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="there are no wheels of Triton here")
    assert passed_in_the_interpreter(__file__, "-k", "kernel") >= 45


class Case(NamedTuple):
    """Rows of which some tokens are in pages already, in a random order of pages; the new ones are written too."""

    q: Tensor  # (N, H, D), strided as a part of qkv
    k_pool: Tensor
    v_pool: Tensor
    tables: Tensor
    batch: Batch

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Batch]:
        return self.q, self.k_pool, self.v_pool, self.tables, self.batch

    def expected(self) -> Tensor:
        """The reference's, which knows of no list of work."""
        return reference.attend_ragged(*self.arguments, None)

    def plain(self) -> Tensor:
        """(N, H, D) float64: for each token a softmax over its text so far, gathered slot by slot."""
        out = torch.full(self.q.shape, torch.nan, dtype=torch.float64)
        page = self.k_pool.shape[2]
        q, k_pool, v_pool = (x.double().cpu() for x in (self.q, self.k_pool, self.v_pool))
        tables = self.tables.tolist()
        for n, (row, position) in enumerate(zip(self.batch.row.tolist(), self.batch.positions.tolist(), strict=True)):
            slots = [(tables[row][t // page], t % page) for t in range(position + 1)]
            keys, values = (torch.stack([pool[p, :, at] for p, at in slots], 1) for pool in (k_pool, v_pool))
            scores = (keys * q[n][:, None]).sum(-1) * q.shape[-1] ** -0.5  # (H, S)
            out[n] = (scores.softmax(-1)[..., None] * values).sum(1)
        return out


def case_of(
    rows: Sequence[tuple[int, int]],
    H: int = 2,
    D: int = 32,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    padding: tuple[int, int] | None = None,
    device: str = DEVICE,
) -> Case:
    """padding: rows without tokens, and tokens of the dummy row, as a captured step has them."""
    generator = torch.Generator().manual_seed(len(rows) + D + page)
    slots = torch.randperm(len(rows), generator=generator).tolist()
    chunks = [Chunk(slot, start, [1] * new) for slot, (start, new) in zip(slots, rows, strict=True)]
    layout = Layout.of([], chunks, 0)
    if padding is not None:
        N = layout.tokens + padding[1]
        layout = Layout(len(rows) + padding[0] + 1, N, len(rows), N, layout.max_context)
    batch = unpack(pack([], chunks, layout, len(rows)).to(device), layout)
    width = -(-layout.max_context // page) + 1
    counts = [-(-(start + new) // page) for start, new in rows]
    order = (torch.randperm(sum(counts) + 2, generator=generator) + 1).tolist()  # never the null page
    k_pool, v_pool = (guarded(sum(counts) + 3, H, page, D, dtype=dtype) for _ in range(2))
    k_pool, v_pool = k_pool.to(device), v_pool.to(device)
    tables = torch.zeros(len(rows) + 1, width, dtype=torch.int32)
    for slot, (start, new), count in zip(slots, rows, counts, strict=True):
        pages = [order.pop() for _ in range(count)]
        tables[slot, :count] = torch.tensor(pages)
        for pool in (k_pool, v_pool):
            values = torch.randn(start + new, H, D, generator=generator).to(device, dtype)
            for t in range(start + new):
                pool[pages[t // page], :, t % page] = values[t]
    qkv = torch.randn(layout.tokens, 3, H, D, generator=generator).to(device, dtype)
    tables = tables.to(device)[:, : width - 1]  # a part of a wider table, as the cache's
    return Case(qkv[:, 0], k_pool, v_pool, tables, batch)


def real(case: Case) -> Tensor:
    """(N,) which tokens are not of the dummy row."""
    return (case.batch.row < len(case.tables) - 1).cpu()


def kernel(case: Case, work: Any = None) -> Tensor:
    """Into memory that holds NaN: a token that nobody writes is seen."""
    from nanoinfer.kernels import ragged_attention

    work = ragged_attention.work_list(case.batch) if work is None else work
    with patch.object(torch, "empty", lambda *shape, **kind: torch.zeros(*shape, **kind).fill_(torch.nan)):
        return ragged_attention.attend_ragged(*case.arguments, work)


def check_kernel(case: Case, tolerance: float | None = None) -> None:
    got, expected, chosen = kernel(case).cpu(), case.expected().cpu(), real(case)
    assert bool(got[chosen].isfinite().all())
    tolerance = tolerance or TOLERANCE[got.dtype]
    torch.testing.assert_close(got[chosen], expected[chosen], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(got[chosen].double(), case.plain()[chosen], rtol=2 * tolerance, atol=2 * tolerance)


def in_tiles_of(tokens: int) -> Any:
    """Work lists and launches have tiles of so many, whatever the step."""
    from nanoinfer.kernels import ragged_attention

    return patch.object(ragged_attention, "tile_of", lambda *step: tokens)


@pytest.mark.parametrize("D", [32, 40, 64, 80, 128])
@pytest.mark.parametrize("page", [16, 32, 64, 128, 256])
def test_the_reference(page: int, D: int) -> None:
    case = case_of(MIXED, D=D, page=page, dtype=torch.float64, device="cpu")
    assert reference.work_list(case.batch) is None  # type: ignore[func-returns-value]
    torch.testing.assert_close(case.expected(), case.plain(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding", [(0, 0), (0, 1), (2, 0), (3, 30)])
def test_the_reference_with_padding(padding: tuple[int, int]) -> None:
    """Whatever the null block holds, which here is NaN, no real token sees it."""
    padded, case = (case_of(MIXED, dtype=torch.float64, padding=p, device="cpu") for p in (padding, None))
    got = padded.expected()
    assert len(got) == len(case.q) + padding[1]
    torch.testing.assert_close(got[: len(case.q)], padded.plain()[: len(case.q)], rtol=1e-12, atol=1e-12)


def test_the_reference_can_fail() -> None:
    """One key hidden, positions off by one, the rows of others: far outside the tolerance, each."""
    case = case_of(MIXED, dtype=torch.float64, device="cpu")
    expected, batch = case.plain(), case.batch
    hidden = replace(batch, positions=(batch.positions - 1).clamp(min=0))
    swapped = replace(batch, row=(batch.row + 1) % len(MIXED))
    for wrong in (hidden, swapped):
        got = case._replace(batch=wrong).expected()
        assert float((got - expected).nan_to_num(9.0).abs().max()) > 0.01


@here
@pytest.mark.parametrize("page", [16, 32, 64, 128, 256])
def test_kernel_block_sizes(page: int) -> None:
    check_kernel(case_of(MIXED, page=page))


@here
@pytest.mark.parametrize("D", [16, 32, 40, 64, 80, 96, 128])
def test_kernel_head_sizes(D: int) -> None:
    """Powers of two and others: padded lanes neither read nor write."""
    check_kernel(case_of([(3, 17), (40, 1), (0, 5)], H=3, D=D))


@here
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_kernel_dtypes(dtype: torch.dtype) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16")
    check_kernel(case_of([(60, 20), (0, 17), (33, 1)], D=64, dtype=dtype))


@here
@pytest.mark.parametrize("new", [1, 2, 15, 16, 17, 40])
def test_kernel_one_row(new: int) -> None:
    """Alone, as a prompt and as a piece of one."""
    for start in (0, 1, 63, 64, 100):
        check_kernel(case_of([(start, new)], H=1, D=16))


STEPS = {  # rows, and padding
    "rows that go on, prompts, a piece": (MIXED, None),
    "a prompt's first token beside rows that go on": ([(40, 1), (0, 1), (63, 1), (0, 20), (17, 9)], (0, 0)),
    "a piece of one token behind a longer one": ([(40, 1), (5, 16), (30, 1)], (2, 0)),
    "room for more": ([(40, 1), (0, 2), (30, 1), (7, 5)], (3, 30)),
    "none goes on": ([(0, 70), (5, 1), (9, 3)], (0, 1)),
    "all go on": ([(40, 1), (64, 1), (130, 1)], None),
    "all go on, and one token of padding": ([(40, 1), (64, 1)], (1, 1)),
    "one row, and many without tokens": ([(5, 2)], (9, 4)),
    "one token, and padding": ([(0, 1)], (1, 40)),
}


@here
@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.parametrize("name", STEPS)
def test_kernel_in_mixed_steps(name: str, tile: int) -> None:
    """Large tiles are an economy, and change nothing else."""
    rows, padding = STEPS[name]
    with in_tiles_of(tile):
        check_kernel(case_of(rows, padding=padding))


@here
@pytest.mark.parametrize("rows, tokens", [(1, 16), (4, 32), (3, 2)])
def test_kernel_in_the_cache(rows: int, tokens: int) -> None:
    """As a captured step has it: room for more rows than the cache has, and padding."""
    chunks = [Chunk(1, 40, [1]), Chunk(0, 30, [1]), Chunk(2, 5, [1] * (tokens - 16))][: 3 if tokens > 16 else rows]
    cache = cache_with([3, 3, 3])
    layout, generator = cache.layout(rows, tokens), torch.Generator().manual_seed(0)
    batch = unpack(pack([], chunks[: min(rows, tokens)], layout, 3), layout)
    plan = cache.plan(batch)
    assert plan.lengths is None
    pools, H, D = cache.k[0], SMALL.n_head, SMALL.head_size
    for pool in (cache.k, cache.v):
        pool[0] = torch.randn(pools.shape, generator=generator)
    q, k, v = torch.randn(3, tokens, H, D, generator=generator)
    got = cache.attend(plan, 0, q, k, v)
    expected = reference.attend_ragged(q, cache.k[0], cache.v[0], plan.tables, batch, None)
    real = batch.row < 3
    torch.testing.assert_close(got[real], expected[real], rtol=1e-5, atol=1e-5)


@here
@pytest.mark.parametrize("more", [[], [(3, 2)] * 5], ids=["large tiles", "small tiles"])
def test_kernel_at_the_bound_of_large_tiles(more: list[tuple[int, int]]) -> None:
    """522 tokens of 6 rows are cut into tiles of 64; and with five short rows more, 532 of 11, into tiles of 16."""
    case = case_of([(0, 300), (37, 64), (10, 65), (200, 1), (0, 63), (0, 29), *more], H=1, D=16)
    assert len(case.q) == 522 + sum(new for _, new in more)
    check_kernel(case)


@here
def test_kernel_scores_near_the_limits() -> None:
    """One huge key early in the text, and scores in the hundreds: without a running maximum exp overflows."""
    case = case_of([(80, 17), (0, 20)])
    row = int(case.batch.row[0])
    case.k_pool[int(case.tables[row, 0]), :, 3] = 60.0 * case.q[0].sign()
    case.q.mul_(20)
    check_kernel(case, 1e-4)


@here
def test_kernel_identical_rows_give_identical_results() -> None:
    """To the last bit, whatever pages they lie in and whoever is beside them."""
    case = case_of([(30, 20), (30, 20)])
    first, second = int(case.batch.row[0]), int(case.batch.row[20])
    case.q[20:] = case.q[:20]
    for pool in (case.k_pool, case.v_pool):
        for a, b in zip(case.tables[first].tolist(), case.tables[second].tolist(), strict=True):
            pool[b] = pool[a]
    got = kernel(case)
    assert torch.equal(got[:20], got[20:])


@here
def test_kernel_and_a_decode_step_agree() -> None:
    """Rows of one token each: what `attend_pages` gives."""
    from nanoinfer.kernels import paged_attention

    case = case_of([(5, 1), (0, 1), (77, 1), (31, 1)])
    q, k_pool, v_pool, tables, batch = case.arguments
    done = torch.zeros(4 * 2, dtype=torch.int32, device=DEVICE)
    decoded = paged_attention.attend_pages(q, k_pool, v_pool, tables[batch.row], batch.positions + 1, done)
    torch.testing.assert_close(kernel(case), decoded, rtol=1e-5, atol=1e-5)


@here
def test_kernel_comparison_can_fail() -> None:
    """One key hidden, another row's pages, a list that leaves a token out, and one of tiles that are not launched."""
    from nanoinfer.kernels import ragged_attention

    case = case_of([(40, 17), (20, 17)])
    batch, expected = case.batch, case.expected()
    hidden, swapped = replace(batch, positions=batch.positions - 1), replace(batch, row=1 - batch.row)
    short = ragged_attention.work_list(batch).clone()
    short[0, 1] -= 1
    with in_tiles_of(64):
        large = ragged_attention.work_list(batch)
    for wrong in (case._replace(batch=hidden), case._replace(batch=swapped)):
        assert not torch.allclose(kernel(wrong), expected, rtol=1e-3, atol=1e-3, equal_nan=True)
    for work in (short, large):
        assert bool(kernel(case, work).isnan().any())


@pytest.mark.skipif(not INTERPRETED, reason="a GPU that reads elsewhere is of no use to the tests after this one")
def test_kernel_reads_nothing_for_an_item_without_tokens() -> None:
    """Wherever it says that its first token is: to read there would end the process."""
    from nanoinfer.kernels import ragged_attention

    case = case_of([(40, 1), (3, 20)], padding=(2, 0))
    work = ragged_attention.work_list(case.batch)
    assert work[-4:, 1].tolist() == [0] * 4
    work[-4:, 0] = 2**30
    torch.testing.assert_close(kernel(case, work), case.expected(), rtol=1e-5, atol=1e-5)


COUNTS = st.integers(0, 2) | st.integers(0, 150)  # tokens of a row


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 20), st.lists(COUNTS, max_size=12), st.integers(0, 3))
def test_work_list(singles: int, counts: list[int], empty: int) -> None:
    """Every token in exactly one item, in order; none over two rows; items without tokens last.

    And as many items as are known without a value.
    """
    ragged_attention = pytest.importorskip(
        "nanoinfer.kernels.ragged_attention", reason="there are no wheels of Triton here"
    )
    counts = [*[1] * singles, *counts, *[0] * empty]
    counts = counts if sum(counts) else [1, *counts]
    N, B, starts = sum(counts), len(counts), torch.tensor([0, *counts]).cumsum(0)
    none = torch.zeros(N, dtype=torch.int64)
    work = ragged_attention.work_list(Batch(none, none, none, 1, max_new=max(counts), starts=starts))
    tile = 64 if N >= 512 and N >= 64 * B else 16
    assert (work.dtype, work.shape) == (torch.int32, (-(-N // tile) + B, 2))
    row_of = [row for row, count in enumerate(counts) for _ in range(count)]
    taken, items = [], work.tolist()
    for first, count in items:
        assert 0 <= count <= tile
        taken += range(first, first + count)
        assert len(set(row_of[first : first + count])) <= 1
    assert taken == list(range(N))
    used = sum(-(-count // tile) for count in counts)
    assert all(count for _, count in items[:used])
    assert not any(count for _, count in items[used:])


TILES = [
    (1, 1, 16), (511, 1, 16), (512, 1, 64), (512, 8, 64), (512, 9, 16), (575, 9, 16), (576, 9, 64),
    (1024, 16, 64), (1024, 17, 16), (8191, 128, 16), (8192, 128, 64),
]  # fmt: skip


@pytest.mark.parametrize("tokens, rows, tile", TILES)
def test_large_tiles_are_for_many_tokens_a_row(
    tokens: int, rows: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 512 tokens on, where they would fill them; and what is launched is what the list was made for."""
    ragged_attention = pytest.importorskip(
        "nanoinfer.kernels.ragged_attention", reason="there are no wheels of Triton here"
    )
    assert ragged_attention.tile_of(tokens, rows) == tile
    batch = unpack(pack([], [Chunk(0, 0, [1] * tokens)], layout := Layout(rows, tokens, 1, tokens, tokens), 1), layout)
    work = ragged_attention.work_list(batch)
    assert len(work) == -(-tokens // tile) + rows
    assert int(work[0, 1]) == min(tile, tokens)
    grid, constants = launch_of(monkeypatch, torch.zeros(tokens, 2, 16), torch.zeros(2, 2, 2, 16, 16), batch)[::2]
    assert grid == (2, len(work), 1)
    assert constants["QUERIES"] == tile


def launch_of(monkeypatch: pytest.MonkeyPatch, q: Tensor, pools: Tensor, batch: Batch) -> tuple[Any, Any, Any]:
    """The grid, the tensors and the constants that the kernel is launched with."""
    from nanoinfer.kernels import ragged_attention

    launched: list[Any] = []
    monkeypatch.setattr(ragged_attention, "_attend", lambda *call, **constants: launched.extend([*call, constants]))
    table = torch.zeros(2, 40, dtype=torch.int32)
    ragged_attention.attend_ragged(q, pools[0], pools[1], table, batch, ragged_attention.work_list(batch))
    grid, tensors, _, constants = launched
    return grid, tensors, constants


SHARED = {75: 65536, 80: 166912, 89: 101376, 90: 232448}  # bytes of shared memory that a program may take
COMPILED = [
    (torch.float16, 64, 8, 75), (torch.float16, 64, 600, 75), (torch.float16, 64, 600, 80),
    (torch.float16, 80, 600, 90), (torch.float32, 64, 600, 75), (torch.float32, 40, 8, 89),
    (torch.float32, 128, 600, 75),
]  # fmt: skip


@pytest.mark.skipif(INTERPRETED, reason="interpreted kernels cannot be compiled")
@pytest.mark.parametrize("dtype, D, N, capability", COMPILED)
def test_compiles_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, D: int, N: int, capability: int
) -> None:
    """With the constants that it is launched with, and within the shared memory of the GPUs of that kind."""
    triton = pytest.importorskip("triton", reason="there are no wheels of Triton here")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from nanoinfer.kernels import ragged_attention

    q, pools = torch.zeros(N, 12, D, dtype=dtype), torch.zeros(2, 2, 12, 16, D, dtype=dtype)
    batch = unpack(pack([], [Chunk(0, 0, [1] * N)], layout := Layout(1, N, 1, N, N), 1), layout)
    _, tensors, constants = launch_of(monkeypatch, q, pools, batch)
    names = {torch.float16: "*fp16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
    kinds = [*(names[tensor.dtype] for tensor in tensors), "i32", "i32", "fp32", *["constexpr"] * len(constants)]
    kernel = ragged_attention._ragged_kernel
    signature = dict(zip(kernel.arg_names, kinds, strict=True))
    assert list(signature)[-len(constants) :] == list(constants)
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert len(compiled.asm["cubin"]) > 1000
    assert compiled.metadata.shared <= SHARED[capability]


def cache_with(blocks: list[int], dtype: torch.dtype = torch.float32) -> PagedCache:
    """A pool of NaN, with this many blocks for each row."""
    cache = PagedCache(SMALL, 3, SMALL.n_positions, 20, 16, torch.device("cpu"), dtype)
    cache.k.fill_(torch.nan)
    cache.v.fill_(torch.nan)
    for row, count in enumerate(blocks):
        assert cache.blocks.reserve(row, 16 * count)
        cache.blocks.grow(row, 16 * count)
    cache.update()
    return cache


@pytest.mark.skipif(INTERPRETED, reason="plain PyTorch")
@pytest.mark.parametrize("recorded", [False, True])
@torch.inference_mode()
def test_a_row_whose_prompt_goes_on_changes_nothing(small_model: GPT2, recorded: bool) -> None:
    """Neither token, position, step nor live; its neighbours' tokens are as without it, in steps of all kinds."""
    params = SamplingParams(temperature=0.9)
    requests = [Request(i, tuple(ids), params, 5 + i, 9, frozenset()) for i, ids in enumerate(prompts_of([20, 30, 6]))]
    first, second, third = (request.prompt_token_ids for request in requests)
    cache, state = cache_with([3, 3, 3]), BatchState.empty(3, torch.device("cpu"))
    state.admit(range(3), requests)
    layout = cache.layout(4, 64)

    def run(*chunks: Chunk, going: Sequence[int] = ()) -> list[int]:
        """The tokens of rows that go on, then of the chunks that are complete."""
        packed = pack(going, chunks, layout, state.dummy)
        if recorded:
            held = pack([], [], layout, state.dummy).clone()
            graph, tokens = record(
                lambda: prefill_step(small_model, cache, state, unpack(held, layout), SAMPLERS.unfiltered)
            )
            held.copy_(packed)
            graph.replay()
        else:
            tokens = prefill_step(small_model, cache, state, unpack(packed, layout), SAMPLERS.unfiltered)
        return tokens[: len(going) + sum(chunk.complete for chunk in chunks)].tolist()

    (newest,) = run(Chunk(0, 0, first))
    before = state.integers.clone()
    assert before[:4, 0].tolist() == [newest, 20, 1, 1]
    assert run(Chunk(1, 0, second[:13], complete=False)) == []
    assert torch.equal(state.integers[:, :3], before[:, :3])
    one, two = run(Chunk(2, 0, third), Chunk(1, 13, second[13:29], complete=False), going=[0])
    assert state.integers[:4, :3].T.tolist() == [[one, 21, 2, 1], [0, 0, 0, 0], [two, 6, 1, 1]]
    assert state.row.tolist() == [0, 3, 2, 3]
    three, four = run(Chunk(1, 29, second[29:]), going=[0])
    assert state.integers[:4, :3].T.tolist() == [[three, 22, 3, 1], [four, 30, 1, 1], [two, 6, 1, 1]]

    alone = BatchState.empty(3, torch.device("cpu"))
    alone.admit(range(3), requests)
    cache, state = cache_with([3, 3, 3]), alone
    assert run(Chunk(0, 0, first)) == [newest]
    assert run(going=[0]) == [one]
    assert run(going=[0]) == [three]
    assert run(Chunk(1, 0, second)) == [four]
    assert run(Chunk(2, 0, third)) == [two]
