"""The bridge's small.py has the logits of transformers' Llama and Qwen2, and planted mistakes change them."""

from __future__ import annotations

import ast
import dataclasses
import runpy
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from nanobook.examples import load
from nanoinfer.model.config import PRESETS
from tests.book.chapter_pages import CHAPTERS, checkout

FOLDER = CHAPTERS / "bridge"
SMALL = FOLDER / "small.py"
IDS = [7, 60, 3, 3, 41, 99, 0, 12, 77, 5, 23, 8]
SHAPE = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 101, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 100.0}  # a small base: the slow pairs turn within a short text, too
KINDS: dict[str, dict[str, Any]] = {
    "Llama": {"rope_parameters": PLAIN, "head_dim": 16},  # heads wider than C / H
    "Llama, scaled as 3.1": {"rope_parameters": LLAMA3},
    "Llama, tied": {"rope_parameters": PLAIN, "tie_word_embeddings": True, "num_key_value_heads": 6},
    "Qwen2": {"rope_parameters": PLAIN, "num_key_value_heads": 3},
}
ANGLE, GROUPS = "torch.arange(at, at + T)[:, None] * freq", "view(K, H // K, T, D) @ keys.mT"
MISTAKES = {
    "a new token is one position late": (ANGLE, "(torch.arange(at, at + T) + (at > 0))[:, None] * freq"),
    "positions are counted in the step": (ANGLE, "torch.arange(T)[:, None] * freq"),
    "queries are one position late": ("turn(q, angle)", "turn(q, angle + frequencies(shape, D))"),
    "neighbours are a pair": ("a, b = x.chunk(2, -1)", "a, b = x[..., ::2], x[..., 1::2]"),
    "keys are stored unturned": ("torch.stack((turn(k, angle), v))", "torch.stack((k, v))"),
    "values are turned, too": ("turn(k, angle), v))", "turn(k, angle), turn(v, angle)))"),
    "the head of another group": (GROUPS, "view(H // K, K, T, D).transpose(0, 1) @ keys.mT"),
    "a score by the model's width": ("/ D**0.5", "/ (C / H) ** 0.5"),
    "no norm before the head": ('norm(x[-1], "model.norm")', "x[-1]"),
    "no norm before the MLP": ('norm(x, h + "post_attention_layernorm")', "x"),
    "LayerNorm": ('F.rms_norm(x, (C,), w[name + ".weight"]', 'F.layer_norm(x, (C,), w[name + ".weight"], None'),
    "gate and up in each other's place": ('F.silu(linear(y, h + "mlp.gate_proj")) * linear(y, h + "mlp.up_proj")',
                                          'F.silu(linear(y, h + "mlp.up_proj")) * linear(y, h + "mlp.gate_proj")'),
    "a tied head": ('w.get("lm_head.weight", w["model.embed_tokens.weight"])', 'w["model.embed_tokens.weight"]'),
}  # fmt: skip

pytestmark = checkout


@pytest.fixture(scope="module")
def small() -> ModuleType:
    return load(SMALL)


def theirs(kind: str) -> tuple[dict[str, torch.Tensor], dict[str, Any], torch.Tensor]:
    """Return weights on which mistakes show, the config, and transformers' logits (T, V) after each token of IDS."""
    transformers = pytest.importorskip("transformers")
    name = kind.partition(",")[0]
    config = getattr(transformers, f"{name}Config")(**{**SHAPE, **KINDS[kind]})
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases, too
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.3)
        logits = model(torch.tensor([IDS])).logits[0]
    return dict(model.state_dict()), config.to_dict(), logits


def ours(small: Any, w: dict[str, torch.Tensor], shape: dict[str, Any], parts: list[int]) -> list[torch.Tensor]:
    """Return the logits after each part of IDS, fed into one cache."""
    heads = shape["num_attention_heads"]
    size = shape.get("head_dim") or shape["hidden_size"] // heads
    cache = torch.full((2, shape["num_hidden_layers"], shape["num_key_value_heads"], len(IDS), size), torch.nan)
    ends = [sum(parts[: n + 1]) for n in range(len(parts))]
    with torch.no_grad():
        return [small.step(IDS[end - T : end], end - T, cache, w, shape) for T, end in zip(parts, ends, strict=True)]


def error(small: Any, kind: str, parts: list[int]) -> float:
    """Return how far our logits are from theirs, at most, in units of their largest."""
    w, shape, logits = theirs(kind)
    ends = torch.tensor(parts).cumsum(0) - 1
    return float((torch.stack(ours(small, w, shape, parts)) - logits[ends]).abs().max() / logits.abs().max())


