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
# # Chapter 7: guesses, verified by hand
#
# This notebook guesses the next tokens of a text and verifies them, first by hand, then by the engine. You draft for
# the model yourself, and see that no guess of yours changes a word. Then you break verification in a few places,
# guess what comes out, and repair it. At the end two rules for sampled drafts are held against each other, and the
# formula against measurement. The chapter's text is `chapters/07-speculation/README.md`; run the cells from top to
# bottom. No GPU is needed.

# %%
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch

from nanocourse.exercises import chapters
from nanocourse.exercises.chapters import run_file
from nanocourse.learner.notebook import quiz, results, source
from nanoinfer import SamplingParams
from nanoinfer.speculate.drafts import NONE
from nanoinfer.speculate.graphs import verify_step

_ = torch.set_grad_enabled(False)
CHAPTER = chapters.chapter(7).folder
run = run_file(CHAPTER / "running.py", "chapter_07_running")
example = run_file(CHAPTER / "example.py", "chapter_07_example")

# %% [markdown]
# ## 1. Guess
#
# A text, and four guesses of how it goes on. Change them.

# %%
PROMPT = "The fox was a very"
GUESSES = " good boy, and"
text, drafts = run.encode(PROMPT), run.encode(GUESSES)
print("newest:", run.decode(text[-1:]), "| guesses:", [run.decode([token]) for token in drafts])

# %% [markdown]
# ## 2. Verify
#
# The prompt and the guesses go through the model at once. `logits` has a line for each token of them; those from the
# newest token on are wanted: one more than there are guesses.

# %%
row = run.Text(PROMPT)
logits = row.logits([*text, *drafts])[-len(drafts) - 1 :]
chosen = logits.argmax(-1)
print("(k + 1, V):", tuple(logits.shape))
for at, token in enumerate(chosen.tolist()):
    after = "the newest" if at == 0 else run.decode([drafts[at - 1]])
    guess = run.decode([drafts[at]]) if at < len(drafts) else "-"
    print(f"after {after!r:14} chosen {run.decode([token])!r:10} guessed {guess!r}")

# %% [markdown]
# How many guesses are right, up to the first that is not? `cumprod` turns "equal here" into "equal up to here".

# %%
equal = chosen[: len(drafts)] == torch.tensor(drafts)
accepted = int(equal.cumprod(0).sum())
kept = chosen[: accepted + 1].tolist()
print(equal.int().tolist(), equal.cumprod(0).tolist(), "kept:", repr(run.decode(kept)))
assert 1 <= len(kept) <= len(drafts) + 1

# %% [markdown]
# Plain decoding gives the same tokens, one at a time.

# %%
plain = run.Plain(PROMPT).run(len(kept))
print(repr(str(plain)))
assert plain.ids == [*text, *kept]

# %% [markdown]
# ## 3. Several rows, each with its own guesses
#
# `-1` stands where a row has none. Work out how many tokens each row gets before you run the second cell.

# %%
rows_drafts = torch.tensor([[11, 12, 13], [21, 22, NONE], [31, NONE, NONE]])
rows_chosen = torch.tensor([[11, 19, 13, 14], [21, 22, 23, NONE], [39, 32, NONE, NONE]])

# %%
print("right, of each row:", (rows_chosen[:, :3] == rows_drafts).cumprod(1).sum(1).tolist())
source(verify_step)

# %% [markdown]
# ## 4. The engine, with drafts
#
# Two engines, one of them with drafts by what followed last time. The tokens are the same, sampled ones too.

# %%
STORY = "The king said to the fox, Go away. The fox said to the king,"
for temperature in (0.0, 0.8):
    params = SamplingParams(temperature=temperature, max_tokens=60, seed=3, ignore_eos=True)
    with run.llm() as alone, run.llm(speculate="lookup") as drafted:
        (one,), (other,) = alone.generate([STORY], params), drafted.generate([STORY], params)
        assert one.token_ids == other.token_ids
        stats = drafted.stats
        print(f"temperature {temperature}: {stats.accepted_tokens} of {stats.draft_tokens} drafts accepted, "
              f"{stats.decode_steps} steps instead of {alone.stats.decode_steps}")  # fmt: skip

# %% [markdown]
# ## 5. You draft
#
# Guess how the text goes on, a few words at each turn. In a terminal, `nanoinfer shell --draft me` does this.


# %%
class Yours(run.Text):
    """Drafts are what somebody has typed."""

    turns: Sequence[str] = (" a very good boy", ", and he was", " fond of the king")

    def drafts(self, most: int) -> list[int]:
        turn = self.turns[len(self.steps) - 1] if 0 < len(self.steps) <= len(self.turns) else ""
        return run.encode(turn)[:most] if turn else []


yours = Yours("The fox", k=8).run(20)
print(yours)
for step in yours.steps[1:4]:
    print(f"{len(step.kept) - 1} of {len(step.drafts)} right, and the model's own {run.decode(step.kept[-1:])!r}")
assert yours.ids == run.Plain("The fox").run(20).ids

# %% [markdown]
# # Break it
#
# Each block below puts one mistake into verification. **Write your guess down before you run a cell.**
#
# ## Break 1: the noise of the step
#
# All tokens of a step are chosen with the same noise: that of how many steps there have been. Guess: does greedy text
# change, and does sampled text?

# %%
guess = "..."
for heat in (0.0, run.HEAT):
    right, wrong = run.Text(run.FOX, heat).run(48), run.NoiseOfTheStep(run.FOX, heat).run(48)
    print("your guess:", guess, "| temperature", heat, "| the same text:", right.ids == wrong.ids)
    print("right:", right, "wrong:", wrong, sep="\n")
