"""The model and the naive engine against transformers' GPT2LMHeadModel with the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.none import NoCache, forward_logits
from nanoinfer.model.config import PRESETS
from nanoinfer.model.files import save_model
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import SMALL, STD, prompts_of
from tests.engine.test_rungs import MISTAKES

transformers = pytest.importorskip("transformers")

GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)


class Pair:
    """One model, ours and transformers' own, with equal weights."""

    def __init__(self, model: GPT2, folder: Path) -> None:
        save_model(model, folder)
        self.ours = model
        self.theirs = transformers.GPT2LMHeadModel.from_pretrained(folder).eval().to(model.device)

    @torch.inference_mode()
    def oracle(self, token_ids: Tensor) -> Tensor:
        return self.theirs(token_ids.to(self.ours.device)).logits.float()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, device: torch.device) -> Pair:
    return Pair(random_model(SMALL, seed=1, std=STD, device=device), tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def pair_gpt2(tmp_path_factory: pytest.TempPathFactory, device: torch.device) -> Pair:
    """GPT-2's own shape."""
    return Pair(random_model(PRESETS["gpt2"], seed=2, std=0.1, device=device), tmp_path_factory.mktemp("gpt2"))


def test_float32_is_float32() -> None:
    """TF32 would round every operand to 10 bits and call the result float32."""
    assert torch.backends.cuda.matmul.allow_tf32 is False
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 2), (3, 63), (2, 64), (2, 65), (1, 100)])
def test_logits_small(pair: Pair, shape: tuple[int, int]) -> None:
    token_ids = torch.randint(0, SMALL.vocab_size, shape, generator=torch.Generator().manual_seed(shape[1]))
    ours = forward_logits(pair.ours, token_ids.to(pair.ours.device))
    assert ours.shape == (*shape, SMALL.vocab_size)
    torch.testing.assert_close(ours, pair.oracle(token_ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 1023, 1024])
@pytest.mark.long
def test_logits_gpt2(pair_gpt2: Pair, length: int) -> None:
    """In GPT-2's own shape; every position up to 65 tokens, and the last ones beyond."""
    batch = 3 if length < 100 else 1
    token_ids = torch.randint(0, 50257, (batch, length), generator=torch.Generator().manual_seed(length))
    ours = forward_logits(pair_gpt2.ours, token_ids.to(pair_gpt2.ours.device))
    theirs = pair_gpt2.oracle(token_ids)
    # Logits of these weights reach 15 or so: 1e-4 absolute is about 1e-5 of them.
    torch.testing.assert_close(ours[:, -65:], theirs[:, -65:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("mistake", ["a key is lost", "positions are off by one"])
def test_the_proof_can_fail(pair: Pair, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    """The proof above is worth something only if these two mistakes do not pass it."""
    MISTAKES[mistake](NoCache)(monkeypatch)
    completions = LLM(pair.ours, engine="naive").generate(prompts_of([3, 7, 20]), GREEDY)
    with pytest.raises(AssertionError, match="the oracle chooses"):
        verify_tokens(pair.oracle, completions, GREEDY)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.03), (torch.float16, 0.004)])
def test_sixteen_bits(dtype: torch.dtype, tolerance: float) -> None:
    """Logits in 16 bits against float32, as a share of the largest: rounding once a layer, not a mistake."""
    exact = random_model(PRESETS["gpt2"], seed=2, std=0.05, device="cuda")
    rounded = random_model(PRESETS["gpt2"], seed=2, std=0.05, device="cuda", dtype=dtype)
    token_ids = torch.randint(0, 50257, (2, 256), generator=torch.Generator().manual_seed(0)).cuda()
    expected, got = forward_logits(exact, token_ids), forward_logits(rounded, token_ids)
    error = float((got - expected).norm() / expected.norm())
    assert got.dtype == torch.float32
    assert 0 < error < tolerance
