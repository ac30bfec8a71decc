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
# Follow a decode step through a paged cache, then break the engine. The text is in `chapters/03-paged-attention`. Run
# the set-up; the parts after it then run in any order, without a GPU. Put a guess into each `guess = "?"` before you
# run its cell. The last cell counts the right ones.

# %%
import importlib.util
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from nanocourse.exercises import answers, chapters
from nanocourse.learner.notebook import compare, quiz, show, watch
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.none import NoCache
from nanoinfer.cache.paged import PagedCache, PagedPlan, choose_splits
from nanoinfer.kernels.paged_attention_torch import attend_pages, gather_pages
from nanoinfer.model.batch import Batch
from nanoinfer.model.weights import load_model
from nanoinfer.text.tokenizer import gpt2_tokenizer

_ = torch.set_grad_enabled(False)

# %% [markdown]
# Two sequences of four and eight tokens, in a pool of nine blocks of four. A pool is memory as it comes; ours starts as
# zeros, so that you see what is written. We look at head 2 of layer 6.

# %%
model, guesses = load_model("small", torch.device("cpu"), torch.float32), {}
config, tokenizer = model.config, gpt2_tokenizer()
BLOCK, LAYER, HEAD, D = 4, 6, 2, config.head_size


def fresh() -> tuple[PagedCache, list[Any]]:
    """An empty pool, and two sequences that have reserved blocks for 8 and 12 tokens."""
    cache, texts = PagedCache(config, 2, 12, 9, BLOCK, model.device, model.dtype), []
    cache.k.zero_(), cache.v.zero_()
    for row, prompt in enumerate(("Once upon a time", "The old fox looked up at the sky")):
        texts.append(SimpleNamespace(row=row, tokens=tokenizer.encode(prompt)))
        cache.blocks.reserve(row, len(texts[row].tokens) + 4)
    return cache, texts


def feed(cache: PagedCache, rows: list[Any], decode: bool = False) -> tuple[PagedPlan, Tensor, list[Any]]:
    """Feed the prompts, or the newest tokens. Returns the plan, the logits, and each layer's q, k and v."""
    for row in rows:
        cache.keep(row, len(row.tokens))  # takes blocks
    starts = [len(row.tokens) - 1 if decode else 0 for row in rows]
    step = Batch.of([(row, at, len(row.tokens) - at) for row, at in zip(rows, starts, strict=True)], model.device)
    return cache.plan(step), *watch(model, step, cache)


def prefilled() -> tuple[PagedCache, list[Any]]:
    """The cache after the prompts' step, and the sequences with the token that follows."""
    cache, rows = fresh()
    for row, token in zip(rows, feed(cache, rows)[1].argmax(-1).tolist(), strict=True):
        row.tokens.append(token)
    return cache, rows


def told(*prompts: str) -> list[str]:
    """Each prompt with its continuation, by a new engine with a pool of zeros: mistakes read the same each time."""
    llm = LLM(model, engine="paged", max_batch=4)
    llm.core.cache.k.zero_(), llm.core.cache.v.zero_()
    done = llm.generate(list(prompts), SamplingParams(max_tokens=24, temperature=0))
    return [prompt + one.text for prompt, one in zip(prompts, done, strict=True)]


PROMPTS = "Once upon a time", "The old fox looked up at", "Where are you"
right = told(*PROMPTS)
print(*right, sep="\n")

# %%
# What attention reads in a decode step. No later cell changes it.
written, sequences = prefilled()
plan, _, layers = feed(written, sequences, decode=True)
tables, lengths, q = plan.tables, plan.lengths, layers[LAYER][0]  # (B, width), (B,), (B, H, D)
k_pool, v_pool = written.k[LAYER], written.v[LAYER]  # (blocks, H, BLOCK, D) each
keys, values = gather_pages(k_pool, tables), gather_pages(v_pool, tables)  # (B, H, S, D) each
inside = torch.arange(keys.shape[2]) < lengths[:, None]  # (B, S)
scores = (torch.einsum("bhd,bhsd->bhs", q, keys) / D**0.5).masked_fill(~inside[:, None], -torch.inf)
paged = attend_pages(q, k_pool, v_pool, tables, lengths, written.splits_done)  # (B, H, D)

