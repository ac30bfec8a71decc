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
# # Chapter 4: a step, recorded and replayed
#
# This notebook records one decode step of a very small GPT-2, replays it, and looks at what a recording knows and what
# it does not. Then you break the real engine in a few places, guess what comes out, and repair it. The chapter's text
# is `chapters/04-cuda-graphs/README.md`; run the cells from top to bottom.
#
# No GPU is needed. On a machine without one, a stand-in records: it notes each operation with the memory and the
# numbers that it had, and repeats the notes. With a GPU the same cells capture real CUDA graphs.

# %%
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from nanocourse.exercises import answers
from nanocourse.learner.notebook import quiz, results, show, source
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.captured import CapturedPaged
from nanoinfer.engine import fake_graph
from nanoinfer.engine.graphs import CudaRecorder, GraphEngine, ladder, pick
from nanoinfer.engine.samplers import greedy
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import Chunk, Prefill, Prompts, Rows, decode_step, prefill_step
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model

_ = torch.set_grad_enabled(False)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


recorder = CudaRecorder(device) if device.type == "cuda" else fake_graph.FakeRecorder()
print("recording on", device, "with", type(recorder).__name__)

# %% [markdown]
# ## 1. A batch in the middle of its texts
#
# Two rows of a batch of at most four. All that changes from step to step lies in one tensor, a line each for token,
# position, number of the step, whether the row is live, seed, top-k, and the row's own number, which says where it
# writes; a column is a row of the batch. The fifth column is the dummy row: a row that is not live writes there.

# %%
config = ModelConfig(n_layer=1, n_head=2, n_embd=32, n_positions=32, vocab_size=50)
model = random_model(config, seed=50, std=1.0, device=device)
cache = CapturedPaged(config, 4, 32, 8, 16, device, torch.float32)  # eight blocks of 16, and the null block
state = BatchState.empty(4, device)
for row in (0, 1):
    cache.blocks.reserve(row, 12)
    cache.blocks.grow(row, 12)  # all the blocks that it will need
cache.update([(row, 0, cache.blocks.owned[row][0]) for row in (0, 1)])  # the device's tables hear of them
prefill = Prefill([Chunk(0, 0, (3, 1, 4)), Chunk(1, 0, (1, 5))])
prompts = Prompts.of_packed(prefill.pack(prefill.layout, state.dummy).to(device), prefill.layout)
prefill_step(model, cache, state, prompts, greedy)
show("state: token, position, step, live, seed, top-k, row", state.integers)

# %% [markdown]
# ## 2. A decode step
#
# It is given the number of rows, how far it may have to read, and a sampler. Everything else it takes from the state,
# and it leaves the next token where the next step looks for it. Rows 2 and 3 are padding.

# %%
rows, context = 4, 32


def step() -> Tensor:
    return decode_step(model, cache, state, rows, context, greedy)


begin = [tensor.clone() for tensor in (state.integers, cache.k, cache.v)]


def go_back() -> None:
    """The state and the cache as they were after the prompts: in place, so that addresses stay."""
    for tensor, old in zip((state.integers, cache.k, cache.v), begin, strict=True):
        tensor.copy_(old)


tokens = step()
show("state after one step", state.integers)
source(decode_step)

# %% [markdown]
# ## 3. Run some more, for comparison
#
# Four steps as Python runs them: these are the tokens that replays must make.

# %%
go_back()
right = torch.stack([step()[:2].clone() for _ in range(4)])
show("tokens of rows 0 and 1, a line a step", right)

# %% [markdown]
# ## 4. Record it
#
# First the step runs once, so that everything is compiled and set up; this *writes*, so we go back. Then it is
# recorded. Look at the state: a capture has executed nothing.

# %%
recorder.warm(step)
go_back()
graph = recorder.record(step)
show("state after the capture", state.integers)
assert torch.equal(state.integers, begin[0])

# %% [markdown]
# ## 5. What is in it
#
# A list of launches. The stand-in can show its own; a real graph of the same step has its kernels instead. There is no
# Python in either: no loop over layers, no `if`.

