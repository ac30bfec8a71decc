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
# Record a decode step, then break the engine. The text is in `chapters/04-cuda-graphs`. Run the set-up; the parts after
# it then run in any order. Put a guess into each `guess = "?"` before you run its cell. The last cell counts the right
# ones. On a GPU these cells capture CUDA graphs; elsewhere a stand-in notes each operation, and repeats the notes.

# %%
import warnings
from collections import Counter
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from nanocourse.exercises import answers
from nanocourse.learner.notebook import compare, quiz, show, source
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.captured import CapturedPaged
from nanoinfer.engine import fake_graph
from nanoinfer.engine.graphs import CudaRecorder, GraphEngine, ladder, pick
from nanoinfer.engine.samplers import greedy
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import Chunk, Prefill, Prompts, decode_step, prefill_step
from nanoinfer.model.weights import load_model
from nanoinfer.text.tokenizer import gpt2_tokenizer

_ = torch.set_grad_enabled(False)
warnings.filterwarnings("ignore", message=".*a CPU records no steps")  # here it does, by the stand-in
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
recorder = CudaRecorder(device) if device.type == "cuda" else fake_graph.FakeRecorder()
print("recording on", device, "with", type(recorder).__name__)

# %% [markdown]
# Two sequences in a batch of four rows. One tensor has all that changes (section 4): token, position, step, live, seed,
# top-k, and where the row writes. The fifth column is the dummy row.

# %%
model, tokenizer, guesses = load_model("small", device, torch.float32), gpt2_tokenizer(), {}
cache = CapturedPaged(model.config, 4, 32, 8, 16, device, torch.float32)
state = BatchState.empty(4, device)
texts = [tokenizer.encode(prompt) for prompt in ("Once upon a", "The fox")]
for row in range(2):
    cache.blocks.reserve(row, 16)
    cache.update([(row, 0, block) for block in cache.blocks.grow(row, 16)])
prefill = Prefill([Chunk(row, 0, tuple(ids)) for row, ids in enumerate(texts)])
packed = prefill.pack(prefill.layout, state.dummy).to(device)
prefill_step(model, cache, state, Prompts.of_packed(packed, prefill.layout), greedy)
begin = [tensor.clone() for tensor in (state.integers, cache.k, cache.v)]


def go_back() -> None:
    """Put state and cache back as they were after the prompts."""
    for tensor, old in zip((state.integers, cache.k, cache.v), begin, strict=True):
        tensor.copy_(old)


def step() -> Tensor:
    return decode_step(model, cache, state, 4, 32, greedy)


def recorded() -> Any:
    """The step's recording. The warm-up writes, so we go back (section 7)."""
    go_back()
    recorder.warm(step)
    go_back()
    return recorder.record(step)


def newest() -> list[str]:
    return [tokenizer.token_bytes(token).decode() for token in state.token[:2].tolist()]


PROMPTS = "Once upon a time", "The old fox looked up at", "Where are you"
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
SHORT = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (20, 6, 12)]


def engine(name: str = "paged-graph") -> LLM:
    """An engine that records, with or without a GPU."""
    make = GraphEngine.__init__

    def made(self: GraphEngine, *args: Any, recorder: Any, **settings: Any) -> None:
        make(self, *args, recorder=recorder or fake_graph.FakeRecorder(), **settings)

    with patch.object(GraphEngine, "__init__", made):
        return LLM(engine=name, dtype="float32", max_batch=4, max_len=64, max_graph_batch=4)


def told(llm: LLM, params: Any = GREEDY) -> list[str]:
    return [prompt + one.text for prompt, one in zip(PROMPTS, llm.generate(list(PROMPTS), params), strict=True)]


right = told(engine())
print(*right, sep="\n")
show("state after the prompts", state.integers)

# %% [markdown]
# ## 1. Record it, replay it
#
# A step leaves the next token where the next step looks for it. Four steps, as Python runs them:

# %%
go_back()
eager = []
for _ in range(4):
    step()
    eager.append(newest())
print(*eager, sep="\n")
show("state after four steps", state.integers)
source(decode_step)

# %% [markdown]
# A capture executes nothing. What is recorded is a list of launches, without any Python (section 3).

# %%
graph = recorded()
assert torch.equal(state.integers, begin[0])
if isinstance(graph, fake_graph.FakeGraph):
    print(len(graph.operations), "operations, most of all", Counter(graph.operations).most_common(6))
for tokens in eager:
    graph.replay()
    print(newest())
    assert newest() == tokens

# %% [markdown]
# ## 2. Padding rows
#
# **Do exercise 4.5 first.** Rows 2 and 3 feed token 0 at position 0, into the null block (section 8). At which position
# are they after four replays?

# %%
guess = "?"  # 0, 1 or 4
graph = recorded()
for _ in range(4):
    graph.replay()
show("state after four replays", state.integers)
compare(guesses, "padding", guess, int(state.position[3]))

# %% [markdown]
# ## 3. The result is overwritten
#
# **Do exercise 4.7 first.** Keep the first tokens by `detach()` and by `clone()`, then replay again (section 9). Which
# still has them?

# %%
guess = "?"  # "both", "detach", "clone" or "neither"
graph = recorded()
graph.replay()
kept, copied, first = state.token[:2].detach(), state.token[:2].clone(), state.token[:2].tolist()
graph.replay()
show("detached, cloned", torch.stack([kept, copied]))
has = kept.tolist() == first, copied.tolist() == first
compare(guesses, "kept", guess, {(1, 1): "both", (1, 0): "detach", (0, 1): "clone"}.get(has, "neither"))

# %% [markdown]
# ## 4. A name is no address
#
# **Do exercise 4.2 first.** Bind another token to a name, or write it into the tensor that the graph knows (section 4).
# Which changes what comes next?