# %% [markdown]
# ## 1. Blocks and slots
#
# **Do exercises 3.1 and 3.2 first.** A reserved block is only counted (section 5). `keep` takes the blocks that a step
# needs and writes them into the tables (section 4).

# %%
cache, rows = fresh()
print("free:", cache.blocks.free, " reserved:", cache.blocks.reserved)
for row in rows:
    cache.keep(row, len(row.tokens))
print("free:", cache.blocks.free, " reserved:", cache.blocks.reserved, " available:", cache.blocks.available)
show("tables", cache.tables)

# %% [markdown]
# A slot is block · 4 + place (section 3). The prompts' step writes a key and a value into each.

# %%
prompts, *_ = feed(cache, rows)
show("row, position, slot", torch.stack([prompts.batch.row, prompts.batch.positions, prompts.places]))
show("keys, first number, a block a line", cache.k[LAYER, :, HEAD, :, 0])

# %% [markdown]
# ## 2. A decode step
#
# Each newest token is the first of a block, and counts before it is written. So each sequence has taken a block, and
# its blocks are no longer neighbors.

# %%
show("tables", tables)
print("slots:", plan.places.tolist(), " lengths:", lengths.tolist())
show("keys, first number, a block a line", k_pool[:, HEAD, :, 0])

# %% [markdown]
# ## 3. Read by the table
#
# Each row's pages side by side. Row 0 has five tokens in two pages. Its third table entry is 0, so block 0 is read once
# more, and masked.

# %%
show("keys of rows 0 and 1, first four numbers", keys[:, HEAD, :, :4])
show("scores, a row a line", scores[:, HEAD])
show("weights", scores[:, HEAD].softmax(-1))

# %% [markdown]
# The kernel's reference gives the same result, and so does chapter 1's attention:

# %%
assert torch.allclose(torch.einsum("bhs,bhsd->bhd", scores.softmax(-1), values), paged, atol=1e-5)
whole = Batch.of([(sequence, 0, len(sequence.tokens)) for sequence in sequences], model.device)
naive = whole.last(NoCache().attend(whole, LAYER, *watch(model, whole, NoCache())[1][LAYER]))
print(f"largest difference from chapter 1's: {float((naive - paged).abs().max()):.1e}")
assert torch.allclose(naive, paged, atol=1e-4)

# %% [markdown]
# ## 4. Online softmax, page by page
#
# **Do exercise 3.5 first.** Row 1, one channel of the values. Where the maximum rises, the old sums shrink (section 8).

# %%
top, total, acc = -math.inf, 0.0, 0.0
for page in range(3):
    s, v = (x[1, HEAD, page * BLOCK : (page + 1) * BLOCK] for x in (scores, values))  # (BLOCK,) and (BLOCK, D)
    higher = max(top, float(s.max()))
    rescale, terms = math.exp(top - higher), (s - higher).exp()  # (BLOCK,)
    total, acc = total * rescale + float(terms.sum()), acc * rescale + float(terms @ v[:, 0])
    top = higher
    print(f"page {page}: maximum {top:.2f}   old sums times {rescale:.3f}   sum {total:.3f}   weighted {acc:.3f}")
print(f"result {acc / total:.6f}, by one softmax {float(paged[1, HEAD, 0]):.6f}")

# %% [markdown]
# ## 5. Two parts, and their join
#
# **Do exercise 3.7 first.** Row 1's context in two parts, each with a maximum, a sum and weighted values of its own
# (section 13).

# %%
parts = []
for part in (slice(0, 8), slice(8, 12)):
    most = scores[1, HEAD, part].max()
    weights = (scores[1, HEAD, part] - most).exp()
    parts.append((most, weights.sum(), weights @ values[1, HEAD, part]))
factors = [(most - max(parts)[0]).exp() for most, _, _ in parts]
sums, weighted = (sum(f * part[at] for f, part in zip(factors, parts, strict=True)) for at in (1, 2))
joined, averaged = weighted / sums, sum(part[2] / part[1] for part in parts) / 2
show("joined, averaged, right", torch.stack([joined, averaged, paged[1, HEAD]])[:, :8])
assert torch.allclose(joined, paged[1, HEAD], atol=1e-5)

