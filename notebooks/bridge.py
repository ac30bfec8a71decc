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
# # From GPT-2 to Llama, one change at a time
#
# This notebook starts with chapter 1's GPT-2 and makes six changes. After each one you check something that must
# hold exactly. The last model has the logits of `chapters/bridge/small.py`, and of transformers' Llama if you have
# it installed. At the end you count the bytes of the KV cache. The text is `chapters/bridge/README.md`. No GPU is
# needed.

# %%
import importlib
import importlib.util
import warnings

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor

from nanobook.examples import load
from nanocourse.exercises.chapters import root
from nanocourse.learner.notebook import show, source

chapter_1 = load(root() / "chapters" / "01-naive" / "small.py")
small = load(root() / "chapters" / "bridge" / "small.py")
_ = torch.set_grad_enabled(False)

# %% [markdown]
# ## The GPT-2 that we change
#
# Two layers, six heads of eight numbers, fifty tokens, random weights. The weights are large enough for a mistake to
# show in the logits. Names and shapes are chapter 1's.

# %%
V, L, H, D = 50, 2, 6, 8
C = H * D
LAYERS = [f"h.{layer}" for layer in range(L)]
ids = [3, 14, 15, 9, 26, 5]
dice = torch.Generator()


def matrix(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=dice) * 1.5 / rows**0.5


def vector(size: int, around: float) -> Tensor:
    return around + 0.3 * torch.randn(size, generator=dice)


_ = dice.manual_seed(1)
w_gpt2 = {"wte.weight": matrix(V, C), "wpe.weight": matrix(64, C)}
for h in LAYERS:
    for name, size in (("attn.c_attn", 3 * C), ("attn.c_proj", C), ("mlp.c_fc", 4 * C)):
        w_gpt2 |= {f"{h}.{name}.weight": matrix(C, size), f"{h}.{name}.bias": vector(size, 0)}
    w_gpt2 |= {f"{h}.mlp.c_proj.weight": matrix(4 * C, C), f"{h}.mlp.c_proj.bias": vector(C, 0)}
for norm in ["ln_f", *(f"{h}.ln_{n}" for h in LAYERS for n in (1, 2))]:
    w_gpt2 |= {f"{norm}.weight": vector(C, 1), f"{norm}.bias": vector(C, 0)}
print(len(w_gpt2), "tensors,", sum(w.numel() for w in w_gpt2.values()), "numbers")

# %% [markdown]
# This is chapter 1's `logits_after`, cut into one method per part. Each change below replaces one or two methods, and
# nothing else.


# %%
class GPT2:
    def __init__(self, w: dict[str, Tensor]) -> None:
        self.w = w

    def logits(self, ids: list[int]) -> Tensor:
        x = self.embed(ids)  # (T, C)
        for h in LAYERS:
            q, k, v = self.qkv(self.norm(x, f"{h}.ln_1"), f"{h}.attn")
            x = x + self.linear(self.attention(q, k, v), f"{h}.attn.c_proj")
            x = x + self.mlp(self.norm(x, f"{h}.ln_2"), f"{h}.mlp")
        return self.head(self.norm(x[-1], "ln_f"))  # (V,)

    def embed(self, ids: list[int]) -> Tensor:
        return self.w["wte.weight"][ids] + self.w["wpe.weight"][: len(ids)]

    def norm(self, x: Tensor, at: str) -> Tensor:
        return F.layer_norm(x, (C,), self.w[f"{at}.weight"], self.w[f"{at}.bias"])

    def linear(self, x: Tensor, at: str) -> Tensor:
        return x @ self.w[f"{at}.weight"] + self.w[f"{at}.bias"]

    def qkv(self, x: Tensor, at: str) -> Tensor:
        return self.linear(x, f"{at}.c_attn").view(len(x), 3, H, D).permute(1, 2, 0, 3)  # (3, H, T, D)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = q.shape[-2]
        later = torch.ones(T, T).triu(1).bool()
        scores = (q @ k.mT / D**0.5).masked_fill(later, -torch.inf)  # (H, T, T)
        return (scores.softmax(-1) @ v).transpose(0, 1).reshape(T, H * D)

    def mlp(self, x: Tensor, at: str) -> Tensor:
        return self.linear(F.gelu(self.linear(x, f"{at}.c_fc"), approximate="tanh"), f"{at}.c_proj")

    def head(self, x: Tensor) -> Tensor:
        return x @ self.w["wte.weight"].T


