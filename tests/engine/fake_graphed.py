"""Engines for the tests, to be driven and looked into: those with graphs replay on a CPU, where the stand-in records.

A replay of `Rerun` calls the step again: it is the eager step at the captured size, to compare with bit by bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from threading import Semaphore
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nanoinfer import LLM, Completion, SamplingParams
from nanoinfer.cache.dense import DenseCache
from nanoinfer.engine.fake_graph import FakeRecorder
from nanoinfer.engine.graphs import Replayable
from nanoinfer.engine.queue import Queued
from nanoinfer.engine.step import decode_step
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.outputs import RowReader
from nanoinfer.verify import verify_tokens
from tests.conftest import prompts_of

GRAPHED = ["dense-graph", "paged-graph"]
CONFIG = ModelConfig(n_layer=2, n_head=3, n_embd=48, n_positions=100, vocab_size=211)
LENGTHS = [4, 1, 9, 2, 30, 70, 5, 16]
PARAMS = [
    SamplingParams(temperature=t, top_k=k, top_p=p, max_tokens=n, seed=i, ignore_eos=True)
    for i, (t, k, p, n) in enumerate(
        [(0, 0, 1.0, 9), (0.8, 0, 1.0, 17), (1.0, 20, 1.0, 3), (1.2, 0, 0.7, 14), (0, 0, 1.0, 1), (0, 0, 1.0, 25),
         (0, 0, 1.0, 13), (0.5, 5, 0.9, 8)]
    )
]  # fmt: skip


class Recording(FakeRecorder):
    """It keeps what it was asked, in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def warm(self, step: Callable[[], object]) -> None:
        self.asked.append(("warm", step))
        super().warm(step)

    def record(self, step: Callable[[], object]) -> Replayable:
        self.asked.append(("record", step))
        return super().record(step)


class Rerun(FakeRecorder):
    """Its replays call the step again."""

    def record(self, step: Callable[[], object]) -> Replayable:
        return SimpleNamespace(replay=step)


class Failing(Recording):
    """Raises at a warm-up or at a recording, for the decode steps of so many rows."""

    def __init__(self, where: str, error: BaseException, rows: int = 2) -> None:
        super().__init__()
        self.where, self.error, self.rows = where, error, rows

    def _fail(self, where: str, step: Any) -> None:
        if where == self.where and getattr(step, "func", None) is decode_step and step.args[3] == self.rows:
            raise self.error

    def warm(self, step: Callable[[], object]) -> None:
        super().warm(step)  # what it has written by then is put back, too
        self._fail("warm", step)

    def record(self, step: Callable[[], object]) -> Replayable:
        self._fail("record", step)
        return super().record(step)


def graph_llm(
    model: GPT2,
    engine: str,
    *,
    recorder: Any = None,
    lag: int = 2,
    max_batch: int = 4,
    read_multiple: int | None = None,
    mixed: bool = False,
    **settings: Any,
) -> LLM:
    """An `LLM` that replays recordings, of a fake unless a recorder is given."""
    with warnings.catch_warnings():  # that a CPU records nothing: the fake does
        warnings.simplefilter("ignore", RuntimeWarning)
        llm = LLM(model, engine=engine, max_batch=max_batch, **{"max_graph_batch": max_batch, **settings})
    core: Any = llm.core
    core.lag, core.recorder, core.mixed = lag, recorder or Recording(), mixed
    if read_multiple:
        core.cache.read_multiple = read_multiple
    return llm


def prove(llm: LLM, lengths: list[int], params: Any) -> None:
    """Every token is the naive oracle's."""
    print(verify_tokens(llm.forward_logits, llm.generate(prompts_of(lengths), params), params))


def idle(llm: LLM) -> None:
    """Wait until the engine's thread has nothing left to do."""
    llm.loop.worker.submit(int).result()
    assert not llm.core.busy


def nothing_is_held(llm: LLM) -> None:
    """Wait for the engine: no sequence is left, and every block is free."""
    idle(llm)
    core: Any = llm.core
    assert not core.running
    assert not core.blocks or core.blocks.counts[0] == sum(core.blocks.reserved) == 0


class Gate:
    """Lets the engine take a step when it is told to."""

    def __init__(self, llm: LLM) -> None:
        self._open, self._over, step = Semaphore(0), Semaphore(0), llm.core.step

        def one_step() -> list[Queued]:
            assert self._open.acquire(timeout=60)
            try:
                return step()
            finally:
                self._over.release()

        llm.core.step = one_step  # type: ignore[method-assign]

    def step(self) -> None:
        """Let it take one, and wait until that is over; what it made has perhaps not been posted yet."""
        self._open.release()
        assert self._over.acquire(timeout=60)

    def open(self, steps: int = 10_000) -> None:
        self._open.release(steps)


def decodes(llm: LLM) -> list[int]:
    """Rows of the captured decode steps, the least recently used first."""
    return [key.rows for key in llm.core.graphs if key.columns == 1]


def greedy_rows(*counts: int) -> list[SamplingParams]:
    """Greedy rows of these many new tokens each."""
    return [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in counts]


def tokens(llm: LLM, lengths: Sequence[int], params: Any) -> list[tuple[int, ...]]:
    return [one.token_ids for one in llm.generate(prompts_of(list(lengths)), params)]


def steps(llm: LLM, lengths: Sequence[int], params: Any) -> Iterator[list[Queued]]:
    """A generation by the engine itself, to be looked into while it runs, once its thread has ended the one before."""
    idle(llm)
    return llm.core.generate(llm.requests(prompts_of(list(lengths)), params))


def interrupted(
    llm: LLM, lengths: Sequence[int], params: Any, at: int, action: Callable[[], object]
) -> list[Completion]:
    """A generation that goes on after `action`, which is called between two of its steps, after `at` tokens."""
    done: list[Completion] = []
    for settled in steps(llm, lengths, params):
        at -= len(settled)
        if at <= 0 < at + len(settled):
            action()
        done += [RowReader(s, llm.tokenizer).completion() for s in settled if s.finish_reason]
    return sorted(done, key=lambda one: one.index)


def watch(owner: object, name: str, before: Callable[..., object]) -> None:
    """Call `before` with the arguments of each call of a method, ahead of the call."""
    original = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, watched)


def live_bits(llm: LLM) -> list[Tensor]:
    """The bits of all keys and values; zeros where padding writes, in the dummy row or the null block."""
    cache: Any = llm.core.cache
    nobody = -1 if isinstance(cache, DenseCache) else 0
    copies = [cache.k.clone(), cache.v.clone()]
    for copy in copies:
        copy[:, nobody] = 0
    return [copy.view(torch.int32) for copy in copies]


def state_bits(llm: LLM) -> list[Tensor]:
    """Those of the rows; the dummy row takes what padding writes here, too."""
    state = llm.core.state
    return [state.integers[:, :-1].clone(), state.floats[:, :-1].clone().view(torch.int32)]


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
