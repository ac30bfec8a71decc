"""What `one_kernel.py` measures, part by part."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from nanobench.core.records import Spread
from nanobench.core.timing import by_turns, call_seconds
from nanobench.core.timing import seconds as timed
from nanobench.micro import exchanges as kernels
from nanobench.micro.one_kernel_records import NEW, Exchange, Generated, MatrixTime, NodeTime, StepTime
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.captured import CapturedPaged
from nanoinfer.cache.none import forward_logits
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import decode_step
from nanoinfer.kernels import sampling
from nanoinfer.kernels.fused import FusedOps
from nanoinfer.kernels.fused_forward import FusedForward
from nanoinfer.labs.one_kernel.persistent import Persistent
from nanoinfer.labs.one_kernel.shape import Shape
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
FIRST = 464  # a text's first token
FEW = 24  # tokens behind a long prompt
CONTEXT_ROWS = (1, 8, 64)
ENGINES = ("paged-graph", "fused", "persistent")
TURNS = 3
REPEATS, ROUNDS = 9, 400
NEAR = 0.01  # of the largest logit: how far below float32's best a chosen one may be
PERSISTENT: dict[str, dict[str, Any]] = {
    "one kernel, nothing asked for ahead": {"AHEAD": False},
    "one kernel, words side by side": {"SPREAD": 1},
    "one kernel, 120 programs": {"programs": 120},
    "one kernel": {},
    "one kernel, nobody waits": {"POLLS": 0},
}


def matrix(model: GPT2) -> Iterator[MatrixTime]:
    """The widening matrix of every layer in turn: more than a cache holds."""
    weights = [layer.c_fc[0].detach() for layer in model.layers]
    size = weights[0].nbytes
    calls = {}
    for count in ROWS:
        x = torch.randn(count, weights[0].shape[0], device=weights[0].device, dtype=weights[0].dtype)
        calls[count] = partial(lambda x, i: x @ weights[i % len(weights)], x)
    for rows, seconds in call_seconds(calls, 4 * len(weights), REPEATS, model.device).items():
        yield MatrixTime(matrix="up", weight_bytes=size, rows=rows, seconds=seconds)


def nodes(device: torch.device) -> Iterator[NodeTime]:
    """Graphs of a thousand kernels that do nothing."""
    none = torch.empty(0, device=device)

    def call(early: bool, i: int) -> Tensor:
        kernels.nothing_kernel[(1,)](EARLY=early, launch_pdl=early)
        return none

    for early, seconds in call_seconds({e: partial(call, e) for e in (False, True)}, 1000, REPEATS, device).items():
        yield NodeTime(early=early, seconds=seconds)


def exchanges(device: torch.device) -> Iterator[Exchange]:
    """All programs that can run at once, round after round in one launch; the kinds take turns."""
    programs = torch.cuda.get_device_properties(device).multi_processor_count
    arms = {kind: partial(_exchange, kind, programs, device, _expected(programs)) for kind in kernels.KINDS}
    for kind, each in by_turns(arms, REPEATS).items():
        yield Exchange(kind=kind, programs=programs, seconds=Spread.of(each))


def _exchange(kind: str, programs: int, device: torch.device, expected: Tensor) -> float:
    """Seconds a round of one launch. RuntimeError where its programs have other sums than expected in the end."""
    out = torch.zeros(programs, device=device)
    values, flags = torch.zeros(2 * programs, device=device), torch.zeros(256, dtype=torch.int32, device=device)
    words, failed = torch.zeros(2 * programs, dtype=torch.int64, device=device), torch.zeros(1, device=device)
    settings = {"ROUNDS": ROUNDS, "PROGRAMS": programs, "num_warps": 8, "launch_cooperative_grid": True}
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begun.record()
    if kind == "words":
        kernels.words_kernel[(programs,)](words, failed, out, POLLS=Shape.POLLS, **settings)
    else:
        kernel = kernels.counter_kernel if kind == "counter" else kernels.flags_kernel
        kernel[(programs,)](values, flags, out, **settings)
    ended.record()
    ended.synchronize()
    if not torch.equal(out.cpu(), expected):
        raise RuntimeError(f"programs that exchange by {kind} have got wrong sums")
    return float(begun.elapsed_time(ended)) / 1000 / ROUNDS


def _expected(programs: int) -> Tensor:
    mine = torch.arange(programs).float() % 7
    for _ in range(ROUNDS):
        mine = (mine + mine.sum()) % 7
    return mine


def steps(model: GPT2) -> Iterator[StepTime]:
    """Each way by itself, a text of `NEW` tokens replayed from one graph, greedy and sampled."""
    exact, ops = random_model(model.config, 1, device=model.device, dtype=torch.bfloat16).float(), model.ops
    for arm in ("paged-graph", "fused, none early", "fused", *PERSISTENT):
        for sampled in (False, True):
            try:
                seconds, tokens = _one_row(model, arm, 0.8 if sampled else 0.0)
            finally:
                model.ops = ops
            right = not sampled and PERSISTENT.get(arm, {}).get("POLLS") != 0
            same, short = _against(exact, tokens) if right else (None, None)
            if short is not None and short > NEAR:
                raise RuntimeError(f"{arm}: a token's logit is {short:.2g} of the largest below float32's best")
            yield StepTime(arm=arm, sampled=sampled, seconds=seconds, same=same, short=short)


def _against(exact: GPT2, tokens: list[int]) -> tuple[int, float]:
    """How many tokens are the argmax in float32, and how far the worst falls short of it, of the largest logit."""
    device = exact.device
    logits = forward_logits(exact, torch.tensor([[FIRST, *tokens[:-1]]], device=device))[0]
    short = logits.amax(1) - logits.gather(1, torch.tensor(tokens, device=device)[:, None])[:, 0]
    return int((short == 0).sum()), float((short / logits.abs().amax(1)).max())


def _one_row(model: GPT2, arm: str, temperature: float) -> tuple[Spread, list[int]]:
    """Seconds a token, and the tokens."""
    page, longest, device = 16, model.config.n_positions, model.device
    pages = longest // page
    cache = CapturedPaged(model.config, 1, longest, pages, page, device, model.dtype)
    cache.tables[0] = torch.randperm(pages, device=device).int() + 1
    state = BatchState.empty(1, device)
    step = _step(model, cache, state, arm)

    def start() -> None:
        state.free(slice(0, 1))
        state.token[0], state.live[0], state.row[0], state.temperature[0] = FIRST, 1, 0, temperature

    start()
    step()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(side), torch.cuda.graph(graph):
        step()
    times, tokens = [], torch.zeros(NEW, dtype=torch.int64, device=device)
    for _ in range(REPEATS):
        start()
        times.append(timed(graph.replay, device, NEW))
    start()
    for n in range(NEW):
        graph.replay()
        tokens[n] = state.token[0]
    return Spread.of(times), tokens.tolist()


def _step(model: GPT2, cache: CapturedPaged, state: BatchState, arm: str) -> Callable[[], object]:
    if arm in PERSISTENT:
        kernel = Persistent(model, cache, **PERSISTENT[arm])
        return lambda: kernel.step(state)
    if arm == "paged-graph":
        model.ops = FusedOps()
        return partial(decode_step, model, cache, state, 1, cache.max_len, sampling.sample)
    forward = FusedForward(model, cache, state)
    forward.early &= arm == "fused"
    return partial(forward.decode, 1, cache.max_len, sampling.sample)


def generated(model: GPT2, rows: Sequence[int], timed: dict[str, dict[str, float]]) -> Iterator[Generated]:
    """Engines as users have them. timed: gets what the fastest has timed, each way to compute its captured steps."""
    longest = model.config.n_positions
    with ExitStack() as stack:
        llms = {
            engine: stack.enter_context(LLM(model, engine=engine, max_batch=max(rows), prefix_caching=False))
            for engine in ENGINES
        }
        for prompt, count in itertools.product((1, 128, 512, longest - FEW), rows):
            if prompt > 1 and count not in CONTEXT_ROWS:
                continue
            arms = {
                (engine, sampled): partial(_rate, llms[engine], count, prompt, 0.8 * sampled)
                for engine, sampled in itertools.product(ENGINES, (False, True))
                if not sampled or engine == ENGINES[-1]
            }
            rates = {arm: Spread.of(each) for arm, each in by_turns(arms, TURNS).items()}
            for (engine, sampled), rate in rates.items():
                of: dict[str, Any] = {"engine": engine, "rows": count, "prompt_tokens": prompt, "sampled": sampled}
                yield Generated(**of, tokens_per_s=rate)
        stats: Any = llms[ENGINES[-1]].stats
        timed.update(stats.timed)


def _rate(llm: LLM, rows: int, prompt: int, temperature: float) -> float:
    """Tokens a second: of whole texts, or behind a long prompt."""
    new = NEW if prompt == 1 else FEW
    params = SamplingParams(temperature=temperature, seed=7, max_tokens=new, ignore_eos=True)
    prompts = [[FIRST + row] * prompt for row in range(rows)]
    began = time.perf_counter()
    done = llm.generate(prompts, params)
    if prompt == 1:
        return rows * NEW / (time.perf_counter() - began)
    return rows / median(gap for one in done for gap in one.metrics.itl_s)
