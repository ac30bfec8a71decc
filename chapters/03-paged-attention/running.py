"""The running example of chapter 3: three texts in one pool of blocks of four tokens, through the small model.

It is computed in float64, attention over pages in float32, so that every machine prints the same digits. No GPU and no
Triton are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nanobook.running import model
from nanocourse.exercises import answers
from nanoinfer import LLM, Completion, SamplingParams
from nanoinfer.cache.paged import PagedCache
from nanoinfer.engine.engine import Engine, Sequence
from nanoinfer.model.batch import Batch

PROMPTS = ("Once upon a time", "The old fox looked up at", "Where are you")
BLOCK, BLOCKS, STEPS = 4, 16, 6  # tokens of a block; blocks of the pool; decode steps that have been made
ROW, LAYER, HEAD = 2, 4, 3  # of the attention that is shown: the highest score stands in the second page
RAGGED = (20, 40, 100, 300)  # tokens of the four rows whose waste is counted
GREEDY = {"temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class Pool:
    """A pool in the middle of a run. texts: token ids of each row that are written. tables: each row's blocks.

    slots: each row's in the cache. steps: the run itself, kept here because a run that is let go frees its rows.
    """

    cache: PagedCache
    texts: list[list[int]]
    tables: list[list[int]]
    slots: list[int]
    steps: Iterator[list[Sequence]]


@cache
def pool() -> Pool:
    """The three texts after some decode steps, growing side by side."""
    paged = PagedCache(model().config, len(PROMPTS), 32, BLOCKS, BLOCK, torch.device("cpu"), torch.float64)
    engine = Engine(model(), paged, len(PROMPTS))
    llm = LLM(model(), engine="naive")
    requests = llm.requests(list(PROMPTS), SamplingParams(max_tokens=12, **GREEDY))
    steps = engine.generate(requests)
    for _ in range(STEPS + 1):  # the prompts, and so many tokens more
        next(steps)
    texts = [s.tokens[:-1] for s in engine.running]  # the newest is not fed
    slots = [s.row for s in engine.running]
    return Pool(paged, texts, [list(paged.blocks.owned[slot]) for slot in slots], slots, steps)


def head_of(row: int) -> tuple[Tensor, Tensor, Tensor]:
    """One head at the row's next step: query (D,), keys and values (S, D) out of the row's pages."""
    held, seen = pool(), {}
    last = torch.tensor([text[-1] for text in held.texts])
    positions = torch.tensor([len(text) - 1 for text in held.texts])
    fed = Batch(last, positions, torch.tensor(held.slots), torch.arange(len(last) + 1), longest=1, past=31)
    plan = held.cache.plan(fed)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen[layer] = q[row, HEAD]
        return held.cache.attend(plan, layer, q, k, v)  # the newest written token again: it writes what stands there

    with torch.inference_mode():
        model().hidden(fed, attend)
    blocks, n = held.tables[row], len(held.texts[row])
    keys, values = (p[LAYER, blocks, HEAD].flatten(0, 1)[:n] for p in (held.cache.k, held.cache.v))
    return seen[LAYER], keys, values


def completed(mistake: tuple[str, str] | None = None, new_tokens: int = 24, **options: Any) -> list[Completion]:
    """What the paged engine with blocks of 16 makes of the prompts, right or with a known mistake of the exercises."""
    with answers.mistake(*mistake) if mistake else nullcontext():
        llm = LLM(model(), engine="paged", block_size=16, **options)
        paged: Any = llm.core.cache
        paged.k.zero_(), paged.v.zero_()  # a mistake reads what nobody wrote: on every machine the same
        return llm.generate(list(PROMPTS), SamplingParams(max_tokens=new_tokens, **GREEDY))


def continued(mistake: tuple[str, str] | None = None, new_tokens: int = 24, **options: Any) -> list[str]:
    """Greedy texts, the prompts' own included."""
    return [prompt + row.text for prompt, row in zip(PROMPTS, completed(mistake, new_tokens, **options), strict=True)]
