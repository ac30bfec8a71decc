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
# Let the engine plan steps, then break it, then watch waiting explode. The text is in `chapters/05-queue`. Run the
# set-up; the parts after it then run in any order, without a GPU. Put a guess into each `guess = "?"` before you run
# its cell. The last cell counts the right ones.

# %%
from random import Random
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
import torch

from nanocourse.exercises import answers, chapters
from nanocourse.exercises.chapters import run_file
from nanocourse.learner.notebook import compare, quiz, results, show, source
from nanoinfer.cache.sharing import SharedBlocks
from nanoinfer.engine.queue import QueueEngine

_ = torch.set_grad_enabled(False)
CHAPTER = chapters.chapter(5).folder
clock = run_file(CHAPTER / "clock.py", "chapter_05_clock")
run = run_file(CHAPTER / "running.py", "chapter_05_running")
guesses: dict[str, bool] = {}

# %% [markdown]
# Five requests for three rows, with eight tokens a step at most: arrival in seconds, tokens of the prompt, new tokens.
# The clock is simulated: a step takes a millisecond, plus ten microseconds for each of its tokens.

# %%
ASKS = [
    clock.Ask(0.000, 4, 12), clock.Ask(0.003, 2, 4), clock.Ask(0.006, 11, 6),
    clock.Ask(0.009, 3, 8), clock.Ask(0.012, 1, 5),
]  # fmt: skip
continuous = clock.run(ASKS, clock.engine(rows=3, budget=8))


def table(made: Any) -> torch.Tensor:
    """(steps, requests) tokens that each step fed."""
    return torch.tensor([[fed.get(row, 0) for row in range(len(made.rows))] for *_, fed in made.steps])


# %% [markdown]
# ## 1. Who is in a step
#
# The third request begins beside two that decode. How many of the eleven tokens of its prompt are in its first step?

# %%
guess = "?"  # a number of tokens
begins = next(fed for *_, fed in continuous.steps if 2 in fed)
compare(guesses, "first chunk", guess, begins[2])
show("tokens fed: a line a step, a column a request", table(continuous)[:14])
assert sum(begins.values()) <= 8

# %% [markdown]
# **Do exercise 5.1 first.** This is the engine's plan (section 10).

# %%
source(QueueEngine.schedule)

# %% [markdown]
# ## 2. Static, or continuous
#
# The same requests in batches that end together. Count the zeros.

# %%
static = clock.run(ASKS, clock.engine(rows=3, budget=8), static=True)
show("static: tokens fed", table(static)[:14])
for name, one in (("static", static), ("continuous", continuous)):
    print(f"{name:11} {len(one.steps)} steps, rows idle {one.idle(3):.0%} of the time, "
          f"first tokens after {1e3 * mean(one.waits):.1f} ms on average")  # fmt: skip

# %% [markdown]
# ## 3. A budget
#
# Three sequences decode, and a prompt of 900 tokens arrives (section 3). Try other budgets.

# %%
long = [*[clock.Ask(0.0, 8, 120)] * 3, clock.Ask(0.005, 900, 8)]
for budget in (1024, 256, 64, 16):
    one = clock.run(long, clock.engine(4, budget))
    print(f"{budget:5} tokens a step: longest gap {1e3 * max(one.gaps(0)):5.1f} ms, "
          f"first token after {1e3 * one.waits[3]:5.1f} ms")  # fmt: skip

# %% [markdown]
# ## 4. Names of blocks
#
# **Do exercises 5.3 and 5.4 first.** Blocks hold four tokens here. Two texts begin alike for eight tokens. `reserve`
# finds known blocks, and `extend` takes new ones and names those that fill (sections 6 and 7).

# %%
first, second = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 5, 6, 7, 8, 20, 21]


def shared() -> SharedBlocks:
    """A pool of nine blocks, with both texts in it."""
    blocks = SharedBlocks(blocks=9, block_size=4, max_batch=3, identity=b"a model")
    for row, text in enumerate((first, second)):
        blocks.reserve(row, 12, text)
        blocks.extend(row, 0, len(text))
    return blocks