# %%
if isinstance(graph, fake_graph.FakeGraph):
    print(len(graph.operations), "operations")
    for name, count in Counter(graph.operations).most_common(8):
        print(f"{count:4}  {name}")
else:
    print("a CUDA graph:", graph)

# %% [markdown]
# ## 6. Replay it
#
# One call a step, and nothing handed over: the token that a replay leaves is the one that the next replay reads.

# %%
go_back()
replayed = []
for _ in range(4):
    graph.replay()
    replayed.append(state.token[:2].clone())
show("tokens of four replays", torch.stack(replayed))
assert torch.equal(torch.stack(replayed), right)

# %% [markdown]
# ## 7. Padding rows
#
# The recorded step has four rows, and two are live. What rows 2 and 3 fed and wrote: token 0 at position 0, to slot 0,
# in the null block. Their lengths are 1: they read one slot, and what comes of it is thrown away.

# %%
fed = state.at(slice(0, rows))
plan = cache.plan(Rows(fed.token, fed.position, fed.row, fed.row, 1, context - 1))
show("slots that the next step writes to", plan.places[None])
show("how many slots each row reads", plan.lengths[None])
show("state after four replays", state.integers)
assert not state.integers[:6, 2:4].any()

# %% [markdown]
# ## 8. The result is overwritten
#
# What a replay gives lies in the same place each time. A name, a view or `detach()` is no copy.

# %%
go_back()
graph.replay()
kept, copied = state.token[:2].detach(), state.token[:2].clone()
show("after the first replay: kept, copied", torch.stack((kept, copied)))
graph.replay()
show("after the second replay: kept, copied", torch.stack((kept, copied)))
assert not torch.equal(kept, copied)

# %% [markdown]
# ## 9. A name is no address
#
# Rows 0 and 1 shall go on with tokens 7 and 8. Binding a name to a new tensor changes nothing for the graph; writing
# into the tensor that it knows does.

# %%
go_back()
graph.replay()
undisturbed = state.token[:2].clone()

go_back()
token = torch.tensor([7, 8], device=device)  # a new tensor, of a fine name
graph.replay()
bound = state.token[:2].clone()

go_back()
state.token[:2].copy_(token)  # into the old one
graph.replay()
written = state.token[:2].clone()
show("undisturbed, bound to a name, written", torch.stack((undisturbed, bound, written)))
assert torch.equal(undisturbed, bound)
assert not torch.equal(undisturbed, written)

# %% [markdown]
# ## 10. A number is baked
#
# A step that counts with a Python number, and one that counts with a tensor. Both are replayed three times.

# %%
at, where = 5, torch.tensor([5], device=device)
seen = torch.zeros(2, dtype=torch.int64, device=device)


def count() -> None:
    seen[0].copy_(torch.full((), at, device=device))
    seen[1].copy_(where[0])


recorder.warm(count)
counting = recorder.record(count)
for _ in range(3):
    at += 1
    where.add_(1)
    counting.replay()
    print("a Python number:", int(seen[0]), "  a tensor:", int(seen[1]))
assert seen.tolist() == [5, 8]

# %% [markdown]
# ## 11. A dict of them
#
# Batch sizes that are captured, up to 64 rows, and what a batch is padded to. Guess first: how many rows does a batch
# of 33 pay for, and how many with powers of two?

# %%
sizes = ladder(64)
print("the ladder:", sizes)
table = [[batch, pick(sizes, batch), pick([1, 2, 4, 8, 16, 32, 64], batch)] for batch in (3, 9, 17, 33, 49, 64)]
show("live rows; rows computed by the ladder; by powers of two", torch.tensor(table))
source(ladder)

# %% [markdown]
# ## 12. The engine's own
#
# The small model that ships, three texts that end one after the other, and what is in the engine's dict afterwards.

# %%
PROMPTS = ("Once upon a time", "The old fox looked up at", "Where are you")
SHORT = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (20, 6, 12)]


