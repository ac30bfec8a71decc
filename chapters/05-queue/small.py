"""GPT-2 with continuous batching: chapter 5 in one file. Needs torch and tiktoken. What is new is in `serve`."""

import base64
import json
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import tiktoken
import torch

DATA = Path(__file__).resolve().parents[2] / "nanoinfer" / "data"  # the small model and the vocabulary that ship
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
R, S, BUDGET, END = 3, 64, 8, 50256  # rows at once, tokens that a row has room for, tokens of a step; end of text
L, H, D, gelu = 12, 5, 32, torch.nn.GELU("tanh")  # layers, heads, head size
data = bytearray((DATA / "small" / "model.safetensors").read_bytes())  # a length, a header in JSON, the numbers
begin, w = 8 + int.from_bytes(data[:8], "little"), {}
numbers = torch.frombuffer(data, dtype=torch.float16, offset=begin)
for name, at in list(json.loads(data[8:begin]).items())[1:]:  # the first is no tensor
    w[name[12:]] = numbers[at["data_offsets"][0] // 2 : at["data_offsets"][1] // 2].view(at["shape"]).float()


@dataclass(eq=False)
class Row:  # noqa: D101
    arrives: int  # ahead of which step
    ids: list[int]  # its prompt, and what comes
    length: int  # at which it ends
    fed: int = 0  # tokens that the model has been given
    slot: int = -1  # its row of the cache, while it runs


def step(ids: list[int], position: torch.Tensor, row: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """N tokens of any rows, each with its position and its row, and the cache (2, L, R, H, S, D) -> (N, V) scores."""
    norm = lambda x, name: torch.layer_norm(x, x.shape[1:], w[name + ".weight"], w[name + ".bias"])  # noqa: E731
    linear = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]  # noqa: E731
    of, at = torch.arange(R * S) // S, torch.arange(R * S) % S  # of each place in the cache, its row and its position
    hidden = (of != row[:, None]) | (at > position[:, None])  # (N, R * S) another row's, or after the query
    x = w["wte.weight"][ids] + w["wpe.weight"][position]  # (N, C)
    for layer, h in ((n, f"h.{n}") for n in range(L)):
        q, k, v = linear(norm(x, h + ".ln_1"), h + ".attn.c_attn").view(-1, 3, H, D).unbind(1)  # (N, H, D)
        cache[0, layer, row, :, position], cache[1, layer, row, :, position] = k, v
        keys, values = cache[:, layer].transpose(1, 2).flatten(2, 3)  # (H, R * S, D)
        scores = (q.transpose(0, 1) @ keys.mT / D**0.5).masked_fill(hidden, -torch.inf)  # (H, N, R * S)
        x = x + linear((scores.softmax(-1) @ values).transpose(0, 1).flatten(1), h + ".attn.c_proj")
        x = x + linear(gelu(linear(norm(x, h + ".ln_2"), h + ".mlp.c_fc")), h + ".mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def serve(requests: list[Row], static: bool = False) -> list[dict[int, int]]:
    """Run requests, which are in order of arrival: for each step, how many tokens of which of them were fed."""
    cache, waiting, running, free, log = torch.zeros(2, L, R, H, S, D), deque(requests), [], list(range(R)), []
    while waiting or running:
        while free and waiting and waiting[0].arrives <= len(log) and not (static and any(row.fed for row in running)):
            running.append(waiting.popleft())
            running[-1].slot = free.pop()
        work = []
        for row in sorted(running, key=lambda row: len(row.ids) - row.fed > 1):  # rows that decode come first
            work += [(row, at) for at in range(row.fed, min(len(row.ids), row.fed + BUDGET - len(work)))]
        log.append({n: sum(one is row for one, _ in work) for n, row in enumerate(requests)})
        slots, positions = torch.tensor([[row.slot, at] for row, at in work], dtype=torch.int64).view(-1, 2).T
        scores = step([row.ids[at] for row, at in work], positions, slots, cache)
        for (row, at), score in zip(work, scores, strict=True):
            row.fed = at + 1
            if row.fed == len(row.ids):  # all of it is read: a token follows
                row.ids.append(int(score.argmax()))
                if row.ids[-1] == END or len(row.ids) == row.length:
                    running.remove(row)
                    free.append(row.slot)
    return log


if __name__ == "__main__":
    ranks = {base64.b64decode(one): int(n) for one, n in map(bytes.split, (DATA / "gpt2.tiktoken").open("rb"))}
    bpe = tiktoken.Encoding("gpt2", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})
    texts = "Once upon a time", "The fox", "The old king said that he would go to the sea", "Where are you", "She"
    rows = [Row(3 * n, bpe.encode(text), (28, 8, 24, 16, 8)[n]) for n, text in enumerate(texts)]
    for n, fed in enumerate(serve(rows, static="--static" in sys.argv)):
        print(f"step {n:2}", *(f"{tokens or '.':>3}" for tokens in fed.values()))
    print("\n---\n".join(bpe.decode(row.ids) for row in rows))
