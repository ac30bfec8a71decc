"""The running example of chapter 5: texts that share their beginnings, and a few ways to share or to resume wrongly.

In float64, so that every machine prints the same digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from nanobook.examples import load
from nanobook.running import model
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache import sharing
from nanoinfer.cache.blocks import BlockManager
from nanoinfer.cache.sharing import SharedBlocks, SharedRoom
from nanoinfer.engine.engine import Sequence as Running
from nanoinfer.engine.queue import Queued, QueueEngine
from nanoinfer.requests import Completion

chapters = Path(__file__).parents[1]
two = load(chapters / "02-kv-cache" / "running.py")
KING = "Once upon a time there was a king who had three sons, and one day"  # one block of 16 tokens
SHIP = "The little ship went out to the open sea in the night, and the old"
THEN = " they all went into the deep forest, and there they found a poor old woman"
FINE = "It was a fine day, the sun was shining, and all the birds sang"
DAYS = " and so the days went by, one after another, and nothing more was heard"
STORM = " man at the helm saw a great storm in the west, and he cried out"
SAMPLED = SamplingParams(temperature=0.9, max_tokens=40, seed=5, ignore_eos=True)
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def llm(**settings: Any) -> LLM:
    """The small model over pages, whose rows share blocks."""
    return LLM(model(), engine="paged", **{"max_batch": 4, "max_len": 128, "prefix_caching": True, **settings})


@torch.inference_mode()
def after_chunks(ids: Sequence[int], chunk: int) -> Tensor:
    """Logits (V,) after a prompt that goes through the model in chunks."""
    cache, logits = two.new_cache(1, len(ids)), torch.empty(0)
    for start in range(0, len(ids), chunk):
        logits = model()(two.step((0, start, ids[start : start + chunk])), cache)[0]
    return logits


@contextmanager
def hash_without_parent() -> Iterator[None]:
    """A block is known by its own tokens alone."""

    def extend(blocks: SharedBlocks, keys: list[bytes], data: bytes) -> list[bytes]:
        size = 8 * blocks.block_size
        return [*keys, *(data[at : at + size] for at in range(0, len(data) - size + 1, size))]

    with patch.object(SharedBlocks, "_extend", extend):
        yield


@contextmanager
def found_at_reservation() -> Iterator[None]:
    """Blocks of a prompt can be found as soon as they are reserved, some steps before they are written."""
    plain = SharedRoom.admit

    def admit(room: SharedRoom, slot: int, s: Running) -> bool:
        if not plain(room, slot, s):
            return False
        BlockManager.grow(room.blocks, slot, len(s.tokens))
        room.blocks._publish(slot, 0, len(s.tokens) // room.blocks.block_size)
        return True

    with patch.object(SharedRoom, "admit", admit):
        yield


@contextmanager
def noise_restarts() -> Iterator[None]:
    """A row that begins again draws its noise from step 0 on."""
    plain, began = QueueEngine.preempt, dict[Running, int]()  # how many tokens each had when it began again

    def preempt(engine: QueueEngine, s: Queued) -> None:
        plain(engine, s)
        began[s] = len(s.token_ids)

    def generated(s: Queued) -> int:
        return len(s.token_ids) - began.get(s, 0)

    with patch.object(QueueEngine, "preempt", preempt), patch.object(Running, "generated", property(generated)):
        yield


def told(made: LLM, prompts: Sequence[str], params: SamplingParams = GREEDY) -> list[str]:
    """Each prompt with what comes of it, all of them asked for at once."""
    rows = made.generate(list(prompts), params)
    return [prompt + row.text for prompt, row in zip(prompts, rows, strict=True)]


def one_by_one(made: LLM, prompts: Sequence[str]) -> list[str]:
    """The same, one after the other."""
    return [told(made, [prompt])[0] for prompt in prompts]


def last_block_shared(made: LLM, prompt: str, seeds: Sequence[int]) -> list[str]:
    """Two samples of one prompt whose block that is not full is the same for both."""
    requests = made.requests([prompt] * 2, [SamplingParams(12, temperature=0.9, seed=seed) for seed in seeds])
    rows = [made.core.submit(request) for request in requests]
    made.core.step()
    tables, (first, second) = made.core.cache.tables, [row.row for row in rows]
    tables[second] = tables[first]
    while made.core.busy:
        made.core.step()
    return [prompt + made.tokenizer.decode(row.token_ids) for row in rows]


def small_pool(blocks: int) -> tuple[LLM, Any]:
    """An LLM whose rows are preempted, and the patch that lets them in with little room."""
    return llm(kv_blocks=blocks, preemption=True, prefix_caching=False), partial(patch.object, sharing, "AHEAD", 4)


def all_at_once() -> tuple[list[Completion], Any]:
    """Four sampled requests in two rows and seven blocks, in chunks of 16 tokens: completions, and what was counted."""
    texts = [f"{FINE}.", f"{KING}{DAYS}. The", f"{FINE}{DAYS}. The", f"{KING}{THEN}, She was"]
    made = llm(kv_blocks=7, preemption=True, prefill_chunk=16, max_batch=2)
    cache: Any = made.core.cache
    cache.k.zero_(), cache.v.zero_()  # a mistake reads unwritten slots: the same on every machine
    made.core.mixed = True
    with patch.object(sharing, "AHEAD", 4):
        return made.generate(texts, SAMPLED), made.stats
