"""GPT-2 with speculation: chapter 7 in one file. Needs torch and tiktoken. What is new: `guess` and `generate`."""

import base64
import json
from pathlib import Path

import tiktoken
import torch

DATA = Path(__file__).resolve().parents[2] / "nanoinfer" / "data"  # the small model and the vocabulary that ship
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
L, H, S, D, V, gelu = 12, 5, 128, 32, 50257, torch.nn.GELU("tanh")  # layers, heads, positions, head size, ids
data = bytearray((DATA / "small" / "model.safetensors").read_bytes())  # a length, a header in JSON, the numbers
begin, w = 8 + int.from_bytes(data[:8], "little"), {}
numbers = torch.frombuffer(data, dtype=torch.float16, offset=begin)
for name, at in list(json.loads(data[8:begin]).items())[1:]:  # the first is no tensor
    w[name[12:]] = numbers[at["data_offsets"][0] // 2 : at["data_offsets"][1] // 2].view(at["shape"]).float()


def step(new: list[int], at: int, cache: torch.Tensor) -> torch.Tensor:
    """T new tokens, the first at position `at`, and the cache (2, L, H, S, D) -> (T, V), scores after each of them."""
    norm = lambda x, name: torch.layer_norm(x, x.shape[1:], w[name + ".weight"], w[name + ".bias"])  # noqa: E731
    linear = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]  # noqa: E731
    position = torch.arange(at, at + len(new))
    x = w["wte.weight"][new] + w["wpe.weight"][position]  # (T, C)
    for layer, h in ((n, f"h.{n}") for n in range(L)):
        q, *kv = linear(norm(x, h + ".ln_1"), h + ".attn.c_attn").view(-1, 3, H, D).permute(1, 2, 0, 3)  # (H, T, D)
        keys, values = cache[:, layer].index_copy_(2, position, torch.stack(kv))  # (H, S, D), over wrong guesses
        scores = (q @ keys.mT / D**0.5).masked_fill(torch.arange(S) > position[:, None], -torch.inf)  # (H, T, S)
        x = x + linear((scores.softmax(-1) @ values).transpose(0, 1).flatten(1), h + ".attn.c_proj")
        x = x + linear(gelu(linear(norm(x, h + ".ln_2"), h + ".mlp.c_fc")), h + ".mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def guess(ids: list[int], most: int) -> list[int]:
    """What followed the last two tokens where they stood before: the last such place, or none."""
    return next((ids[at:][:most] for at in range(len(ids) - 1, 1, -1) if ids[at - 2 : at] == ids[-2:]), [])


def generate(ids: list[int], n: int, k: int, heat: float) -> list[list[int]]:
    """n new tokens, at most k of them guessed at a time: the prompt, and what each step gave. heat: the temperature."""
    cache, fed, parts, end, random = torch.zeros(2, L, H, S, D), 0, [ids], len(ids) + n, torch.Generator()
    while len(ids) < end:
        drafts = guess(ids, min(k, end - len(ids) - 1))
        scores = step(ids[fed:] + drafts, fed, cache)[-len(drafts) - 1 :]  # after the newest token, and each draft
        seeds = range(len(ids), len(ids) + len(scores))  # each position has noise of its own
        draws = torch.stack([torch.empty(V).exponential_(generator=random.manual_seed(seed)) for seed in seeds])
        chosen = (scores - heat * draws.log()).argmax(-1).tolist()
        right = [*map(int.__eq__, drafts, chosen), False].index(False)  # drafts ahead of the first wrong one
        fed, parts, ids = len(ids) + right, [*parts, chosen[: right + 1]], ids + chosen[: right + 1]
    return parts


if __name__ == "__main__":
    ranks = {base64.b64decode(one): int(n) for one, n in map(bytes.split, (DATA / "gpt2.tiktoken").open("rb"))}
    bpe = tiktoken.Encoding("gpt2", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})
    for heat in 0.0, 0.8:
        plain, drafted = ([*map(bpe.decode, generate(bpe.encode("The fox"), 60, k, heat))] for k in (0, 4))
        same = "".join(plain) == "".join(drafted)
        print(f"{len(plain) - 1} steps, and {len(drafted) - 1} with guesses; the same text: {same}", "|".join(drafted))
