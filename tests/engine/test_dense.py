"""The dense cache itself: what it writes, what it reads, what it takes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.dense import READ_MULTIPLE, DenseCache, DensePlan
from nanoinfer.engine.engine import Engine
from nanoinfer.model.batch import Batch, Chunk, Layout, pack, unpack
from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from tests.conftest import STD, prompts_of

CONFIG = ModelConfig(n_layer=2, n_head=3, n_embd=48, n_positions=300, vocab_size=211)
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def model(device: torch.device) -> GPT2:
    return random_model(CONFIG, seed=7, std=STD, device=device)


def cache(device: torch.device, rows: int = 3, max_len: int = 40) -> DenseCache:
    return DenseCache(CONFIG, rows, max_len, device, torch.float32)


def prompts(device: torch.device, *chunks: tuple[int, int, int], layout: Layout | None = None) -> Batch:
    """Chunks of so many tokens, each by its row, where it starts and how many there are."""
    given = [Chunk(row, start, [0] * count) for row, start, count in chunks]
    layout = layout or Layout.of([], given)
    return unpack(pack([], given, layout, dummy=3).to(device), layout)


def decode(device: torch.device, *positions: int) -> Batch:
    """A decode step of rows 0, 1, ... at these positions."""
    where = torch.tensor(positions, device=device)
    return Batch(torch.zeros_like(where), where, torch.arange(len(where), device=device), max(positions) + 1)


def test_bytes_are_those_of_the_tensors(device: torch.device) -> None:
    for rows, length, dtype in ((3, 40, torch.float32), (1, 7, torch.bfloat16)):
        made = DenseCache(CONFIG, rows, length, device, dtype)
        assert DenseCache.bytes(CONFIG, rows, length, dtype) == sum(
            t.numel() * t.element_size() for t in (made.k, made.v)
        )


def test_bytes_by_hand() -> None:
    """gpt2 in bf16: 12 layers, 768 wide, key and value, 2 bytes: 36,864 bytes a token."""
    assert DenseCache.bytes(PRESETS["gpt2"], 511, 1024, torch.bfloat16) == 512 * 1024 * 36_864


@pytest.mark.gpu
def test_bytes_are_those_of_the_allocator() -> None:
    before = torch.cuda.memory_allocated()
    made = DenseCache(PRESETS["gpt2"], 15, 512, torch.device("cuda"), torch.bfloat16)
    taken = torch.cuda.memory_allocated() - before
    assert abs(taken - DenseCache.bytes(PRESETS["gpt2"], 15, 512, torch.bfloat16)) < 16_384
    del made


@pytest.mark.parametrize("captured", [False, True])
def test_prefill_writes_real_tokens_and_no_others(device: torch.device, captured: bool) -> None:
    """A captured step's padding goes to the dummy row: slots of a live row past its prompt keep what they held."""
    dense = cache(device)
    dense.k.fill_(7.0)
    dense.v.fill_(7.0)
    batch = prompts(device, (2, 0, 5), (0, 0, 2), layout=dense.layout(4, 8) if captured else None)
    q = k = v = torch.randn(len(batch.token_ids), 3, 16, device=device)
    dense.attend(dense.plan(batch), 1, q, k, v)
    second = 8 if captured else 5  # where the second prompt begins
    torch.testing.assert_close(dense.k[1, 2, :5], k[:5])
    torch.testing.assert_close(dense.v[1, 0, :2], v[second : second + 2])
    assert bool((dense.k[1, 2, 5:] == 7).all())
    assert bool((dense.k[1, 0, 2:] == 7).all())
    assert bool((dense.k[1, 1] == 7).all())  # a live row of nobody's in this step
    assert bool((dense.k[0] == 7).all())  # another layer
    assert bool((dense.k[1, 3, 1:] == 7).all())
    assert bool((dense.k[1, 3, 0] != 7).any()) == captured


def test_decode_does_not_repeat_the_first_value(device: torch.device) -> None:
    """M04: `is_causal` aligns the triangle to the top left, so that one query over six keys sees key 0 alone."""
    dense = cache(device)
    dense.clear(torch.tensor([0], device=device))
    past = torch.randn(5, 3, 16, device=device)
    dense.attend(dense.plan(prompts(device, (0, 0, 5))), 0, past, past, past)
    new = torch.randn(1, 3, 16, device=device)
    got = dense.attend(dense.plan(decode(device, 5)), 0, new, new, new)
    every = torch.cat([past, new]).transpose(0, 1)  # (H, 6, D)
    expected = F.scaled_dot_product_attention(new.transpose(0, 1), every, every).transpose(0, 1)
    torch.testing.assert_close(got, expected)
    causal = F.scaled_dot_product_attention(new.transpose(0, 1), every, every, is_causal=True)
    torch.testing.assert_close(causal[:, 0], every[:, 0])  # the mistake, as torch makes it
    assert float((got - past[0]).abs().max()) > 0.1


