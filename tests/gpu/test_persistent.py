"""One launch from token to next token, whole: on a GPU, since its programs wait for each other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoinfer import LLM
from nanoinfer.cache.captured import CapturedPaged
from nanoinfer.cache.none import forward_logits
from nanoinfer.engine.samplers import sample
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import Chunk, Prefill, Prompts, prefill_step
from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model, random_model
from nanoinfer.requests import Completion, Metrics, SamplingParams
from nanoinfer.verify import verify_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="built for 9.0"
    ),
]
PAGE = 16
CUDA = torch.device("cuda")


@dataclass
class Row:
    """One row over scattered pages; what is not in use is NaN."""

    model: GPT2
    cache: CapturedPaged
    state: BatchState

    @classmethod
    def of(cls, model: GPT2) -> Row:
        longest = model.config.n_positions
        pages = -(-longest // PAGE)
        cache = CapturedPaged(model.config, 1, longest, pages + 2, PAGE, CUDA, model.dtype)
        for pool in (cache.k, cache.v):
            pool.fill_(float("nan"))
            pool[:, 0] = 0
        order = torch.randperm(pages + 2, generator=torch.Generator().manual_seed(3))[:pages] + 1
        cache.tables[0] = order.int().to(CUDA)
        return cls(model, cache, BatchState.empty(1, CUDA))

    @torch.inference_mode()
    def begin(self, prompt: list[int], temperature: float = 0.0, seed: int = 11) -> int:
        """Read the prompt by chapter 3's kernels, and choose the first token; return it."""
        self.state.free(slice(0, 1))
        self.state.seed[0], self.state.temperature[0] = seed, temperature
        prefill = Prefill([Chunk(0, 0, prompt)])
        batch = Prompts.of_packed(prefill.pack(prefill.layout, self.state.dummy).to(CUDA), prefill.layout)
        return int(prefill_step(self.model, self.cache, self.state, batch, sample)[0])


@torch.inference_mode()
def tokens_of(row: Row, kernel: Any, new: int, prompt: list[int], temperature: float = 0.0) -> list[int]:
    """`new` tokens by replays of one captured launch, after the prompt's first."""
    row.begin(prompt, temperature)
    kernel.step(row.state)  # compiled before it is captured
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side), torch.cuda.graph(graph):
        kernel.step(row.state)
    first = row.begin(prompt, temperature)
    found = torch.empty(new, dtype=torch.int64, device=CUDA)
    for n in range(new):
        graph.replay()
        found[n] = row.state.token[0]
    assert row.state.position.tolist()[0] == len(prompt) + new
    assert row.state.step.tolist()[0] == 1 + new
    return [first, *found.tolist()]


def kernel_of(row: Row, **how: int) -> Any:
    from nanoinfer.labs.one_kernel.persistent import Persistent

    return Persistent(row.model, row.cache, **how)


def proof(model: GPT2, prompt: list[int], tokens: list[int], temperature: float = 0.0) -> None:
    """Every token is the oracle's choice, by promise 3."""
    done = Completion(0, tuple(prompt), tuple(tokens), "", "length", 11, Metrics(0.0, ()))
    verify_tokens(oracle_of(model), [done], SamplingParams(temperature=temperature, max_tokens=len(tokens)))


def oracle_of(model: GPT2) -> Callable[[Tensor], Tensor]:
    return lambda ids: forward_logits(model, ids.to(CUDA)).cpu()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("prompt", [1, 37])
def test_float32_tokens_are_the_oracles_up_to_the_last_position(prompt: int, temperature: float) -> None:
    model = load_model("small", CUDA, torch.float32)
    row = Row.of(model)
    ids = torch.randint(50257, (prompt,), generator=torch.Generator().manual_seed(prompt)).tolist()
    tokens = tokens_of(row, kernel_of(row), 1024 - prompt, ids, temperature)
    proof(model, ids, tokens, temperature)


def test_bfloat16_tokens_are_within_rounding_of_the_oracles_best() -> None:
    """Chosen logits, teacher-forced, against float32 arithmetic on the same weights: 0.01 of the largest logit."""
    model = random_model(PRESETS["gpt2"], 1, std=0.05, device=CUDA, dtype=torch.bfloat16)
    row = Row.of(model)
    exact = random_model(PRESETS["gpt2"], 1, std=0.05, device=CUDA, dtype=torch.bfloat16).float()
    kernel, worst = kernel_of(row), 0.0
    for first in range(10):
        tokens = tokens_of(row, kernel, 1000, [first * 977, 5, 9])
        logits = forward_logits(exact, torch.tensor([[first * 977, 5, 9, *tokens[:-1]]], device=CUDA))[0, 3:]
        chosen = logits.gather(1, torch.tensor(tokens[1:], device=CUDA)[:, None])[:, 0]
        short = (logits.max(1).values - chosen) / logits.abs().max(1).values
        worst = max(worst, float(short.max()))
    assert worst < 0.01


