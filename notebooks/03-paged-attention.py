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
# # Chapter 3: a step through table, slots and pages
#
# This notebook follows one decode step of a very small GPT-2 through a paged cache: which blocks two rows own, where
# the new keys are written, which pages attention reads, and how partial results are joined. Then you break the real
# engine in a few places, guess what comes out, and repair it. The chapter's text is
# `chapters/03-paged-attention/README.md`; run the cells from top to bottom. No GPU is needed. Kernels run in Triton's
# interpreter where there is Triton.

# %%
import importlib.util
import math
import os
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from nanocourse.exercises import answers, chapters
from nanocourse.exercises.chapters import run_file
from nanocourse.learner.notebook import quiz, results, show, source
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.blocks import BlockManager
from nanoinfer.cache.none import NoCache
from nanoinfer.cache.paged import PagedCache, choose_splits
from nanoinfer.kernels.paged_attention_torch import attend_pages, gather_pages, write_pages
from nanoinfer.kernels.ragged_attention_torch import attend_ragged
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model

_ = torch.set_grad_enabled(False)

# %% [markdown]
# ## An empty pool
#
# One layer, two heads of four numbers, and nine blocks of two tokens. The tables have a line for each of two rows;
# entries that no block has been written to are 0. A pool is memory as it comes. Here it is filled with zeros, so that
# you can see what is written.

# %%
config = ModelConfig(n_layer=1, n_head=2, n_embd=8, n_positions=12, vocab_size=10)
model = random_model(config, seed=4, std=0.4)
BLOCK, H, D, CPU = 2, config.n_head, config.head_size, torch.device("cpu")
cache = PagedCache(config, 2, config.n_positions, 9, BLOCK, CPU, torch.float32)
cache.k.zero_(), cache.v.zero_()
blocks = cache.blocks  # the host's part: who owns which
print("keys of all layers:", tuple(cache.k.shape), "layers, blocks, heads, places, numbers")
show("tables", cache.tables)

# %% [markdown]
# ## 1. Two rows are admitted
#
# Row 0 may reach 8 tokens, row 1 may reach 7: four blocks each. They are reserved, not taken. Of nine free blocks one
# is left that another row could reserve.

# %%
print("row 0:", blocks.reserve(0, 8), "  row 1:", blocks.reserve(1, 7))
print("free blocks:", len(blocks.free), " of them reserved:", blocks.reserved)
source(BlockManager.reserve)

# %% [markdown]
# ## 2. Their prompts need blocks
#
# Four tokens and two: row 0 takes two blocks, row 1 one. Before each step, `keep` lets a row `grow`, and writes its new
# blocks into the tables.

# %%
first, second = SimpleNamespace(slot=0, tokens=[3, 1, 4, 1]), SimpleNamespace(slot=1, tokens=[1, 5])
cache.keep(first, 4)
cache.keep(second, 2)
show("tables", cache.tables)
source(BlockManager.grow)

# %% [markdown]
# ## 3. The prompts' slots
#
# Both prompts' tokens lie end to end. A slot is block times block size plus place.

# %%
prompts = Batch.of([(first, 0, 4), (second, 0, 2)], CPU)  # of each row, from where on and how many
plan = cache.plan(prompts)
show("row, position and slot of each token", torch.stack((prompts.slots, prompts.positions, plan.places)))
source(PagedCache.places)

# %% [markdown]
# ## 4. What lies in the pool now
#
# The model runs, and its attention writes keys and values. Shown is the first number of head 0's keys, a line for
# each block: the rest of the pool is untouched.

# %%
model(prompts, cache)
show("head 0's keys, first number, by block and place", cache.k[0, :, 0, :, 0])

# %% [markdown]
# ## 5. A decode step grows the rows
#
# Both rows have a newest token, which is not written yet and counts all the same: lengths 5 and 3. Each is the first of
# a block, so each row takes one, and now the blocks of a row are no neighbours any more.

# %%
first.tokens.append(5), second.tokens.append(9)
cache.keep(first, 5)
cache.keep(second, 3)
show("tables", cache.tables)

# %% [markdown]
# ## 6. The step's slots
#
# One token a row: row 0's stands at position 4, row 1's at position 2.

# %%
step = Batch.of([(first, 4, 1), (second, 2, 1)], CPU)
plan = cache.plan(step)
print("slots:", plan.places.tolist(), " lengths that a query reads:", plan.lengths.tolist())