@contextmanager
def recording() -> Iterator[None]:
    """Engines that are made meanwhile record, with or without a GPU."""
    make = GraphEngine.__init__

    def made(self: GraphEngine, *args: Any, recorder: Any, **settings: Any) -> None:
        make(self, *args, recorder=recorder or fake_graph.FakeRecorder(), **settings)

    GraphEngine.__init__ = made
    try:
        yield
    finally:
        GraphEngine.__init__ = make


warnings.filterwarnings("ignore", message=".*a CPU records no steps")  # here it does, by the fake recorder


def engine(name: str = "paged-graph", **settings: Any) -> LLM:
    return LLM(engine=name, dtype="float32", max_batch=4, max_len=64, max_graph_batch=4, **settings)


def told(llm: LLM, params: Any = None) -> list[str]:
    params = params or SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    return [p + row.text for p, row in zip(PROMPTS, llm.generate(list(PROMPTS), params), strict=True)]


with recording():
    llm = engine()
told(llm, SHORT)
graphs = llm.core.graphs
for key in graphs:
    print(key, "  reads up to", key.longest, "  sampler", key.sampler.__name__)
stats = llm.stats
print(f"decode steps {stats.decode_steps}, replayed {stats.replayed_steps}; padding rows {stats.padding_share:.1%}")
source(GraphEngine.decode)

# %% [markdown]
# ## 13. Memory that moves
#
# What happens to the graphs if somebody makes a new cache? They would go on writing into the old one. This engine looks
# at addresses before each step, drops its graphs, and says so.

# %%
before = len(graphs)
llm.core.cache.k = llm.core.cache.k.clone()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    again = told(llm, SHORT)
print(before, "graphs before;", said[0].message)
with recording():
    assert again == told(engine(), SHORT)

# %% [markdown]
# # Break it
#
# `answers.mistake` puts a known wrong answer of the chapter's exercises into the engine, for as long as its block runs.
# Engines that are made within the block record; without a GPU by the stand-in. **Write your guess down before you run a
# cell.**

# %%
with recording():
    right = told(engine())
print(*right, sep="\n")

# %% [markdown]
# ## Break 1: tokens are bound to the names of the inputs
#
# A captured prefill reads its tokens from tensors that it knows. Here the new ones are assigned to their names.
# Guess: an error, the old text, or what else?

# %%
guess = "..."
with answers.mistake("4.2", "entries-rebound"):
    wrong = told(engine())
print("your guess:", guess, *wrong, sep="\n")
assert wrong != right

# %% [markdown]
# The prefill ran over what was in its inputs when it was captured: padding. Here is the whole mistake, and then
# the repair: outside the block the engine copies.

# %%
print(answers.source("4.2", "entries-rebound"))
with recording():
    assert told(engine()) == right

# %% [markdown]
# ## Break 2: the key does not say how far a step reads
#
# The dense engine reads its cache up to a multiple of 16 here, and one graph serves all lengths. Guess: does it go
# wrong at once, or from which token on?

# %%
guess = "..."
with answers.mistake("4.3", "without-read"):
    short = engine("dense-graph")
    short.core.cache.read_multiple = 16
    wrong = told(short)
print("your guess:", guess, *wrong, sep="\n")
assert wrong != right

# %% [markdown]
# *Repaired.* It is right until a text is longer than what the first graph read, and the tests of a short text pass.

# %%
with recording():
    assert told(engine("dense-graph")) == right

# %% [markdown]
# ## Break 3: the sampler is not in the key
#
# First a greedy generation, then a sampled one, through the same dict. Guess: what does the sampled one look like?

# %%
guess = "..."
SAMPLED = SamplingParams(temperature=1.0, max_tokens=20, seed=3, ignore_eos=True)
with answers.mistake("4.3", "without-sampler"):
    one = engine()
    first, second = told(one), told(one, SAMPLED)
print("your guess:", guess, *second, sep="\n")
assert first == second == right

