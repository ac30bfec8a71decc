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
# # Chapter 7: guesses, checked by hand
#
# Check guesses by hand, then break the check. The text is `chapters/07-speculation/README.md`. Run the set-up; the
# parts after it then run in any order, without a GPU. Put a guess into each `guess = "?"` before you run its cell. The
# last cell counts the right ones.

# %%
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch

from nanocourse.exercises import chapters
from nanocourse.exercises.chapters import run_file
from nanocourse.learner.notebook import compare, quiz, results, source
from nanoinfer import SamplingParams
from nanoinfer.speculate.drafts import NONE
from nanoinfer.speculate.verify import verify_step

_ = torch.set_grad_enabled(False)
CHAPTER = chapters.chapter(7).folder
run = run_file(CHAPTER / "running.py", "chapter_07_running")
example = run_file(CHAPTER / "example.py", "chapter_07_example")
guesses: dict[str, bool] = {}
PROMPT = "The fox was a very"
DRAFTS = " good boy, and"
text, drafts = run.encode(PROMPT), run.encode(DRAFTS)
print("newest:", run.decode(text[-1:]), "| drafts:", [run.decode([token]) for token in drafts])

# %% [markdown]
# ## 1. Check four drafts
#
# **Do exercise 7.2 first.** Prompt and drafts go through the model at once (section 2). We need the logits after the
# newest token and after each draft, one line more than there are drafts. Change `DRAFTS` above and run this again.

# %%
logits = run.Text(PROMPT).logits([*text, *drafts])[-len(drafts) - 1 :]
chosen = logits.argmax(-1)
print("(k + 1, V):", tuple(logits.shape))
for at, token in enumerate(chosen.tolist()):
    after = "the newest" if at == 0 else run.decode([drafts[at - 1]])
    draft = run.decode([drafts[at]]) if at < len(drafts) else "-"
    print(f"after {after!r:14} chosen {run.decode([token])!r:10} draft {draft!r}")

# %% [markdown]
# `cumprod` turns "equal here" into "equal up to here" (section 3). Plain decoding gives the same tokens, one at a time.

# %%
equal = chosen[: len(drafts)] == torch.tensor(drafts)
accepted = int(equal.cumprod(0).sum())
kept = chosen[: accepted + 1].tolist()
print(equal.int().tolist(), equal.cumprod(0).tolist(), "kept:", repr(run.decode(kept)))
assert run.Plain(PROMPT).run(len(kept)).ids == [*text, *kept]

# %% [markdown]
# ## 2. Three sequences
#
# `-1` stands where a sequence has no draft. How many tokens do the three get together?

# %%
guess = "?"  # a number
three_drafts = torch.tensor([[11, 12, 13], [21, 22, NONE], [31, NONE, NONE]])
three_chosen = torch.tensor([[11, 19, 13, 14], [21, 22, 23, NONE], [39, 32, NONE, NONE]])
counts = 1 + (three_chosen[:, :3] == three_drafts).cumprod(1).sum(1)
print("tokens of each sequence:", counts.tolist())
compare(guesses, "three sequences", guess, int(counts.sum()))

# %% [markdown]
# This is the engine's step on the GPU:

# %%
source(verify_step)

# %% [markdown]
# ## 3. The engine, with drafts
#
# Two engines, one of them with prompt lookup. The tokens are the same, sampled ones too (section 4).

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
# ## 4. You draft
#
# Change the turns: each is what you expect next. In a terminal, `nanoinfer shell --draft me` does this.


# %%
class Yours(run.Text):
    """Drafts are what you typed."""

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
# Each part puts one mistake into the check.
#
# ## Break 1: the noise of the step
#
# All tokens of a step share the noise of that step. Which texts change?

# %%
guess = "?"  # "greedy", "sampled", "both" or "neither"
changed = []
for heat in (0.0, run.HEAT):
    right, wrong = run.Text(run.FOX, heat).run(48), run.NoiseOfTheStep(run.FOX, heat).run(48)
    changed.append(right.ids != wrong.ids)
    print(f"temperature {heat}", f"right: {right}", f"wrong: {wrong}", sep="\n")
outcomes = {(0, 0): "neither", (1, 0): "greedy", (0, 1): "sampled", (1, 1): "both"}
compare(guesses, "break 1", guess, outcomes[tuple(changed)])

# %% [markdown]
# *Repaired.* The noise goes by the token's position. Then the text is the same for any number of drafts:

# %%
texts = [run.Text(run.FOX, run.HEAT, k=k).run(48).ids for k in (0, 1, 3, 7)]
assert all(ids == texts[0] for ids in texts)

# %% [markdown]
# ## Break 2: rejected tokens stay in the cache
#
# The next step writes after everything that was fed (section 5). Is the first token after the first rejection wrong?

# %%
guess = "?"  # "yes" or "no"
right, wrong = run.Text(run.FOX).run(48), run.RejectedKept(run.FOX).run(48)
same = next(at for at, (a, b) in enumerate(zip(right.ids, wrong.ids, strict=True)) if a != b)
first = next(at for at, step in enumerate(right.steps) if len(step.kept) <= len(step.drafts))
rejected = right.prompt + sum(len(step.kept) for step in right.steps[: first + 1])
print(f"after the first rejection comes token {rejected}; the first wrong token is {same},",
      repr(run.decode(wrong.ids[same : same + 1])))  # fmt: skip