pool = shared()
print("row 0 owns", pool.owned[0], "and row 1", pool.owned[1])
print("owners of each block:", pool.users)
assert pool.owned[0][:2] == pool.owned[1][:2]
assert pool.owned[0][2] != pool.owned[1][2]

# %% [markdown]
# Row 0 leaves, then row 1. The full blocks are idle: they keep their names until their memory is needed. A third text
# of nine tokens begins with them. How many blocks does it find?

# %%
guess = "?"  # a number of blocks
pool = shared()
pool.release(0)
print("owners:", pool.users, " idle:", list(pool.idle))
pool.release(1)
print("owners:", pool.users, " idle:", list(pool.idle))
pool.reserve(2, 12, [*second[:8], 99])
compare(guesses, "found", guess, len(pool.owned[2]))

# %% [markdown]
# # Break it
#
# Each cell puts one mistake into the real engine. Leaving its `with` block repairs it.
#
# ## Break 1: a block is known by its own tokens
#
# **Do exercise 5.3 first.** The third prompt is the first block of one prompt and the second block of another. What
# does the engine do with it?

# %%
guess = "?"  # "raise an error", "write the right text" or "write a wrong text"
texts = [f"{run.KING}.", f"{run.SHIP}{run.THEN}.", f"{run.KING}{run.THEN}."]
right = run.one_by_one(run.llm(), texts)[2][len(texts[2]) :]
with run.hash_without_parent():
    wrong = run.one_by_one(run.llm(), texts)[2][len(texts[2]) :]
compare(guesses, "break 1", guess, "write the right text" if wrong == right else "write a wrong text")
print("right:", right, "wrong:", wrong, sep="\n")
assert wrong != right == run.one_by_one(run.llm(), texts)[2][len(texts[2]) :]

# %%
source(SharedBlocks._extend)

# %% [markdown]
# ## Break 2: found once reserved
#
# Two equal prompts of three blocks arrive at once, in chunks of one block (section 8). Which output goes wrong?

# %%
guess = "?"  # "first", "second", "both" or "none"
prompt = f"{run.KING}{run.THEN}{run.STORM}."
right = run.told(run.llm(prefill_chunk=16), [prompt] * 2)
with run.found_at_reservation():
    wrong = run.told(run.llm(prefill_chunk=16), [prompt] * 2)
changed = [a != b for a, b in zip(right, wrong, strict=True)]
compare(guesses, "break 2", guess, ("none", "second", "first", "both")[2 * changed[0] + changed[1]])
print(*(text[len(prompt) :] for text in wrong), sep="\n")
assert wrong != right == run.told(run.llm(prefill_chunk=16), [prompt] * 2)

# %% [markdown]
# ## Break 3: noise that begins anew
#
# Four sampled sequences in a pool of nine blocks (section 9). How many outputs change?

# %%
guess = "?"  # 0 to 4
texts = ["Once upon a time", "The old fox looked up at", "Where are you", "She was"]


def in_a_small_pool() -> list[str]:
    """The outputs in nine blocks, where a sequence is preempted."""
    small, little_room = run.small_pool(9)
    with little_room():
        told = run.told(small, texts, run.SAMPLED)
    print("preemptions:", small.stats.preemptions)
    return list(told)


right = run.told(run.llm(), texts, run.SAMPLED)
with run.noise_restarts():
    wrong = in_a_small_pool()
compare(guesses, "break 3", guess, sum(a != b for a, b in zip(right, wrong, strict=True)))
print(*(f"right: {a}\nwrong: {b}" for a, b in zip(right, wrong, strict=True) if a != b), sep="\n")
assert wrong != right == in_a_small_pool()

# %% [markdown]
# Repaired, the size of the pool changes no token.
#
# ## Break 4: prompts first, always
#
# On the simulated clock, one sequence writes and prompts arrive without a pause (section 4). How long is the longest
# gap between its tokens?

