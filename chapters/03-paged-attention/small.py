"""GPT-2 with a paged KV cache: chapter 3 in one file. Needs torch and tiktoken. What is new: `table` and `free`."""

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
BLOCK = 16  # tokens


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


def step(new: list[int], at: int, table: list[int], pool: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
    """T new tokens of one row, the first at position `at`, and the pool (2, L, blocks, H, BLOCK, D) -> (V,) scores."""
    T, (_, L, _, H, _, D) = len(new), pool.shape
    norm = lambda x, name: F.layer_norm(x, (H * D,), w[name + ".weight"], w[name + ".bias"])  # noqa: E731
    linear = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]  # noqa: E731
    position = torch.arange(at, at + T)
    block, place = torch.tensor(table)[position // BLOCK], position % BLOCK  # (T,) each: where the new tokens go
    hidden = torch.arange(len(table) * BLOCK) > position[:, None]  # (T, S) a token after the query, or none yet
    x = w["wte.weight"][new] + w["wpe.weight"][position]  # (T, C)
    for layer, h in ((n, f"h.{n}") for n in range(L)):
        q, k, v = linear(norm(x, h + ".ln_1"), h + ".attn.c_attn").view(T, 3, H, D).permute(1, 0, 2, 3)  # (T, H, D)
        pool[0, layer, block, :, place], pool[1, layer, block, :, place] = k, v
        keys, values = pool[:, layer, table].transpose(1, 2).flatten(2, 3)  # (H, S, D): the row's pages side by side
        scores = (q.transpose(0, 1) @ keys.mT / D**0.5).masked_fill(hidden, -torch.inf)  # (H, T, S)
        x = x + linear((scores.softmax(-1) @ values).transpose(0, 1).reshape(T, H * D), h + ".attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, h + ".ln_2"), h + ".mlp.c_fc"), approximate="tanh"), h + ".mlp.c_proj")
    return norm(x[-1], "ln_f") @ w["wte.weight"].T


def generate(rows: list[list[int]], n: int, blocks: int, w: dict[str, torch.Tensor], shape: dict[str, int]) -> int:
    """Append up to n tokens to each row, all in one pool, a token a row in turn; the most blocks that were in use."""
    L, H, C = shape["n_layer"], shape["n_head"], shape["n_embd"]
    pool, free = torch.zeros(2, L, blocks, H, BLOCK, C // H), list(range(blocks))
    tables, fed, most = [[] for _ in rows], [0] * len(rows), 0  # each row's blocks, and its tokens in the pool
    ends, going = [len(ids) + n for ids in rows], set(range(len(rows)))
    while going:
        for row in sorted(going):
            ids, table = rows[row], tables[row]
            while len(table) * BLOCK < len(ids):  # before the step that writes them
                table.append(free.pop())
            most = max(most, blocks - len(free))
            at, fed[row] = fed[row], len(ids)
            ids.append(int(step(ids[at:], at, table, pool, w).argmax()))
            if ids[-1] == END or len(ids) == ends[row]:
                going.remove(row)
                free += table  # the next row that grows writes over them
    return most


if __name__ == "__main__":
    ranks = {base64.b64decode(token): int(n) for token, n in map(bytes.split, (DATA / "gpt2.tiktoken").open("rb"))}
    bpe = tiktoken.Encoding("gpt2", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": END})
    rows = [bpe.encode_ordinary(text) for text in sys.argv[1:] or ("Once upon a time", "The old fox looked up at")]
    most = generate(rows, 40, 16, *load(DATA / "small"))
    print("\n---\n".join(map(bpe.decode, rows)), f"at most {most} of 16 blocks in use", sep="\n---\n")