def test_a_thousand_replays_give_the_same_bits() -> None:
    model = random_model(PRESETS["gpt2"], 1, device=CUDA, dtype=torch.bfloat16)
    row = Row.of(model)
    kernel = kernel_of(row)
    tokens_of(row, kernel, 300, [464])
    saved, pools = row.state.integers.clone(), (row.cache.k, row.cache.v)
    page, place = int(row.cache.tables[0, int(row.state.position[0]) // PAGE]), int(row.state.position[0]) % PAGE
    seen = []
    for _ in range(1000):
        row.state.integers.copy_(saved)
        kernel.step(row.state)
        written = [pool[:, page, :, place].flatten().view(torch.int16).long() for pool in pools]
        seen.append(torch.cat([*written, row.state.token[:1]]))
    assert all(bool((each == seen[0]).all()) for each in seen)


@pytest.mark.parametrize("how", [{"DELAYS": 3000}, {"programs": 96, "DELAYS": 1000}, {"SPREAD": 1}])
def test_no_token_depends_on_who_is_late(how: dict[str, int]) -> None:
    """Some 24,000 exchanges each, with sleeps by chance before each wait, fewer programs, other places for words."""
    model = random_model(ModelConfig(n_layer=6, n_head=8, n_embd=256), 2, std=0.1, device=CUDA, dtype=torch.float32)
    row = Row.of(model)
    tokens = tokens_of(row, kernel_of(row, **how), 1000, [464, 7])
    proof(model, [464, 7], tokens)


def test_a_padding_row_stays_as_it_is_and_writes_to_the_null_block() -> None:
    model = random_model(ModelConfig(n_layer=2, n_head=4, n_embd=128), 2, device=CUDA, dtype=torch.float32)
    row = Row.of(model)
    row.cache.tables.zero_()
    before = row.state.integers.clone(), row.cache.k[:, 1:].nan_to_num(7.0).clone()
    with torch.inference_mode():
        for _ in range(3):
            kernel_of(row).step(row.state)
    assert torch.equal(row.state.integers, before[0])
    assert torch.equal(row.cache.k[:, 1:].nan_to_num(7.0), before[1])


def test_more_programs_than_can_run_at_once_are_refused_before_the_launch() -> None:
    model = random_model(ModelConfig(n_layer=2, n_head=16, n_embd=256), 2, device=CUDA, dtype=torch.float32)
    row = Row.of(model)
    with pytest.raises(ValueError, match="can run at once"), torch.inference_mode():
        kernel_of(row, programs=16 * 15).step(row.state)


@pytest.mark.parametrize("pinned", [True, False])
def test_an_engine_is_proven_with_it_and_counts_what_else_computes(pinned: bool) -> None:
    """One row after another, and a few at once: greedy, sampled, filtered, penalised, refilled and drained."""
    model = load_model("small", CUDA, torch.float32)
    llm = LLM(model, engine="persistent", max_batch=3, pinned=pinned)
    llm.warm_up()
    settings: list[dict[str, Any]] = [
        {"temperature": 0}, {"temperature": 0.9}, {"temperature": 0.9, "top_k": 20},
        {"temperature": 0.7, "frequency_penalty": 0.5}, {"temperature": 0.7, "top_p": 0.8},
    ]  # fmt: skip
    kinds = [SamplingParams(max_tokens=40, seed=5, ignore_eos=True, **each) for each in settings]
    kinds[-1] = replace(kinds[-1], max_tokens=9)
    captures = llm.stats.captures
    done = [llm.generate([464, 11 * i + 1], params)[0] for i, params in enumerate(kinds)]
    verify_tokens(oracle_of(model), done, kinds)
    prompts = [[464 + i] * (1 + 7 * i) for i in range(5)]
    together = llm.generate(prompts, kinds)
    verify_tokens(oracle_of(model), together, kinds)
    assert llm.stats.captures == captures
    assert not llm.stats.fallbacks
    counted = llm.stats.computed_by
    assert sum(counted.values()) == llm.stats.replayed_steps
    if pinned:
        assert counted["persistent"] >= 2 * 39
        assert set(counted) == {
            "persistent",
            "fused: more rows than one launch serves",
            "fused: filters, penalties or logprobs, which one launch does not know",
        }
    else:
        assert set(llm.stats.timed["decode of 1 rows, unfiltered"]) == {"persistent", "fused", "streamed", "op by op"}


GIVES_UP = """
import torch
from tests.gpu.test_persistent import CUDA, Row, kernel_of
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model
row = Row.of(random_model(ModelConfig(n_layer=2, n_head=4, n_embd=128), 2, device=CUDA, dtype=torch.float32))
kernel = kernel_of(row, POLLS=1)
try:
    with torch.inference_mode():
        kernel.step(row.state)
    torch.cuda.synchronize()
except Exception:
    print(kernel.failure)
"""


def test_a_wait_without_end_ends_and_says_where() -> None:
    """In a process of its own: the kernel traps, and its process can use the GPU no more."""
    done = subprocess.run([sys.executable, "-c", GIVES_UP], capture_output=True, text=True, timeout=120, check=False)
    assert "the persistent kernel gave up waiting: layer 0" in done.stdout, done.stdout + done.stderr
