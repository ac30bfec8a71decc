"""The one-launch step's cut of a model, phase by phase on the CPU; tests/gpu/test_persistent.py runs it whole."""

from __future__ import annotations

import pytest
import torch

from nanoinfer.cache.captured import CapturedPaged
from nanoinfer.cache.none import forward_logits
from nanoinfer.engine.state import BatchState
from nanoinfer.labs.one_kernel import phases
from nanoinfer.labs.one_kernel.shape import Shape, pack
from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.weights import random_model


# Widths that fill their pieces and that do not; heads that divide the programs and that do not.
@pytest.mark.parametrize("heads, width, programs", [(4, 128, 132), (5, 160, 132), (4, 256, 30), (6, 384, 84)])
def test_the_phases_make_the_models_logits(heads: int, width: int, programs: int) -> None:
    config = ModelConfig(n_layer=2, n_head=heads, n_embd=width, n_positions=64, vocab_size=301)
    model = random_model(config, 3, std=0.1)
    S = Shape.of(config, programs, max_len=64, page=16, itemsize=4)
    packed = pack(model, S)
    ids = torch.randint(301, (9,), generator=torch.Generator().manual_seed(5))
    expected = forward_logits(model, ids[None])[0]
    cache = [[torch.zeros(0, S.H, S.D)] * 2 for _ in range(S.L)]
    for position, token in enumerate(ids):
        x = model.wte.weight[token] + model.wpe.weight[position]
        for index in range(S.L):
            x, k, v = phases.layer(x, index, packed, *cache[index], S)
            cache[index] = [torch.cat([old, new[None]]) for old, new in zip(cache[index], (k, v), strict=True)]
        h = torch.nn.functional.layer_norm(x, x.shape, packed.gains[-2], packed.gains[-1], S.EPS)
        torch.testing.assert_close(model.head(h), expected[position], rtol=1e-4, atol=1e-4)


def test_sums_in_fixed_point_have_no_order() -> None:
    """133 summands of both signs, in any order: the same word, whose count and sum can be told apart."""
    values = torch.randn(133, generator=torch.Generator().manual_seed(1)) * 3000
    words = phases.fixed(values) + (1 << 56)
    total = int(words.sum())
    assert (total % 2**64 + (1 << 55)) >> 56 == 133  # the upper bits are unsigned
    partial = int(words[:60].sum())
    assert (partial + (1 << 55)) >> 56 == 60, "a sum that is negative so far must not look like one fewer"
    assert abs((total % 2**64 - (133 << 56)) / 2**30 - float(values.double().sum())) < 133 * 2.0**-30
    assert int(phases.fixed(torch.tensor(float("nan")))) == int(phases.fixed(torch.tensor(-1e9)))


@pytest.mark.parametrize(
    "config, programs, why",
    [
        (ModelConfig(2, 12, 768), 11, "12 heads need as many programs"),
        (ModelConfig(2, 4, 4 * 80), 132, "head size 80"),
        (ModelConfig(1, 4, 128), 132, "two layers at least"),
        (PRESETS["gpt2-xl"], 132, "does not fit"),
        (ModelConfig(2, 4, 128, vocab_size=200_000), 132, "200000 ids"),
    ],
)
def test_what_the_kernel_does_not_know_is_refused_by_name(config: ModelConfig, programs: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Shape.of(config, programs, max_len=1024, page=16, itemsize=2)


def test_rows_without_filters_that_it_does_not_serve_are_chosen_by_the_fused_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by another kernel over logits that are written for it."""
    pytest.importorskip("triton", reason="there are no wheels of Triton here")
    from nanoinfer.labs.one_kernel.persistent import persistent_forwards, unfiltered

    model = random_model(ModelConfig(2, 4, 128, n_positions=64, vocab_size=301), 3)
    cache = CapturedPaged(model.config, 1, 64, 7, 16, model.device, model.dtype)
    one, fused, _ = persistent_forwards(model, cache, BatchState.empty(4, model.device))
    launched = list[str]()
    monkeypatch.setattr(fused, "launch", lambda kernel, *given, **constants: launched.append(kernel.fn.__name__))
    assert one.why_not(1, unfiltered) == "one launch a token needs a GPU"
    assert fused.why_not(1, unfiltered) is None
    fused.decode(1, 16, unfiltered)
    assert launched[-1] == "choose_kernel"