# %% [markdown]
# ## 6. The kernel
#
# Section 9's kernel. On a CPU, Triton's interpreter must be chosen before Triton is imported.

# %%
if importlib.util.find_spec("triton") is None:
    print("Triton runs on Linux alone; all else in this notebook runs here.")
else:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with patch.dict(os.environ, {} if device.type == "cuda" else {"TRITON_INTERPRET": "1"}):
        small = chapters.run_file(Path(chapters.chapter(3).folder) / "small_kernel.py", "small_kernel")
        out = small.attend(*(x.to(device) for x in (q, k_pool, v_pool, tables, lengths))).cpu()
    print(f"largest difference from the reference: {float((out - paged).abs().max()):.1e}")
    assert torch.allclose(out, paged, atol=1e-5)

# %% [markdown]
# # Break it
#
# `answers.mistake` puts a wrong answer of an exercise into the engine. Leaving its `with` block repairs the engine.
#
# ## Break 1: neighbors in the text are neighbors in memory
#
# **Do exercise 3.2 first.** Tokens go behind their row's first slot, and are read by the table. When does a text go
# wrong?

# %%
guess = "?"  # "at once", "after its first block" or "never"
with answers.mistake("3.2", "neighbours"):
    wrong = told(*PROMPTS)
print(*wrong, sep="\n")
compare(guesses, "break 1", guess, "after its first block")
assert wrong != right == told(*PROMPTS)
print(answers.source("3.2", "neighbours"))

# %% [markdown]
# ## Break 2: the newest token needs no room yet
#
# **Do exercise 3.1 first.** Blocks come a step late, so their first tokens go where the table still points: block 0.
# How many of the three texts change?

# %%
guess = "?"  # 0, 1, 2 or 3
with answers.mistake("3.1", "newest-left-out"):
    wrong = told(*PROMPTS)
print(*wrong, sep="\n")
compare(guesses, "break 2", guess, sum(a != b for a, b in zip(right, wrong, strict=True)))
assert wrong != right == told(*PROMPTS)

# %% [markdown]
# Each text lost a key of each new block. Not all missed it: a text that reads well proves nothing.
#
# ## Break 3: partial results are averaged
#
# **Do exercise 3.7 first.** Does it still write English?

# %%
guess = "?"  # "English" or "nonsense"
with answers.mistake("3.7", "averaged"):
    wrong = told(*PROMPTS)
print(*wrong, sep="\n")
compare(guesses, "break 3", guess, "English")
assert wrong != right == told(*PROMPTS)
print(answers.source("3.7", "averaged"))

# %% [markdown]
# ## Break 4: 0 times NaN
#
# A freed page may hold anything. Put NaN behind row 1's text, and mask only the scores (section 10). Who is hit?

# %%
guess = "?"  # "none", "row 1" or "both"
poisoned = v_pool.clone()
poisoned[tables[1, 2], :, 1:] = torch.nan  # row 1 has nine tokens: one is in its third block
unmasked = torch.einsum("bhs,bhsd->bhd", scores.softmax(-1), gather_pages(poisoned, tables))
show("scores masked, values not", unmasked[:, HEAD, :8])
compare(guesses, "break 4", guess, ("none", "row 1", "both")[int(unmasked.isnan().any(-1).any(-1).sum())])
assert torch.equal(attend_pages(q, k_pool, poisoned, tables, lengths, written.splits_done), paged)

# %% [markdown]
# The reference and the kernels replace such values before they multiply.
#
# ## How many splits
#
# **Do exercise 3.8 first.** The engine's choice for 12 heads (section 12). How many for one row of up to 1024 tokens?

# %%
guess = "?"  # a power of two
chosen = [[choose_splits(count, 12, longest) for count in (1, 4, 16, 64, 256)] for longest in (64, 256, 1024)]
show("splits: rows 1, 4, 16, 64, 256; longest 64, 256, 1024", torch.tensor(chosen))
compare(guesses, "splits", guess, chosen[-1][0])

# %% [markdown]
# ## Quiz and score
#
# With `pip install jupyterquiz` it has buttons. Next, `nanoinfer course start 3` gives you the exercises.
# `chapters/03-paged-attention/measurements.md` has the kernel's times.

# %%
quiz(3)
print(f"{sum(guesses.values())} of {len(guesses)} guesses were right")
