"""Llama and Qwen2 with a KV cache, in one file. Needs torch, nothing else.

A comment in capitals names the change from chapters/01-naive/small.py. `cache` marks what chapter 2 added.
"""

import sys

import torch
import torch.nn.functional as F

SHAPE = {  # of a Llama that fits anywhere, under the names of a config.json
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 500, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip


def drawn(shape: dict) -> dict[str, torch.Tensor]:
    """Draw random weights under transformers' names. A matrix is (out, in); chapter 1's are (in, out)."""
    C, M, V, D = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"], shape["head_dim"]
    q, kv = shape["num_attention_heads"] * D, shape["num_key_value_heads"] * D
    sizes = {"model.embed_tokens": (V, C), "lm_head": (V, C), "model.norm": (C,)}
    for h in [f"model.layers.{layer}." for layer in range(shape["num_hidden_layers"])]:
        sizes |= {h + "input_layernorm": (C,), h + "post_attention_layernorm": (C,), h + "self_attn.q_proj": (q, C)}
        sizes |= {h + "self_attn.k_proj": (kv, C), h + "self_attn.v_proj": (kv, C), h + "self_attn.o_proj": (C, q)}
        sizes |= {h + "mlp.gate_proj": (M, C), h + "mlp.up_proj": (M, C), h + "mlp.down_proj": (C, M)}
    return {f"{at}.weight": torch.randn(s) / C**0.5 if len(s) == 2 else torch.ones(s) for at, s in sizes.items()}


def frequencies(shape: dict, D: int) -> torch.Tensor:
    """Return the angle (D / 2,), in radians per position, by which RoPE turns each pair of a head's numbers."""
    rope = shape.get("rope_parameters") or {"rope_theta": shape["rope_theta"], **(shape.get("rope_scaling") or {})}
    angles = rope["rope_theta"] ** (-torch.arange(0, D, 2) / D)
    if "factor" in rope:  # Llama 3.1 slows its slowest pairs down, for longer texts; another kind raises KeyError
        turns, low = angles * rope["original_max_position_embeddings"] / (2 * torch.pi), rope["low_freq_factor"]
        keep = ((turns - low) / (rope["high_freq_factor"] - low)).clamp(0, 1)
        angles = angles * (keep + (1 - keep) / rope["factor"])
    return angles


def turn(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotate x (heads, T, D) by angle (T, D / 2): number i makes a pair with number i + D / 2."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def step(new: list[int], at: int, cache: torch.Tensor, w: dict[str, torch.Tensor], shape: dict) -> torch.Tensor:
    """T new tokens, the first at position `at`, and the cache (2, L, K, S, D) -> (V,), a score for each next token."""
    T, C, H, (_, L, K, _, D) = len(new), shape["hidden_size"], shape["num_attention_heads"], cache.shape
    norm = lambda x, name: F.rms_norm(x, (C,), w[name + ".weight"], shape["rms_norm_eps"])  # noqa: E731  RMSNORM
    linear = lambda x, name: x @ w[name + ".weight"].T + w.get(name + ".bias", 0)  # noqa: E731  NO BIAS but Qwen2's
    x = w["model.embed_tokens.weight"][new]  # (T, C)  ROPE: no position is added
    angle = torch.arange(at, at + T)[:, None] * frequencies(shape, D)  # (T, D / 2)  ROPE
    later = torch.arange(at + T) > torch.arange(at, at + T)[:, None]  # (T, at + T)  cache
    for layer, h in ((n, f"model.layers.{n}.") for n in range(L)):
        y, heads = norm(x, h + "input_layernorm"), {"q": H, "k": K, "v": K}  # GQA: K key and value heads for H queries
        q, k, v = (linear(y, f"{h}self_attn.{n}_proj").view(T, heads[n], D).transpose(0, 1) for n in heads)
        cache[:, layer, :, at : at + T] = torch.stack((turn(k, angle), v))  # cache  ROPE: keys are stored turned
        keys, values = cache[:, layer, :, None, : at + T]  # (K, 1, at + T, D)  cache  GQA: one for H / K queries
        scores = turn(q, angle).view(K, H // K, T, D) @ keys.mT / D**0.5  # (K, H / K, T, at + T)  ROPE  GQA
        y = (scores.masked_fill(later, -torch.inf).softmax(-1) @ values).view(H, T, D).transpose(0, 1)  # GQA
        x = x + linear(y.reshape(T, H * D), h + "self_attn.o_proj")
        y = norm(x, h + "post_attention_layernorm")
        y = F.silu(linear(y, h + "mlp.gate_proj")) * linear(y, h + "mlp.up_proj")  # (T, M)  SWIGLU
        x = x + linear(y, h + "mlp.down_proj")
    return norm(x[-1], "model.norm") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T  # UNTIED HEAD


def generate(ids: list[int], n: int, w: dict[str, torch.Tensor], shape: dict) -> tuple[list[int], torch.Tensor]:
    """Feed the prompt once, then each new token but the last. Return all n + len(ids) tokens and the cache."""
    L, H, K = (shape[f"num_{name}"] for name in ("hidden_layers", "attention_heads", "key_value_heads"))
    cache, fed = torch.zeros(2, L, K, len(ids) + n, shape.get("head_dim") or shape["hidden_size"] // H), 0
    for _ in range(n):
        ids, fed = [*ids, int(step(ids[fed:], fed, cache, w, shape).argmax())], len(ids)
    return ids, cache


if __name__ == "__main__":
    torch.manual_seed(0)
    w, prompt = drawn(SHAPE), [int(word) for word in sys.argv[1:]] or [3, 1, 4]
    ids, cache = generate(prompt, 20, w, SHAPE)
    (_, L, K, S, D), H, size = cache.shape, SHAPE["num_attention_heads"], cache.itemsize
    apart = step(ids[-2:-1], S - 2, cache, w, SHAPE) - step(ids[:-1], 0, torch.zeros_like(cache), w, SHAPE)
    same = "the same" if apart.abs().max() < 1e-4 else "OTHER"
    print(f"tokens: {ids}\none by one or all at once: {same} scores")
    print(f"cache: 2 · {L} layers · {K} key heads · {D} numbers · {size} bytes = {cache.nbytes // S:,} bytes a token")
    print(f"with a key head for each of {H} query heads: {2 * L * H * D * size:,} bytes")
