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
# # Chapter 8: two ranks, by turns
#
# In this notebook you cut two matrices by columns and rows, sum up by hand, and send messages round a ring. Then a
# layer of the small model is computed by two ranks that are threads here, you break it in a few places, guess what
# comes out, and repair it. At the end you predict from which number of rows on two GPUs are faster than one. The
# chapter's text is `chapters/08-parallel/README.md`; run the cells from top to bottom. No GPU is needed.

# %%
import matplotlib.pyplot as plt
import torch

from nanocourse.exercises import chapters
from nanocourse.exercises.chapters import run_file
from nanocourse.learner.notebook import quiz, results, source
from nanoinfer.model.config import PRESETS
from nanoinfer.parallel.shard import Shard

_ = torch.set_grad_enabled(False)
CHAPTER = chapters.chapter(8).folder
run = run_file(CHAPTER / "running.py", "chapter_08_running")
example = run_file(CHAPTER / "example.py", "chapter_08_example")

# %% [markdown]
# ## 1. Columns, then rows, then one sum
#
# Change the numbers, and where the cut is.

# %%
x = torch.tensor([1, 2, -1, 3])
A, B = example.A, example.B
CUT = 2  # columns of the first rank
parts = slice(0, CUT), slice(CUT, 4)
h = [(x @ A[:, own]).relu() for own in parts]  # each rank alone
terms = [mine @ B[own] for mine, own in zip(h, parts, strict=True)]  # each a part of every number
print("h:", *h, "\nterms:", *terms, "\nsum:", sum(terms))
assert torch.equal(sum(terms), (x @ A).relu() @ B)

# %% [markdown]
# Cut A by rows as well, and something else comes out. Why does it come out right if you take `relu` away?

# %%
first = [x[own] @ A[own] for own in parts]
print("sum of terms:", sum(first), "| of terms that are not negative:", sum(term.relu() for term in first))
print("what it ought to be:", (x @ A).relu())

# %% [markdown]
# ## 2. A ring
#
# Three ranks, a number each at first. How many messages does each send? Work it out for four ranks before you change
# `rows`.

# %%
rows = [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [100.0, 200.0, 300.0]]
steps, ended = run.ring(rows)
for at, step in enumerate(steps):
    print(at + 1, *(f"{one.sender} sends part {one.part}: {one.numbers}" for one in step))
print("each ends with", ended)
assert all(row == ended[0] for row in ended)

# %%
source(run.small.Rank.all_reduce)

# %% [markdown]
# All ranks have the same bits, because each part was added up once. Add up the same floats in three orders:

# %%
a, b, c = 0.1, 0.2, 0.3
print((a + b) + c, a + (b + c), (a + c) + b)

# %% [markdown]
# ## 3. What a rank holds
#
# gpt2-xl on two ranks. Try three, and 25. What does 26 say?

# %%
SIZE = 2
for rank in range(SIZE):
    shard = Shard(rank, SIZE)
    config = PRESETS["gpt2-xl"]
    print(rank, "heads", shard.heads(config), "| MLP", shard.inner(config), "| ids", shard.vocab(config))

# %% [markdown]
# ## 4. The small model, by two ranks
#
# Each has its heads, its columns and its ids. The text is that of one rank.

# %%
both = run.texts()
print(both[0])
assert both[0] == both[1]

# %% [markdown]
# # Break it
#
# Each block below puts one mistake into a rank. **Write your guess down before you run a cell.**
#
# ## Break 1: the bias on every rank
#
# Guess: do the two ranks still agree with each other, and is it text?

# %%
guess = "..."
wrong = run.texts(run.BiasEverywhere)
print("your guess:", guess, "| the ranks agree:", wrong[0] == wrong[1])
print(wrong[0])
assert wrong[0] != both[0]

# %% [markdown]
# *Repaired.* One rank has the bias, and the others have zeros.

# %%
source(Shard.adds)

# %% [markdown]
# ## Break 2: c_attn is cut straight
#
# Guess: which heads does the first rank compute, and with whose keys?

# %%
guess = "..."
wrong = run.texts(run.CutStraight)
print("your guess:", guess)
print(wrong[0])
assert wrong[0] != both[0]

# %% [markdown]
# *Repaired.* A rank takes its heads from each third.

# %%
example.heads()

# %% [markdown]
# ## Break 3: noise by each rank's own numbers
#
# Each rank counts its ids from 0 when it makes noise. Guess: at which temperature is the text another one?

# %%
guess = "..."
print("your guess:", guess)
for heat in (0.8, 1.2):
    right, wrong = (run.texts(run.Part, heat, kind)[0] for kind in (run.JoinedSamplers, run.OwnNumbers))
    print("temperature", heat, "| the same text:", right == wrong)

# %% [markdown]
# *Repaired.* The ids are the whole model's. A test should not wait for luck: put the highest logit where the cut is.

# %%
example.joined()

# %% [markdown]
# ## Break 4: one buffer
#
# A one-shot sum where rank 1 reads late. Guess: how many of five sums are wrong, and on which rank?

# %%
guess = "..."
print("your guess:", guess)
print("one buffer ", example.one_shot(5, 1))
print("two in turn", example.one_shot(5, 2))
assert example.one_shot(5, 2)[0] == example.one_shot(5, 2)[1]

# %% [markdown]
# # What it brings
#
# ## 5. Predict
#
# A step reads its bytes at some speed, does something that is not halved, and meets 2 L times. Put in what you believe
# of gpt2-xl: microseconds of a step on one GPU, by rows, and of a sum. From which number of rows on do two GPUs win?

# %%
yours = {1: 2000.0, 8: 2100.0, 64: 2800.0, 256: 5000.0}  # of a step on one GPU
SUM = 8.0  # of one all-reduce
HALVES = 0.6  # which part of the step takes half the time
figure, ax = plt.subplots(figsize=(6, 3))
gains = [t / (t * (1 - HALVES / 2) + 2 * 48 * SUM) for t in yours.values()]
ax.plot(list(yours), gains, marker="o", label="your prediction")
ax.axhline(1, color="grey")
ax.set_xscale("log", base=2)
ax.set_xlabel("rows")
ax.set_ylabel("times as fast on two")
ax.legend()
plt.show()

# %% [markdown]
# ## 6. On two GPUs
#
# The same on two H200s. Where were you wrong: in the sums, or in what halves?

# %%
cases = results("h200-ranks")["cases"]
figure, ax = plt.subplots(figsize=(6, 3))
ax.plot(list(yours), gains, linestyle=":", label="your prediction")
for model, marker in (("random:gpt2-xl", "o"), ("random:gpt2-large", "s")):
    of = {(case["ranks"], case["rows"]): case["step_s"]["median"] for case in cases if case["model"] == model}
    measured = {rows: of[1, rows] / of[2, rows] for ranks, rows in of if ranks == 1}
    ax.plot(list(measured), list(measured.values()), marker=marker, label=model.removeprefix("random:"))
ax.axhline(1, color="grey")
ax.set_xscale("log", base=2)
ax.set_xlabel("rows")
ax.set_ylabel("times as fast on two")
ax.legend()
plt.show()

# %% [markdown]
# Two GPUs of your own: `python -m bench ranks`, and `chapters/08-parallel/README.md`, sections 7 to 9, for what to make
# of it.
#
# ## Quiz

# %%
quiz(8)
