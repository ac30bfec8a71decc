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
# Take a step of the small GPT-2 apart, then break the engine. The text is `chapters/01-naive/README.md`. Run the
# set-up; the parts after it then run in any order, without a GPU. Put a guess into each `guess = "?"` before you run
# its cell. The last cell counts the right ones.

# %%
import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises import answers
from nanocourse.learner.notebook import compare, quiz, show, source, watch
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.none import NoCache
from nanoinfer.engine.sampling import gumbel, threshold
from nanoinfer.model.batch import Batch

_ = torch.set_grad_enabled(False)

# %% [markdown]
# Two sequences, end to end (section 7). Each token has a position in its own sequence, and that sequence's slot.

# %%
llm = LLM(engine="naive", device="cpu")
model, config, guesses = llm.model, llm.model.config, {}
C, H, D = config.n_embd, config.n_head, config.head_size
texts = [llm.tokenizer.encode(prompt) for prompt in ("Once upon a", "The fox")]
step = Batch.of([(SimpleNamespace(row=row, tokens=ids), 0, len(ids)) for row, ids in enumerate(texts)], model.device)
N = len(step.token_ids)
logits, layers = watch(model, step, NoCache())  # the engine's logits, and each layer's queries, keys and values


def words(ids: Tensor) -> list[str]:
    return [llm.tokenizer.token_bytes(token).decode(errors="replace") for token in ids.tolist()]


print(words(step.token_ids))
show("token ids, positions, rows", torch.stack([step.token_ids, step.positions, step.row]))

GREEDY = SamplingParams(max_tokens=16, temperature=0)
SAMPLED = SamplingParams(max_tokens=12, temperature=0.8, top_k=50, seed=7)


def told(*prompts: str, params: SamplingParams = GREEDY) -> list[str]:
    """Each prompt with its continuation, on one line."""
    done = llm.generate(list(prompts), params)
    return [(prompt + one.text).replace("\n", "\\n") for prompt, one in zip(prompts, done, strict=True)]


right = told("The fox", "Once upon a time")
print(*right, sep="\n")

# %% [markdown]
# ## 1. What a token is, and where it stands
#
# The stream starts as token embedding plus position embedding (section 2). Shown are eight of 160 numbers.

# %%
what, where = model.wte.weight[step.token_ids], model.wpe.weight[step.positions]  # (N, C) each
show("token embeddings, position embeddings, their sum", torch.stack([what, where, what + where])[..., :8])

# %% [markdown]
# ## 2. Attention
#
# **Do exercise 1.1 first: these cells write attention out.** This is head 3 of layer 7, as in section 3's figure.

# %%
LAYER, HEAD = 7, 3
q, k, v = layers[LAYER]  # (N, H, D) each
show("queries and keys, first eight numbers", torch.stack([q[:, HEAD, :8], k[:, HEAD, :8]]))
scores = torch.einsum("qhd,khd->hqk", q, k) / D**0.5  # (H, N, N)
show("scores: a query a line, a key a column", scores[HEAD])

# %% [markdown]
# A query may read keys of its own sequence, up to its own position (section 4). Other scores become minus infinity, so
# softmax gives them weight 0.

# %%
hidden = (step.row != step.row[:, None]) | (step.positions > step.positions[:, None])  # (N, N)
weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)  # (H, N, N)
show("weights", weights[HEAD])

# %% [markdown]
# The result is the sum of the values by these weights, heads side by side. The engine's cache gets it from padded
# sequences and a triangle (section 7):

# %%
y = torch.einsum("hqk,khd->qhd", weights, v).reshape(N, C)
theirs = NoCache().attend(step, LAYER, q, k, v).reshape(N, C)
assert torch.allclose(theirs, y, atol=1e-5)
source(NoCache.attend)
source(Batch.padded)

# %% [markdown]
# ## 3. The blocks, and the logits
#
# **Do exercise 1.2 first: this is the block.** A sublayer reads a normalized copy of the stream and returns an update
# (section 5). `stream[n]` enters layer n.


# %%
def norm(x: Tensor, at: torch.nn.Module) -> Tensor:
    return F.layer_norm(x, (C,), at.weight, at.bias)


def linear(x: Tensor, at: torch.nn.Module) -> Tensor:
    return x @ at.weight + at.bias


stream = [model.wte.weight[step.token_ids] + model.wpe.weight[step.positions]]  # (N, C) each
for block in model.h:
    queries, keys, values = linear(norm(stream[-1], block.ln_1), block.attn.c_attn).view(N, 3, H, D).unbind(1)
    read = NoCache().attend(step, 0, queries, keys, values).reshape(N, C)
    between = stream[-1] + linear(read, block.attn.c_proj)
    inner = F.gelu(linear(norm(between, block.ln_2), block.mlp.c_fc), approximate="tanh")  # (N, 4 * C)
    stream.append(between + linear(inner, block.mlp.c_proj))
show("stream at layers 0, 6 and 12", torch.stack([stream[n][:, :6] for n in (0, 6, 12)]))
print("root mean square:", [round(float(stream[n].square().mean().sqrt()), 2) for n in (0, 3, 6, 9, 12)])

# %% [markdown]
# A last LayerNorm, and the last token of each sequence meets every token's embedding. **Do exercise 1.3 first.** The
# logits are the engine's, so nothing is missing:

# %%
last = norm(stream[-1], model.ln_f)[step.starts[1:] - 1]  # (B, C)
mine = last @ model.wte.weight[: config.vocab_size].T  # (B, V)
assert torch.allclose(mine, logits, atol=1e-3)

# %% [markdown]
# ## 4. The next token
#
# Greedy takes the highest logit. Sampling first adds each sequence's own noise, a hash of seed, step and token id
# (section 9). Change seed or step: the logits stay.

# %%
seed, number = torch.tensor([7, 8]), torch.tensor([0, 0])  # of each sequence; number: its new tokens
noise = gumbel(seed, number, config.vocab_size)  # (B, V)
best = logits.topk(8).indices  # (B, 8)
print(*map(words, best), sep="\n")
show("logits of these tokens", logits.gather(1, best))
show("noise", noise.gather(1, best))
show("logits + noise", (logits + noise).gather(1, best))
print("greedy:", words(logits.argmax(-1)), " sampled from all tokens:", words((logits + noise).argmax(-1)))

# %% [markdown]
# Top-k 4 and top-p 0.8 keep scores down to a lowest one (section 8). What is below is out, whatever its noise.

# %%
lowest = threshold(logits, torch.tensor([4, 4]), torch.tensor([0.8, 0.8]))  # (B, 1)
show("kept", torch.where(logits >= lowest, logits, -torch.inf).gather(1, best))

# %% [markdown]
# # Break it
#
# `answers.mistake` puts a wrong answer of an exercise into the engine. Leaving its `with` block repairs the engine.
#
# ## Break 1: no mask
#
# **Do exercise 1.1 first: this break prints all but one call of it.** Every query reads every key. Prompts run alone
# here; next to a longer one, a prompt would also read its padding.

# %%
guess = "?"  # "an error", "the same text" or "another text"
with answers.mistake("1.1", "no-mask"):
    wrong = told("The fox") + told("Once upon a time")
print(*wrong, sep="\n")
compare(guesses, "break 1", guess, "the same text" if wrong == right else "another text")
assert told("The fox", "Once upon a time") == right

# %% [markdown]
# Nothing crashes, but the model was never trained with the keys of later tokens. Which line is wrong?

# %%
print(answers.source("1.1", "no-mask").split("\n\n", 1)[1].strip())

# %% [markdown]
# The line with `softmax` lacks `.masked_fill(later, -torch.inf)`.
#
# ## Break 2: the stream is normalized
#
# LayerNorm's result replaces the stream. Does the model still write English?

# %%
guess = "?"  # "English" or "nonsense"
with answers.mistake("1.2", "stream-normalised"):
    wrong = told("The fox", "Once upon a time")
print(*wrong, sep="\n")
compare(guesses, "break 2", guess, "nonsense")
assert wrong != right == told("The fox", "Once upon a time")

# %% [markdown]
# ## Break 3: the last column
#
# Logits come from the last column of a padded rectangle. `The fox` has two tokens, `Once upon a time` four. Which goes
# wrong?

# %%
guess = "?"  # "the short one", "the long one" or "both"
with answers.mistake("1.3", "last-column"):
    together, alone = told("The fox", "Once upon a time"), told("The fox")
print("together:", *together, "alone:", *alone, sep="\n")
changed = [a != b for a, b in zip(together, right, strict=True)]
compare(guesses, "break 3", guess, {(1, 0): "the short one", (0, 1): "the long one", (1, 1): "both"}[tuple(changed)])
assert alone[0] == right[0] == told("The fox")[0]

# %% [markdown]
# A test of single prompts sees nothing: alone, the last column is the last token.
#
# ## Break 4: one generator for the batch
#
# One random generator serves all sequences. Is the second prompt's text the same alone and in the batch?

# %%
guess = "?"  # "the same" or "different"
with answers.mistake("1.5", "one-generator"):
    together, alone = told("The fox", "Once upon a", params=SAMPLED), told("Once upon a", params=SAMPLED)
print("in the batch:", together[1], "alone:", alone[0], sep="\n")
compare(guesses, "break 4", guess, "the same" if together[1] == alone[0] else "different")
assert told("The fox", "Once upon a", params=SAMPLED)[1] == told("Once upon a", params=SAMPLED)[0]

# %% [markdown]
# ## What it costs
#
# One pass over longer and longer texts on this machine (section 12). What is the ratio of 512 tokens to 256?

# %%
guess = "?"  # 1, 2 or 4
milliseconds = []
for length in (64, 128, 256, 512):
    long = Batch.of([(SimpleNamespace(row=0, tokens=[464] * length), 0, length)], model.device)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        model(long, NoCache())
        times.append(time.perf_counter() - start)
    milliseconds.append(1e3 * min(times))
    print(f"{length:4} tokens: {milliseconds[-1]:7.1f} ms")
ratio = milliseconds[-1] / milliseconds[-2]
compare(guesses, "cost", guess, min((1, 2, 4), key=lambda n: abs(ratio / n - 1)))

# %% [markdown]
# ## Quiz and score
#
# With `pip install jupyterquiz` it has buttons. Next, `nanoinfer course start 1` gives you the exercises.

# %%
quiz(1)
print(f"{sum(guesses.values())} of {len(guesses)} guesses were right")
