"""GPT-2 with a KV cache: chapter 2 in one file. Needs torch and tiktoken, nothing else. What is new is in `step`."""

import base64
import json
import sys
from pathlib import Path

import tiktoken
import torch
import torch.nn.functional as F

DATA = Path(__file__).resolve().parents[2] / "nanoinfer" / "data"  # the small model and the vocabulary that ship
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TYPES, END = {"F32": torch.float32, "F16": torch.float16}, 50256  # of weights files; the id of <|endoftext|>


def load(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Weights and shape. A safetensors file: eight bytes of length, a header in JSON, then the numbers."""
    data, w = bytearray((folder / "model.safetensors").read_bytes()), {}
    begin = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            numbers = torch.frombuffer(data[begin + start : begin + end], dtype=TYPES[entry["dtype"]])
            w[name.removeprefix("transformer.")] = numbers.view(entry["shape"]).float()
    return w, json.loads((folder / "config.json").read_text())


def step(new: list[int], at: int, cache: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
    """T new tokens, the first at position `at`, and the cache (2, L, H, S, D) -> (V,), a score for each next token."""
    T, (_, L, H, _, D) = len(new), cache.shape
    norm = lambda x, name: F.layer_norm(x, (H * D,), w[name + ".weight"], w[name + ".bias"])  # noqa: E731
    linear = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]  # noqa: E731
    x = w["wte.weight"][new] + w["wpe.weight"][at : at + T]  # (T, C)
    hidden = torch.arange(at + T) > torch.arange(at, at + T)[:, None]  # (T, at + T) a slot after the query's position
    for layer, h in ((n, f"h.{n}") for n in range(L)):
        q, k, v = linear(norm(x, h + ".ln_1"), h + ".attn.c_attn").view(T, 3, H, D).permute(1, 2, 0, 3)  # (H, T, D)
        cache[:, layer, :, at : at + T] = torch.stack((k, v))  # written at the new tokens' positions,
        keys, values = cache[:, layer, :, : at + T]  # (H, at + T, D) and read from the beginning
        scores = (q @ keys.mT / D**0.5).masked_fill(hidden, -torch.inf)  # (H, T, at + T)
        x = x + linear((scores.softmax(-1) @ values).transpose(0, 1).reshape(T, H * D), h + ".attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, h + ".ln_2"), h + ".mlp.c_fc"), approximate="tanh"), h + ".mlp.c_proj")
    return norm(x[-1], "ln_f") @ w["wte.weight"].T


def generate(ids: list[int], n: int, w: dict[str, torch.Tensor], shape: dict[str, int]) -> list[int]:
    """The prompt goes through the model once, then each new token once, but for the last. fed: tokens in the cache."""
    cache, fed = torch.zeros(2, shape["n_layer"], shape["n_head"], len(ids) + n, shape["n_embd"] // shape["n_head"]), 0
    for _ in range(n):
        ids, fed = [*ids, int(step(ids[fed:], fed, cache, w).argmax())], len(ids)
        if ids[-1] == END:
            break
    return ids


if __name__ == "__main__":
    ranks = {base64.b64decode(token): int(n) for token, n in map(bytes.split, (DATA / "gpt2.tiktoken").open("rb"))}
    bpe = tiktoken.Encoding("gpt2", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": END})
    ids = bpe.encode_ordinary(" ".join(sys.argv[1:]) or "Once upon a time")
    print(bpe.decode(generate(ids, 40, *load(DATA / "small"))))