# %%
guess = "?"  # "under 10 ms", "10 to 100 ms" or "over 100 ms"
stream = [clock.Ask(0.0, 8, 40), *(clock.Ask(2e-3 + 2.4e-3 * n, 240, 1) for n in range(40))]
starved = clock.run(stream, clock.engine(8, 256, kind=clock.PromptsFirst, mixed=False))
served = clock.run(stream, clock.engine(8, 256))
gap = 1e3 * max(starved.gaps(0))
compare(guesses, "break 4", guess, "under 10 ms" if gap < 10 else "10 to 100 ms" if gap < 100 else "over 100 ms")
print(f"prompts first {gap:.0f} ms, in one step {1e3 * max(served.gaps(0)):.1f} ms")
assert gap > 10e3 * max(served.gaps(0))

# %% [markdown]
# ## Break 5: a chunk by itself
#
# **Do exercise 5.8 first.** Prompts are fed in chunks of eight tokens, and each chunk begins at position 0 again. Does
# `The fox` go wrong, too?

# %%
guess = "?"  # "yes" or "no"
prompts = ["The fox", run.KING]
right = run.told(run.llm(prefill_chunk=8), prompts)
with answers.mistake("5.8", "chunk-by-itself"):
    wrong = run.told(run.llm(prefill_chunk=8), prompts)
compare(guesses, "break 5", guess, "no" if wrong[0] == right[0] else "yes")
print("right:", *right, "wrong:", *wrong, sep="\n")
assert wrong != right == run.told(run.llm(), prompts)

# %% [markdown]
# A prompt that fits into one chunk shows nothing.
#
# # How long a request waits
#
# `load.md` has the text of these parts. Eight rows, and requests that arrive at random: run this cell before parts 5
# and 6.


# %%
def sizes(draws: Random) -> tuple[int, int]:
    """Tokens of a prompt, and new ones."""
    return draws.randint(16, 128), draws.randint(8, 64)


everyone = clock.run(clock.poisson(1e9, 200, sizes), clock.engine(8))
capacity = 200 / everyone.seconds
shares = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
loads = [clock.run(clock.poisson(share * capacity, 300, sizes), clock.engine(8)) for share in shares]

# %% [markdown]
# ## 5. The knee
#
# At which of these shares of the capacity is p99 of the first token ten times its value at a fifth, or more?

# %%
guess = "?"  # the first one: 0.4, 0.6, 0.8, 0.9 or 1.0
p50, p99 = ([1e3 * clock.quantile(one.waits, q) for one in loads] for q in (0.5, 0.99))
compare(guesses, "knee", guess, next(share for share, wait in zip(shares, p99, strict=True) if wait >= 10 * p99[0]))
figure, ax = plt.subplots(figsize=(6, 3))
ax.plot(shares, p99, marker="v", label="p99")
ax.plot(shares, p50, marker="s", label="p50")
ax.set_xlabel("arrivals, as a share of the capacity")
ax.set_ylabel("first token, ms")
ax.legend()
plt.show()

# %% [markdown]
# ## 6. Little's law
#
# The mean number of requests in the system: by their own clocks, and counted at each step.

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
# A server on an H200. Past its knee it does no more work than before, and too late.

# %%
for one in results("h200-load")["runs"]:
    if one["target"] == "serve" and one["plan"]["per_second"]:
        print(f"{one['plan']['per_second']:4.0f} a second asked, {one['ok'] / one['seconds']:4.0f} answered, "
              f"{one['good'] / one['seconds']:4.0f} of them good; p99 of TTFT {one['ttft']['p99']:.2f} s")  # fmt: skip

# %% [markdown]
# For your own machine, while nothing else runs:
# `python -m bench load --engine --model small --rates 20%,40%,60%,80%,100%`
#
# ## Quiz and score
#
# With `pip install jupyterquiz` it has buttons. Next, `nanoinfer course start 5` gives you the exercises.

# %%
quiz(5)
print(f"{sum(guesses.values())} of {len(guesses)} guesses were right")
