"""The running example of chapter 2: chapter 1's two rows, now with a cache, and the mistakes that the text makes.

In float64 as there, so that every machine prints the same digits. Mistakes are the exercises' own wrong answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanobook.examples import load
from nanocourse.exercises import answers
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.naive import FullContext
from nanoinfer.model.batch import Step
from nanoinfer.text.tokenizer import gpt2_tokenizer

here = Path(__file__).parent
one = load(here.parent / "01-naive" / "running.py")
PROMPTS, model, batch, word, show = one.PROMPTS, one.model, one.batch, one.word, one.show
BothWays = one.NoMask  # every query reads every key
LAYER, HEAD = 4, 2  # of the keys that are shown
NEW = 14


class Keep(FullContext):
    """No mistake: keeps q, k and v of every layer, (T, H, D) each, of the one row that goes through."""

    def __init__(self, inner: FullContext) -> None:
        self.inner = inner
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.seen.append((q[0], k[0], v[0]))
        return self.inner.attend(layer, q, k, v)


@torch.inference_mode()
def states(ids: Sequence[int], both_ways: bool = False) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of every layer, of one pass over a text."""
    keep, T = Keep(BothWays() if both_ways else FullContext()), len(ids)
    step = Step(torch.tensor([ids]), torch.arange(T)[None], torch.tensor([T - 1]), slice(0, 1), longest=T)
    model()(step, keep)
    return keep.seen


def text_ids(row: int = 0, new: int = 4) -> list[int]:
    """A row of the example with its first new tokens, greedy."""
    ids: list[int] = one.greedy_ids(PROMPTS[row], new)
    return ids


def wrong(id: str, name: str) -> AbstractContextManager[None]:
    """The engine makes a known mistake; none for an empty name."""
    return answers.mistake(id, name) if name else nullcontext()


def continued(
    prompts: Sequence[str] = PROMPTS, id: str = "", name: str = "", new: int = NEW, chunk: int | None = None
) -> list[str]:
    """Greedy texts of the dense engine, prompts included, right or with a mistake."""
    llm = LLM(model(), engine="dense", prefill_chunk=chunk)
    with wrong(id, name):
        told = llm.generate(list(prompts), SamplingParams(max_tokens=new, temperature=0))
    return [prompt + row.text for prompt, row in zip(prompts, told, strict=True)]


def prompt_step(padded_position: int | None = None) -> Step:
    """The example's prefill: two rows of three columns. padded_position: where the padding is said to stand."""
    ids, lengths = batch()
    positions = torch.arange(3).expand(2, 3).clone()
    if padded_position is not None:
        positions[1, 2] = padded_position
    return Step(ids, positions, torch.tensor(lengths) - 1, torch.arange(2), longest=3, fresh=True)


@torch.inference_mode()
def prefilled(padded_position: int | None = None, id: str = "", name: str = "") -> DenseCache:
    """A cache of two rows and six slots after the example's prefill."""
    with wrong(id, name):
        cache = DenseCache(model().config, 2, 6, torch.device("cpu"), torch.float64)
        model()(cache.begin(prompt_step(padded_position)), cache)
    return cache


class LeftPadded(FullContext):
    """Causal attention where row 1's first column is padding, hidden or not; a padded query reads itself."""

    def __init__(self, hidden: bool) -> None:
        self.mask = torch.ones(2, 1, 3, 3, dtype=torch.bool).tril()
        if hidden:
            self.mask[1, :, 1:, 0] = False

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).transpose(1, 2)


@torch.inference_mode()
def left_padded(hidden: bool, own_positions: bool) -> Tensor:
    """Probabilities (V,) after row 1, which has its padding on the left."""
    ids, _ = batch()
    ids[1] = ids[1].roll(1)
    positions = torch.arange(3).expand(2, 3).clone()
    if own_positions:
        positions[1] = torch.tensor([0, 0, 1])
    step = Step(ids, positions, torch.tensor([2, 2]), slice(0, 2), longest=3)
    probs: Tensor = model()(step, LeftPadded(hidden))[1].softmax(-1)
    return probs


def best(probs: Tensor, count: int = 3) -> str:
    """The most probable tokens, with their probabilities."""
    top = probs.topk(count)
    return "  ".join(f"{word(i)} {p:.3f}" for i, p in zip(top.indices.tolist(), top.values.tolist(), strict=True))


def encode(text: str) -> list[int]:
    """Token ids of a text."""
    ids: list[int] = gpt2_tokenizer().encode(text)
    return ids


@torch.inference_mode()
def in_chunks(cache: DenseCache, ids: Sequence[int], chunk: int) -> Tensor:
    """Logits (V,) after a prompt that goes through the model in chunks."""
    logits = torch.empty(0)
    for start in range(0, len(ids), chunk):
        part = torch.tensor([ids[start : start + chunk]])
        T = part.shape[1]
        positions, last = torch.arange(start, start + T)[None], torch.tensor([T - 1])
        step = Step(part, positions, last, torch.tensor([0]), longest=start + T, fresh=start == 0)
        logits = model()(cache.begin(step), cache)[0]
    return logits
