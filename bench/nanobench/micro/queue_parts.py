"""`bench queue --part burst`, `prefix` and `pool`: the last two turn one setting of the engine on and off.

burst: many requests at once, beside what reading memory alone would allow. prefix: long prompts that begin alike, with
the shared part cached and without. pool: a pool too small for all rows, with preemption and with reservation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from nanobench.core.presets import limit_seconds
from nanobench.core.records import Record
from nanobench.core.timing import by_turns
from nanobench.micro.queue_load import SEED, Load, Run, WarmUp, at_once, drawn, greedy, ids, made, say
from nanoinfer import LLM, SamplingParams
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2

BLOCK = 16


class PrefixRuns(Record):
    """The same prompts, an engine with prefix caching and one without by turns."""

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
    note: Callable[[Run], str],
    **settings: Any,
) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The turns' runs with `setting` on, and with it off. note: what to say of a run besides."""

    def runs(llm: LLM, on: bool) -> Iterator[Run]:
        for turn in turns:
            run = turn(llm)
            say(f"  {setting} {on!s:5} {run}; {note(run)}")
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
    cached, plain = on_and_off(
        model, load.sharing, "prefix_caching", [turn() for _ in range(load.repeats)],
        lambda run: f"{run.computed_share:.3f} of {run.prompt_tokens:,} prompt tokens computed",
    )  # fmt: skip
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
        lambda run: f"{run.new_tokens / run.requests:.0f} new tokens a request; {run.counted.preemptions} preemptions,"
        f" {run.counted.recomputed_tokens:,} tokens computed again", kv_blocks=kv_blocks, block_size=BLOCK,
    )  # fmt: skip
    return PoolRuns(rows=load.pool_rows, kv_blocks=kv_blocks, preemption=preemption, reservation=reservation)


class BandwidthLimit(Record):
    """The least time of the work, where every step only reads."""

    least_steps: int
    weights_s: float
    keys_and_values_s: float
    tokens_per_s: float


class BurstRuns(Record):
    """The same requests again and again; the first run is the first after warm_up."""

    rows: int  # at once at most
    max_batched_tokens: int
    warm_up: WarmUp
    limit: BandwidthLimit
    runs: tuple[Run, ...]

    @property
    def limit_share(self) -> float:
        """Of the bandwidth limit that the fastest run reached."""
        return max(run.tokens_per_s for run in self.runs) / self.limit.tokens_per_s


def bandwidth_limit(
    config: ModelConfig, itemsize: int, lengths: Sequence[tuple[int, int]], rows: int, bytes_per_s: float
) -> BandwidthLimit:
    """The least time for requests of these (prompt, new) tokens, whatever order an engine runs them in.

    A step gives each of at most `rows` rows one token, so there are at least as many steps as the longest request has
    new tokens, and at least all new tokens over `rows`. Each reads every weight once; and each new token but a
    request's first, which comes with its prompt, reads the keys and values of its context once. Nothing is counted for
    the prompts: they are limited by arithmetic, not by reading.
    """
    new = [tokens for _, tokens in lengths]
    steps = max(*new, -(-sum(new) // rows))
    contexts = sum((n - 1) * prompt + n * (n - 1) // 2 for prompt, n in lengths)
    weights = steps * limit_seconds(config, itemsize, 0, 0, bytes_per_s)
    whole = steps * limit_seconds(config, itemsize, 1, contexts / steps, bytes_per_s)
    return BandwidthLimit(
        least_steps=steps, weights_s=weights, keys_and_values_s=whole - weights, tokens_per_s=sum(new) / whole
    )


def burst(model: GPT2, load: Load, bytes_per_s: float) -> Iterator[BurstRuns]:
    """Each number of rows with each budget. bytes_per_s: at which the device copies memory."""
    prompts, new = drawn(load.requests, load.prompt, load.new, model.config.vocab_size)
    lengths = list(zip(map(len, prompts), new, strict=True))
    params = [greedy(tokens) for tokens in new]
    for rows in load.rows:
        limit = bandwidth_limit(model.config, model.dtype.itemsize, lengths, rows, bytes_per_s)
        say(
            f"{rows} rows: at least {limit.least_steps} steps; reading takes {limit.weights_s:.3f} s for weights and"
            f" {limit.keys_and_values_s:.3f} s for keys and values, so {limit.tokens_per_s:,.0f} tok/s at most"
        )
        for budget in load.budgets:
            llm, warm_up = made(model, rows, max_batched_tokens=budget)
            with llm:
                say(f"{rows} rows, max_batched_tokens {llm.max_batched_tokens}: {warm_up}")
                runs = []
                for n in range(load.repeats):
                    runs.append(run := at_once(llm, prompts, params))
                    share = run.tokens_per_s / limit.tokens_per_s
                    say(f"  {'after warm_up' if n == 0 else 'again':13} {run}; {share:.0%} of the limit")
                    say(f"  {'':13} {run.counted}")
                yield BurstRuns(
                    rows=rows, max_batched_tokens=llm.max_batched_tokens, warm_up=warm_up, limit=limit, runs=tuple(runs)
                )