def mistaken(old: str, new: str) -> Any:
    source = SMALL.read_text(encoding="utf-8")
    assert source.count(old) == 1, old
    module = ModuleType("mistaken")
    exec(source.replace(old, new), module.__dict__)
    return module


@pytest.mark.parametrize("parts", [[12], [1] * 12, [5, 3, 1, 3]], ids=["at once", "one by one", "in chunks"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_theirs(small: ModuleType, kind: str, parts: list[int]) -> None:
    assert error(small, kind, parts) < 1e-5


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str) -> None:
    assert error(mistaken(*MISTAKES[name]), "Llama", [7, 1, 1, 1, 1, 1]) > 1e-2


def test_a_missing_bias_shows() -> None:
    assert error(mistaken('w.get(name + ".bias", 0)', "0"), "Qwen2", [12]) > 1e-2


def test_all_positions_off_by_the_same_do_not_show() -> None:
    """A proof by RoPE's logits must move some positions and not others. The page says so."""
    late = mistaken(ANGLE, "torch.arange(at + 7, at + T + 7)[:, None] * freq")
    assert error(late, "Llama", [7, 1, 1, 1, 1, 1]) < 1e-5


def test_a_published_config_gives_the_same_frequencies(small: ModuleType) -> None:
    """On the Hub, rope_theta stands alone; transformers 5 keeps it with the scaling. Another scaling is refused."""
    flat = {"rope_theta": 100.0, "rope_scaling": {key: LLAMA3[key] for key in LLAMA3 if key != "rope_theta"}}
    assert torch.equal(small.frequencies(flat, 16), small.frequencies({"rope_parameters": LLAMA3}, 16))
    none = {"rope_theta": 100.0, "rope_scaling": None}
    assert torch.equal(small.frequencies(none, 16), small.frequencies({"rope_parameters": PLAIN}, 16))
    with pytest.raises(KeyError):
        small.frequencies({"rope_theta": 100.0, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 16)


def test_greedy_tokens_are_theirs(small: ModuleType) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**SHAPE, "initializer_range": 0.3})).eval()
    with torch.no_grad():
        tokens, cache = small.generate(IDS[:4], 20, dict(model.state_dict()), model.config.to_dict())
    whole = model.generate(torch.tensor([IDS[:4]]), max_new_tokens=20, do_sample=False)
    assert tokens == whole[0].tolist()
    assert cache.shape == (2, 3, 2, 24, 8)


def test_the_pages_arithmetic_counts_what_there_is() -> None:
    """Bytes of weights and of a token: as this package has them for GPT-2, and transformers for the others."""
    transformers = pytest.importorskip("transformers")
    shapes = load(FOLDER / "example.py").SHAPES
    for name in ("gpt2", "gpt2-xl"):
        assert shapes[name].weights == 2 * PRESETS[name].parameters
        assert shapes[name].token == 2 * PRESETS[name].kv_numbers
    for name, kind in (("Llama-3.1-8B", "Llama"), ("Qwen2.5-7B", "Qwen2")):
        s = shapes[name]
        config = getattr(transformers, f"{kind}Config")(
            hidden_size=s.width, intermediate_size=s.inner, num_hidden_layers=2, num_attention_heads=s.heads,
            num_key_value_heads=s.key_heads, vocab_size=s.vocabulary,
        )  # fmt: skip
        with torch.device("meta"):
            model = getattr(transformers, f"{kind}ForCausalLM")(config)
        two = dataclasses.replace(s, layers=2)
        assert 2 * sum(parameter.numel() for parameter in model.parameters()) == two.weights
        layers = model(torch.zeros(1, 5, dtype=torch.long, device="meta")).past_key_values.layers
        assert {layer.keys.shape for layer in layers} == {(1, s.key_heads, 5, s.head_size)}


def test_is_short_and_stands_alone_and_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = SMALL.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 90
    nodes = list(ast.walk(ast.parse(source)))
    assert not [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names} == {
        "sys",
        "torch",
        "torch.nn.functional",
    }
    monkeypatch.setattr(sys, "argv", ["small.py", "3", "1", "4"])
    runpy.run_path(str(SMALL), run_name="__main__")
    out, _ = capsys.readouterr()
    assert out.startswith("tokens: [3, 1, 4, ")
    assert "all at once: the same scores" in out
    assert "= 1,024 bytes a token" in out
