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
# # Chapter 8: you are two ranks
#
# Be two ranks in turn, then break them. The text is `chapters/08-parallel/README.md`. Run the set-up; the parts after
# it then run in any order, without a GPU. Put a guess into each `guess = "?"` before you run its cell. The last cell
# counts the right ones.

# %%
import matplotlib.pyplot as plt
import torch

from nanocourse.exercises import chapters
from nanocourse.exercises.chapters import run_file
from nanocourse.learner.notebook import compare, quiz, results, source
from nanoinfer.model.config import PRESETS
from nanoinfer.parallel.shard import Shard

_ = torch.set_grad_enabled(False)
CHAPTER = chapters.chapter(8).folder
run = run_file(CHAPTER / "running.py", "chapter_08_running")
example = run_file(CHAPTER / "example.py", "chapter_08_example")
guesses: dict[str, bool] = {}

# %% [markdown]
# ## 1. Columns, then rows, then one sum
#
# Section 2's matrices. Change the numbers, and where the cut is. The assertion must still hold.

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
# Now A is cut by rows too, so each rank has a term of `x @ A`. Does the sum of the terms come out right, if each rank
# applies `relu` to its own first?

# %%
guess = "?"  # "yes" or "no"
halves = slice(0, 2), slice(2, 4)
whole, by_rows = example.X @ example.A, [example.X[own] @ example.A[own] for own in halves]
print("sum of terms:", sum(by_rows), "  sum of terms after relu:", sum(term.relu() for term in by_rows))
print("right:       ", whole, "  right after relu:       ", whole.relu())
right = torch.equal(sum(term.relu() for term in by_rows), whole.relu())
compare(guesses, "rows first", guess, "yes" if right else "no")

# %% [markdown]
# ## 2. A ring
#
# How many messages does each of four ranks send for one all-reduce?

# %%
guess = "?"  # a number
rows = [[float(10**rank * part) for part in range(1, 5)] for rank in range(4)]
steps, ended = run.ring(rows)
for at, step in enumerate(steps):
    print(at + 1, *(f"{one.sender} sends part {one.part}: {one.numbers}" for one in step))
print("each ends with", ended[0])
assert all(row == ended[0] for row in ended)
compare(guesses, "messages", guess, len(steps))

# %% [markdown]
# All ranks have the same bits, because each part was added up in one order. The same floats in three orders:

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
    shard, config = Shard(rank, SIZE), PRESETS["gpt2-xl"]
    print(rank, "heads", shard.heads(config), "| MLP", shard.inner(config), "| ids", shard.vocab(config))

# %% [markdown]
# ## 4. The small model on two ranks
#
# Each has its heads, its columns and its ids. Together they write the text of one rank.

# %%
both = run.texts()
print(both[0])
assert both[0] == both[1]

# %% [markdown]
# # Break it
#
# Each part below puts one mistake into the ranks.
#
# ## Break 1: the bias on every rank
#
# Do the two ranks still agree with each other?

# %%
guess = "?"  # "yes" or "no"
wrong = run.texts(run.BiasEverywhere)
print(wrong[0])
assert wrong[0] != run.texts()[0]
compare(guesses, "bias", guess, "yes" if wrong[0] == wrong[1] else "no")

# %% [markdown]
# *Repaired.* One rank has the bias, and the others have zeros.

# %%
source(Shard.adds)

# %% [markdown]
# ## Break 2: c_attn is cut straight
#
# Rank 0 has three of five heads, so it takes nine of the 15 blocks of columns. How many heads does it have values of?

# %%
guess = "?"  # a number
wrong = run.texts(run.CutStraight)
print(wrong[0])
assert wrong[0] != run.texts()[0]
compare(guesses, "straight", guess, sum(block >= 10 for block in range(9)))

# %% [markdown]
# *Repaired.* A rank takes its heads from each third. For gpt2-xl these are the columns:

# %%
example.heads()

# %% [markdown]
# ## Break 3: noise by each rank's own ids
#
# Each rank counts its ids from 0 when it makes noise. At which temperature does the text change: "0.8", "1.2", "both"
# or "neither"?

# %%
guess = "?"
changed = []
for heat in (0.8, 1.2):
    right, wrong = (run.texts(run.Part, heat, kind)[0] for kind in (run.JoinedSamplers, run.OwnNumbers))
    changed += [str(heat)] * (right != wrong)
compare(guesses, "noise", guess, "both" if len(changed) == 2 else (*changed, "neither")[0])

# %% [markdown]
# *Repaired.* The ids are the whole model's. A test should not wait for luck: put the highest logit near the cut.

# %%
example.joined()

# %% [markdown]
# ## Break 4: one buffer
#
# Two ranks add 1 and 10, then 2 and 20, and so on, five times. Each writes its number into one buffer, and rank 1 reads
# late. How many of its five sums are wrong?

# %%
guess = "?"  # a number
late, in_turn = example.one_shot(5, 1), example.one_shot(5, 2)
print("one buffer ", late)
print("two in turn", in_turn)
assert in_turn[0] == in_turn[1]
compare(guesses, "one buffer", guess, sum(one != other for one, other in zip(late[1], in_turn[1], strict=True)))

# %% [markdown]
# # What it gains
#
# ## 5. Predict
#
# Section 11's formula for gpt2-xl on two GPUs. Put in what you believe: the microseconds of a step on one GPU by number
# of sequences, of a sum, and the share of a step that is halved. The solid lines were measured on two H200s. Were you
# wrong in the sums, or in the share?

# %%
YOURS = {1: 2000.0, 8: 2100.0, 64: 2800.0, 256: 5000.0}  # of a step on one GPU
SUM = 8.0  # of one all-reduce
HALVES = 0.6  # the share of a step that is halved
figure, ax = plt.subplots(figsize=(6, 3))
predicted = [t / (t * (1 - HALVES / 2) + 2 * 48 * SUM) for t in YOURS.values()]
ax.plot(list(YOURS), predicted, linestyle=":", marker="x", label="your prediction")
cases = results("h200-ranks")["cases"]
for model, marker in (("random:gpt2-xl", "o"), ("random:gpt2-large", "s")):
    of = {(case["ranks"], case["rows"]): case["step_s"]["median"] for case in cases if case["model"] == model}
    gains = {count: of[1, count] / of[2, count] for ranks, count in of if ranks == 1}
    ax.plot(list(gains), list(gains.values()), marker=marker, label=model.removeprefix("random:"))
ax.axhline(1, color="grey")
ax.set_xscale("log", base=2)
ax.set_xlabel("sequences")
ax.set_ylabel("times as fast on two")
ax.legend()
plt.show()

# %% [markdown]
# `python -m bench ranks` measures your own two GPUs, and sections 7 and 11 say what to make of it.
#
# ## Quiz and score
#
# With `pip install jupyterquiz` it has buttons. Next, `nanoinfer course start 8` gives you the exercises.

# %%
quiz(8)
print(f"{sum(guesses.values())} of {len(guesses)} guesses were right")