# %%
guess = "?"  # "binding", "writing" or "both"
graph, other = recorded(), torch.full((2,), 612, device=device)
nexts = {}
for way in ("nothing", "binding", "writing"):
    go_back()
    if way == "binding":
        token = other
    elif way == "writing":
        state.token[:2].copy_(other)
    graph.replay()
    nexts[way] = newest()
    print(f"{way:8}", nexts[way])
ways = [way for way in nexts if nexts[way] != nexts["nothing"]]
compare(guesses, "address", guess, "both" if len(ways) > 1 else ways[0])

# %% [markdown]
# ## 5. A number is baked
#
# A Python number and a tensor count from 5 to 8, with a replay at each step (section 5). What does the last replay give
# for the Python number?

# %%
guess = "?"  # 5, 6 or 8
at, where, seen = 5, torch.tensor(5, device=device), torch.zeros(2, dtype=torch.int64, device=device)


def count() -> None:
    seen.copy_(torch.stack([torch.full((), at, device=device), where]))


recorder.warm(count)
counting = recorder.record(count)
for _ in range(3):
    at += 1
    where.add_(1)
    counting.replay()
print("Python number, tensor:", seen.tolist())
compare(guesses, "baked", guess, int(seen[0]))

# %% [markdown]
# ## 6. A dict of them
#
# **Do exercise 4.4 first.** With a maximum of 64 rows, how many are computed for 33 sequences (section 11)? Below is
# the engine's dict, after three sequences of different lengths.

# %%
guess = "?"  # 33, 40, 48 or 64
print("the ladder:", ladder(64))
compare(guesses, "ladder", guess, pick(ladder(64), 33))
llm = engine()
told(llm, SHORT)
for key in llm.core.graphs:
    print(key, "  reads up to", key.longest, "  sampler", key.sampler.__name__)
stats = llm.stats
print(f"decode steps {stats.decode_steps}, replayed {stats.replayed_steps}; padding rows {stats.padding_share:.1%}")

# %% [markdown]
# ## 7. Memory that moves
#
# With a new cache, graphs would write into the old one. What does this engine do?

# %%
guess = "?"  # "drops its graphs" or "stops"
moved = engine()
told(moved, SHORT)
moved.core.cache.k = moved.core.cache.k.clone()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    again = told(moved, SHORT)
print(said[0].message)
compare(guesses, "moved", guess, "drops its graphs" if "graphs" in str(said[0].message) else "stops")
assert again == told(engine(), SHORT)

# %% [markdown]
# # Break it
#
# `answers.mistake` puts a wrong answer of an exercise into the engine. Leaving its `with` block repairs the engine.
#
# ## Break 1: tokens are bound to the names of the inputs
#
# **Do exercise 4.2 first.** A captured prefill reads prompts from tensors that it knows. Here new ones are assigned to
# their names.

# %%
guess = "?"  # "an error", "the same text" or "another text"
with answers.mistake("4.2", "entries-rebound"):
    wrong = told(engine())
print(*wrong, sep="\n")
compare(guesses, "break 1", guess, "the same text" if wrong == right else "another text")
assert told(engine()) == right
print(answers.source("4.2", "entries-rebound"))

# %% [markdown]
# The prefill ran over padding, which its inputs held at the capture.
#
# ## Break 2: the key does not say how far a step reads
#
# The dense engine reads up to a multiple of 16 here, and one graph serves all lengths. When does it go wrong?

# %%
guess = "?"  # "at once", "later" or "never"
with answers.mistake("4.3", "without-read"):
    short = engine("dense-graph")
    short.core.cache.read_multiple = 16
    wrong = told(short)
print(*wrong, sep="\n")
compare(guesses, "break 2", guess, "later")
assert wrong != right == told(engine("dense-graph"))

# %% [markdown]
# ## Break 3: the sampler is not in the key
#
# A greedy generation, then a sampled one, through the same dict. What is the second text? (A GPU's kernel serves both.)

# %%
guess = "?"  # "the greedy text", "the sampled text" or "nonsense"
sampled = SamplingParams(temperature=1.0, max_tokens=20, seed=3, ignore_eos=True)
with answers.mistake("4.3", "without-sampler"):
    one = engine()
    told(one)
    wrong = told(one, sampled)
print(*wrong, sep="\n")
repaired = told(engine(), sampled)
print("repaired:", *repaired, sep="\n")
known = {str(right): "the greedy text", str(repaired): "the sampled text"}
compare(guesses, "break 3", guess, known.get(str(wrong), "nonsense"))
assert repaired == told(engine("dense"), sampled) != right

# %% [markdown]
# ## Break 4: a padding row is a copy of row 0
#
# **Do exercise 4.5 first.** Three rows are live, and the graph has four. The fourth gets row 0's slot, length and
# table. Which sequence goes wrong?

# %%
guess = "?"  # "none", "the first" or "all"
with answers.mistake("4.5", "as-row-0"):
    wrong = told(engine())
print(*wrong, sep="\n")
changed = [a != b for a, b in zip(right, wrong, strict=True)]
compare(guesses, "break 4", guess, {0: "none", 3: "all"}.get(sum(changed), "the first"))
assert told(engine()) == right
print(answers.source("4.5", "as-row-0"))

# %% [markdown]
# A row whose result is dropped writes all the same.
#
# ## Quiz and score
#
# With `pip install jupyterquiz` it has buttons. Next, `nanoinfer course start 4` gives you the exercises. "Graphs that
# lied" has the mistakes of real engines, and measurements.md the times on an H200.

# %%
quiz(4)
print(f"{sum(guesses.values())} of {len(guesses)} guesses were right")
