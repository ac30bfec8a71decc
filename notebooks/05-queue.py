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
# # Chapter 5: a queue, step by step
#
# This notebook lets the engine plan steps, without a model and with one. You see who is in each step
# and with how many tokens, whose blocks are shared, and who gives way. Then you break the engine in a few places,
# guess what comes out, and repair it. At the end waiting explodes, and Little's law holds. The chapter's text is
# `chapters/05-queue/README.md`; run the cells from top to bottom. No GPU is needed.

# %%
from random import Random
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
import torch

from nanocourse.exercises import answers, chapters
from nanocourse.exercises.chapters import run_file
from nanocourse.learner.notebook import quiz, results, show, source
from nanoinfer.cache.blocks import BlockManager
from nanoinfer.cache.sharing import SharedBlocks
from nanoinfer.engine.queue import QueueEngine

_ = torch.set_grad_enabled(False)
CHAPTER = chapters.chapter(5).folder
clock = run_file(CHAPTER / "clock.py", "chapter_05_clock")
run = run_file(CHAPTER / "running.py", "chapter_05_running")

# %% [markdown]
# ## 1. Who is in a step
#
# Five requests, three rows, and a budget of eight tokens a step. A line of the table is a step, a column a request,
# and a number how many of its tokens are fed. Times are those of a clock by rule: a millisecond a step, and ten
# microseconds a token.

# %%
ASKS = [
    clock.Ask(0.000, 4, 12), clock.Ask(0.003, 2, 4), clock.Ask(0.006, 11, 6),
    clock.Ask(0.009, 3, 8), clock.Ask(0.012, 1, 5),
]  # fmt: skip


def table(made: Any) -> torch.Tensor:
    """(steps, requests) tokens that each step fed."""
    return torch.tensor([[fed.get(row, 0) for row in range(len(made.rows))] for *_, fed in made.steps])


made = clock.run(ASKS, clock.engine(rows=3, budget=8))
show("tokens fed, a line for each step", table(made)[:14])

# %% [markdown]
# Find the step in which the third request begins. Its prompt has eleven tokens. How many are fed, and why not eight?

# %%
begins = next(at for at, (*_, fed) in enumerate(made.steps) if 2 in fed)
fed = made.steps[begins][2]
print(f"step {begins}: {fed}, {sum(fed.values())} tokens in all")
assert sum(fed.values()) <= 8

# %% [markdown]
# This is the plan. Rows that decode come first, with a token each; prompts get what is left, in order of arrival.

# %%
source(QueueEngine.schedule)

# %% [markdown]
# ## 2. Static, or continuous
#
# The same requests, in batches that end together. Count the zeros.

# %%
static = clock.run(ASKS, clock.engine(rows=3, budget=8), static=True)
show("static: tokens fed", table(static)[:14])
for name, one in (("static", static), ("continuous", made)):
    print(f"{name:11} {len(one.steps)} steps, {one.idle(3):.0%} of the rows' time idle, "
          f"first tokens after {1e3 * mean(one.waits):.1f} ms on average")  # fmt: skip

# %% [markdown]
# ## 3. A budget
#
# Three rows decode, and a prompt of 900 tokens comes, as in the chapter. Change the budgets.

# %%
long = [*[clock.Ask(0.0, 8, 120)] * 3, clock.Ask(0.005, 900, 8)]
for budget in (1024, 256, 64, 16):
    one = clock.run(long, clock.engine(4, budget))
    print(f"{budget:5} tokens a step: the longest gap {1e3 * max(one.gaps(0)):5.1f} ms, "
          f"the first token after {1e3 * one.waits[3]:5.1f} ms")  # fmt: skip

# %% [markdown]
# ## 4. Names of blocks
#
# A block manager that shares, with blocks of four tokens. Two texts begin alike for eight tokens. What `reserve`
# finds, the row owns with another one.

