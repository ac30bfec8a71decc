"""The dense cache itself: what it writes, what it reads, what it takes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.dense import READ_MULTIPLE, DenseCache
from nanoinfer.engine.engine import Engine
from nanoinfer.model.batch import Step
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


def step(
    device: torch.device, positions: list[list[int]], last: list[int], rows: list[int], fresh: bool = True
) -> Step:
    where = torch.tensor(positions, device=device)
    return Step(
        torch.zeros_like(where), where, torch.tensor(last, device=device), torch.tensor(rows, device=device),
        longest=int(where.max()) + 1, fresh=fresh,
    )  # fmt: skip


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


def test_prefill_writes_real_columns_and_no_others(device: torch.device) -> None:
    """Padded columns go to the spare row: slots of a live row past its prompt keep what they held."""
    memory = cache(device)
    memory.k.fill_(7.0)
    memory.v.fill_(7.0)
    q = k = v = torch.randn(2, 5, 3, 16, device=device)
    memory.begin(step(device, [[0, 1, 2, 3, 4]] * 2, last=[4, 1], rows=[2, 0]))
    memory.attend(1, q, k, v)
    torch.testing.assert_close(memory.k[1, 2, :5], k[0])
    torch.testing.assert_close(memory.v[1, 0, :2], v[1, :2])
    assert bool((memory.k[1, 2, 5:] == 7).all())
    assert bool((memory.k[1, 0, 2:] == 7).all())
    assert bool((memory.k[1, 1] == 7).all())  # a live row of nobody's in this step
    assert bool((memory.k[0] == 7).all())  # another layer
    assert bool((memory.k[1, memory.dummy, 2:5] != 7).any())


def test_decode_does_not_repeat_the_first_value(device: torch.device) -> None:
    """M04: `is_causal` aligns the triangle to the top left, so that one query over six keys sees key 0 alone."""
    memory = cache(device)
    past = torch.randn(1, 5, 3, 16, device=device)
    memory.begin(step(device, [[0, 1, 2, 3, 4]], last=[4], rows=[0]))
    memory.attend(0, past, past, past)
    new = torch.randn(1, 1, 3, 16, device=device)
    memory.begin(Step(*_one(device, 5), slice(0, 1), longest=6))
    got = memory.attend(0, new, new, new)
    every = torch.cat([past, new], 1).transpose(1, 2)  # (1, H, 6, D)
    expected = F.scaled_dot_product_attention(new.transpose(1, 2), every, every).transpose(1, 2)
    torch.testing.assert_close(got, expected)
    causal = F.scaled_dot_product_attention(new.transpose(1, 2), every, every, is_causal=True)
    torch.testing.assert_close(causal[:, :, 0], every[:, :, 0])  # the mistake, as torch makes it
    assert float((got[:, 0] - past[:, 0]).abs().max()) > 0.1


def _one(device: torch.device, position: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    zero = torch.zeros(1, 1, dtype=torch.int64, device=device)
    return zero, zero + position, zero[0]


@pytest.mark.parametrize("poison", [1e4, -1e4])
def test_poison(model: GPT2, poison: float) -> None:
    """Everything that was not written is poisoned before each step; outputs are equal to the last bit."""

    class Poisoned(DenseCache):
        written: torch.Tensor

        def begin(self, step: Step) -> Step:
            out = super().begin(step)
            if not hasattr(self, "written"):
                self.written = torch.zeros(self.k.shape[1:3], dtype=torch.bool, device=self.k.device)
            self.written.view(-1)[self._slots] = True
            self.written[self.dummy] = False
            empty = ~self.written[None, :, :, None, None]
            self.k.masked_fill_(empty, poison)
            self.v.masked_fill_(empty, poison)
            return out

        def release(self, rows: Sequence[int]) -> None:
            self.written[list(rows)] = False

        def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
            super().move(sources, targets)
            for source, target in zip(sources, targets, strict=True):
                self.written[target] = self.written[source]
                self.written[source] = False

    requests = LLM(model).requests(prompts_of([30, 2, 9, 50, 1]), GREEDY)
    results = []
    for kind in (DenseCache, Poisoned):
        engine = Engine(model, kind(CONFIG, 2, 128, model.device, torch.float32), 2)
        rows = {row.request.index: row for settled in engine.generate(requests) for row in settled}
        results.append([rows[i].token_ids for i in range(5)])
    assert results[0] == results[1]


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("held", ["keys", "values", "both"])
def test_nan_of_an_old_text_harms_nobody(model: GPT2, held: str, chunk: int | None) -> None:
    """All slots hold NaN before a generation, and those of a row again when it leaves, while another one goes on."""

    class Left(DenseCache):
        def spoil(self, rows: slice | list[int]) -> None:
            for name, memory in (("keys", self.k), ("values", self.v)):
                if held in (name, "both"):
                    memory[:, rows] = torch.nan

        def release(self, rows: Sequence[int]) -> None:
            self.spoil(list(rows))

    requests = LLM(model).requests(prompts_of([30, 2, 9, 50, 1]), GREEDY)
    results = []
    for kind in (DenseCache, Left):
        memory = kind(CONFIG, 2, 128, model.device, torch.float32, read_multiple=16)
        if isinstance(memory, Left):
            memory.spoil(slice(None))
        engine = Engine(model, memory, 2, prefill_chunk=chunk)
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
    assert bool(cache(device).v.isfinite().all())


def test_no_query_sees_nothing(device: torch.device) -> None:
    """M02: a softmax over nothing is NaN in some versions of torch and 0 in others; here no mask has an empty row."""
    memory = cache(device)
    for positions, last in (([[5, 6, 7], [0, 1, 2]], [2, 0]), ([[0], [39]], [0, 0])):
        memory.begin(step(device, positions, last, rows=[0, 1], fresh=False))
        assert bool(memory.visible.any(-1).all())
    nothing = torch.zeros(1, 1, 1, 4, dtype=torch.bool, device=device)
    x = torch.randn(1, 1, 4, 16, device=device)
    out = F.scaled_dot_product_attention(x[:, :, :1], x, x, attn_mask=nothing)
    print(f"torch {torch.__version__}: attention to nothing gives {float(out[0, 0, 0, 0])}")


def test_mask_is_the_past_and_oneself(device: torch.device) -> None:
    memory = cache(device)
    memory.begin(step(device, [[3, 4], [0, 1]], last=[1, 1], rows=[0, 1], fresh=False))
    assert memory.visible.shape == (2, 1, 2, 40)
    assert memory.visible.sum(-1)[:, 0].tolist() == [[4, 5], [1, 2]]
    assert memory.visible[0, 0, 0, :6].tolist() == [True, True, True, True, False, False]


def test_read_lengths_are_few(model: GPT2) -> None:
    """Over a whole generation the read length takes three values, and nothing else changes in shape."""
    seen = set()

    class Watched(DenseCache):
        def begin(self, step: Step) -> Step:
            out = super().begin(step)
            if not step.fresh:
                seen.add(self._read)
            return out

    engine = Engine(model, Watched(CONFIG, 1, 300, model.device, torch.float32), 1)
    list(engine.generate(LLM(model).requests(prompts_of([4]), SamplingParams(max_tokens=290, ignore_eos=True))))
    assert seen == {READ_MULTIPLE, 2 * READ_MULTIPLE, 300}


def test_move_takes_everything_along(device: torch.device) -> None:
    memory = cache(device)
    memory.k.copy_(torch.randn_like(memory.k))
    memory.v.copy_(torch.randn_like(memory.v))
    k, v = memory.k[:, 2].clone(), memory.v[:, 2].clone()
    memory.move([2], [0])
    assert torch.equal(memory.k[:, 0], k)
    assert torch.equal(memory.v[:, 0], v)


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
    """A cache that does not fit is refused by its size; the same LLM then runs what fits."""
    llm = LLM(model, engine="dense", max_batch=4)
    needed = DenseCache.bytes(CONFIG, 4, 120, torch.float32)
    monkeypatch.setattr("nanoinfer.cache.make_cache.free_memory", lambda device: needed - 1)
    with monkeypatch.context() as patch:
        patch.setattr(GPT2, "forward", None)
        with pytest.raises(ValueError, match=r"4 rows and 120 tokens takes .* GB, but .* GB free: lower max_batch"):
            llm.generate(prompts_of([100] * 4), GREEDY)
    assert len(llm.generate(prompts_of([100] * 3), GREEDY)) == 3


@pytest.mark.gpu
def test_what_torch_holds_unused_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from nanoinfer.devices import free_memory

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 100))
    device = torch.device("cuda")
    held = torch.empty(2**28, dtype=torch.uint8, device=device)
    before = free_memory(device)
    del held
    assert before is not None
    assert free_memory(device) == before + 2**28
