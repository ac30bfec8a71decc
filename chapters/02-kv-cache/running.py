"""The running example of chapter 2: chapter 1's two rows, now with a cache, and the mistakes that the text makes.

In float64 as there, so that every machine prints the same digits. Mistakes are the exercises' own wrong answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanobook.examples import load
from nanobook.running import encode, model
from nanocourse.exercises import answers
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.none import NoCache
from nanoinfer.model.batch import Batch

here = Path(__file__).parent
one = load(here.parent / "01-naive" / "running.py")
PROMPTS = one.PROMPTS
BothWays = one.NoMask  # every query reads every key
LAYER, HEAD = 4, 2  # of the keys that are shown
NEW = 14


class Keep(NoCache):
    """No mistake: keeps q, k and v of every layer, (N, H, D) each."""

    def __init__(self, inner: NoCache) -> None:
        self.inner = inner
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def attend(self, plan: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.seen.append((q, k, v))
        return self.inner.attend(plan, layer, q, k, v)


def step(*parts: tuple[int, int, Sequence[int]]) -> Batch:
    """The step that brings these tokens. parts: row, position of the first token, tokens."""
    work: Any = [(SimpleNamespace(tokens=[*[0] * start, *ids], row=row), start, len(ids)) for row, start, ids in parts]
    return Batch.of(work, torch.device("cpu"))


@torch.inference_mode()
def states(ids: Sequence[int], both_ways: bool = False) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of every layer, of one pass over a text."""
    keep = Keep(BothWays() if both_ways else NoCache())
    model()(step((0, 0, ids)), keep)
    return keep.seen


def text_ids(row: int = 0, new: int = 4) -> list[int]:
    """A row of the example with its first new tokens, greedy."""
    ids: list[int] = one.greedy_ids(PROMPTS[row], new)
    return ids


def wrong(id: str, name: str) -> AbstractContextManager[None]:
    """The engine makes a known mistake; none for an empty name."""
    return answers.mistake(id, name) if name else nullcontext()


def continued(prompts: Sequence[str] = PROMPTS, id: str = "", name: str = "", new: int = NEW) -> list[str]:
    """Greedy texts of the dense engine, prompts included, right or with a mistake."""
    llm = LLM(model(), engine="dense")
    with wrong(id, name):
        told = llm.generate(list(prompts), SamplingParams(max_tokens=new, temperature=0))
    return [prompt + row.text for prompt, row in zip(prompts, told, strict=True)]


def new_cache(rows: int = 2, slots: int = 6) -> DenseCache:
    """An empty cache for the small model."""
    return DenseCache(model().config, rows, slots, torch.device("cpu"), torch.float64)


class LeftPadded(NoCache):
    """Causal attention where row 1's first column is padding, hidden or not; a padded query reads itself."""

    def __init__(self, hidden: bool) -> None:
        self.mask = torch.ones(2, 1, 3, 3, dtype=torch.bool).tril()
        if hidden:
            self.mask[1, :, 1:, 0] = False

    def attend(self, plan: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (plan.padded(x).transpose(1, 2) for x in (q, k, v))  # (2, H, 3, D)
        return plan.packed(F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).transpose(1, 2))


@torch.inference_mode()
def left_padded(hidden: bool, own_positions: bool) -> Tensor:
    """Probabilities (V,) after row 1, which has its padding on the left."""
    first, second = map(encode, PROMPTS)
    rectangle = step((0, 0, first), (1, 0, [0, *second]))
    if own_positions:
        rectangle.positions[3:] = torch.tensor([0, 0, 1])
    probs: Tensor = model()(rectangle, LeftPadded(hidden))[1].softmax(-1)
    return probs
