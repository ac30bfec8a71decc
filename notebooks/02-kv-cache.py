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
# Fill a cache by hand, then break the engine. The text is `chapters/02-kv-cache/README.md`. Run the set-up; the parts
# after it then run in any order, without a GPU. Put a guess into each `guess = "?"` before you run its cell. The last
# cell counts the right ones.

# %%
import time
from types import SimpleNamespace

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from nanocourse.exercises import answers
from nanocourse.learner.notebook import compare, quiz, results, show, watch
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.none import NoCache, forward_logits
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import PRESETS

_ = torch.set_grad_enabled(False)

# %% [markdown]
# Two sequences, of three and two tokens. A naive step gives us their logits, and each layer's queries, keys and values.
# We look at head 3 of layer 7.

# %%
llm = LLM(engine="dense", device="cpu")
model, config, guesses = llm.model, llm.model.config, {}
L, H, D, B, SLOTS = config.n_layer, config.n_head, config.head_size, 2, 6
LAYER, HEAD = 7, 3


def batch(texts: list[list[int]], start: int = 0) -> Batch:
    """The tokens of each text from `start` on: from 0 all, from -1 the last."""
    rows = [SimpleNamespace(row=row, tokens=ids) for row, ids in enumerate(texts)]
    work = [(row, start % len(row.tokens), len(row.tokens[start:])) for row in rows]
    return Batch.of(work, model.device)


texts = [llm.tokenizer.encode(prompt) for prompt in ("Once upon a", "The fox")]
prompts = batch(texts)
logits, layers = watch(model, prompts, NoCache())
show("token ids, positions, rows", torch.stack([prompts.token_ids, prompts.positions, prompts.row]))

# %% [markdown]
# **Do exercise 2.2 first: this writes the cache.** The token at position p goes into slot p of its row (section 3).
# Rows lie end to end, so its address is row · 6 + p.

# %%
places = prompts.row * SLOTS + prompts.positions  # (N,)


def prefilled() -> Tensor:
    """A cache of two rows (2, L, B, SLOTS, H, D), zeros but for the prompts' keys and values."""
    cache = torch.zeros(2, L, B, SLOTS, H, D)
    for layer, (_, k, v) in enumerate(layers):
        cache[:, layer].flatten(1, 2).index_copy_(1, places, torch.stack([k, v]))
    return cache


GREEDY = SamplingParams(max_tokens=16, temperature=0)
LONG = "Once upon a time there was a king who had three sons, and the youngest of them"


def told(*prompts: str) -> list[str]:
    """Each prompt with its continuation, on one line."""
    done = llm.generate(list(prompts), GREEDY)
    return [(prompt + one.text).replace("\n", "\\n") for prompt, one in zip(prompts, done, strict=True)]


right = told("The fox", LONG)
print(*right, sep="\n")

# %% [markdown]
# ## 1. Prefill
#
# All that a prompt's queries may read came with this step, so it only writes. A line is a row, a column a slot.

# %%
show("addresses", places[None])
show("keys, first number", prefilled()[0, LAYER, :, :, HEAD, 0])

# %% [markdown]
# ## 2. Decode
#
# **Do exercises 2.3 and 2.4 first.** Only the new tokens go through the model, each at its own row's next position
# (section 5).

# %%
new = logits.argmax(-1)  # (B,)
longer = [[*ids, token] for ids, token in zip(texts, new.tolist(), strict=True)]
step = batch(longer, start=-1)
show("new tokens, their positions", torch.stack([step.token_ids, step.positions]))

# %% [markdown]
# Each layer writes, then reads. A query reads the slots up to its own position; the others get weight 0 (section 4).

# %%
cache, weights = prefilled(), torch.zeros(L, B, H, SLOTS)
visible = torch.arange(SLOTS) <= step.positions[:, None]  # (B, SLOTS)


