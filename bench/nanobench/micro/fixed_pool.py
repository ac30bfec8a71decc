"""Many short requests in a pool of fixed size: how many rows each cache can hold in it, and how fast it then is."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import partial

from nanobench.core.records import Record, Spread
from nanobench.core.timing import by_turns, seconds
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
    new = [p.max_tokens for p in params]

    def whole(llm: LLM) -> None:
        assert [len(c.token_ids) for c in llm.generate(prompts, params)] == new

    most = {}  # rows that were running at once, those that a step has ended too; and the warm-up
    for name, llm in llms.items():
        steps = llm.core.generate(llm.requests(prompts, params))
        most[name] = max(len({*llm.core.running, *settled}) for settled in steps)
    arms = {name: partial(seconds, partial(whole, llm), model.device) for name, llm in llms.items()}
    for name, times in by_turns(arms, REPEATS, untimed=0).items():
        spread, allocated = Spread.of(times), cache_bytes(llms[name].core.cache)
        rate = sum(new) / spread.median
        yield FixedPoolRun(engine=name, rows=most[name], allocated=allocated, seconds=spread, tokens_per_s=rate)


def cache_bytes(cache: object) -> int:
    """Bytes of a cache's keys and values, the spare row or the null block included; one tensor holds both."""
    assert isinstance(cache, DenseCache | PagedCache)
    storage: int = cache.k.untyped_storage().nbytes()
    return storage
