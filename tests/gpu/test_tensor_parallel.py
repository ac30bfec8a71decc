"""Two ranks over NCCL, each with a GPU: the tokens of one, in every recipe that runs there, and an end to both."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.gpt2 import GPT2
from tests.conftest import prompts_of
from tests.engine.test_tensor_parallel import KINDS, LONG, processes, same
from tests.gpu.conftest import EAGER, GRAPHS, two_gpus

pytestmark = [pytest.mark.gpu, two_gpus]


@pytest.fixture
def made(whole_folder: Path) -> Iterator[Callable[..., LLM]]:
    llms: list[LLM] = []

    def make(**settings: Any) -> LLM:
        known: dict[str, Any] = {"tensor_parallel": 2, "device": "cuda", "dtype": "float32", "max_batch": 3}
        llms.append(LLM(whole_folder, **known | settings))
        return llms[-1]

    yield make
    for llm in llms:
        llm.close()


@pytest.mark.parametrize("engine, fused", [*EAGER, *GRAPHS])
def test_tokens(made: Callable[..., LLM], whole: GPT2, engine: str, fused: bool | None) -> None:
    """Ragged, refilled, sampled and penalised, up to the last position; steps with collectives are replayed."""
    llm = made(engine=engine, fused=fused)
    llm.warm_up()
    params = [SamplingParams(max_tokens=20 + row, ignore_eos=True, **KINDS[row % len(KINDS)]) for row in range(7)]
    same(llm, whole, prompts_of([5, 1, 33, 17, 64, 2, 9]), params)
    same(llm, whole, prompts_of([20, 70, 119]), [LONG] * 3)
    if engine.endswith("-graph"):
        assert llm.stats.replayed_steps > 100


@pytest.mark.parametrize("kill", ["kill", "stop"])
def test_a_rank_that_is_lost_under_a_replay(made: Callable[..., LLM], kill: str) -> None:
    """The other waits in a collective on the GPU, and ends all the same, within seconds and with the cause."""
    llm = made(engine="paged-graph")
    llm.warm_up()
    assert llm.rank
    llm.rank.step_s = 2
    (other,) = processes(llm)
    pieces = llm.stream(prompts_of([10]), LONG)
    for _ in range(5):
        next(pieces)
    os.kill(other.pid, signal.SIGKILL if kill == "kill" else signal.SIGSTOP)
    with pytest.raises(RuntimeError, match=r"rank 1|a rank hangs"):
        list(pieces)
    llm.close()
    assert other.wait(10) is not None