def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One token a row: q, k, v (B, H, D) -> (B, H, D)."""
    cache[:, layer, torch.arange(B), step.positions] = torch.stack([k, v])
    keys, values = cache[:, layer]  # (B, SLOTS, H, D) each
    scores = torch.einsum("bhd,bshd->bhs", q, keys) / D**0.5
    weights[layer] = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhs,bshd->bhd", weights[layer], values)


decoded = model.head(model.hidden(step, attend))  # (B, V)
show("keys, first number", cache[0, LAYER, :, :, HEAD, 0])
show("visible", visible.int())
show("weights", weights[LAYER, :, HEAD])

# %% [markdown]
# The past does not change (section 2), so these are the logits of the whole text, and of the engine's cache:

# %%
dense = DenseCache(config, B, SLOTS, model.device, model.dtype)
model(prompts, dense)
assert torch.allclose(model(step, dense), decoded, atol=1e-3)
for ids, mine in zip(longer, decoded, strict=True):
    whole = forward_logits(model, torch.tensor([ids]))[0, -1]
    print(f"largest difference from the whole text: {float((whole - mine).abs().max()):.1e}")
    assert torch.allclose(whole, mine, atol=1e-3)

# %% [markdown]
# ## 3. Hidden slots
#
# The query of ` fox` reads slots 0 and 1 of six (section 6). Does its result change if the others hold 10,000, or NaN?

# %%
guess = "?"  # "neither", "10,000", "NaN" or "both"
query = layers[LAYER][0][-1, HEAD]  # (D,)
keys, values = prefilled()[:, LAYER, 1, :, HEAD]  # (SLOTS, D) each
fox = (keys @ query / D**0.5).masked_fill(torch.arange(SLOTS) > 1, -torch.inf).softmax(-1)  # (SLOTS,)
found = {}
for number in (0.0, 1e4, torch.nan):
    values[2:] = number
    found[number] = (fox @ values)[:5]
    print(f"slots 2 to 5 hold {number}: {[round(n, 3) for n in found[number].tolist()]}")
same = [torch.equal(result, found[0.0]) for result in found.values()]
outcomes = {(1, 1): "neither", (0, 1): "10,000", (1, 0): "NaN", (0, 0): "both"}
compare(guesses, "hidden slots", guess, outcomes[tuple(same[1:])])

# %% [markdown]
# # Break it
#
# `answers.mistake` puts a wrong answer of an exercise into the engine. Leaving its `with` block repairs the engine.
#
# ## Break 1: the column is the slot
#
# **Do exercise 2.2 first.** A decode step brings one token a row, number 0, and writes it to slot 0. Which token's
# key is lost first?

# %%
guess = "?"  # "the first", "the last" or "none"
with answers.mistake("2.2", "column-is-slot"):
    wrong = told("The fox", LONG)
print(*wrong, sep="\n")
compare(guesses, "break 1", guess, "the first")
assert wrong != right == told("The fox", LONG)

# %% [markdown]
# The slots that new tokens should have filled stay zeros, and the mask lets them through.

# %%
print(answers.source("2.2", "column-is-slot"))

# %% [markdown]
# ## Break 2: a triangle at the top left
#
# Causal attention by the library's switch. What happens?

# %%
guess = "?"  # "an error", "the same text" or "another text"
with answers.mistake("2.3", "triangle-at-the-top-left"):
    wrong = told("The fox", LONG)
print(*wrong, sep="\n")
compare(guesses, "break 2", guess, "the same text" if wrong == right else "another text")
assert told("The fox", LONG) == right

# %% [markdown]
# In each decode step the query reads slot 0 alone. The prompt itself was read correctly.
#
# ## Break 3: decode goes on at the padded length
#
# Which of the two goes wrong?

# %%
guess = "?"  # "the short one", "the long one" or "both"
with answers.mistake("2.4", "padded-length"):
    together, alone = told("The fox", LONG), told("The fox")
print("together:", *together, "alone:", *alone, sep="\n")
changed = [a != b for a, b in zip(together, right, strict=True)]
compare(guesses, "break 3", guess, {(1, 0): "the short one", (0, 1): "the long one", (1, 1): "both"}[tuple(changed)])
assert alone[0] == right[0]
assert told("The fox", LONG) == right

# %% [markdown]
# A test of single prompts sees nothing: alone, `The fox` is right.
#
# ## Break 4: a weight of zero
#
# Here the cache begins as NaN, and hidden slots get weight 0. All logits become NaN. Which token does `argmax` choose?

# %%
guess = "?"  # "the first" or "the last"
with answers.mistake("2.5", "weight-zero"):
    wrong = told("The fox")
print(*wrong, sep="\n")
compare(guesses, "break 4", guess, "the first" if wrong[0].endswith("!!!!") else "the last")
assert told("The fox", LONG) == right

# %% [markdown]
# `argmax` takes NaN for the largest number, and the first of several: token 0, `!`. The engine's cache begins as zeros.
#
# ## What it saves, and what it takes
#
# A decode step after longer and longer texts on this machine (section 10). How much longer is the naive one at 512?


# %%
def step_ms(cache: NoCache, context: int) -> float:
    """Milliseconds of a decode step of one sequence."""
    start, times = context if isinstance(cache, DenseCache) else 0, []
    fed = Batch.of([(SimpleNamespace(row=0, tokens=[464] * (context + 1)), start, context + 1 - start)], model.device)
    for _ in range(4):
        begin = time.perf_counter()
        model(fed, cache).argmax(-1).tolist()
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


guess = "?"  # 2, 10 or 50
big = DenseCache(config, 1, 1024, model.device, model.dtype)
for context in (32, 128, 256, 512):
    naive, cached = step_ms(NoCache(), context), step_ms(big, context)
    print(f"{context:4} tokens: {naive:7.1f} ms without a cache, {cached:6.1f} ms with one: {naive / cached:.1f} times")
compare(guesses, "cost", guess, min((2, 10, 50), key=lambda n: max(n * cached / naive, naive / cached / n)))

# %% [markdown]
# On an H200 after 128 tokens, from the benchmark's results: with one sequence launches decide, with many arithmetic.

# %%
report = results("h200-gpu")
figure, axis = plt.subplots(figsize=(5, 3.2))
for engine in ("naive", "dense"):
    times = sorted((r["case"]["batch"], 1e3 * r["case"]["batch"] / r["tokens_per_s"]) for r in report["results"]
                   if r["case"]["engine"] == engine and r["status"] == "ok")  # fmt: skip
    axis.loglog(*zip(*times, strict=True), "o-", label=engine)
    print(engine, ", ".join(f"{rows} rows {ms:.2f} ms" for rows, ms in times if rows in {1, 8, 64, 256}))
axis.set(title=f"{report['machine']['device']}: gpt2", xlabel="sequences", ylabel="ms a step")
axis.legend()
plt.show()

# %% [markdown]
# The cache in bfloat16, with 1024 slots a row, next to the weights (section 7):

# %%
for name in ("small", "gpt2", "gpt2-xl"):
    shape = PRESETS[name]
    sizes = "  ".join(f"{rows} rows {2 * rows * 1024 * shape.kv_numbers / 1e9:7.2f} GB" for rows in (1, 64, 512))
    print(f"{name:8} a token {2 * shape.kv_numbers:>8,} bytes, weights {2 * shape.parameters / 1e9:5.2f} GB, {sizes}")

# %% [markdown]
# ## Quiz and score
#
# With `pip install jupyterquiz` it has buttons. Next, `nanoinfer course start 2` gives you the exercises.

# %%
quiz(2)
print(f"{sum(guesses.values())} of {len(guesses)} guesses were right")