assert right.ids != wrong.ids

# %% [markdown]
# *Repaired.* The noise goes by the token's place in the text. Then whatever is drafted, the text is the same:

# %%
for k in (0, 1, 3, 7):
    assert run.Text(run.FOX, run.HEAT, k=k).run(48).ids == right.ids

# %% [markdown]
# ## Break 2: rejected tokens are kept in the cache
#
# The row's position is advanced by what was fed in place of what was kept. Guess: from which word on is the text wrong,
# and why not at once?

# %%
guess = "..."
right, wrong = run.Text(run.FOX).run(48), run.RejectedKept(run.FOX).run(48)
same = next(at for at, (a, b) in enumerate(zip(right.ids, wrong.ids, strict=True)) if a != b)
first = next(at for at, step in enumerate(right.steps) if len(step.kept) <= len(step.drafts))
print("your guess:", guess)
print(
    "the first rejection is in step",
    first,
    "and the first wrong token is",
    repr(run.decode(wrong.ids[same : same + 1])),
)
print("right:", right, "wrong:", wrong, sep="\n")
assert right.ids != wrong.ids

# %% [markdown]
# *Repaired.* `written` says how many of a step's tokens are the row's own; the next step writes over the others.

# %%
source(run.Text.written)

# %% [markdown]
# ## Break 3: a stop in the middle of a run
#
# The text is to end with a certain token, and after each *step* somebody looks at the last one. Guess: does the text
# end at all?

# %%
guess = "..."
stop = (example.inside(),)
right, wrong = run.Text(run.FOX, stops=stop).run(48), run.LastAlone(run.FOX, stops=stop).run(48)
print("your guess:", guess, "| the text ends with", repr(run.decode(stop)))
print("right:", right, "wrong:", wrong, sep="\n")
assert len(wrong.ids) > len(right.ids)

# %% [markdown]
# *Repaired.* Tokens of a run are looked at one by one, and the text without drafts ends in the same place.

# %%
assert right.ids == run.Plain(run.FOX, stops=stop).run(48).ids

# %% [markdown]
# # Distributions
#
# ## 6. Two rules for sampled drafts
#
# The model's distribution is `p`, the drafter's is `q`. Change `q`, make it equal to `p`, then as different as you can.

# %%
p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
print(
    f"rejection sampling accepts {example.textbook(p, q):.3f} of the drafts, the same noise {example.shared(p, q):.3f}"
)
draws = 100_000
noise = -torch.log(torch.empty(draws, 3, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(1)))
chosen, drafted_ids = (p.log() + noise).argmax(1), (q.log() + noise).argmax(1)
print(f"measured: {(chosen == drafted_ids).double().mean():.3f}; the tokens' shares", torch.bincount(chosen) / draws)
assert abs((chosen == drafted_ids).double().mean() - example.shared(p, q)) < 0.01

# %% [markdown]
# Rejection sampling, in five lines. Its tokens are distributed as `p` as well, and are other ones. Draw from `p` in
# place of `left` once a draft is rejected, and look at the shares.

# %%
random = torch.Generator().manual_seed(2)
guesses = torch.multinomial(q, draws, replacement=True, generator=random)
taken = torch.rand(draws, generator=random, dtype=torch.float64) < (p / q)[guesses]
left = (p - q).clamp(min=0)
# Where q is p nothing is left, and no draft is rejected.
again = torch.multinomial(left if left.sum() > 0 else p, draws, replacement=True, generator=random)
tokens = torch.where(taken, guesses, again)
print("shares", torch.bincount(tokens) / draws, "accepted", float(taken.double().mean()))
assert torch.allclose(torch.bincount(tokens) / draws, p.float(), atol=0.01)

# %% [markdown]
# # What it brings
#
# ## 7. Tokens a step
#
# The formula, and a coin. Each draft is right with probability alpha; what counts are those ahead of the first wrong
# one, and one token more.


# %%
def expected(alpha: float, k: int) -> float:
    """Tokens a step."""
    return sum(alpha**n for n in range(k + 1))


random = torch.Generator().manual_seed(3)
for alpha in (0.6, 0.8, 0.9):
    right_ones = torch.rand(20_000, 8, generator=random) < alpha
    tokens_a_step = 1 + right_ones.int().cumprod(1).sum(1).double().mean()
    print(f"alpha {alpha}: {tokens_a_step:.2f} tokens a step, {expected(alpha, 8):.2f} by the formula")
    assert abs(tokens_a_step - expected(alpha, 8)) < 0.1

# %% [markdown]
# ## 8. On a GPU
#
# The same coin on an H200, with real steps: what many rows leave of it.

# %%
cases = [case for case in results("h200-speculation")["cases"] if not case["adaptive"] and case["draft_tokens"] == 4]
figure, ax = plt.subplots(figsize=(6, 3))
for model, marker in (("random:gpt2-xl", "o"), ("random:gpt2", "s")):
    of = [case for case in cases if case["model"] == model and case["alpha"] == 0.8]
    gains = [case["drafted"]["median"] / case["plain"]["median"] for case in of]
    ax.plot([case["rows"] for case in of], gains, marker=marker, label=model.removeprefix("random:"))
ax.axhline(expected(0.8, 4), linestyle=":", label="tokens a step")
ax.axhline(1, color="grey")
ax.set_xscale("log", base=2)
ax.set_xlabel("rows")
ax.set_ylabel("speed over plain")
ax.legend()
plt.show()

# %% [markdown]
# Your own GPU's: `python -m bench speculation`, and `chapters/07-speculation/README.md`, sections 8 to 10, for what to
# make of it.
#
# ## Quiz

# %%
quiz(7)