# %% [markdown]
# Does it have chapter 1's logits? `apart` measures the largest difference, and serves all checks below.


# %%
def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


before = GPT2(w_gpt2).logits(ids)
theirs = chapter_1.logits_after(ids, w_gpt2, {"n_embd": C, "n_head": H, "n_layer": L})
print(
    "largest logit:", round(float(before.abs().max()), 2), " difference from chapter 1:", f"{apart(before, theirs):.0e}"
)
assert apart(before, theirs) < 1e-4

# %% [markdown]
# ## Change 1: RMSNorm
#
# Subtract no mean, add no bias, divide by the root mean square. **Guess first**: which of these three vectors do
# the two norms treat alike?


# %%
class WithRMSNorm(GPT2):
    def norm(self, x: Tensor, at: str) -> Tensor:
        return F.rms_norm(x, (C,), self.w[f"{at}.weight"], 1e-5)


three = torch.tensor([[1.0, -1.0, 2.0, -2.0], [3.0, 1.0, 4.0, 0.0], [5.0, 5.0, 5.0, 5.1]])
show("vectors", three)
show("LayerNorm, no scale, no bias", F.layer_norm(three, (4,)))
show("RMSNorm, no scale", F.rms_norm(three, (4,), eps=1e-5))

# %% [markdown]
# The first one: its mean is zero. So RMSNorm of `x` less its mean is LayerNorm. The last one shows what changes:
# LayerNorm blows small differences up, and RMSNorm leaves them small.

# %%
x = torch.randn(5, C, generator=dice.manual_seed(2)) + 3
centred = x - x.mean(-1, keepdim=True)
assert apart(F.layer_norm(x, (C,)), F.rms_norm(centred, (C,), eps=1e-5)) < 1e-5
print("the model's logits moved by", round(apart(WithRMSNorm(w_gpt2).logits(ids), before), 2))

# %% [markdown]
# The logits moved a lot, and they will with each change: a trained GPT-2 does not become a Llama, it has to be
# trained as one. From here on we do not look for the old logits. We look for what must stay true.
#
# ## Change 2: SwiGLU
#
# Three matrices in place of two. With a width of 8/3 C they cost as many numbers as GPT-2's two of 4 C.


# %%
class WithSwiGLU(WithRMSNorm):
    def mlp(self, x: Tensor, at: str) -> Tensor:
        gate, up = x @ self.w[f"{at}.gate"], x @ self.w[f"{at}.up"]  # (T, M) each
        return (F.silu(gate) * up) @ self.w[f"{at}.down"]


M = 8 * C // 3
_ = dice.manual_seed(3)
gated = {f"{h}.mlp.{name}": matrix(*size) for h in LAYERS
         for name, size in (("gate", (C, M)), ("up", (C, M)), ("down", (M, C)))}  # fmt: skip
w_swiglu = {name: w for name, w in w_gpt2.items() if ".mlp." not in name} | gated
old, new = (
    sum(w.numel() for name, w in ws.items() if "h.0.mlp" in name and "bias" not in name) for ws in (w_gpt2, w_swiglu)
)
print(f"matrices of an MLP: {old} numbers before, {new} now")
assert old == new

# %% [markdown]
# What does the gate do? Set it to a large negative number, and SiLU closes it: the MLP returns nothing, whatever
# `up` says.

# %%
z = torch.linspace(-6, 6, 121)
figure, ax = plt.subplots(figsize=(5, 2.6))
ax.plot(z, F.silu(z), label="SiLU")
ax.plot(z, F.gelu(z, approximate="tanh"), "--", label="GELU")
ax.legend()
plt.show()
closed = F.silu(torch.full((1, M), -30.0)) * torch.randn(1, M)
assert float(closed.abs().max()) < 1e-9

# %% [markdown]
# ## Change 3: no biases
#
# The proof is that no weight's name ends with `bias` any more, and the model runs.


# %%
class WithoutBias(WithSwiGLU):
    def linear(self, x: Tensor, at: str) -> Tensor:
        return x @ self.w[f"{at}.weight"]


w_plain = {name: w for name, w in w_swiglu.items() if not name.endswith("bias")}
print(len(w_swiglu), "tensors before,", len(w_plain), "now; logits:", WithoutBias(w_plain).logits(ids)[:4].tolist())

