"""GPT-2, and the loop that writes text with it: chapter 1 in one file. Needs torch and tiktoken, nothing else."""

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


def logits_after(ids: list[int], w: dict[str, torch.Tensor], shape: dict[str, int]) -> torch.Tensor:
    """One step: T token ids -> (V,), a score for every token that may come next."""
    T, C, H = len(ids), shape["n_embd"], shape["n_head"]
    norm = lambda x, at: F.layer_norm(x, (C,), w[at + ".weight"], w[at + ".bias"])  # noqa: E731
    linear = lambda x, at: x @ w[at + ".weight"] + w[at + ".bias"]  # noqa: E731
    x = w["wte.weight"][ids] + w["wpe.weight"][:T]  # (T, C) what each token is, and where it stands
    later = torch.arange(T) > torch.arange(T)[:, None]  # (T, T) whether a key (column) stands after a query (row)
    for h in [f"h.{layer}" for layer in range(shape["n_layer"])]:
        qkv = linear(norm(x, h + ".ln_1"), h + ".attn.c_attn")  # (T, 3 * C)
        q, k, v = qkv.view(T, 3, H, C // H).permute(1, 2, 0, 3)  # (H, T, D) each
        scores = (q @ k.mT / (C // H) ** 0.5).masked_fill(later, -torch.inf)  # (H, T, T)
        heads = (scores.softmax(-1) @ v).transpose(0, 1).reshape(T, C)
        x = x + linear(heads, h + ".attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, h + ".ln_2"), h + ".mlp.c_fc"), approximate="tanh"), h + ".mlp.c_proj")
    return norm(x[-1], "ln_f") @ w["wte.weight"].T


def generate(ids: list[int], n: int, w: dict[str, torch.Tensor], shape: dict[str, int]) -> list[int]:
    """The whole text through the model, the most probable token behind it, and again: n times at most."""
    for _ in range(n):
        ids = [*ids, int(logits_after(ids, w, shape).argmax())]
        if ids[-1] == END:
            break
    return ids


if __name__ == "__main__":
    lines = (DATA / "gpt2.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    bpe = tiktoken.Encoding("gpt2", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": END})
    text = " ".join(sys.argv[1:]) or "Once upon a time"
    print(bpe.decode(generate(bpe.encode_ordinary(text), 40, *load(DATA / "small"))))
