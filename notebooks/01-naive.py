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
# # Chapter 1: one step, tensor by tensor
#
# This notebook walks one step of a very small GPT-2 from token ids to the next tokens. Every tensor is printed and
# drawn. Then you break the real engine in a few places, guess what comes out, and repair it. The chapter's text is
# `chapters/01-naive/README.md`; run the cells from top to bottom. No GPU is needed.

# %%
import time

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from nanocourse.exercises import answers
from nanocourse.learner.notebook import quiz, results, show, source
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.none import NoCache
from nanoinfer.engine.sampling import gumbel, random_bits, threshold
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model

_ = torch.set_grad_enabled(False)

# %% [markdown]
# ## The model and the step
#
# One layer, two heads of four numbers, a vocabulary of ten tokens, random weights. The step brings two texts, of three
# tokens and of two, end to end. Each token knows where it stands in its own text, and which row that text is.

# %%
config = ModelConfig(n_layer=1, n_head=2, n_embd=8, n_positions=8, vocab_size=10)
model = random_model(config, seed=1, std=0.3)
N, C, H, D = 5, config.n_embd, config.n_head, config.head_size

ids = torch.tensor([3, 1, 4, 1, 5])
positions = torch.tensor([0, 1, 2, 0, 1])
row = torch.tensor([0, 0, 0, 1, 1])

show("token ids, positions, rows", torch.stack([ids, positions, row]))

# %% [markdown]
# The record that carries them. It also says where each row's tokens begin. A token is chosen after the last of each
# row.

# %%
starts, logits_at = torch.tensor([0, 3, 5]), torch.tensor([2, 4])
step = Batch(ids, positions, row, starts, longest=3, past=0)

# %% [markdown]
# ## 1. What each token is
#
# A line of the token embedding for each id. Token id 1 occurs in both texts: its vector is the same.

# %%
what = F.embedding(ids, model.wte.weight)  # (N, C)
show("token embeddings", what)
assert torch.equal(what[1], what[3])

# %% [markdown]
# ## 2. Where it stands
#
# A line of the position embedding for each position, the first *update* that is added. Now token 1 has two different
# vectors, since it stands at position 1 in row 0 and at position 0 in row 1.

# %%
where = F.embedding(positions, model.wpe.weight)  # (N, C)
x = what + where
show("the residual stream", x)
assert not torch.equal(x[1], x[3])

# %% [markdown]
# ## 3. A normalised copy
#
# LayerNorm looks at one token at a time. The stream `x` stays what it is; `h` is what the sublayer reads.

# %%
block = model.h[0]
h = F.layer_norm(x, (C,), block.ln_1.weight, block.ln_1.bias)
show("h", h)
plain = F.layer_norm(x, (C,))
mean, deviation = float(plain[0].mean()), float(plain[0].std(correction=0))
print(f"before it is scaled and shifted: mean {abs(mean):.3f}, deviation {deviation:.3f}")

# %% [markdown]
# ## 4. Queries, keys and values
#
# One matrix makes all three, for all heads. Shown are the queries and the keys of head 0.

# %%
qkv = h @ block.attn.c_attn.weight + block.attn.c_attn.bias  # (N, 3 * C)
q, k, v = qkv.view(N, 3, H, D).unbind(1)  # (N, H, D) each
show("queries of head 0", q[:, 0])
show("keys of head 0", k[:, 0])

# %% [markdown]
# ## 5. Scores
#
# Every query with every key, over the square root of D. Lines of the table are queries, columns are keys.

# %%
scores = torch.einsum("qhd,khd->hqk", q, k) / D**0.5  # (H, N, N)
show("scores of head 0", scores[0])

# %% [markdown]
# ## 6. The mask
#
# A key may be read if it is of the query's own row, and stands at the query's position or before it. What may not be
# read becomes minus infinity; below it is drawn as -inf.

# %%
hidden = (row != row[:, None]) | (positions > positions[:, None])  # (N, N)
masked = scores.masked_fill(hidden, -torch.inf)
show("masked scores of head 0", masked[0])

# %% [markdown]
# ## 7. Weights
#
# Softmax over the keys. Every line of the table sums to 1, and nobody reads another row: two blocks of numbers stand
# apart.

# %%
weights = masked.softmax(-1)
show("weights of head 0", weights[0])
assert torch.allclose(weights.sum(-1), torch.ones(H, N))
assert float(weights[:, row != row[:, None]].max()) == 0

# %% [markdown]
# ## 8. The update of attention
#
# Values summed by these weights, heads side by side, one more matrix. The result is added to the stream.

# %%
y = torch.einsum("hqk,khd->qhd", weights, v).reshape(N, C)
update = y @ block.attn.c_proj.weight + block.attn.c_proj.bias
show("update", update)
x = x + update
show("the stream with it", x)

# %% [markdown]
# The engine hands q, k and v to its *cache* and gets `y` back. The naive cache computes no scores between rows: it pads
# the rows to one length, and a triangle hides the padding with the rest. It gives the same numbers:

# %%
source(NoCache.attend)

# %% [markdown]
# `padded` makes the rectangle, and nothing else in this chapter does. A shorter row is followed by zeros.

# %%
source(Batch.padded)

# %%
cache = NoCache()
theirs = cache.attend(cache.plan(step), 0, q, k, v).reshape(N, C)
print("largest difference:", float((theirs - y).abs().max()))

# %% [markdown]
# ## 9. The update of the MLP
#
# Again a normalised copy, four times as wide in the middle, and added.

# %%
h = F.layer_norm(x, (C,), block.ln_2.weight, block.ln_2.bias)
inner = F.gelu(h @ block.mlp.c_fc.weight + block.mlp.c_fc.bias, approximate="tanh")  # (N, 4 * C)
x = x + inner @ block.mlp.c_proj.weight + block.mlp.c_proj.bias
show("inside the MLP, the first twelve numbers", inner[:, :12])
show("the stream after the block", x)

# %% [markdown]
# ## 10. The last token of each row
#
# The stream is normalised at last, and the tokens at 2 and at 4 go on.

# %%
final = F.layer_norm(x, (C,), model.ln_f.weight, model.ln_f.bias)  # (N, C)
chosen = final[logits_at]  # (B, C)
show("each row's last token", chosen)

# %% [markdown]
# ## 11. Logits
#
# The dot product with every token's embedding: the same table as in part 1. And the proof that nothing was forgotten:
# the engine's own model gives these logits.

# %%
logits = chosen @ model.wte.weight[: config.vocab_size].T  # (B, V)
show("logits", logits)
theirs = model(step, NoCache())
print("largest difference from the engine's:", float((logits - theirs).abs().max()))
assert torch.allclose(logits, theirs, atol=1e-5)

# %%
source(GPT2.forward)

# %% [markdown]
# ## 12. The next token
#
# Greedy takes the highest logit. Sampling adds each row's own noise, a hash of (seed, step, token id), and takes the
# highest sum. Change the seed or the step and run the cell again: only the second table changes.

# %%
seed, number = torch.tensor([7, 8]), torch.tensor([0, 0])  # of each row: its seed, and how many tokens it has produced
noise = gumbel(seed, number, config.vocab_size)  # (B, V)
show("noise", noise)
show("logits + noise", logits + noise)
print("greedy:", logits.argmax(-1).tolist(), " sampled:", (logits + noise).argmax(-1).tolist())
print("32 bits of seed 7, step 0, token 3:", int(random_bits(torch.tensor(7), torch.tensor(0), torch.tensor(3))))

# %% [markdown]
# With top-k 4 and top-p 0.8 the engine finds the lowest score that is kept. Everything below it is out, whatever its
# noise.

# %%
lowest = threshold(logits, torch.tensor([4, 4]), torch.tensor([0.8, 0.8]))  # (B, 1)
show("kept", torch.where(logits >= lowest, logits, -torch.inf))
print("lowest score kept:", [round(score, 2) for score in lowest[:, 0].tolist()])

# %% [markdown]
# # Break it
#
# From here on it is the real engine with the small model that ships. `answers.mistake` puts a known wrong answer of the
# chapter's exercises into the engine, for as long as its block runs. **Write your guess down before you run a cell.**

# %%
llm = LLM(engine="naive", device="cpu")
greedy = SamplingParams(max_tokens=16, temperature=0)


def told(*prompts: str, params: SamplingParams = greedy) -> list[str]:
    """Each prompt and what the engine makes of it, on one line."""
    rows = zip(prompts, llm.generate(list(prompts), params), strict=True)
    return [(prompt + row.text).replace("\n", "\\n") for prompt, row in rows]


right = told("The fox", "Once upon a time")
print(*right, sep="\n")

# %% [markdown]
# ## Break 1: no mask
#
# Every query reads every key, the later ones too. Guess: an error, the same text, or other text? Is already the *first*
# new token another one? Each prompt runs alone here: beside a longer one, `The fox` would read its padding, too.
#
# **Do exercise 1.1 first**: this break prints its whole answer but for one call, and then that call.

# %%
guess = "..."
with answers.mistake("1.1", "no-mask"):
    wrong = told("The fox") + told("Once upon a time")
print("your guess:", guess, *wrong, sep="\n")
assert wrong != right

# %% [markdown]
# Nothing crashed, and the text went astray. The keys of later tokens are there in every layer, and the model was never
# trained with them. The mistake is in one line; find it:

# %%
print(answers.source("1.1", "no-mask").split("\n\n", 1)[1].strip())

# %% [markdown]
# *Repair it.* The line with `softmax` lacks `.masked_fill(later, -torch.inf)`, so `later` is made and not used. Outside
# the block the engine has its own attention again.

# %%
assert told("The fox", "Once upon a time") == right

# %% [markdown]
# ## Break 2: the stream itself is normalised
#
# LayerNorm's result takes the place of the residual stream. Guess: does it still write English?