# %% [markdown]
# ## Change 4: a head of its own


# %%
class WithOwnHead(WithoutBias):
    def head(self, x: Tensor) -> Tensor:
        return x @ self.w["lm_head"].T


_ = dice.manual_seed(4)
w_untied = w_plain | {"lm_head": matrix(V, C)}
tied = w_untied | {"lm_head": w_untied["wte.weight"]}
assert torch.equal(WithOwnHead(tied).logits(ids), WithoutBias(w_plain).logits(ids))
print("with the embeddings as its head, it is the model before")

# %% [markdown]
# ## Change 5: RoPE
#
# The position table goes. Queries and keys are rotated instead, by `small.turn`. `first` is the position of the first
# token.

# %%
source(small.turn)


# %%
class WithRoPE(WithOwnHead):
    first = 0
    turn = staticmethod(small.turn)

    def embed(self, ids: list[int]) -> Tensor:
        return self.w["wte.weight"][ids]

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        position = torch.arange(self.first, self.first + q.shape[-2])
        angle = position[:, None] * 100.0 ** (-torch.arange(0, D, 2) / D)  # (T, D / 2)
        return super().attention(self.turn(q, angle), self.turn(k, angle), v)


w_rope = {name: w for name, w in w_untied.items() if name != "wpe.weight"}
rotated = WithRoPE(w_rope).logits(ids)
angles = torch.arange(6)[:, None] * 100.0 ** (-torch.arange(0, D, 2) / D)
show("angles in radians: a position per row, a pair per column", angles)

# %% [markdown]
# **Guess**: by how much do the logits move if the text stands at position 1000, not 0? And how much would they move
# in the model before this change, if all its tokens got position vectors from one row further down?

# %%
guess = "..."
elsewhere = WithRoPE(w_rope)
elsewhere.first = 1000
one_down = w_untied | {"wpe.weight": w_untied["wpe.weight"].roll(-1, 0)}
print("your guess:", guess)
print("RoPE, all at 1000 and up:", f"{apart(elsewhere.logits(ids), rotated):.0e}")
print(
    "a table, all one further:", round(apart(WithOwnHead(one_down).logits(ids), WithOwnHead(w_untied).logits(ids)), 2)
)
assert (
    apart(elsewhere.logits(ids), rotated)
    < 1e-2
    < apart(WithOwnHead(one_down).logits(ids), WithOwnHead(w_untied).logits(ids))
)

# %% [markdown]
# Scores depend on differences of positions alone. What is left, a rounding error, grows with the angle. So a test
# that shifts *all* positions by one finds nothing. One that shifts the last token alone finds this:


# %%
class LastTokenLate(WithRoPE):
    @staticmethod
    def turn(x: Tensor, angle: Tensor) -> Tensor:
        last = (torch.arange(len(angle)) == len(angle) - 1)[:, None]
        return small.turn(x, angle + last * 100.0 ** (-torch.arange(0, D, 2) / D))


print("the last token one position late:", round(apart(LastTokenLate(w_rope).logits(ids), rotated), 2))
assert apart(LastTokenLate(w_rope).logits(ids), rotated) > 0.1

# %% [markdown]
# ### Break it: the other pairing
#
# Meta's own files pair neighbours, transformers pairs a head's two halves. Load the one with the other's code, and
# nothing crashes.


# %%
class Neighbours(WithRoPE):
    @staticmethod
    def turn(x: Tensor, angle: Tensor) -> Tensor:
        a, b = x[..., ::2], x[..., 1::2]
        turned = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin())
        return torch.stack(turned, -1).flatten(-2)


print("neighbours, same weights:", round(apart(Neighbours(w_rope).logits(ids), rotated), 2))
assert apart(Neighbours(w_rope).logits(ids), rotated) > 0.1

# %% [markdown]
# *Repair it* without touching the code: move the columns of q and k, head by head, so that each pair becomes
# neighbours. Every converter of Llama's weights has these lines, in one direction or the other.

