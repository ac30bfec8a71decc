"""Two processes over gloo: the tokens of one, what they agree on, and an end to both, whichever ends first."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nanoinfer import LLM, AsyncLLM, Completion, SamplingParams
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.parallel import rank as rank_module
from nanoinfer.parallel.rank import Rank
from nanoinfer.verify import verify_tokens
from tests.conftest import UNEVEN, prompts_of

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
LONG = replace(GREEDY, max_tokens=100)
SETTINGS: dict[str, Any] = {"tensor_parallel": 2, "device": "cpu", "threads": 1, "max_batch": 3}
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.7, "top_k": 20, "seed": 4},
    {"presence_penalty": 1.0},
]
PATIENCE = 60  # seconds, of a busy machine

pytestmark = pytest.mark.skipif(os.name == "nt" or not dist.is_gloo_available(), reason="needs gloo and pipes")


@pytest.fixture(scope="module", params=["dense", "paged"])
def llm(request: pytest.FixtureRequest, whole_folder: Path) -> Iterator[LLM]:
    with LLM(whole_folder, engine=request.param, **SETTINGS) as made:
        yield made


def ranks_of(llm: LLM) -> Rank:
    assert llm.rank
    return llm.rank


def processes(llm: LLM) -> list[subprocess.Popen[bytes]]:
    return ranks_of(llm).processes


def alike(llm: LLM) -> bool:
    """Whether all ranks hold the same rows, tokens and positions."""
    core: Any = llm.core
    assert llm.rank
    with llm.rank.all_do("core.alike"):
        return bool(core.alike())


def same(llm: LLM, whole: GPT2, prompts: Any, params: Any) -> list[Completion]:
    """The tokens of two ranks are the oracle's and those of one process; the ranks hold the same rows."""
    done = llm.generate(prompts, params)
    print(verify_tokens(LLM(whole).forward_logits, done, params))
    one = LLM(whole, engine=llm.engine, max_batch=llm.max_batch).generate(prompts, params)
    assert [c.token_ids for c in done] == [c.token_ids for c in one]
    assert alike(llm)
    return done


def test_refilled_rows_of_all_kinds_to_the_last_position(llm: LLM, whole: GPT2) -> None:
    """Rows finish and are refilled while others go on, each with its own parameters; rows move into gaps."""
    prompts = prompts_of([50, 2, 9, 110, 1, 30, 119, 1], UNEVEN.vocab_size)
    params = [replace(GREEDY, max_tokens=n, **KINDS[n % 4]) for n in (3, 30, 7, 21, 18, 40, 5, 120)]
    done = same(llm, whole, prompts, params)
    assert [len(c.token_ids) for c in done] == [3, 30, 7, 10, 18, 40, 1, 119]


@pytest.mark.parametrize("asked", [{}, {"top_k": 30, "top_p": 0.9}, {"logprobs": 3, "prompt_logprobs": 2}])
def test_steps_of_one_kind(llm: LLM, whole: GPT2, asked: dict[str, Any]) -> None:
    same(llm, whole, prompts_of([1, 2, 17], UNEVEN.vocab_size), replace(GREEDY, temperature=0.8, seed=5, **asked))


def test_a_stream_that_is_left(llm: LLM, whole: GPT2) -> None:
    """Rows that are cancelled leave on all ranks; whoever comes next has the same tokens."""
    stream = llm.stream(prompts_of([4, 9], UNEVEN.vocab_size), LONG)
    for _ in range(5):
        next(stream)
    stream.close()
    same(llm, whole, prompts_of([7, 3], UNEVEN.vocab_size, seed=1), GREEDY)


def test_a_generation_that_is_broken_off(llm: LLM, whole: GPT2) -> None:
    """Ctrl-C between two steps ends no rank: on all of them, every row is padding."""
    steps = llm.core.generate(llm.requests(prompts_of([4, 9, 2], UNEVEN.vocab_size), LONG))
    for _ in range(3):
        next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt)
    assert alike(llm)
    assert not llm.core.state.integers[:6].any()
    same(llm, whole, prompts_of([7, 3], UNEVEN.vocab_size, seed=1), GREEDY)


def test_a_plain_pass_beside_the_engine(llm: LLM, whole: GPT2) -> None:
    tokens = prompts_of([12, 12], UNEVEN.vocab_size)
    torch.testing.assert_close(llm.forward_logits(tokens), LLM(whole).forward_logits(tokens), rtol=0, atol=1e-4)


