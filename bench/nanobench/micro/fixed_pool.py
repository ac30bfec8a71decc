"""Many short requests in a pool of fixed size: how many rows each cache can hold in it, and how fast it then is."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence

from nanobench.core.machine import synchronize
from nanobench.core.records import Record, Spread
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.paged import PagedCache
from nanoinfer.model.gpt2 import GPT2

BLOCK = 16
REPEATS = 3


class FixedPoolRun(Record):
    """A run of many short requests in a pool of so many bytes."""

    engine: str
    rows: int  # at once at most
    allocated: int  # bytes of keys and values
    seconds: Spread
    tokens_per_s: float  # new tokens of all requests over the whole run


def short_lengths(count: int, longest: int) -> list[int]:
    """Lengths of sequences, most of them short: uniform on a logarithmic scale from 16 to `longest`."""
    draws = random.Random(1)
    return [round(math.exp(draws.uniform(math.log(16), math.log(longest)))) for _ in range(count)]


def _blocks(length: int) -> int:
    return -(-length // BLOCK)


def pool_for(lengths: Sequence[int], token: int) -> int:
    """Bytes that hold all these sequences at once in blocks, and the null block; `token` bytes a token."""
    return (1 + sum(map(_blocks, lengths))) * BLOCK * token


def capacity(lengths: Sequence[int], pool: int, token: int) -> tuple[int, int]:
    """Dense rows and blocks that `pool` bytes hold beside the spare row and the null block. ValueError for none."""
    longest = max(lengths)
    rows, blocks = pool // (longest * token) - 1, pool // (BLOCK * token) - 1
    if rows < 1 or blocks < _blocks(longest):
        raise ValueError(f"pool must hold a row of {longest} tokens and a spare one, not {pool / 1e6:g} MB")
    return rows, blocks


def run_in_pool(model: GPT2, lengths: Sequence[int], pool: int) -> Iterator[FixedPoolRun]:
    """Dense with as many rows as fit into `pool` bytes, paged with as many blocks; they take turns.

    lengths: of the sequences, each half prompt and half new tokens. ValueError where the longest does not fit.
    """
    dense_rows, blocks = capacity(lengths, pool, model.config.kv_numbers * model.dtype.itemsize)
    draws = random.Random(2)
    prompts = [draws.choices(range(model.config.vocab_size), k=length - length // 2) for length in lengths]
    params = [SamplingParams(temperature=0, max_tokens=length // 2, ignore_eos=True) for length in lengths]
    llms = {
        "dense": LLM(model, engine="dense", max_batch=min(dense_rows, len(lengths)), max_len=max(lengths)),
        "paged": LLM(model, engine="paged", max_batch=len(lengths), kv_blocks=blocks, block_size=BLOCK),
    }
    times: dict[str, list[float]] = {name: [] for name in llms}
    rows = {name: _most_rows(llm, prompts, params) for name, llm in llms.items()}  # and the warm-up
    for _ in range(REPEATS):
        for name, llm in llms.items():
            synchronize(model.device)
            start = time.perf_counter()
            done = llm.generate(prompts, params)
            synchronize(model.device)
            times[name].append(time.perf_counter() - start)
            assert [len(c.token_ids) for c in done] == [p.max_tokens for p in params]
    for name, (most, allocated) in rows.items():
        spread = Spread.of(times[name])
        rate = sum(p.max_tokens for p in params) / spread.median
        yield FixedPoolRun(engine=name, rows=most, allocated=allocated, seconds=spread, tokens_per_s=rate)


def _most_rows(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> tuple[int, int]:
    """A whole run: how many rows were running at once at most, and the bytes of its cache."""
    steps = llm.core.generate(llm.requests(prompts, params))
    # Sequences that the step has ended, too.
    return max(len({*llm.core.running, *settled}) for settled in steps), cache_bytes(llm.core.cache)


def cache_bytes(cache: object) -> int:
    """Bytes of a cache's keys and values, the spare row or the null block included; one tensor holds both."""
    assert isinstance(cache, DenseCache | PagedCache)
    storage: int = cache.k.untyped_storage().nbytes()
    return storage