# %%
order = torch.stack((torch.arange(D // 2), torch.arange(D // 2) + D // 2), -1).flatten()  # 0, 4, 1, 5, 2, 6, 3, 7
w_moved = dict(w_rope)
for h in LAYERS:
    q, k, v = w_rope[f"{h}.attn.c_attn.weight"].view(C, 3, H, D).unbind(1)
    w_moved[f"{h}.attn.c_attn.weight"] = torch.stack((q[..., order], k[..., order], v), 1).flatten(1)
print("neighbours, moved weights:", f"{apart(Neighbours(w_moved).logits(ids), rotated):.0e}")
assert apart(Neighbours(w_moved).logits(ids), rotated) < 1e-4

# %% [markdown]
# ## Change 6: grouped-query attention
#
# Two key heads for six query heads. Queries 0 to 2 read key head 0, queries 3 to 5 read key head 1.

# %%
K = 2


class Llama(WithRoPE):
    def qkv(self, x: Tensor, at: str) -> tuple[Tensor, ...]:
        heads = (("q", H), ("k", K), ("v", K))
        return tuple((x @ self.w[f"{at}.{name}"]).view(len(x), n, D).transpose(0, 1) for name, n in heads)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attention(q, self.shared(k), self.shared(v))

    def shared(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(H // K, 0)  # (H, T, D): for clarity here; an engine copies nothing


_ = dice.manual_seed(6)
w_llama = {name: w for name, w in w_rope.items() if "c_attn" not in name}
for h in LAYERS:
    w_llama |= {f"{h}.attn.q": matrix(C, H * D), f"{h}.attn.k": matrix(C, K * D), f"{h}.attn.v": matrix(C, K * D)}
logits = Llama(w_llama).logits(ids)

# %% [markdown]
# What must hold: a model with a key head for every query head can imitate this one. Give it each key head's weights
# three times over, and the logits must be equal.

# %%
w_copied = dict(w_rope)
for h in LAYERS:
    q, k, v = (w_llama[f"{h}.attn.{name}"].view(C, -1, D) for name in "qkv")
    copied = [q, k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)]  # (C, H, D) each
    w_copied[f"{h}.attn.c_attn.weight"] = torch.stack(copied, 1).flatten(1)
print("difference:", f"{apart(WithRoPE(w_copied).logits(ids), logits):.0e}")
assert apart(WithRoPE(w_copied).logits(ids), logits) < 1e-4

# %% [markdown]
# ### Break it: the wrong group
#
# `repeat` puts the copies in the order 0, 1, 0, 1, 0, 1, where `repeat_interleave` has 0, 0, 0, 1, 1, 1. **Guess**
# which query heads still read the right keys.


# %%
class WrongGroup(Llama):
    def shared(self, x: Tensor) -> Tensor:
        return x.repeat(H // K, 1, 1)


guess = "..."
right, wrong = torch.arange(K).repeat_interleave(H // K), torch.arange(K).repeat(H // K)
print("your guess:", guess, " right ones:", [head for head in range(H) if right[head] == wrong[head]])
print("the logits moved by", round(apart(WrongGroup(w_llama).logits(ids), logits), 2))
assert apart(WrongGroup(w_llama).logits(ids), logits) > 0.1

# %% [markdown]
# ## The result, beside two others
#
# Give the weights transformers' names. Its matrices are (out, in), ours (in, out), so each is transposed.

# %%
NAMES = {
    "attn.q": "self_attn.q_proj", "attn.k": "self_attn.k_proj", "attn.v": "self_attn.v_proj",
    "attn.c_proj.weight": "self_attn.o_proj", "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj", "ln_1.weight": "input_layernorm", "ln_2.weight": "post_attention_layernorm",
}  # fmt: skip
named = {"model.embed_tokens.weight": w_llama["wte.weight"], "model.norm.weight": w_llama["ln_f.weight"],
         "lm_head.weight": w_llama["lm_head"]}  # fmt: skip
for layer, h in enumerate(LAYERS):
    for ours, theirs in NAMES.items():
        w = w_llama[f"{h}.{ours}"]
        named[f"model.layers.{layer}.{theirs}.weight"] = w.T if w.dim() == 2 else w
shape = {
    "hidden_size": C, "intermediate_size": M, "num_hidden_layers": L, "num_attention_heads": H,
    "num_key_value_heads": K, "head_dim": D, "vocab_size": V, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}  # fmt: skip

cache = torch.zeros(2, L, K, len(ids), D)
print("difference from small.py:", f"{apart(small.step(ids, 0, cache, named, shape), logits):.0e}")
assert apart(small.step(ids, 0, cache, named, shape), logits) < 1e-4
if importlib.util.find_spec("transformers"):
    warnings.filterwarnings("ignore", message="IProgress")  # a missing progress bar
    transformers = importlib.import_module("transformers")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    model.load_state_dict(named)
    print("difference from transformers':", f"{apart(model(torch.tensor([ids])).logits[0, -1], logits):.0e}")
    assert apart(model(torch.tensor([ids])).logits[0, -1], logits) < 1e-4

# %% [markdown]
# ## What lies in the cache
#
# Feed the tokens one by one into an empty cache. Then look at layer 0, where a key depends on its own token alone.
# Token 5 is the last one: its stored key is the rotated one, and its stored value is as it was.

# %%
cache = torch.zeros(2, L, K, len(ids), D)
for at, token in enumerate(ids):
    last = small.step([token], at, cache, named, shape)
assert apart(last, logits) < 1e-4
me = Llama(w_llama)
_, keys, values = me.qkv(me.norm(me.embed(ids), "h.0.ln_1"), "h.0.attn")  # (K, T, D)
pairs = torch.stack((keys[0, 5], small.turn(keys, angles)[0, 5], cache[0, 0, 0, 5]))
show("key head 0 of token 5: plain, rotated, in the cache", pairs)
assert apart(cache[0, 0], small.turn(keys, angles)) < 1e-5 < apart(cache[0, 0], keys)
assert apart(cache[1, 0], values) < 1e-5

# %% [markdown]
# ## Count the bytes
#
# The formula says 2 · L · K · D · bytes for each token: a key and a value, in every layer, for every key head.
# **Write it yourself** before you run the cell.


# %%
def bytes_per_token(layers: int, key_heads: int, head_size: int, number: int) -> int:
    return 2 * layers * key_heads * head_size * number


print("the formula:", bytes_per_token(L, K, D, 4), " the tensor:", cache.nbytes // len(ids))
assert bytes_per_token(L, K, D, 4) * len(ids) == cache.nbytes

# %% [markdown]
# Now for models that people use, by their published configs, in bfloat16. The formula is held to a real tensor: a
# cache of one token.

# %%
MODELS = {  # layers, query heads, key heads, head size
    "gpt2": (12, 12, 12, 64), "gpt2-xl": (48, 25, 25, 64), "Llama-2-7B": (32, 32, 32, 128),
    "Llama-3.1-8B": (32, 32, 8, 128), "Qwen2.5-7B": (28, 28, 4, 128), "Llama-3.1-70B": (80, 64, 8, 128),
}  # fmt: skip
counted, ungrouped = {}, {}
for name, (layers, heads, key_heads, head_size) in MODELS.items():
    one_token = torch.empty(2, layers, key_heads, 1, head_size, dtype=torch.bfloat16)
    counted[name] = bytes_per_token(layers, key_heads, head_size, 2)
    ungrouped[name] = bytes_per_token(layers, heads, head_size, 2)
    assert counted[name] == one_token.nbytes
    block = 16 * counted[name]
    print(
        f"{name:14}{counted[name]:>9,} bytes a token; a block of 16 tokens: {block:>9,}; groups of {heads // key_heads}"
    )

# %%
figure, ax = plt.subplots(figsize=(7, 2.8))
ax.barh(list(MODELS), [n / 1024 for n in ungrouped.values()], color="0.85", label="if every query head had a key head")
ax.barh(list(MODELS), [n / 1024 for n in counted.values()], label="as published")
ax.invert_yaxis()
ax.set_xlabel("KiB a token")
ax.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# **Question.** A GPU has 24 GB, and Llama-3.1-8B's weights take 16.1 GB of it. How many sequences of 4,096 tokens fit
# beside them? How many if it had a key head for every query head?

# %%
guess = "..."
left = 24e9 - 16.1e9
print("your guess:", guess)
for label, sizes in (("as published", counted), ("without groups", ungrouped)):
    print(f"{label}: {left / (4096 * sizes['Llama-3.1-8B']):.1f} sequences")

# %% [markdown]
# **Where to go on.** Make it a Qwen3: an RMSNorm of size D on every query and key, before the rotation, by the
# weights `q_norm` and `k_norm`, and compare it with transformers' `Qwen3ForCausalLM`. Which of the checks above
# would notice the norm *after* the rotation? (The one at position 1000. The norm's scale stretches the two numbers
# of a pair differently, and a stretched rotation no longer depends on differences of positions alone.)
