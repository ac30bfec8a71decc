# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Chapter 2: a prefill and a decode step, tensor by tensor
#
# This notebook fills a very small cache by hand: a prefill of two rows, then one decode step. Every tensor is printed
# and drawn, and at the end the numbers are those of a pass over the whole text. Then you break the real engine in a
# few places, guess what comes out, and repair it. The chapter's text is `chapters/02-kv-cache/README.md`; run the
# cells from top to bottom. No GPU is needed.

# %%
import time
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from nanocourse.exercises import answers
from nanocourse.learner.notebook import quiz, results, show, source
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.none import NoCache, forward_logits
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.weights import random_model

_ = torch.set_grad_enabled(False)

# %% [markdown]
# ## The model, the prompts, and an empty cache
#
# One layer, two heads of four numbers, a vocabulary of ten tokens, random weights. Row 0 has three tokens, row 1 two.
# The cache has a row for each, six slots long, and a dummy row at the end.

# %%
config = ModelConfig(n_layer=1, n_head=2, n_embd=8, n_positions=8, vocab_size=10)
model = random_model(config, seed=4, std=0.6)
B, C, H, D = 2, config.n_embd, config.n_head, config.head_size
ROWS, SLOTS = B + 1, 6

prompts = [[3, 1, 4], [1, 5]]
lengths = torch.tensor([3, 2])
ids = torch.tensor([3, 1, 4, 1, 5])  # (N,) the tokens of both rows, side by side
keys = torch.zeros(ROWS, SLOTS, H, D)
values = torch.zeros(ROWS, SLOTS, H, D)
show("token ids", ids[None])
show("keys of head 0, first number, in every slot", keys[:, :, 0, 0])

# %% [markdown]
# ## 1. Positions and rows
#
# Each token says where it stands in its own text, and whose text that is. The position says two things: which position
# embedding the token gets, and into which slot it goes.

# %%
positions = torch.tensor([0, 1, 2, 0, 1])  # (N,)
rows = torch.tensor([0, 0, 0, 1, 1])  # (N,)
show("id, position and row of each token", torch.stack((ids, positions, rows)))

# %% [markdown]
# ## 2. Queries, keys and values of the prompts
#
# As in chapter 1: embeddings, a normalised copy, one matrix. Shown is head 0.

# %%
block = model.h[0]


