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
# # Chapter 6: kernels, and programs that run at once
#
# See where a step of small kernels spends its time. Then run two programs by hand, event by event, and watch a store
# overtake another. The text is `chapters/06-kernels/README.md`, and from part 3 on `one-kernel.md` beside it. Run the
# set-up; the parts after it then run in any order, without a GPU. Put a guess into each `guess = "?"` before you run
# its cell. The last cell counts the right ones.

# %%
from collections.abc import Generator
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from nanocourse.exercises import chapters
from nanocourse.exercises.chapters import run_file
from nanocourse.learner.notebook import compare, quiz, results, source

_ = torch.set_grad_enabled(False)
CHAPTER = chapters.chapter(6).folder
Program = Generator[tuple[Any, ...], Any, Any]
small = run_file(CHAPTER / "small.py", "chapter_06_small")
guesses: dict[str, bool] = {}

# %% [markdown]
# # The chapter
#
# ## 1. Where a step of chapter 4 spends its time
#
# Each kernel of a replayed step on an H200, by how long it takes. How many kernels run for more than ten microseconds?

# %%
guess = "?"  # a number
(step,) = [one for one in results("h200-timeline")["steps"] if one["engine"] == "paged-graph"]
taken = sorted((kernel["duration_us"] for kernel in step["kernels"]), reverse=True)
compare(guesses, "long kernels", guess, sum(duration > 10 for duration in taken))
figure, ax = plt.subplots(figsize=(6, 3))
ax.bar(range(len(taken)), taken, width=1.0)
ax.set_xlabel("kernels, the longest first")
ax.set_ylabel("µs")
plt.show()

# %% [markdown]
# ## 2. Flat until the ridge
#
# A matrix of gpt2 times more and more rows, and the time that its weights alone would take. Why is the measured line so
# far above the dotted one, and still flat?

# %%
report = results("h200-one-kernel")
rows = [one["rows"] for one in report["matrix"]]
figure, ax = plt.subplots(figsize=(6, 3))
ax.plot(rows, [1e6 * one["seconds"]["median"] for one in report["matrix"]], marker="o", label="measured")
ax.axhline(1e6 * report["matrix"][0]["weight_bytes"] / report["copy_bytes_per_s"], linestyle=":", label="its weights")
ax.set_xscale("log", base=2)
ax.set_ylim(0, None)
ax.set_xlabel("rows")
ax.set_ylabel("µs")
ax.legend()
plt.show()

# %% [markdown]
# Your own GPU's: `python -m bench timeline` and `python -m bench one-kernel`.
#
# # The lab
#
# ## 3. Two programs
#
# A program is a generator. Each `yield` is one access to memory, and what a load, a wait or an addition has read comes
# back.


# %%
def writer() -> Program:
    yield "store", "data", 7
    yield "store", "flag", 1


def reader() -> Program:
    yield "wait", "flag", lambda flag: flag == 1
    data = yield "load", "data"
    return data


run = small.Run([writer, reader], 99, (), {})
print("what can happen next, as (program, store that arrives):", run.choices())
run.happen(
    0, ""
)  # program 0 makes its first store; the second comes along, since nobody sees a store that is under way
print("then:", run.choices())

# %% [markdown]
# Two stores are under way, and either may arrive first. The next cell lets the flag arrive, and then program 1 waits
# and loads. What does it read?

# %%
guess = "?"  # a number
run = small.Run([writer, reader], 99, (), {})
for program, arrives in (0, ""), (0, "flag"), (1, ""), (1, ""):
    run.happen(program, arrives)
print(*run.trace, sep="\n")
compare(guesses, "what program 1 reads", guess, run.ended[1])

# %% [markdown]
# ## 4. The search
#
# `search` tries all orders. It returns the points that it has seen, the orders that end right, and the shortest order
# that does not. First without a fence, then with one:


# %%
def unfenced() -> Program:
    yield "store", "data", 7
    yield "store", "flag", 1


def fenced() -> Program:
    yield "store", "data", 7
    yield ("fence",)
    yield "store", "flag", 1


def polls() -> Program:
    yield "wait", "flag", lambda flag: flag == 1
    data = yield "load", "data"
    return data


for write in unfenced, fenced:
    points, ended, lost = small.search([write, polls], [None, 7])
    print(f"{write.__name__}: {points} points, {ended} orders end right; the shortest that does not:")
    print(*(lost or ["there is none"]), sep="\n")

# %% [markdown]
# ## 5. Half of a block
#
# Two programs share an MLP. Each adds to the stream, and each needs what both have added. There are three right ways to
# send it. How many of the three need a fence?

# %%
guess = "?"  # a number
for exchange in (small.Flags(), small.Barrier(), small.Words()):
    points, ended, lost = small.search(*small.grid(exchange))
    print(f"{type(exchange).__name__:8}{points:>5} points {ended:>22,} orders")
    assert not lost
compare(guesses, "fences", guess, 2)
source(small.Words)

