"""`bench queue --part prefix` and `pool`: one setting of the engine on and off.

prefix: long prompts that begin alike, with the shared part cached and without. pool: a pool too small for all rows,
with preemption and with reservation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from nanobench.core.records import Record
from nanobench.core.timing import by_turns
from nanobench.micro.queue_load import SEED, Load, Run, at_once, drawn, greedy, ids, made, say
from nanoinfer import LLM, SamplingParams
from nanoinfer.model.gpt2 import GPT2

BLOCK = 16


class PrefixRuns(Record):
    """The same prompts, an engine with prefix caching and one without by turns."""

    SHOWN = ("computed_share", "gain")

    model: str
    shared_share: float  # of the prompts' tokens
    cached: tuple[Run, ...]
    plain: tuple[Run, ...]

    @property
    def computed_share(self) -> float:
        """Of the prompts' tokens, with prefix caching: the largest of the runs."""
        return max(run.computed_share for run in self.cached)

    @property
    def gain(self) -> float:
        """p50 of TTFT without over p50 with prefix caching, medians of the runs."""
        plain, cached = (median(run.ttft.p50 for run in runs) for runs in (self.plain, self.cached))
        return plain / cached


class PoolRuns(Record):
    """The same requests, an engine with preemption and one with reservation by turns."""

    rows: int  # at once at most
    kv_blocks: int
    preemption: tuple[Run, ...]
    reservation: tuple[Run, ...]


def on_and_off(
    model: GPT2,
    rows: int,
    setting: str,
    turns: Sequence[Callable[[LLM], Run]],
    **settings: Any,
) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The turns' runs with `setting` on, and with it off."""

    def runs(llm: LLM, on: bool) -> Iterator[Run]:
        for turn in turns:
            run = turn(llm)
            say(f"  {setting} {on}: {run}")
            yield run

    with ExitStack() as stack:
        arms = {}
        for on in (True, False):
            llm, warm_up = made(model, rows, **{setting: on}, **settings)
            arms[on] = partial(next, runs(stack.enter_context(llm), on))
            say(f"{setting} {on}: {warm_up}")
        found = by_turns(arms, len(turns), untimed=0)
    return tuple(found[True]), tuple(found[False])


def prefix(name: str, model: GPT2, load: Load) -> PrefixRuns:
    """Each turn has a shared part of its own, which one request brings before the others come."""
    draws, vocab = random.Random(SEED), model.config.vocab_size

    def turn() -> Callable[[LLM], Run]:
        shared = ids(draws, load.shared, vocab)
        first, *prompts = (shared + ids(draws, load.long - load.shared, vocab) for _ in range(load.sharing + 1))

        def run(llm: LLM) -> Run:
            llm.generate([first], greedy(1))
            return at_once(llm, prompts, [greedy(load.sharing_new)] * load.sharing)

        return run

    say(f"{name}: {load.sharing} prompts of {load.long} tokens, {load.shared} of them shared")
    cached, plain = on_and_off(model, load.sharing, "prefix_caching", [turn() for _ in range(load.repeats)])
    return PrefixRuns(model=name, shared_share=load.shared / load.long, cached=cached, plain=plain)


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
    preemption, reservation = on_and_off(
        model, load.pool_rows, "preemption", [lambda llm: at_once(llm, prompts, params)] * load.repeats,
        kv_blocks=kv_blocks, block_size=BLOCK,
    )  # fmt: skip
    return PoolRuns(rows=load.pool_rows, kv_blocks=kv_blocks, preemption=preemption, reservation=reservation)