# %% [markdown]
# ## 7. Write
#
# Queries, keys and values of the new tokens, as the block makes them. The keys and values go to their slots before
# anything is read. Compare the pool with part 4: two places have changed.

# %%
block = model.h[0]


def qkv(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (N, H, D) of the batch's tokens."""
    x = model.wte.weight[batch.token_ids] + model.wpe.weight[batch.positions]  # (N, C)
    h = torch.nn.functional.layer_norm(x, (8,), block.ln_1.weight, block.ln_1.bias)
    return (h @ block.attn.c_attn.weight + block.attn.c_attn.bias).view(-1, 3, H, D).unbind(1)


q, k, v = qkv(step)
write_pages(k, v, cache.k[0], cache.v[0], plan.places)
show("head 0's keys, first number, by block and place", cache.k[0, :, 0, :, 0])
source(write_pages)

# %% [markdown]
# ## 8. Read by the table
#
# The pages of each row side by side, as the kernel's reference reads them: head 0's keys, a line for each slot.
# Row 0 has five tokens in three pages. Row 1 has three tokens in two; its third table entry is 0, so row 0's block is
# read in its place, and masked.

# %%
tables, lengths = plan.tables, plan.lengths
keys, values = gather_pages(cache.k[0], tables), gather_pages(cache.v[0], tables)  # (B, H, S, D)
show("head 0's keys, row 0 and row 1", keys[:, 0])

# %% [markdown]
# ## 9. Scores, and the mask
#
# A score for each slot; behind the text it becomes minus infinity. Values there are replaced as well, since 0 times
# NaN would be NaN. Here the pool was zeros, so nothing would have been seen.

# %%
inside = torch.arange(6) < lengths[:, None]  # (B, S)
scores = torch.einsum("bhd,bhsd->bhs", q, keys) / D**0.5
scores = scores.masked_fill(~inside[:, None], -torch.inf)
show("scores of both heads, row 0 and row 1", scores)
print("0 * nan =", 0 * float("nan"))

# %% [markdown]
# ## 10. Page by page
#
# Row 0, head 0, first channel: three numbers are kept while pages pass by. When the maximum rises, what was kept is
# scaled down. (If it does not rise here, change `row` and `head` and run the cell again.)

# %%
row, head = 0, 0
top, total, acc = -math.inf, 0.0, 0.0
for page in range(3):
    s = scores[row, head, page * BLOCK : (page + 1) * BLOCK].tolist()
    w = values[row, head, page * BLOCK : (page + 1) * BLOCK, 0].tolist()
    higher = max(top, *s)
    rescale = math.exp(top - higher)
    total = total * rescale + sum(math.exp(a - higher) for a in s)
    acc = acc * rescale + sum(math.exp(a - higher) * b for a, b in zip(s, w, strict=True))
    print(f"page {page}: scores {s[0]:6.2f} {s[1]:6.2f}   maximum {higher:.2f}   what was kept counts {rescale:.3f}   "
          f"sum {total:.3f}   weighted {acc:.3f}")  # fmt: skip
    top = higher
plain = float(scores[row, head].softmax(-1) @ values[row, head, :, 0])
print(f"result {acc / total:.6f}, by one softmax over all {plain:.6f}")
assert abs(acc / total - plain) < 1e-5

# %% [markdown]
# ## 11. All rows and heads
#
# The kernel's reference gives the same numbers; and so does chapter 1's attention over the whole texts, without any
# cache.

# %%
paged = attend_pages(q, cache.k[0], cache.v[0], tables, lengths, cache.splits_done)
show("attention's result, row 0 and row 1", paged)


def chapter_1(text: list[int]) -> Tensor:
    """Attention's result (n, H, D) over a whole text, without a cache."""
    whole = Batch.of([(SimpleNamespace(slot=0, tokens=text), 0, len(text))], CPU)
    return NoCache().attend(whole, 0, *qkv(whole))


for row, text in enumerate(([3, 1, 4, 1, 5], [1, 5, 9])):
    out = chapter_1(text)[-1]
    print(f"row {row}: largest difference from chapter 1's {float((out - paged[row]).abs().max()):.1e}")
    assert torch.allclose(out, paged[row], atol=1e-5)

# %% [markdown]
# ## 12. Two parts, and their join
#
# Row 0's context cut in two, as two programs would do: each has a maximum, a sum and weighted values of its own.
# Scaled by their maxima and added they give the whole; averaged they do not.

# %%
parts = []
for part in (slice(0, 4), slice(4, 6)):
    top = float(scores[0, 0, part].max())
    weights = (scores[0, 0, part] - top).exp()
    parts.append((top, float(weights.sum()), weights @ values[0, 0, part]))
highest = max(top for top, _, _ in parts)
joined = sum(math.exp(top - highest) * acc for top, _, acc in parts)
joined = joined / sum(math.exp(top - highest) * total for top, total, _ in parts)
averaged = sum(acc / total for _, total, acc in parts) / 2
show("joined, averaged, and the whole at once", torch.stack((joined, averaged, paged[0, 0])))
assert torch.allclose(joined, paged[0, 0], atol=1e-5)

# %% [markdown]
# ## 13. The kernel
#
# The smallest one that is right: one program a row and head, one token after the other. On a CPU it runs in Triton's
# interpreter, which must be chosen before Triton is imported.

# %%
HAS_TRITON = importlib.util.find_spec("triton") is not None
folder = Path(chapters.chapter(3).folder)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if HAS_TRITON:
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    small = run_file(folder / "small_kernel.py", "small_kernel")
    out = small.attend(*(x.to(device) for x in (q, cache.k[0], cache.v[0], tables, lengths)))
    os.environ.pop("TRITON_INTERPRET", None)  # the engine below takes the references on a CPU: they are faster there
    print(f"largest difference from the reference's: {float((out.cpu() - paged).abs().max()):.1e}")
    assert torch.allclose(out.cpu(), paged, atol=1e-5)
else:
    print("There is no Triton here: it has wheels for Linux alone. Everything else in this notebook runs.")
print((folder / "small_kernel.py").read_text().split("@triton.jit")[1].split("def attend(")[0])

# %% [markdown]
# ## 14. Any number of new tokens
#
# A step in which row 0 decodes and row 1 brings a piece of three tokens, behind its context. A token sees its row's
# slots up to its own position: that is the whole mask. The ragged kernel's reference gives what chapter 1 gives for
# both texts.

# %%
first.tokens.append(2), second.tokens.extend((2, 6, 5))
cache.keep(first, 6)
cache.keep(second, 6)
mixed = Batch.of([(first, 5, 1), (second, 3, 3)], CPU)
new_q, new_k, new_v = qkv(mixed)
write_pages(new_k, new_v, cache.k[0], cache.v[0], cache.places(mixed))
out = attend_ragged(new_q, cache.k[0], cache.v[0], cache.tables, mixed, None)
show("who sees which slot of its row", (torch.arange(6) <= mixed.positions[:, None]).int())
right = torch.cat((chapter_1([3, 1, 4, 1, 5, 2])[5:], chapter_1([1, 5, 9, 2, 6, 5])[3:]))
print(f"largest difference from chapter 1's {float((out - right).abs().max()):.1e}")
assert torch.allclose(out, right, atol=1e-5)

# %% [markdown]
# # Break it
#
# From here on it is the real engine with the small model that ships. `answers.mistake` puts a known wrong answer of the
# chapter's exercises into the engine, for as long as its block runs. **Write your guess down before you run a cell.**

# %%
llm = LLM(engine="paged", dtype="float32")
llm.core.cache.k.zero_(), llm.core.cache.v.zero_()  # mistakes read what nobody wrote: the same at every run
GREEDY = SamplingParams(max_tokens=24, temperature=0)


def told(*prompts: str) -> list[str]:
    """Each prompt with what the engine makes of it."""
    done = llm.generate(list(prompts), GREEDY)
    return [prompt + row.text for prompt, row in zip(prompts, done, strict=True)]


PROMPTS = ("Once upon a time", "The old fox looked up at", "Where are you")
right = told(*PROMPTS)
print(*right, sep="\n")

# %% [markdown]
# ## Break 1: neighbours in the text are neighbours in memory
#
# Every token is written behind the slot of its row's first. The table is right, and is used for reading. Blocks hold
# 16 tokens. Guess: does it go wrong at once, never, or from which token on?

# %%
guess = "..."
with answers.mistake("3.2", "neighbours"):
    wrong = told(*PROMPTS)
print("your guess:", guess, *wrong, sep="\n")
assert wrong != right

# %% [markdown]
# As long as a text stays within its first block it is right. Here is the whole mistake, and then the repair: outside
# the block the engine has its own slots again.

# %%
print(answers.source("3.2", "neighbours"))
assert told(*PROMPTS) == right

# %% [markdown]
# ## Break 2: the newest token needs no room yet
#
# A row takes its next block one step too late, so the first token of each block has no slot of its own. It goes where
# the table's entry still points. The first line below clears tables and pool of what earlier cells left there, so here
# that is block 0. Guess: how many of the three texts change, and which?

# %%
guess = "..."
llm.core.cache.tables.zero_(), llm.core.cache.k.zero_(), llm.core.cache.v.zero_()
with answers.mistake("3.1", "newest-left-out"):
    wrong = told(*PROMPTS)
print("your guess:", guess, *wrong, sep="\n")
print("changed:", sum(a != b for a, b in zip(right, wrong, strict=True)), "of 3")
assert [a != b for a, b in zip(right, wrong, strict=True)] == [False, True, False]

# %% [markdown]
# *Repaired.* Only the second text changed. The others lost a key of each new block too, and did not miss it: a text
# that reads well proves nothing.

# %%
assert told(*PROMPTS) == right

# %% [markdown]
# ## Break 3: partial results are averaged
#
# Each context is cut into parts, and the parts' results are averaged. Guess: does it still write English?

# %%
guess = "..."
with answers.mistake("3.7", "averaged"):
    wrong = told(*PROMPTS)
print("your guess:", guess, *wrong, sep="\n")
assert wrong != right

# %% [markdown]
# *Repaired* with the right join, which is swapped in just as well.

# %%
print(answers.source("3.7", "averaged"))
assert told(*PROMPTS) == right

# %% [markdown]
# ## Break 4: 0 times NaN
#
# A freed page may hold anything. Fill the slots behind the texts with NaN, and attend with a mask on the scores
# alone. Guess: which rows are hit?

# %%
guess = "..."
poisoned = cache.v[0].clone()
poisoned[tables[1, 1], :, 1] = float("nan")  # row 1 has three tokens: its second page is half full
weights = scores.softmax(-1)
by_scores_alone = torch.einsum("bhs,bhsd->bhd", weights, gather_pages(poisoned, tables))
print("your guess:", guess)
show("masked scores, unmasked values: row 0 and row 1", by_scores_alone)

# %% [markdown]
# *Repaired:* the values are replaced before they are multiplied. That is what the reference and the kernels do.

# %%
whole = attend_pages(q, cache.k[0], poisoned, tables, lengths, cache.splits_done)
assert torch.equal(whole, paged)

# %% [markdown]
# # How many splits
#
# The engine's choice by rows and room, for GPT-2's twelve heads. Guess the first and the last column before you run
# it.

# %%
table = [[choose_splits(batch, 12, room) for batch in (1, 4, 16, 64, 256)] for room in (64, 256, 1024)]
show("splits: rows 1, 4, 16, 64, 256; room 64, 256, 1024", torch.tensor(table))

# %% [markdown]
# # What it costs on an H200
#
# One layer's attention at decode over 1024 tokens, out of the benchmark's results file: the kernel as the engine runs
# it, the same without splitting, and the time that a plain copy takes for as many bytes.

# %%
report = results("h200-kernels")
times = [t for t in report["times"] if t["context"] == 1024]
rows = sorted({t["batch"] for t in times})
arms = {
    "as chosen": [t for t in times if t["chosen"]],
    "not split": [t for t in times if t["arm"] == "paged, block 16, splits 1"],
}
figure, ax = plt.subplots(figsize=(6, 3.4))
for name, found in arms.items():
    ax.plot([t["batch"] for t in found], [1e6 * t["seconds"]["median"] for t in found], "o-", label=name)
bytes_alone = [2 * n * 1024 * 12 * 64 * 2 / report["copy_bytes_per_s"] * 1e6 for n in rows]
ax.plot(rows, bytes_alone, "k--", label="as many bytes, copied")
ax.set(xscale="log", yscale="log", xlabel="rows", ylabel="µs", title=report["machine"]["device"])
ax.set_xticks(rows, rows)
ax.minorticks_off()
ax.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# # Quiz
#
# It never counts for marks. With `pip install jupyterquiz` it has buttons.

# %%
quiz(3)

# %% [markdown]
# **Where to go on.** `nanoinfer course start 3` gives you the exercises, the kernel among them; the mistakes above
# are some of those that their checks know by name.