# %% [markdown]
# # Break it
#
# Each part puts one mistake into the exchange. Guess what comes of it: `"wrong"` numbers, or programs that wait for
# `"ever"`.
#
# ## 6. No fence

# %%
guess = "?"  # "wrong" or "ever"
points, ended, lost = small.search(*small.grid(small.NoFence(), layers=1))
print(*lost, sep="\n")
compare(guesses, "no fence", guess, "ever" if "ever" in lost[-1] else "wrong")

# %% [markdown]
# ## 7. One set of data
#
# The data of all layers go to the same place. Fence and flag are as they should be.


# %%
class OneSet(small.Flags):
    def put(self, who: int, layer: int, mine: list[int]) -> Program:
        for c in range(small.C):
            yield "store", f"data[{who}][{c}]", mine[c]
        yield ("fence",)
        yield "store", f"flag[{who}]", layer

    def get(self, other: int, layer: int) -> Program:
        yield "wait", f"flag[{other}]", lambda flag: flag >= layer
        share = []
        for c in range(small.C):
            share.append((yield "load", f"data[{other}][{c}]"))
        return share


guess = "?"  # "wrong" or "ever"
points, ended, lost = small.search(*small.grid(OneSet()))
print(*lost[-12:], sep="\n")
compare(guesses, "one set", guess, "ever" if "ever" in lost[-1] else "wrong")

# %% [markdown]
# With two sets that take turns, no program is overtaken, with three layers either:

# %%
assert not small.search(*small.grid(small.Flags(), layers=3))[2]

# %% [markdown]
# ## 8. A counter that is reset
#
# The last program resets the barrier's counter to zero, and the others wait for that. The barrier is used twice.


# %%
class Reset(small.Barrier):
    def put(self, who: int, layer: int, mine: list[int]) -> Program:
        for c in range(small.C):
            yield "store", f"data[{layer % 2}][{who}][{c}]", mine[c]
        yield ("fence",)
        before = yield "add", "counter", 1
        if before == small.G - 1:
            yield "store", "counter", 0
        else:
            yield "wait", "counter", lambda count: count == 0


guess = "?"  # "wrong" or "ever"
assert not small.search(*small.grid(Reset(), layers=1))[2]  # used once, it works
points, ended, lost = small.search(*small.grid(Reset()))
print(*lost[-8:], sep="\n")
compare(guesses, "reset", guess, "ever" if "ever" in lost[-1] else "wrong")

# %% [markdown]
# `small.Barrier` counts on, and waits for `layer * G`. But if the GPU has space for one program only, no exchange
# helps:

# %%
assert not small.search(*small.grid(small.Barrier()))[2]
print(*small.search(*small.grid(small.Barrier(), layers=1), resident=1)[2][-2:], sep="\n")

# %% [markdown]
# # What the programs compute
#
# ## 9. Cut by outputs, then by inputs
#
# Between the two matrices nothing is exchanged. Change the number of programs.

# %%
PROGRAMS = 4
random = torch.Generator().manual_seed(1)
x, up, down = (torch.randn(*size, generator=random, dtype=torch.float64) for size in ((64,), (64, 256), (256, 64)))
shares = [F.gelu(x @ u) @ d for u, d in zip(up.chunk(PROGRAMS, 1), down.chunk(PROGRAMS, 0), strict=True)]
assert torch.allclose(sum(shares), F.gelu(x @ up) @ down)
print(len(shares), "shares of", tuple(shares[0].shape), "each; their sum is the whole")

# %% [markdown]
# ## 10. LayerNorm after the product
#
# Exercise 6.7 asks for this formula. Write it first.

# %%
random = torch.Generator().manual_seed(2)
x, gain, shift, row = (torch.randn(64, generator=random, dtype=torch.float64) for _ in range(4))
plain = F.layer_norm(x, (64,), gain, shift) @ row
deviation = (x.var(unbiased=False) + 1e-5).sqrt()
after = (gain * x) @ row / deviation - x.mean() / deviation * (gain @ row) + shift @ row
print(float(plain), float(after))
assert torch.allclose(plain, after)

# %% [markdown]
# ## 11. A sum without an order
#
# The same numbers in a hundred orders, in float32 and in fixed point. How many different sums does fixed point give?

# %%
guess = "?"  # a number
random = torch.Generator().manual_seed(3)
values = torch.randn(132, generator=random)
orders = [torch.randperm(132, generator=random) for _ in range(100)]
floats = {float(sum(values[order], torch.tensor(0.0))) for order in orders}
wholes = {int((values[order] * 2**30).long().sum()) for order in orders}
print(len(floats), "sums in float32")
compare(guesses, "sums in fixed point", guess, len(wholes))

# %% [markdown]
# ## Quiz and score
#
# With `pip install jupyterquiz` it has buttons. Next, `nanoinfer course start 6` gives you the exercises.

# %%
quiz(6)
print(f"{sum(guesses.values())} of {len(guesses)} guesses were right")
