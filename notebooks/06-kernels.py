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
# # Chapter 6: programs that run at once
#
# On the machine of `small.py` you run two programs by hand, event by event, and see a store overtake another. Then you
# let the search do it. You break the exchange of a half-block in three places, guess what comes of it, and repair it.
# At the end you cut an MLP over programs, put LayerNorm behind a product, and add numbers in an order that does not
# matter. The chapter's text is `chapters/06-kernels/README.md`; run the cells from top to bottom. No GPU is needed.

# %%
from collections.abc import Generator
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from nanocourse.exercises import chapters
from nanocourse.exercises.chapters import run_file
from nanocourse.learner.notebook import quiz, results, source

_ = torch.set_grad_enabled(False)
CHAPTER = chapters.chapter(6).folder
Program = Generator[tuple[Any, ...], Any, Any]
small = run_file(CHAPTER / "small.py", "chapter_06_small")

# %% [markdown]
# ## 1. A program
#
# It is a generator. Each `yield` is one access to the memory; what a load, a wait or an addition has read comes back.


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

# %% [markdown]
# Program 0 makes its first store. The second one comes along with it, since nobody sees a store before it arrives. Now
# there are two: which of them arrives first is not said.

# %%
run.happen(0, "")
print(run.choices())
run.happen(0, "flag")
run.happen(1, "")
run.happen(1, "")
print(*run.trace, sep="\n")
print("program 1 has read", run.ended[1])
assert run.ended[1] == 0

# %% [markdown]
# ## 2. The search
#
# It tries all orders. It returns how many points it has seen, how many orders end right, and the shortest that does
# not.

# %%
points, ended, lost = small.search([writer, reader], [None, 7])
print(f"{points} points, {ended} orders end right; the shortest that does not:", *lost, sep="\n")
assert lost


# %%
def fenced() -> Program:
    yield "store", "data", 7
    yield ("fence",)
    yield "store", "flag", 1


points, ended, lost = small.search([fenced, reader], [None, 7])
print(f"{points} points, orders: {ended}, and none that ends wrong")
assert not lost

# %% [markdown]
# ## 3. A half-block
#
# Two programs share an MLP; each adds to the stream, and each needs what both have added. Three ways to tell:

# %%
for exchange in (small.Flags(), small.Barrier(), small.Words()):
    points, ended, lost = small.search(*small.grid(exchange))
    print(f"{type(exchange).__name__:8}{points:>5} points {ended:>22,} orders")
    assert not lost
source(small.Words)

# %% [markdown]
# # Break it
#
# Each block below puts one mistake into the exchange. **Write your guess down before you run a cell.**
#
# ## Break 1: no fence
#
# The flag is stored behind the data, and no fence stands between. Guess: how many of the data must be late for a wrong
# result?

# %%
guess = "..."
points, ended, lost = small.search(*small.grid(small.NoFence(), layers=1))
print(f"your guess: {guess}", *lost, sep="\n")
assert lost

# %% [markdown]
# *Repaired.* With the fence all orders end right:

# %%
assert not small.search(*small.grid(small.Flags(), layers=1))[2]

# %% [markdown]
# ## Break 2: one set of data
#
# The data of all layers go to the same place; fence and flag are as they should be. Guess: can a program be so far
# ahead that its reader finds the next layer's data?


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


guess = "..."
points, ended, lost = small.search(*small.grid(OneSet()))
print(f"your guess: {guess}", *lost[-12:], sep="\n")
assert lost

# %% [markdown]
# *Repaired.* Two sets take turns. Three layers, and still nobody is overtaken:

# %%
assert not small.search(*small.grid(small.Flags(), layers=3))[2]

# %% [markdown]
# ## Break 3: a counter that is set back
#
# Who comes last sets the barrier's counter back to zero, and the others wait for that. Guess: wrong numbers, or no end?


# %%
class SetBack(small.Barrier):
    def put(self, who: int, layer: int, mine: list[int]) -> Program:
        for c in range(small.C):
            yield "store", f"data[{layer % 2}][{who}][{c}]", mine[c]
        yield ("fence",)
        before = yield "add", "counter", 1
        if before == small.G - 1:
            yield "store", "counter", 0
        else:
            yield "wait", "counter", lambda count: count == 0


guess = "..."
assert not small.search(*small.grid(SetBack(), layers=1))[2]  # used once, it works
points, ended, lost = small.search(*small.grid(SetBack()))
print(f"your guess: {guess}", *lost[-8:], sep="\n")
assert lost

# %% [markdown]
# *Repaired.* `small.Barrier` counts on, and waits for `layer * G`. And a grid of which not all programs are resident
# never ends, whatever its exchange is like:

# %%
assert not small.search(*small.grid(small.Barrier()))[2]
print(*small.search(*small.grid(small.Barrier(), layers=1), resident=1)[2][-2:], sep="\n")

# %% [markdown]
# # What the programs compute
#
# ## 4. Cut by outputs, then by inputs
#
# Between the two matrices nothing is told. Change the number of programs.

# %%
PROGRAMS = 4
random = torch.Generator().manual_seed(1)
x, up, down = (torch.randn(*size, generator=random, dtype=torch.float64) for size in ((64,), (64, 256), (256, 64)))
shares = [F.gelu(x @ u) @ d for u, d in zip(up.chunk(PROGRAMS, 1), down.chunk(PROGRAMS, 0), strict=True)]
assert torch.allclose(sum(shares), F.gelu(x @ up) @ down)
print(len(shares), "shares of", tuple(shares[0].shape), "each; their sum is the whole")

# %% [markdown]
# ## 5. LayerNorm behind the product

# %%
gain, shift, row = (torch.randn(64, generator=random, dtype=torch.float64) for _ in range(3))
plain = F.layer_norm(x, (64,), gain, shift) @ row
deviation = (x.var(unbiased=False) + 1e-5).sqrt()
behind = (gain * x) @ row / deviation - x.mean() / deviation * (gain @ row) + shift @ row
print(float(plain), float(behind))
assert torch.allclose(plain, behind)

# %% [markdown]
# ## 6. A sum without an order
#
# The same float32 numbers in a hundred orders, and the same in fixed point.

# %%
values = torch.randn(132, generator=random)
orders = [torch.randperm(132, generator=random) for _ in range(100)]
floats = {float(sum(values[order], torch.tensor(0.0))) for order in orders}
wholes = {int((values[order] * 2**30).long().sum()) for order in orders}
print(len(floats), "sums in float32,", len(wholes), "in fixed point")
assert len(wholes) == 1 < len(floats)

# %% [markdown]
# # On a GPU
#
# ## 7. Where a step of chapter 4 spends its time
#
# Each kernel of a replayed step on an H200, by how long it takes. Most take a few microseconds, and there are over a
# hundred.

# %%
(step,) = [one for one in results("h200-timeline")["steps"] if one["engine"] == "paged-graph"]
taken = sorted((kernel["duration_us"] for kernel in step["kernels"]), reverse=True)
figure, ax = plt.subplots(figsize=(6, 3))
ax.bar(range(len(taken)), taken, width=1.0)
ax.set_xlabel("kernels, the longest first")
ax.set_ylabel("µs")
plt.show()

# %% [markdown]
# ## 8. Flat until the ridge
#
# A matrix of gpt2 times more and more rows, and the time that its weights alone would take.

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

# %% [markdown]
# ## Quiz

# %%
quiz(6)
