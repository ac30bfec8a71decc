"""What `bench queue` asks of the engine, and how."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

from nanobench.core.records import Record
from nanobench.core.timing import seconds
from nanobench.micro.queue_records import Counted, Latency, Run, WarmUp
from nanoinfer import LLM, SamplingParams
from nanoinfer.model.gpt2 import GPT2

SEED = 7
say = partial(print, flush=True)  # a run takes minutes, and its output may be a pipe


class Load(Record):
    """How much is asked, in requests and tokens; the defaults are for a GPU."""

    rows: tuple[int, ...] = (256, 512)  # burst: at once at most
    budgets: tuple[int | None, ...] = (None,)  # burst: max_batched_tokens; None is the engine's own choice
    requests: int = 1000  # burst
    prompt: tuple[int, int] = (16, 512)  # burst and pool: both lengths uniform
    new: tuple[int, int] = (16, 256)
    repeats: int = 3
    chunks: tuple[int | None, ...] = (None, 256, 512)  # arrivals: max_batched_tokens
    running: int = 64  # arrivals: rows that run all the time, from prompts of `opening` tokens
    opening: int = 16
    running_new: int = 1024  # at most: the context may end them sooner; then they begin again
    arriving: int = 900  # tokens of each prompt that arrives
    arriving_new: int = 8
    per_second: float = 20
    seconds: float = 5
    spare: int = 64  # arrivals: rows for those that arrive
    sharing: int = 64  # prefix: prompts at once, of `long` tokens, the first `shared` of which are the same
    long: int = 960
    shared: int = 864
    sharing_new: int = 8
    pool_rows: int = 256  # pool: at once at most
    pool_requests: int = 300
    pool_new: int = 512  # at most
    stop_after: int = 256  # tokens, in the mean: one id of so many ends a text
    pool_share: float = 0.25  # of the longest texts of all rows, that the pool holds


CPU = Load(
    rows=(8,), requests=24, prompt=(8, 64), new=(4, 32), chunks=(None, 64), running=4, opening=8, running_new=64,
    arriving=200, per_second=2, seconds=3, spare=4, sharing=8, long=240, shared=208, sharing_new=4, pool_rows=8,
    pool_requests=10, pool_new=160, stop_after=128,
)  # fmt: skip


def made(model: GPT2, max_batch: int, **settings: Any) -> tuple[LLM, WarmUp]:
    """An LLM over pages, on a GPU with graphs, that is warmed up."""
    engine = "paged-graph" if model.device.type == "cuda" else "paged"
    llm = LLM(model, engine=engine, max_batch=max_batch, **settings)
    took = seconds(llm.warm_up, model.device)
    counts = {name: getattr(llm.stats, name, 0) for name in ("captures", "graph_bytes")}
    return llm, WarmUp(seconds=took, **counts)


def at_once(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> Run:
    """All these requests in one call. ValueError if one was lost."""
    before, started = Counted.so_far(llm), time.perf_counter()
    done = llm.generate(prompts, params)
    took = time.perf_counter() - started
    if [completion.index for completion in done] != list(range(len(prompts))):
        raise ValueError(f"{len(prompts)} requests, but {len(done)} completions: a request was lost")
    ttft = [completion.metrics.ttft_s for completion in done]
    return Run(
        seconds=took, requests=len(done), prompt_tokens=sum(map(len, prompts)),
        new_tokens=sum(len(completion.token_ids) for completion in done), ttft_s=tuple(round(t, 6) for t in ttft),
        ttft=Latency.of(ttft), itl=Latency.of([gap for completion in done for gap in completion.metrics.itl_s]),
        counted=Counted.so_far(llm).since(before),
    )  # fmt: skip


def drawn(
    count: int, prompt: tuple[int, int], new: tuple[int, int], vocab: int, seed: int = SEED, turn: int = 0
) -> tuple[list[list[int]], list[int]]:
    """Random prompts, and how many new tokens each asks for: both lengths uniform.

    turn: each has the same lengths and other ids, so that none finds what another has left in a prefix cache.
    """
    draws = random.Random(seed)
    lengths = [(draws.randint(*prompt), draws.randint(*new)) for _ in range(count)]
    if turn:
        draws = random.Random(f"{seed} {turn}")
    return [ids(draws, length, vocab) for length, _ in lengths], [tokens for _, tokens in lengths]


def ids(draws: random.Random, count: int, vocab: int) -> list[int]:
    """Random token ids."""
    return [draws.randrange(vocab) for _ in range(count)]


def greedy(new: int) -> SamplingParams:
    """So many new tokens, by the highest logit."""
    return SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
