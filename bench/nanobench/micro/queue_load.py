"""What `bench queue` asks of the engine, and how; and what it writes down of a run: times, and what was counted."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from nanobench.core.records import Record
from nanobench.core.timing import seconds
from nanoinfer import LLM, SamplingParams
from nanoinfer.model.gpt2 import GPT2

SEED = 7
say = partial(print, flush=True)  # a run takes minutes, and its output may be a pipe


class Load(Record):
    """How much is asked, in requests and tokens; the defaults are for a GPU."""

    prompt: tuple[int, int] = (16, 512)  # pool, and `bench replicas`: both lengths uniform
    new: tuple[int, int] = (16, 256)
    repeats: int = 3
    chunks: tuple[int | None, ...] = (None, 256, 512)  # arrivals: max_batched_tokens; None is the engine's own choice
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
    prompt=(8, 64), new=(4, 32), chunks=(None, 64), running=4, opening=8, running_new=64,
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


CURVE = np.linspace(0, 1, 101)  # shares of which a file keeps the quantiles


class Latency(Record):
    """Times in seconds: exact quantiles of all of them, and a curve of 101 for a figure."""

    count: int
    p50: float
    p99: float
    longest: float
    curve: tuple[float, ...]  # quantiles at 0%, 1%, ... 100%

    @classmethod
    def of(cls, times: Sequence[float]) -> Latency:
        """Of at least one time."""
        curve = tuple(np.quantile(times, CURVE).round(6).tolist())
        return cls(count=len(times), p50=curve[50], p99=curve[99], longest=curve[100], curve=curve)

    @property
    def p90(self) -> float:
        return self.curve[90]

    def __str__(self) -> str:
        return f"p50 {1e3 * self.p50:.2f}, p90 {1e3 * self.p90:.2f}, p99 {1e3 * self.p99:.2f} ms"


class Counted(Record):
    """What an LLM counted in one run; 0 for what its engine does not count."""

    fallbacks: dict[str, int]  # steps that ran eagerly, by reason
    prefill_steps: int = 0  # that ran prompts, beside rows that go on or alone
    decode_steps: int = 0
    replayed_prefills: int = 0
    replayed_steps: int = 0  # of decode
    padding_tokens: int = 0  # of replayed prefills
    padding_rows: int = 0  # of replayed decode steps
    captures: int = 0
    dropped_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0  # after preemptions
    cached_tokens: int = 0  # of prompts, found in shared blocks

    @classmethod
    def so_far(cls, llm: LLM) -> Counted:
        """Since the LLM was made."""
        counts: dict[str, Any] = {name: getattr(llm.stats, name, 0) for name in cls.model_fields}
        return cls(**counts | {"fallbacks": dict(getattr(llm.stats, "fallbacks", {}))})

    def since(self, before: Counted) -> Counted:
        """What came after `before`."""
        counts: dict[str, Any] = {
            name: getattr(self, name) - getattr(before, name) for name in Counted.model_fields if name != "fallbacks"
        }
        return Counted(**counts, fallbacks=dict(Counter(self.fallbacks) - Counter(before.fallbacks)))


class WarmUp(Record):
    """What warm_up cost."""

    seconds: float
    captures: int
    graph_bytes: int


class Run(Record):
    """Many requests, all asked for in one call of `generate`."""

    SHOWN = ("tokens_per_s", "computed_share")

    seconds: float
    requests: int
    prompt_tokens: int
    new_tokens: int  # recounted from the ids
    ttft_s: tuple[float, ...]  # from the call, in the order of the requests
    ttft: Latency
    itl: Latency
    counted: Counted

    @property
    def tokens_per_s(self) -> float:
        """New tokens over the whole run."""
        return self.new_tokens / self.seconds

    @property
    def computed_share(self) -> float:
        """Of the prompts' tokens, those that were not found in shared blocks."""
        return 1 - self.counted.cached_tokens / self.prompt_tokens