# %% [markdown]
# *Repaired:* the sampled texts are others, and the same as those of an engine without graphs.

# %%
with recording():
    one = engine()
    told(one)
    second = told(one, SAMPLED)
print(*second, sep="\n")
assert second == told(engine("dense"), SAMPLED) != right

# %% [markdown]
# ## Break 4: a padding row is a copy of row 0
#
# Three rows are live, and the graph has four. The fourth gets row 0's slot, length and table, as its result is thrown
# away anyhow. Guess: which texts change?

# %%
guess = "..."
with answers.mistake("4.5", "as-row-0"):
    wrong = told(engine())
print("your guess:", guess, *wrong, sep="\n")
print("changed:", [a != b for a, b in zip(right, wrong, strict=True)])
assert wrong[0] != right[0]

# %% [markdown]
# *Repaired.* Its token was another one than row 0's, and both were written to one slot. A row whose result nobody wants
# writes all the same.

# %%
print(answers.source("4.5", "as-row-0"))
with recording():
    assert told(engine()) == right

# %% [markdown]
# # What it costs and brings on an H200
#
# Out of the benchmark's results files. Left: TTFT over the prompt's length, eager and replayed, for one prompt and for
# eight. Guess where the lines meet, and why: where marks are hollow, there was no graph. Right: tokens a second of
# whole generations, the same paged step launched and replayed.

# %%
report, figures = results("h200-ladder"), results("h200-gpu")
figure, (left, rates) = plt.subplots(1, 2, figsize=(9.5, 3.5))
for batch, style in ((1, "-"), (8, "--")):
    for arm, marker in (("eager", "s"), ("graph", "v")):
        found = [p for p in report["prefills"] if (p["batch"], p["arm"]) == (batch, arm)]
        tokens, ms = [p["tokens"] for p in found], [1e3 * p["ttft_s"]["median"] for p in found]
        (line,) = left.plot(tokens, ms, marker + style, label=f"{arm}, {batch} prompt{'s' * (batch > 1)}")
        if arm == "graph" and (eager := [at for at, p in enumerate(found) if p["bare_s"] is None]):
            left.plot(tokens, ms, marker, color=line.get_color(), markerfacecolor="white", markevery=eager)
left.set(xscale="log", xlabel="tokens of a prompt", ylabel="ms to the first token", title=report["machine"]["device"])
left.set_xticks([16, 64, 256, 1000], [16, 64, 256, 1000])
left.minorticks_off()
left.set_ylim(bottom=0)
left.legend(fontsize=8)
for name, style in (("paged", "s-"), ("paged-graph-unfused", "v:"), ("paged-graph", "v-")):
    found = [r for r in figures["results"] if r["case"]["engine"] == name and r.get("tokens_per_s")]
    rates.plot([r["case"]["batch"] for r in found], [r["tokens_per_s"] for r in found], style, label=name)
rates.set(xscale="log", yscale="log", xlabel="rows", ylabel="tokens a second")
rates.set_xticks([1, 8, 64, 512], [1, 8, 64, 512])
rates.minorticks_off()
rates.legend(fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# # Start-up and memory

# %%
print(f"{'engine':14}{'rows':>6}{'captures':>10}{'seconds':>9}{'MB':>7}")
for one in report["ladders"]:
    print(f"{one['engine']:14}{one['rows']:6}{one['captures']:10}{one['seconds']:9.2f}{one['driver_bytes'] / 1e6:7.0f}")
drain = report["drains"][0]
print(f"a batch of {drain['rows']} that drains: {drain['replayed']} of {drain['steps']} steps replayed, "
      f"{drain['padding_share']:.1%} of the rows were padding")  # fmt: skip

# %% [markdown]
# # Quiz
#
# It never counts for marks. With `pip install jupyterquiz` it has buttons.

# %%
quiz(4)

# %% [markdown]
# **Where to go on.** `nanoinfer course start 4` gives you the exercises. The page "Graphs that lied" has the defects of
# real engines, each reproduced small.