# %%
guess = "..."
with answers.mistake("1.2", "stream-normalised"):
    wrong = told("The fox", "Once upon a time")
print("your guess:", guess, *wrong, sep="\n")
assert wrong != right

# %% [markdown]
# *Repaired*, with what the stream must be: what came in, plus updates.

# %%
assert told("The fox", "Once upon a time") == right
print("root mean square of the stream of the tiny model, before and after its block:",
      round(float((what + where).square().mean().sqrt()), 2), round(float(x.square().mean().sqrt()), 2))  # fmt: skip

# %% [markdown]
# ## Break 3: the last column
#
# The rows are laid out as a rectangle, and every row's logits are taken from its last column. `The fox` has two tokens,
# `Once upon a time` has four.
# Guess: which of the two rows goes wrong? Both, the short one, the long one? And what if each runs alone?

# %%
guess = "..."
with answers.mistake("1.3", "last-column"):
    together, alone = told("The fox", "Once upon a time"), told("The fox")
print("your guess:", guess, "together:", *together, "alone:", *alone, sep="\n")
assert together[0] != right[0]
assert [together[1], alone[0]] == [right[1], right[0]]

# %% [markdown]
# *Repaired:* the step says which token is each row's last. A test that runs rows alone would never have seen it.

# %%
assert told("The fox", "Once upon a time") == right

# %% [markdown]
# ## Break 4: one generator for the batch
#
# Now with sampling: one random generator, seeded once, hands out the noise of all rows in order. Guess: does the second
# row write the same text alone and in the batch?

# %%
guess = "..."
drawn = SamplingParams(max_tokens=12, temperature=0.8, top_k=50, seed=7)
with answers.mistake("1.5", "one-generator"):
    together, alone = told("The fox", "Once upon a", params=drawn), told("Once upon a", params=drawn)
print("your guess:", guess, "in the batch:", together[1], "alone:", alone[0], sep="\n")
assert together[1] != alone[0]

# %% [markdown]
# *Repaired:* a row's noise is a hash of its own seed, the step and the token's id.

# %%
together, alone = told("The fox", "Once upon a", params=drawn), told("Once upon a", params=drawn)
print("in the batch:", together[1], "alone:", alone[0], sep="\n")
assert together[1] == alone[0]

# %% [markdown]
# # What it costs here
#
# The time of one pass over a longer and longer text, on the machine that runs this notebook. The chapter's arithmetic
# says: about in proportion to the tokens, and a little more. Guess the ratio of the last two first.

# %%
guess = "..."
tokens, milliseconds = (64, 128, 256, 512), []
for length in tokens:
    text, place = torch.randint(0, 50257, (length,), generator=torch.Generator().manual_seed(0)), torch.arange(length)
    here = Batch(text, place, torch.zeros_like(place), torch.tensor([0, length]), longest=length, past=0)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        llm.model(here, NoCache())
        times.append(time.perf_counter() - start)
    milliseconds.append(1e3 * sorted(times[1:])[1])
for length, ms in zip(tokens, milliseconds, strict=True):
    print(f"{length:4} tokens: {ms:7.1f} ms")
print(f"on {torch.get_num_threads()} threads; your guess: {guess}, measured: {milliseconds[-1] / milliseconds[-2]:.2f}")

# %% [markdown]
# And an H200, where launching the kernels of a step takes longer than the work in them, until there are enough rows.
# These numbers come out of the benchmark's results file.

# %%
report = results("h200-gpu")
naive = sorted((r["case"]["batch"], 1e3 * r["case"]["batch"] / r["tokens_per_s"]) for r in report["results"]
               if r["case"]["engine"] == "naive" and r["status"] == "ok")  # fmt: skip
rows, steps = zip(*naive, strict=True)
figure, (ours, theirs) = plt.subplots(1, 2, figsize=(9, 3.2))
ours.plot(tokens, milliseconds, "o-")
ours.set(title="here: the small model, 1 row", xlabel="tokens of context", ylabel="ms a step", ylim=(0, None))
theirs.plot(rows, steps, "o-")
theirs.set(title=f"{report['machine']['device']}: GPT-2, 128 tokens", xlabel="rows", ylabel="ms a step")
theirs.set(xscale="log", yscale="log")
theirs.set_xticks(rows, rows)
theirs.set_yticks([2, 5, 10, 20], [2, 5, 10, 20])
theirs.minorticks_off()
figure.tight_layout()
plt.show()
for row, ms in naive:
    print(f"{row:4} rows: {ms:7.2f} ms a step, {1e3 * row / ms:8,.0f} tokens/s")

# %% [markdown]
# # Quiz
#
# It never counts for marks. With `pip install jupyterquiz` it has buttons.

# %%
quiz(1)

# %% [markdown]
# **Where to go on.** `nanoinfer course start 1` gives you the exercises; the mistakes above are some of those that
# their checks know by name.
