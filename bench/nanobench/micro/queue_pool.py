"""`bench queue --part pool`: a pool too small for all rows, with preemption and with reservation."""

from __future__ import annotations

import random

from nanobench.core.records import Record
from nanobench.micro.queue_load import SEED, Load, at_once, by_turns, drawn, say
from nanobench.micro.queue_records import Run
from nanoinfer import SamplingParams
from nanoinfer.model.gpt2 import GPT2

BLOCK = 16


class PoolRuns(Record):
    """The same requests, an engine with preemption and one with reservation by turns."""

    rows: int  # at once at most
    kv_blocks: int
    preemption: tuple[Run, ...]
    reservation: tuple[Run, ...]


def pool_blocks(lengths: list[int], rows: int, share: float) -> int:
    """Blocks that hold `share` of what `rows` rows would take, if they were texts of these lengths."""
    blocks = [-(-length // BLOCK) for length in lengths]
    return max(*blocks, round(share * rows * sum(blocks) / len(blocks)))


def pool(model: GPT2, load: Load) -> PoolRuns:
    """Texts end at random, long before the longest that they may become: one id of `stop_after` ends one."""
    vocab = model.config.vocab_size
    prompts, _ = drawn(load.pool_requests, load.prompt, load.new, vocab)
    stops = random.Random(SEED).sample(range(vocab), vocab // load.stop_after)
    params = [
        SamplingParams(max_tokens=load.pool_new, stop_token_ids=stops, ignore_eos=True, seed=seed)
        for seed in range(len(prompts))
    ]
    kv_blocks = pool_blocks([len(prompt) + load.pool_new for prompt in prompts], load.pool_rows, load.pool_share)
    say(f"{len(prompts)} requests, {load.pool_rows} rows, {kv_blocks} blocks of {BLOCK}")
    preemption, reservation = by_turns(
        model, load.pool_rows, "preemption", [lambda llm: at_once(llm, prompts, params)] * load.repeats,
        lambda run: f"{run.new_tokens / run.requests:.0f} new tokens a request; {run.counted.preemptions} preemptions,"
        f" {run.counted.recomputed_tokens:,} tokens computed again", kv_blocks=kv_blocks, block_size=BLOCK,
    )  # fmt: skip
    return PoolRuns(rows=load.pool_rows, kv_blocks=kv_blocks, preemption=preemption, reservation=reservation)