# %%
blocks = SharedBlocks(blocks=9, block_size=4, max_batch=3, identity=b"a model")
first, second = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 5, 6, 7, 8, 20, 21]
blocks.reserve(0, 12, first)
blocks.grow(0, len(first))
blocks.reserve(1, 12, second)
blocks.grow(1, len(second))
print("row 0 owns", blocks.owned[0], "and row 1", blocks.owned[1])
print("rows that own each block", blocks.users)
assert blocks.owned[0][:2] == blocks.owned[1][:2]
assert blocks.owned[0][2] != blocks.owned[1][2]

# %% [markdown]
# Row 0 leaves. Its two full blocks stay, since row 1 owns them; the third was its own. Then row 1 leaves, and the
# full ones are kept by name, until their room is wanted.

# %%
blocks.release(0)
print("rows", blocks.users, "idle", list(blocks.idle))
blocks.release(1)
print("rows", blocks.users, "idle", list(blocks.idle))
blocks.reserve(2, 12, [*second[:8], 99])
print("a third text finds", blocks.owned[2], "again")
assert len(blocks.owned[2]) == 2

# %% [markdown]
# # Break it
#
# Each block below puts one mistake into the real engine, for as long as it lasts. **Write your guess down before you
# run a cell.**
#
# ## Break 1: a block is known by its own tokens
#
# The third text begins as the first and goes on as the second. Guess: what does the model make of it?

# %%
texts = [f"{run.KING}.", f"{run.SHIP}{run.THEN}.", f"{run.KING}{run.THEN}."]
right = run.one_by_one(run.llm(), texts)[2][len(texts[2]) :]
guess = "..."
with run.hash_without_parent():
    wrong = run.one_by_one(run.llm(), texts)[2][len(texts[2]) :]
print("your guess:", guess, "right:", right, "wrong:", wrong, sep="\n")
assert wrong != right

# %% [markdown]
# *Repaired.* The name of a block has the name of the one before it in it.

# %%
source(SharedBlocks._extend)
assert run.one_by_one(run.llm(), texts)[2][len(texts[2]) :] == right

# %% [markdown]
# ## Break 2: found once reserved
#
# Two equal prompts of three blocks, in chunks of one block, arrive at once. Guess: which of the two goes wrong, and
# does anything fail?

# %%
prompt = f"{run.KING}{run.THEN}{run.STORM}."
right = run.told(run.llm(prefill_chunk=16), [prompt] * 2)
guess = "..."
with run.found_at_reservation():
    wrong = run.told(run.llm(prefill_chunk=16), [prompt] * 2)
print("your guess:", guess, *(text[len(prompt) :] for text in wrong), sep="\n")
assert wrong[0] == right[0]
assert wrong[1] != right[1]

# %% [markdown]
# *Repaired.* A block has its name from the step on that writes it.

# %%
assert run.told(run.llm(prefill_chunk=16), [prompt] * 2) == right

# %% [markdown]
# ## Break 3: noise that begins anew
#
# Four sampled texts in a pool of nine blocks. One of them is preempted. Guess: from which word on does it differ
# from the text in a large pool?

# %%
texts = ["Once upon a time", "The old fox looked up at", "Where are you", "She was"]
right = run.told(run.llm(), texts, run.SAMPLED)
guess = "..."
with run.noise_restarts():
    small, little_room = run.small_pool(9)
    with little_room():
        wrong = run.told(small, texts, run.SAMPLED)
print("your guess:", guess)
print("preempted:", small.stats.preemptions)
for a, b in zip(right, wrong, strict=True):
    if a != b:
        print("right:", a, "wrong:", b, sep="\n")
assert wrong != right

# %% [markdown]
# *Repaired.* The row goes on at the step that it had reached, so the pool's size changes no token.

# %%
small, little_room = run.small_pool(9)
with little_room():
    assert run.told(small, texts, run.SAMPLED) == right

# %% [markdown]
# ## Break 4: prompts first, always
#
# On the clock again. One row writes, and prompts arrive without a pause. Guess: the longest gap of the row, in
# milliseconds.