def spoiled(spoil: Callable[[DenseCache, DensePlan], None]) -> type[DenseCache]:
    """A cache of which `spoil` is done to after each plan, with what has been written in `written` (rows, slots)."""

    class Spoiled(DenseCache):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self.written = torch.zeros(self.k.shape[1:3], dtype=torch.bool, device=self.k.device)

        def plan(self, batch: Batch) -> DensePlan:
            plan = super().plan(batch)
            self.written.view(-1)[plan.slots] = True
            self.written[-1] = False  # the dummy row
            spoil(self, plan)
            return plan

        def clear(self, rows: torch.Tensor) -> None:
            super().clear(rows)
            self.written[rows] = False

        def move(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
            super().move(sources, targets)
            self.written[targets] = self.written[sources]
            self.written[sources] = False

    return Spoiled


def run(model: GPT2, dense: DenseCache, chunk: int | None = None) -> list[list[int]]:
    engine = Engine(model, dense, len(dense.k[0]) - 1, prefill_chunk=chunk)
    requests = LLM(model).requests(prompts_of([30, 2, 9, 50, 1]), GREEDY)
    rows = {row.request.index: row for settled in engine.generate(requests) for row in settled}
    return [rows[i].token_ids for i in range(5)]


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("poison", [1e4, -1e4])
def test_poison(model: GPT2, poison: float, chunk: int | None) -> None:
    """Everything that was not written is poisoned before each step; outputs are equal to the last bit."""

    def spoil(dense: Any, plan: DensePlan) -> None:
        empty = ~dense.written[None, :, :, None, None]
        dense.k.masked_fill_(empty, poison)
        dense.v.masked_fill_(empty, poison)

    made = [kind(CONFIG, 2, 128, model.device, torch.float32) for kind in (DenseCache, spoiled(spoil))]
    assert run(model, made[0], chunk) == run(model, made[1], chunk)


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("held", ["keys", "values", "both"])
def test_nan_of_an_old_text_harms_nobody(model: GPT2, held: str, chunk: int | None) -> None:
    """Rows hold NaN from the start, the dummy row too, and whichever row is not live holds it again at every step."""

    def spoil(dense: DenseCache, plan: DensePlan | None) -> None:
        free = slice(None) if plan is None else slice(len(engine.rows), None)
        for name, memory in (("keys", dense.k), ("values", dense.v)):
            if held in (name, "both"):
                memory[:, free] = torch.nan

    results = []
    for kind in (DenseCache, spoiled(spoil)):
        dense = kind(CONFIG, 2, 128, model.device, torch.float32, read_multiple=16)
        if kind is not DenseCache:
            spoil(dense, None)
        engine = Engine(model, dense, 2, prefill_chunk=chunk)
        requests = LLM(model).requests(prompts_of([30, 2, 9, 50, 1]), GREEDY)
        rows = {row.request.index: row for settled in engine.generate(requests) for row in settled}
        results.append([rows[i].token_ids for i in range(5)])
    assert results[0] == results[1]


def test_nan_is_not_hidden_by_a_mask(device: torch.device) -> None:
    """M03, as a lesson: weight 0 times NaN is NaN, so each row starts as zeros; a large number there is harmless."""
    q = torch.randn(1, 1, 1, 16, device=device)
    k, v = torch.randn(2, 1, 1, 8, 16, device=device)
    mask = (torch.arange(8, device=device) < 5)[None, None, None]
    expected = F.scaled_dot_product_attention(q, k[:, :, :5], v[:, :, :5])
    for value, hidden in ((1e4, True), (-1e4, True), (float("nan"), False)):
        v[:, :, 5:] = value
        got = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        assert torch.allclose(got, expected, atol=1e-5) == hidden
    dense = cache(device)
    for memory in (dense.k, dense.v):
        memory.fill_(torch.nan)
        dense.clear(torch.tensor([1, 2], device=device))
        assert memory.isnan().any(-1).any(-1)[0].all(1).tolist() == [True, False, False, True]
        assert not memory[:, 1:3].any()


def test_no_query_sees_nothing(device: torch.device) -> None:
    """M02: a softmax over nothing is NaN in some versions of torch and 0 in others; here no mask has an empty row."""
    dense = cache(device)
    for batch in (prompts(device, (0, 5, 3), (1, 0, 1)), decode(device, 0, 39)):
        assert bool(dense.plan(batch).visible.any(-1).all())
    nothing = torch.zeros(1, 1, 1, 4, dtype=torch.bool, device=device)
    x = torch.randn(1, 1, 4, 16, device=device)
    out = F.scaled_dot_product_attention(x[:, :, :1], x, x, attn_mask=nothing)
    print(f"torch {torch.__version__}: attention to nothing gives {float(out[0, 0, 0, 0])}")


def test_mask_is_the_past_and_oneself(device: torch.device) -> None:
    plan = cache(device).plan(prompts(device, (0, 3, 2), (1, 0, 2)))
    assert plan.visible.shape == (2, 1, 2, 40)
    assert plan.visible.sum(-1)[:, 0].tolist() == [[4, 5], [1, 2]]
    assert plan.visible[0, 0, 0, :6].tolist() == [True, True, True, True, False, False]
    assert torch.equal(plan.mask == 0, plan.visible)


def test_read_lengths_are_few(model: GPT2) -> None:
    """Over a whole generation the read length takes three values, and nothing else changes in shape."""
    seen = set()
    watched = spoiled(lambda dense, plan: None if plan.batch.no_context else seen.add(plan.read))
    engine = Engine(model, watched(CONFIG, 1, 300, model.device, torch.float32), 1)
    list(engine.generate(LLM(model).requests(prompts_of([4]), SamplingParams(max_tokens=290, ignore_eos=True))))
    assert seen == {READ_MULTIPLE, 2 * READ_MULTIPLE, 300}


def test_move_takes_everything_along(device: torch.device) -> None:
    dense = cache(device)
    dense.k.copy_(torch.randn_like(dense.k))
    dense.v.copy_(torch.randn_like(dense.v))
    k, v = dense.k[:, 2].clone(), dense.v[:, 2].clone()
    dense.move(*torch.tensor([[2], [0]], device=device))
    assert torch.equal(dense.k[:, 0], k)
    assert torch.equal(dense.v[:, 0], v)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says why each kernel was not taken
def test_a_mask_rules_out_flash_attention() -> None:
    """M05: torch's own words on our mask, with its flash kernel forced."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(2, 12, 1, 64, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 2, 12, 128, 64, device="cuda", dtype=torch.bfloat16)
    mask = (torch.arange(128, device="cuda") < 70)[None, None, None].expand(2, 1, 1, 128)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        F.scaled_dot_product_attention(q, k, v)
        with pytest.raises(RuntimeError, match="No available kernel"):
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_capacity_is_said_before_anything_is_computed(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that does not fit is refused by its size when the LLM is made; one that fits runs."""
    needed = DenseCache.bytes(CONFIG, 4, 120, torch.float32)
    monkeypatch.setattr("nanoinfer.cache.make_cache.free_memory", lambda device: needed - 1)
    with monkeypatch.context() as patch:
        patch.setattr(GPT2, "forward", None)
        with pytest.raises(ValueError, match=r"4 rows of 120 tokens takes .* GB, but .* GB free: lower max_batch"):
            LLM(model, engine="dense", max_batch=4, max_len=120)
    assert len(LLM(model, engine="dense", max_batch=3, max_len=120).generate(prompts_of([100] * 4), GREEDY)) == 4


def test_rows_that_nobody_asked_for_take_half_of_the_free_memory(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where max_batch is left out: 64, or as many as half of the memory holds, and always one."""
    row = DenseCache.bytes(CONFIG, 1, 300, torch.float32) // 2
    for free, rows in ((10**12, 64), (2 * 9 * row, 8), (2 * 65 * row - 1, 63), (2 * row, 1)):
        monkeypatch.setattr("nanoinfer.cache.make_cache.free_memory", lambda device, free=free: free)
        llm = LLM(model, engine="dense")
        assert (llm.max_batch, len(llm.core.cache.k[0])) == (rows, rows + 1)
    assert LLM(model, engine="dense", max_len=100).max_batch == 2  # and a dummy row, in place of one of 300


@pytest.mark.gpu
def test_what_torch_holds_unused_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from nanoinfer.devices import free_memory

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 100))
    gc.collect()  # of tests before
    device = torch.device("cuda")
    held = torch.empty(2**28, dtype=torch.uint8, device=device)
    before = free_memory(device)
    del held
    assert before is not None
    assert free_memory(device) == before + 2**28