def queries_keys_values(ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The stream (N, C), and q, k, v (N, H, D) of the one layer."""
    x = F.embedding(ids, model.wte.weight) + F.embedding(positions, model.wpe.weight)
    h = F.layer_norm(x, (C,), block.ln_1.weight, block.ln_1.bias)
    qkv = h @ block.attn.c_attn.weight + block.attn.c_attn.bias
    return x, *qkv.view(-1, 3, H, D).unbind(1)


x, q, k, v = queries_keys_values(ids, positions)
show("keys of head 0", k[:, 0])

# %% [markdown]
# ## 3. Slots
#
# A slot is a position, in the row's own row of the cache. Rows end to end, a slot is one number: row times six, plus
# position.

# %%
slots = rows * SLOTS + positions  # (N,)
show("slot, rows end to end", slots[None])

# %% [markdown]
# ## 4. Written
#
# Every token is written, all in one operation. Row 1's slot 2 stays empty, and so does the dummy row.

# %%
keys.view(-1, H, D).index_copy_(0, slots, k)
values.view(-1, H, D).index_copy_(0, slots, v)
show("keys of head 0, first number, in every slot", keys[:, :, 0, 0])
assert float(keys[1, 2].abs().max()) == 0

# %% [markdown]
# ## 5. The prompts' own attention, and the first new tokens
#
# All that a prompt's queries may read came with this step, so nothing is read from the cache yet. Here the engine's
# plain pass chooses the first new token of each row.

# %%
after = torch.cat([forward_logits(model, torch.tensor([prompt]))[:, -1] for prompt in prompts])  # (B, V)
new = after.argmax(-1)  # (B,)
show("logits after each row's last token", after)
show("new tokens", new[:, None])

# %% [markdown]
# # The decode step
#
# ## 6. One token a row
#
# Only the new tokens go through the model. They stand after each row's own text: at position 3 and at position 2.

# %%
where = lengths  # (B,)
x, q, k, v = queries_keys_values(new, where)
show("positions", where[:, None])
show("queries of head 0", q[:, 0])

# %% [markdown]
# ## 7. Written, before anything is read
#
# Row 1's new token fills slot 2, which was empty.

# %%
slots = torch.arange(B) * SLOTS + where
keys.view(-1, H, D).index_copy_(0, slots, k)
values.view(-1, H, D).index_copy_(0, slots, v)
show("keys of head 0, first number, in every slot", keys[:, :, 0, 0])

# %% [markdown]
# ## 8. The mask
#
# A query reads the slots up to its own position: four in row 0, three in row 1. Below, 1 is read and 0 is hidden.

# %%
visible = torch.arange(SLOTS) <= where[:, None]  # (B, SLOTS)
show("visible", visible.int())

# %% [markdown]
# ## 9. Scores and weights
#
# One query against all slots of its row. Hidden scores become minus infinity, so their weight is 0; each line sums to
# 1.

# %%
scores = torch.einsum("bhd,bshd->bhs", q, keys[:B]) / D**0.5  # (B, H, SLOTS)
weights = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
show("weights of head 0", weights[:, 0])
assert torch.allclose(weights.sum(-1), torch.ones(B, H))

# %% [markdown]
# ## 10. The rest of the block, for one token
#
# Values by these weights, then chapter 1's block: everything but attention looks at one token at a time.

# %%
y = torch.einsum("bhs,bshd->bhd", weights, values[:B]).reshape(B, C)
x = x + y @ block.attn.c_proj.weight + block.attn.c_proj.bias
h = F.layer_norm(x, (C,), block.ln_2.weight, block.ln_2.bias)
inner = F.gelu(h @ block.mlp.c_fc.weight + block.mlp.c_fc.bias, approximate="tanh")
x = x + inner @ block.mlp.c_proj.weight + block.mlp.c_proj.bias
final = F.layer_norm(x, (C,), model.ln_f.weight, model.ln_f.bias)
logits = final @ model.wte.weight[: config.vocab_size].T  # (B, V)
show("logits", logits)

# %% [markdown]
# ## 11. The same as the whole text again
#
# The naive engine sends all tokens through the model once more. The numbers are the same, row by row: the past does
# not change.

# %%
texts = [[*prompts[row], int(new[row])] for row in range(B)]
for row, text in enumerate(texts):
    again = forward_logits(model, torch.tensor([text]))[0, -1]
    print(f"row {row}: text {text}, largest difference {float((again - logits[row]).abs().max()):.1e}")
    assert torch.allclose(again, logits[row], atol=1e-5)

# %% [markdown]
# The engine's cache does what you have just done by hand. `plan` makes slots and mask once a step; `attend` runs in
# every layer. Where rows bring different numbers of tokens, it fills them up to a rectangle:

# %%
source(DenseCache.plan)
source(DenseCache.attend)

# %% [markdown]
# ## 12. Several new tokens behind old ones
#
# The same cache answers for two new tokens at once, at positions 3 and 4. The mask has a line for each; the second
# query reads the first one's slot. `Batch.of` is the engine's: it lays the tokens of all rows side by side.


# %%
def step(tokens: list[int], start: int = 0) -> Batch:
    """The engine's list of tokens, from what row 0 brings: its text from a position on."""
    work: Any = [(SimpleNamespace(tokens=tokens, slot=0), start, len(tokens) - start)]
    return Batch.of(work, torch.device("cpu"))


cache = DenseCache(config, 1, SLOTS, model.device, model.dtype)
model(step([3, 1, 4]), cache)
both = step([3, 1, 4, 1, 5], start=3)
answer = model(both, cache)
show("visible to the two", (cache.plan(both).mask[0, 0] == 0).int())
whole = forward_logits(model, torch.tensor([[3, 1, 4, 1, 5]]))[:, -1]
print("largest difference from the whole text at once:", f"{float((answer - whole).abs().max()):.1e}")
assert torch.allclose(answer, whole, atol=1e-5)

# %% [markdown]
# ## 13. What stands in hidden slots
#
# Row 1's slots 3 to 5 are hidden. Put numbers there, then NaN, and look at the result again. Guess all three.

# %%
guess = "..."
for number in (0.0, 1e4, torch.nan):
    values[1, 3:] = number
    y = torch.einsum("bhs,bshd->bhd", weights, values[:B])
    print(f"slots 3 to 5 hold {number}: {[round(n, 4) for n in y[1, 0].tolist()]}")

# %% [markdown]
# # Break it
#
# From here on it is the real engine with the small model that ships. `answers.mistake` puts a known wrong answer of the
# chapter's exercises into the engine, for as long as its block runs. **Write your guess down before you run a cell.**

# %%
llm = LLM(engine="dense", device="cpu")
greedy = SamplingParams(max_tokens=16, temperature=0)


def told(*prompts: str) -> list[str]:
    """Each prompt and what the engine makes of it, on one line."""
    rows = zip(prompts, llm.generate(list(prompts), greedy), strict=True)
    return [(prompt + row.text).replace("\n", "\\n") for prompt, row in rows]


LONG = "Once upon a time there was a king who had three sons, and the youngest of them"
right = told("The fox", LONG)
print(*right, sep="\n")

# %% [markdown]
# ## Break 1: the column is the slot
#
# A decode step brings one token a row, number 0, and the new key is written to slot 0. Guess: which tokens does a
# query still find in the cache, and what does the text look like?

# %%
guess = "..."
with answers.mistake("2.2", "column-is-slot"):
    wrong = told("The fox", LONG)
print("your guess:", guess, *wrong, sep="\n")
assert wrong != right

# %% [markdown]
# Each new token overwrites the one before it, and the slots that it should have filled stay zeros, which the mask
# lets through. Find the lines with the mistake:

# %%
print(answers.source("2.2", "column-is-slot"))

# %% [markdown]
# *Repair it.* Outside the block the engine has its own `write` again.

# %%
assert told("The fox", LONG) == right

# %% [markdown]
# ## Break 2: a triangle at the top left
#
# Causal attention, as the library's switch has it. Guess: does it crash, does it repeat itself, does it look right?

# %%
guess = "..."
with answers.mistake("2.3", "triangle-at-the-top-left"):
    wrong = told("The fox", LONG)
print("your guess:", guess, *wrong, sep="\n")
assert wrong != right

# %% [markdown]
# In every decode step the query reads slot 0 and nothing else. And the prompt was read rightly, which gives the text
# its beginning. *Repaired:*

# %%
assert told("The fox", LONG) == right

# %% [markdown]
# ## Break 3: decode goes on at the padded length
#
# Guess: which of the two rows goes wrong, the short one, the long one, or both? And `The fox` alone?

# %%
guess = "..."
with answers.mistake("2.4", "padded-length"):
    together, alone = told("The fox", LONG), told("The fox")
print("your guess:", guess, "together:", *together, "alone:", *alone, sep="\n")
assert together[0] != right[0]
assert [together[1], alone[0]] == [right[1], right[0]]

# %% [markdown]
# *Repaired:* each row continues after its own last token. A test of single rows would never have seen it.

# %%
assert told("The fox", LONG) == right

# %% [markdown]
# ## Break 4: a weight of zero
#
# In this exercise a row of the engine's cache begins with NaN in every slot, and what is hidden is given the weight 0.
# Guess: if all logits are NaN, which token does `argmax` choose?

# %%
guess = "..."
with answers.mistake("2.5", "weight-zero"):
    wrong = told("The fox")
print("your guess:", guess, *wrong, sep="\n")
assert wrong[0] != right[0]

# %% [markdown]
# `argmax` takes NaN for the largest number there is, and the first of several: token 0, which is `!`.
# *Repaired:* in the engine's own cache a row begins as zeros, so there is never a NaN to be hidden.

# %%
assert told("The fox", LONG) == right
print("finite in the rows that were used:", bool(llm.core.cache.v[:, :2].isfinite().all()))

# %% [markdown]
# # What it saves, and what it takes
#
# The time of a decode step after a longer and longer text, on the machine that runs this notebook, without a cache
# and with one. Guess the ratio at 512 tokens first.


# %%
def step_ms(cache: NoCache, context: int) -> float:
    """Milliseconds of a decode step of one row that has so many tokens."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        fed = step([464] * (context + 1), context if isinstance(cache, DenseCache) else 0)
        llm.model(fed, cache).argmax(-1).tolist()
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times[1:])[1]


guess = "..."
contexts, small = (32, 128, 256, 512), PRESETS["small"]
naive_ms = [step_ms(NoCache(), context) for context in contexts]
cache = DenseCache(small, 1, 1024, llm.model.device, llm.model.dtype)
dense_ms = [step_ms(cache, context) for context in contexts]
for context, one, other in zip(contexts, naive_ms, dense_ms, strict=True):
    print(f"{context:4} tokens: {one:7.1f} ms without a cache, {other:6.1f} ms with one")
print(f"your guess: {guess}, measured: {naive_ms[-1] / dense_ms[-1]:.1f}")

# %% [markdown]
# And an H200, by rows, after 128 tokens. At one row launches decide, of which the cached step has more; with many
# rows arithmetic does. These numbers come out of the benchmark's results file.

# %%
report = results("h200-gpu")
figure, (ours, theirs) = plt.subplots(1, 2, figsize=(9, 3.2))
ours.plot(contexts, naive_ms, "o-", label="naive")
ours.plot(contexts, dense_ms, "s-", label="dense")
ours.set(title="here: the small model, 1 row", xlabel="tokens of context", ylabel="ms a step", ylim=(0, None))
for engine, marker in (("naive", "o"), ("dense", "s")):
    found = sorted((r["case"]["batch"], 1e3 * r["case"]["batch"] / r["tokens_per_s"]) for r in report["results"]
                   if r["case"]["engine"] == engine and r["status"] == "ok")  # fmt: skip
    theirs.plot(*zip(*found, strict=True), f"{marker}-", label=engine)
    for row, ms in found:
        if row in (1, 8, 64, 256):
            print(f"{engine}, {row:4} rows: {ms:7.2f} ms a step")
theirs.set(title=f"{report['machine']['device']}: GPT-2, 128 tokens", xlabel="rows", ylabel="ms a step")
theirs.set(xscale="log", yscale="log")
for axis in (ours, theirs):
    axis.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# What it takes: bytes of a cache, in bfloat16, beside the weights.

# %%
for name in ("small", "gpt2", "gpt2-xl"):
    shape = PRESETS[name]
    sizes = [2 * rows * 1024 * shape.kv_numbers / 1e9 for rows in (1, 64, 512)]
    cells = "  ".join(f"{rows} rows {size:7.2f} GB" for rows, size in zip((1, 64, 512), sizes, strict=True))
    print(f"{name:8} a token {2 * shape.kv_numbers:>8,} bytes, weights {2 * shape.parameters / 1e9:5.2f} GB, {cells}")

# %% [markdown]
# # Quiz
#
# It never counts for marks. With `pip install jupyterquiz` it has buttons.

# %%
quiz(2)

# %% [markdown]
# **Where to go on.** `nanoinfer course start 2` gives you the exercises; the mistakes above are some of those that
# their checks know by name.