print("right:", right, "wrong:", wrong, sep="\n")
compare(guesses, "break 2", guess, "yes" if same == rejected else "no")

# %% [markdown]
# *Repaired.* `written` says how many of a step's tokens are right. The next step overwrites the others.

# %%
source(run.Text.written)

# %% [markdown]
# ## Break 3: a stop inside a run
#
# The text must end with a certain token, but the loop looks only at the last token of each step (section 6). Does the
# text end at that token, at a later one, or not at all?

# %%
guess = "?"  # "there", "later" or "not"
stop = (example.inside(),)
right, wrong = run.Text(run.FOX, stops=stop).run(48), run.LastAlone(run.FOX, stops=stop).run(48)
print("the text must end with", repr(run.decode(stop)))
print("right:", right, "wrong:", wrong, sep="\n")
compare(guesses, "break 3", guess, "there" if wrong.ids == right.ids else "later" if wrong.ended else "not")
assert right.ids == run.Plain(run.FOX, stops=stop).run(48).ids

# %% [markdown]
# # What it costs
#
# ## 5. Two rules for sampled drafts
#
# `p` is the model's distribution, and `q` the drafter's. Rejection sampling accepts some share of the drafts (section
# 13). What share does the same noise accept (section 14)? Change `q`.

# %%
p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
DRAWS = 100_000

guess = "?"  # "more", "as many" or "fewer" than rejection sampling
noise = -torch.log(torch.empty(DRAWS, 3, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(1)))
ours, theirs = (p.log() + noise).argmax(1), (q.log() + noise).argmax(1)
textbook, shared = example.textbook(p, q), example.shared(p, q)
print(f"rejection sampling accepts {textbook:.3f} of the drafts, the same noise {shared:.3f}")
print(f"measured: {(ours == theirs).double().mean():.3f}; the tokens' shares", torch.bincount(ours) / DRAWS)
assert abs((ours == theirs).double().mean() - shared) < 0.01
compare(guesses, "rules", guess, "fewer" if shared < textbook - 1e-9 else "as many")

# %% [markdown]
# Rejection sampling in five lines. Its tokens have the distribution `p` as well, but they are other tokens. Draw from
# `p` in place of `left` after a rejection, and look at the shares.

# %%
random = torch.Generator().manual_seed(2)
sampled = torch.multinomial(q, DRAWS, replacement=True, generator=random)
taken = torch.rand(DRAWS, generator=random, dtype=torch.float64) < (p / q)[sampled]
left = (p - q).clamp(min=0)  # all zeros if q is p; then no draft is rejected
again = torch.multinomial(left if left.sum() > 0 else p, DRAWS, replacement=True, generator=random)
tokens = torch.where(taken, sampled, again)
print("shares", torch.bincount(tokens, minlength=3) / DRAWS, "accepted", float(taken.double().mean()))
assert torch.allclose(torch.bincount(tokens, minlength=3) / DRAWS, p.float(), atol=0.01)

# %% [markdown]
# ## 6. Tokens a step
#
# The formula of section 9, and a coin: each draft is right with probability alpha. At alpha 0.9 with eight drafts, how
# many tokens does a step give?


# %%
def expected(alpha: float, k: int) -> float:
    """Tokens a step."""
    return sum(alpha**n for n in range(k + 1))


guess = "?"  # 4, 6 or 8
random = torch.Generator().manual_seed(3)
for alpha in (0.6, 0.8, 0.9):
    right_ones = torch.rand(20_000, 8, generator=random) < alpha
    tokens_a_step = 1 + right_ones.int().cumprod(1).sum(1).double().mean()
    print(f"alpha {alpha}: {tokens_a_step:.2f} tokens a step, {expected(alpha, 8):.2f} by the formula")
    assert abs(tokens_a_step - expected(alpha, 8)) < 0.1
compare(guesses, "tokens a step", guess, min((4, 6, 8), key=lambda n: abs(n - expected(0.9, 8))))

# %% [markdown]
# On an H200 with real steps, four drafts and alpha 0.8, from the benchmark's results. With one sequence the speed is
# near the tokens a step. Many sequences leave less of it.

# %%
cases = [case for case in results("h200-speculation")["cases"] if not case["adaptive"] and case["draft_tokens"] == 4]
figure, ax = plt.subplots(figsize=(6, 3))
for model, marker in (("random:gpt2-xl", "o"), ("random:gpt2", "s")):
    of = [case for case in cases if case["model"] == model and case["alpha"] == 0.8]
    gains = [case["drafted"]["median"] / case["plain"]["median"] for case in of]
    ax.plot([case["rows"] for case in of], gains, marker=marker, label=model.removeprefix("random:"))
ax.axhline(sum(0.8**n for n in range(5)), linestyle=":", label="tokens a step")
ax.axhline(1, color="gray")
ax.set_xscale("log", base=2)
ax.set(xlabel="sequences", ylabel="speed over plain")
ax.legend()
plt.show()

# %% [markdown]
# `python -m bench speculation` measures your own GPU, and sections 9 and 10 say what to make of it.
#
# ## Quiz and score
#
# With `pip install jupyterquiz` it has buttons. Next, `nanoinfer course start 7` gives you the exercises.

# %%
quiz(7)
print(f"{sum(guesses.values())} of {len(guesses)} guesses were right")
