"""GPT-2 in a dict of CUDA graphs: chapter 4 in one file. Needs torch and tiktoken; without a GPU it runs eagerly."""

import base64
import json
import sys
from pathlib import Path

import tiktoken
import torch

DATA = Path(__file__).resolve().parents[2] / "nanoinfer" / "data"  # the small model and the vocabulary that ship
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SIZES, L, H, S, D = (1, 2, 4), 12, 5, 128, 32  # rows of the graphs; layers, heads, slots, head size
DEVICE, gelu = "cuda" if torch.cuda.is_available() else "cpu", torch.nn.GELU("tanh")
data = bytearray((DATA / "small" / "model.safetensors").read_bytes())  # a length, a header in JSON, the numbers
begin, w = 8 + int.from_bytes(data[:8], "little"), {}
numbers = torch.frombuffer(data, dtype=torch.float16, offset=begin)
for name, at in list(json.loads(data[8:begin]).items())[1:]:  # the first is no tensor
    w[name[12:]] = numbers[at["data_offsets"][0] // 2 : at["data_offsets"][1] // 2].view(at["shape"]).float().to(DEVICE)
token, position = (torch.zeros(n, dtype=torch.int64, device=DEVICE) for n in (max(SIZES), 1))  # static: never moved
cache = torch.zeros(2, L, max(SIZES), H, S, D, device=DEVICE)  # keys and values; static as well
graphs = {}  # rows -> torch.cuda.CUDAGraph


def step(rows: int) -> None:
    """Feed `token` at `position`, and leave what comes next in their place: nothing that changes is a Python number."""
    norm = lambda x, name: torch.layer_norm(x, x.shape[1:], w[name + ".weight"], w[name + ".bias"])  # noqa: E731
    linear = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]  # noqa: E731
    x = w["wte.weight"][token[:rows]] + w["wpe.weight"][position]  # (rows, C)
    for layer, h in ((n, f"h.{n}") for n in range(L)):
        q, *kv = linear(norm(x, h + ".ln_1"), h + ".attn.c_attn").view(rows, 3, H, 1, D).unbind(1)  # (rows, H, 1, D)
        keys, values = cache[:, layer, :rows].index_copy_(3, position, torch.stack(kv))  # (rows, H, S, D)
        scores = (q @ keys.mT / D**0.5).masked_fill(torch.arange(S, device=DEVICE) > position, -torch.inf)
        x = x + linear((scores.softmax(-1) @ values).view(rows, H * D), h + ".attn.c_proj")
        x = x + linear(gelu(linear(norm(x, h + ".ln_2"), h + ".mlp.c_fc")), h + ".mlp.c_proj")
    token[:rows] = (norm(x, "ln_f") @ w["wte.weight"].T).argmax(-1)
    position.add_(1)


def generate(texts: list[list[int]], length: int) -> list[list[int]]:
    """Continue the texts, in one batch, until each has `length` tokens."""
    size = min(rows for rows in SIZES if rows >= len(texts))
    if DEVICE == "cuda" and size not in graphs:
        step(size)  # warm up: this writes, but the texts are not in the buffers yet
        with torch.cuda.graph(graphs.setdefault(size, torch.cuda.CUDAGraph())):
            step(size)  # recorded, not run
    position.zero_()
    for at in range(length - 1):
        token[: len(texts)] = torch.tensor([ids[at] for ids in texts])  # put where the graph looks for it
        graphs[size].replay() if graphs else step(size)  # within a prompt, its token is dropped in the next line
        texts = [[*ids, new][: max(len(ids), at + 2)] for ids, new in zip(texts, token.tolist(), strict=False)]
    return texts


if __name__ == "__main__":
    eager = "no GPU: steps run eagerly; `python chapters/04-cuda-graphs/example.py addresses` replays one by a stand-in"
    print("replaying" if DEVICE == "cuda" else eager, file=sys.stderr)
    ranks = {base64.b64decode(one): int(n) for one, n in map(bytes.split, (DATA / "gpt2.tiktoken").open("rb"))}
    bpe = tiktoken.Encoding("gpt2", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})
    texts = generate([bpe.encode_ordinary(t) for t in sys.argv[1:] or ("Once upon a time", "The fox", "The king")], 40)
    print("\n---\n".join(map(bpe.decode, texts)))