# What the second rank's process does ahead of all else.
POOR = "import nanoinfer.make as m; m.free_memory = lambda device: 169_300"  # of it, steps may take 86,016
FAILS = """
import nanoinfer.make as m
def refuse(*_): raise ValueError('it does not fit here')
m.default_max_batch = refuse
"""


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Lets later ranks begin with this code; afterwards no process is left of them."""
    spawned, plain = [], rank_module.spawn

    def begin_with(first: str) -> None:
        def spawn(module: str) -> Any:
            started = plain(module, first)
            spawned.append(started[0])
            return started

        monkeypatch.setattr(rank_module, "spawn", spawn)

    begin_with("")
    yield begin_with
    for process in spawned:
        assert process.wait(PATIENCE) is not None


def test_pages_that_texts_share_and_rows_that_give_way(
    whole_folder: Path, whole: GPT2, second: Callable[[str], None]
) -> None:
    """T08: the pool is what fits on the poorer rank. All of it is used, by rows that share, and are preempted."""
    second(POOR)
    settings = SETTINGS | {"prefix_caching": True, "preemption": True, "max_batched_tokens": 40}
    with LLM(whole_folder, engine="paged", **settings) as llm:
        assert llm.facts.blocks == 12  # of 6,144 bytes with the second rank's two heads; the first has room for 24
        begun = prompts_of([20], UNEVEN.vocab_size)[0]
        prompts = [[*begun, *rest] for rest in prompts_of([3, 4, 1, 2], UNEVEN.vocab_size, seed=2)]
        params = [replace(GREEDY, max_tokens=n, **KINDS[n % 4]) for n in (90, 83, 95, 89)]
        done = llm.generate(prompts, params)
        again = llm.generate(prompts, params)
        verify_tokens(LLM(whole).forward_logits, done + again, params * 2)
        assert llm.stats.cached_tokens > 0
        assert llm.stats.preemptions > 0
        assert alike(llm)


def test_a_rank_that_is_killed_ends_all_with_the_cause(whole_folder: Path, second: Callable[[str], None]) -> None:
    """T13: in the middle of a generation; the next request hears the same, and waits for nothing."""
    llm = LLM(whole_folder, engine="dense", **SETTINGS)
    (process,), aborted = processes(llm), list[int]()
    ranks_of(llm).group.abort = lambda: aborted.append(1)  # type: ignore[method-assign]
    stream = llm.stream(prompts_of([4, 9], UNEVEN.vocab_size), LONG)
    next(stream)
    process.kill()
    with pytest.raises(RuntimeError, match="rank 1 has ended: killed by SIGKILL"):
        list(stream)
    with pytest.raises(RuntimeError, match="rank 1 has ended: killed by SIGKILL"):
        llm.generate([[1, 2]], GREEDY)
    assert "SIGKILL" in str(llm.loop.died.result(PATIENCE))
    assert aborted == [1]
    llm.close()


def test_a_rank_that_dies_while_nothing_runs(whole_folder: Path, second: Callable[[str], None]) -> None:
    async def run() -> None:
        llm = AsyncLLM(whole_folder, engine="paged", **SETTINGS)
        (process,) = processes(llm.llm)
        process.send_signal(signal.SIGSEGV)
        assert "killed by SIGSEGV" in str(await asyncio.wait_for(asyncio.wrap_future(llm.died), PATIENCE))
        assert not llm.alive
        with pytest.raises(RuntimeError, match=r"the engine has died: .*rank 1 has ended"):
            llm.submit([[1, 2]], GREEDY)
        llm.close()

    asyncio.run(run())


def test_a_rank_that_hangs(whole_folder: Path) -> None:
    llm = LLM(whole_folder, engine="dense", **SETTINGS)
    (process,) = processes(llm)
    ranks_of(llm).step_s = 1
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="no step has ended within 1 s: a rank hangs"):
        llm.generate([[1, 2]], GREEDY)
    assert process.returncode == -signal.SIGKILL
    llm.close()


def test_what_all_agree_on_is_a_sign_of_life() -> None:
    """A warm-up of many captures takes minutes, and nobody hangs."""
    group: Any = SimpleNamespace(least=int, rank=0, size=1, abort=int)
    rank: Any = Rank([])
    rank.group = group
    with rank.all_do("warm_up"):
        before = rank._watched
        assert rank.agree(True)
        assert before
        assert rank._watched > before
    assert rank._watched is None


@pytest.mark.parametrize(
    "first, kind, words",
    [
        (FAILS, ValueError, "^it does not fit here$"),
        ("import os; os._exit(7)", RuntimeError, "rank 1 has ended: exit code 7"),
    ],
)
def test_a_rank_that_cannot_be_made(
    whole_folder: Path, second: Callable[[str], None], first: str, kind: type[Exception], words: str
) -> None:
    """Its cause is raised here, while this rank waits for it; a refusal as it stands."""
    second(first)
    with pytest.raises(kind, match=words):
        LLM(whole_folder, engine="dense", **SETTINGS)


def test_what_cannot_be_met_is_refused_before_a_process_starts(
    whole_folder: Path, whole: GPT2, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(Rank, "__init__", refuse)
    for model, settings, words in (
        (whole_folder, {"tensor_parallel": 6}, "tensor_parallel must be at most the model's 5 heads, not 6"),
        (whole, {"tensor_parallel": 2}, "model must be a name or a path where tensor_parallel is given"),
        ("nowhere", {"tensor_parallel": 2}, "there is no model 'nowhere'"),
    ):
        with pytest.raises(ValueError, match=words):
            LLM(model, **settings)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for device, size, needed in (("cuda", 3, 3), ("cuda:1", 2, 3)):
        monkeypatch.setattr("nanoinfer.devices.choose_device", torch.device)
        with pytest.raises(ValueError, match=f"tensor_parallel {size} needs {needed} CUDA devices, but there are 2"):
            LLM(whole_folder, engine="dense", device=device, tensor_parallel=size)
