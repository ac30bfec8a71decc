"""GPT-2 on two processes: chapter 8 in one file. Needs torch and tiktoken. What is new: `all_reduce`, `cut`, `join`."""

import base64
import json
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import tiktoken
import torch

DATA = Path(__file__).resolve().parents[2] / "nanoinfer" / "data"  # the small model and the vocabulary that ship
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
L, H, S, D, C, V, gelu = 12, 5, 128, 32, 160, 50257, torch.nn.GELU("tanh")  # layers, heads, positions, head size, ids


class Rank:
    """One process of `size`, in a ring: it sends to the one on its right, and hears from the one on its left."""

    def __init__(self, rank: int, size: int, left: Connection, right: Connection) -> None:
        self.rank, self.size, self.left, self.right, self.messages = rank, size, left, right, 0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:  # the sum of all ranks' x, on each of them
        parts = [part.tolist() for part in x.flatten().tensor_split(self.size)]
        for step in range(2 * (self.size - 1)):  # once around to add, and once more to pass on what is complete
            mine, theirs = (self.rank - step) % self.size, (self.rank - step - 1) % self.size
            self.right.send(parts[mine])
            heard, self.messages = self.left.recv(), self.messages + 1
            parts[theirs] = list(map(float.__add__, parts[theirs], heard)) if step < self.size - 1 else heard
        return torch.tensor([number for part in parts for number in part]).view(x.shape)

    def share(self, count: int) -> slice:  # where it does not divide, the first ranks have one more
        return slice(-(-count * self.rank // self.size), -(-count * (self.rank + 1) // self.size))

    def cut(self, name: str, w: torch.Tensor) -> torch.Tensor:  # this rank's part of a parameter
        heads, inner = self.share(H), self.share(4 * C)
        if ".c_attn." in name:  # queries, keys and values lie side by side: a rank's heads are in each third
            return w.view(*w.shape[:-1], 3, H, D)[..., heads, :].flatten(-3)
        if ".c_fc." in name:
            return w[..., inner]  # columns
        if name.endswith(".c_proj.weight"):
            return w[inner] if ".mlp." in name else w.view(H, D, C)[heads].flatten(0, 1)  # rows
        return w * (self.rank == 0) if name.endswith(".c_proj.bias") else w  # a bias inside a sum counts once

    def join(self, scores: torch.Tensor, first: int) -> int:  # the id of the highest of all scores
        pairs = torch.eye(self.size)[self.rank, :, None] * torch.tensor([scores.max(), first + scores.argmax()])
        return int(max(self.all_reduce(pairs).tolist(), key=lambda pair: (pair[0], -pair[1]))[1])

    def generate(self, ids: list[int], n: int) -> list[int]:
        norm = lambda x, name: torch.layer_norm(x, x.shape[1:], w[name + ".weight"], w[name + ".bias"])  # noqa: E731
        linear = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]  # noqa: E731
        data = bytearray((DATA / "small" / "model.safetensors").read_bytes())  # a length, a header in JSON, the numbers
        numbers = torch.frombuffer(data, dtype=torch.float16, offset=(begin := 8 + int.from_bytes(data[:8], "little")))
        files = [(name[12:], *at.values()) for name, at in list(json.loads(data[8:begin]).items())[1:]]
        w = {name: self.cut(name, numbers[a // 2 : b // 2].view(shape).float()) for name, _, shape, (a, b) in files}
        own, cache, at = self.share(V), torch.zeros(2, L, H, S, D)[:, :, self.share(H)], 0
        for end in range(len(ids), len(ids) + n):
            position = torch.arange(at, end)
            x, at = w["wte.weight"][ids[at:]] + w["wpe.weight"][position], end  # (T, C), on every rank
            for layer, h in ((n, f"h.{n}") for n in range(L)):
                q, *kv = linear(norm(x, h + ".ln_1"), h + ".attn.c_attn").view(len(x), 3, -1, D).permute(1, 2, 0, 3)
                keys, values = cache[:, layer].index_copy_(2, position, torch.stack(kv))  # (own heads, S, D)
                scores = (q @ keys.mT / D**0.5).masked_fill(torch.arange(S) > position[:, None], -torch.inf)
                y = (scores.softmax(-1) @ values).transpose(0, 1).flatten(1)  # (T, own heads * D)
                x = x + self.all_reduce(linear(y, h + ".attn.c_proj"))
                x = x + self.all_reduce(linear(gelu(linear(norm(x, h + ".ln_2"), h + ".mlp.c_fc")), h + ".mlp.c_proj"))
            ids = [*ids, self.join(norm(x, "ln_f")[-1] @ w["wte.weight"][own].T, own.start)]
        return ids

    def tell(self) -> None:
        ranks = {base64.b64decode(one): int(n) for one, n in map(bytes.split, (DATA / "gpt2.tiktoken").open("rb"))}
        bpe = tiktoken.Encoding("gpt2", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})
        text = bpe.decode(self.generate(bpe.encode("Once upon a time"), 40))
        print(f"rank {self.rank}: heads {[*range(H)[self.share(H)]]}, {self.messages} messages, {text!r}", flush=True)


if __name__ == "__main__":
    pipes = [get_context("spawn").Pipe(duplex=False) for _ in range(2)]  # pipe n: from rank n to the one on its right
    for n in range(len(pipes)):
        get_context("spawn").Process(target=Rank(n, len(pipes), pipes[n - 1][0], pipes[n][1]).tell).start()