# %%
stream = [clock.Ask(0.0, 8, 40), *(clock.Ask(2e-3 + 2.4e-3 * n, 240, 1) for n in range(40))]
guess = "..."
starved = clock.run(stream, clock.engine(8, 256, kind=clock.PromptsFirst, mixed=False))
served = clock.run(stream, clock.engine(8, 256))
print("your guess:", guess)
print(f"prompts first {1e3 * max(starved.gaps(0)):.0f} ms, in one step {1e3 * max(served.gaps(0)):.1f} ms")
assert max(starved.gaps(0)) > 10 * max(served.gaps(0))

# %% [markdown]
# ## Break 5: a chunk by itself
#
# Two prompts are fed in chunks of eight tokens, and each chunk begins at position 0 again: a wrong answer to exercise
# 5.8. Guess: is `The fox` wrong, too?

# %%
prompts = ["The fox", run.KING]
right = run.told(run.llm(prefill_chunk=8), prompts)
guess = "..."
with answers.mistake("5.8", "chunk-by-itself"):
    wrong = run.told(run.llm(prefill_chunk=8), prompts)
print("your guess:", guess, "right:", *right, "wrong:", *wrong, sep="\n")
assert wrong[0] == right[0]
assert wrong[1] != right[1]

# %% [markdown]
# A prompt that fits into one chunk shows nothing. *Repaired:* in chunks or whole, the text is the same.

# %%
assert run.told(run.llm(), prompts) == right

# %% [markdown]
# # How long one waits
#
# ## 5. The knee
#
# Eight rows, and requests that know nothing of each other. Before you run it: at which share of the capacity is p99
# of the first token ten times what it is at a fifth?


# %%
def sizes(draws: Random) -> tuple[int, int]:
    """Tokens of a prompt, and new ones."""
    return draws.randint(16, 128), draws.randint(8, 64)


everyone = clock.run(clock.poisson(1e9, 200, sizes), clock.engine(8))
capacity = 200 / everyone.seconds
shares = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
loads = [clock.run(clock.poisson(share * capacity, 300, sizes), clock.engine(8)) for share in shares]
figure, ax = plt.subplots(figsize=(6, 3))
for q, marker in ((0.5, "s"), (0.99, "v")):
    ax.plot(shares, [1e3 * clock.quantile(one.waits, q) for one in loads], marker=marker, label=f"p{round(100 * q)}")
ax.set_xlabel("asked for, share of the capacity")
ax.set_ylabel("first token, ms")
ax.legend()
plt.show()

# %% [markdown]
# ## 6. Little's law
#
# Requests that are there on average: by their own clocks, and counted at each step.

# %%
for share, one in zip(shares, loads, strict=True):
    product = len(one.rows) / one.seconds * mean(one.stays)
    there = sum(
        (end - start) * sum(row.asked <= start < row.times[-1] for row in one.rows) for start, end, _ in one.steps
    )
    print(f"{share:4.0%}: rate times stay {product:6.2f}, counted {there / one.seconds:6.2f}")
    assert abs(product * one.seconds / there - 1) < 0.05

# %% [markdown]
# ## 7. On a GPU
#
# The same on an H200, with real requests: the server past its knee does no more work than before, and too late.

# %%
for one in results("h200-load")["runs"]:
    if one["target"] == "serve" and one["plan"]["per_second"]:
        print(f"{one['plan']['per_second']:4.0f} a second asked, {one['ok'] / one['seconds']:4.0f} answered, "
              f"{one['good'] / one['seconds']:4.0f} of them good; p99 of TTFT {one['ttft']['p99']:.2f} s")  # fmt: skip

# %% [markdown]
# Your own machine's: `python -m bench load --engine --model small --rates 20%,40%,60%,80%,100%`, while nothing else
# runs.
#
# ## What an empty pool says
#
# A block manager without requests has all its blocks. That is the first thing to look at after any history.

# %%
pool = BlockManager(8, 16, 2)
pool.reserve(0, 40)
pool.grow(0, 20)
print("available", pool.available)
pool.release(0)
print("available", pool.available)
assert pool.available == 8

# %% [markdown]
# ## Quiz

# %%
quiz(5)
