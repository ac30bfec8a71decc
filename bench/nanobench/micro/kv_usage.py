"""KV usage of dense and paged caches; many short requests in a fixed pool that is too small for dense rows.

Every step of a run is counted: bytes allocated, bytes that hold a token, and, for the paged cache, bytes in blocks that
rows own and in blocks that are reserved at admission and may never be needed. The pool of fixed size says how many rows
each cache can hold in it, and how fast it then is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from nanobench.core.machine import place, stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.core.timing import by_turns, seconds
from nanobench.options import Device, Out, OwnModel
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.paged import PagedCache
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model

STOP_SHARE = 1 / 80  # of the ids end a text, so that random ones end after 80 tokens in the mean


class CacheUsage(Record):
    """Bytes of one engine's cache over a run, means over its steps."""

    SHOWN = ("unused", "fragmentation", "idle_reservation")

    engine: str
    steps: int
    rows: float  # that were running
    allocated: int  # the whole cache
    promised: float  # blocks that running rows own or have reserved; the dense cache: their rows
    owned: float  # blocks that running rows own; the dense cache: their rows
    tokens: float  # slots that hold a token

    @property
    def unused(self) -> float:
        """Share of the allocated bytes that hold no token."""
        return 1 - self.tokens / self.allocated

    @property
    def fragmentation(self) -> float:
        """Share of the owned bytes that hold no token: ends of blocks; the dense cache: ends of rows."""
        return 1 - self.tokens / self.owned

    @property
    def idle_reservation(self) -> float:
        """Share of the owned and reserved bytes that no row owns."""
        return 1 - self.owned / self.promised


class FixedPoolRun(Record):
    """A run of many short requests in a pool of so many bytes."""

    engine: str
    rows: int  # at once at most
    allocated: int  # bytes of keys and values
    seconds: Spread
    tokens_per_s: float  # new tokens of all requests over the whole run


class KVUsageReport(ResultsFile):
    """One run of `python -m bench memory`."""

    kind: Literal["memory"] = "memory"
    model: str
    dtype: str
    block_size: int
    token_bytes: int  # keys and values of one token
    requests: int  # of the ragged batch, and the most new tokens that each asks for
    max_tokens: int
    held: tuple[CacheUsage, ...] = ()
    pool_bytes: int
    short_requests: int
    new_tokens: int  # of all short requests
    squeezed: tuple[FixedPoolRun, ...] = ()  # the runs in the fixed pool


def measure(
    device: Device = None,
    out: Out = Path("my-bench/memory.json"),
    model: OwnModel = None,
    pool: Annotated[float | None, typer.Option(help="MB of keys and values that both caches get.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Short ones; 512 on a GPU, 24 on a CPU.")] = None,
) -> KVUsageReport:
    """Measure both, write them, print both.

    model: None is gpt2 with random weights on a GPU, the small model on a CPU. pool: None is what the paged cache needs
    to run all short requests at once. ValueError for a pool in which no request fits.
    """
    where, dtype = place(device)
    on_gpu = where.type == "cuda"
    name = model or ("random:gpt2" if on_gpu else "small")
    gpt = load_model(name, where, dtype, seed=0)
    token = gpt.config.kv_numbers * dtype.itemsize
    count = requests or (512 if on_gpu else 24)
    lengths = short_lengths(count, min(gpt.config.n_positions, 1024 if on_gpu else 96))
    bytes_of_pool = pool_for(lengths, token) if pool is None else int(pool * 1e6)
    capacity(lengths, bytes_of_pool, token)  # refuses at once where there is none
    rows, longest = (64, 256) if on_gpu else (8, 64)
    report = KVUsageReport(
        model=name, block_size=BLOCK, token_bytes=token, requests=2 * rows, max_tokens=longest,
        pool_bytes=bytes_of_pool, short_requests=count, new_tokens=sum(length // 2 for length in lengths),
        **stamp(where, dtype),
    )  # fmt: skip
    held = (_usage(gpt, engine, rows, longest) for engine in ("dense", "paged"))
    return report.fill(out, held=held, squeezed=run_in_pool(gpt, lengths, bytes_of_pool))


def _usage(model: GPT2, engine: str, rows: int, longest: int) -> CacheUsage:
    """Twice as many ragged requests as rows; each may make `longest` tokens, and most end sooner, by a stop token."""
    draws = random.Random(0)
    vocab = model.config.vocab_size
    stops = draws.sample(range(vocab), int(vocab * STOP_SHARE))
    prompts = [draws.choices(range(vocab), k=draws.randint(1, longest // 2)) for _ in range(2 * rows)]
    params = SamplingParams(max_tokens=longest, stop_token_ids=stops, ignore_eos=True)
    most = max(map(len, prompts)) + longest
    llm = LLM(model, engine=engine, max_batch=rows, max_len=most, block_size=BLOCK, seed=0)
    core = llm.core
    token = model.config.kv_numbers * model.dtype.itemsize
    seen: list[tuple[int, int, int, int]] = []  # sequences, tokens, slots owned, slots owned or reserved
    for _ in core.generate(llm.requests(prompts, params)):
        if running := core.running:
            seen.append((len(running), sum(s.cached for s in running), *_slots(core.cache, len(running))))
    mean = [sum(column) / len(seen) for column in zip(*seen, strict=True)]
    return CacheUsage(
        engine=engine, steps=len(seen), rows=mean[0], allocated=cache_bytes(core.cache), promised=mean[3] * token,
        owned=mean[2] * token, tokens=mean[1] * token,
    )  # fmt: skip


def _slots(cache: object, rows: int) -> tuple[int, int]:
    """Slots that so many sequences own, and those that they own or have reserved."""
    if isinstance(cache, DenseCache):
        return rows * cache.max_len, rows * cache.max_len
    assert isinstance(cache, PagedCache)
    owned = sum(map(len, cache.blocks.owned))
    return owned * cache.block_size, (owned + sum(cache.blocks.reserved)) * cache.block_size


BLOCK = 16
REPEATS = 3


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
