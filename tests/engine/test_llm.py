"""The front door: what it loads, what is refused before anything is computed, and the forms that prompts may take."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import nanoinfer
from nanoinfer import LLM, SamplingParams
from nanoinfer.config import fastest
from nanoinfer.engine import loop
from nanoinfer.kernels.available import has_triton
from nanoinfer.model.gpt2 import GPT2
from tests.conftest import prompts_of

SHORT = SamplingParams(max_tokens=3, seed=1, ignore_eos=True)


@pytest.fixture
def llm(small_model: GPT2) -> LLM:
    return LLM(small_model)


def sentence(caught: pytest.ExceptionInfo[ValueError]) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"engine": "fast"}, ["engine must be auto or one of naive, dense, paged", "'fast'"]),
        ({"max_batch": 0}, ["max_batch", "0"]),
        ({"max_len": 1}, ["max_len", "2"]),
        ({"seed": -1}, ["seed"]),
        ({"prefill_chunk": 0}, ["prefill_chunk", "0"]),
        ({"max_batched_tokens": 0}, ["max_batched_tokens", "from 1 to", "0"]),
        ({"max_batched_tokens": 7, "max_batch": 8}, ["max_batched_tokens", "at least 8", "7"]),
        ({"block_size": 8}, ["block_size", "16 to 256"]),
        ({"block_size": 48}, ["block_size", "power of two"]),
        ({"kv_blocks": 0}, ["kv_blocks"]),
        ({"prefix_caching": 1}, ["prefix_caching must be True or False", "1"]),
        ({"prefix_caching": True, "engine": "dense-graph"}, ["prefix_caching needs the paged cache", "dense-graph"]),
        ({"preemption": True, "device": "cpu"}, ["preemption needs the paged cache", "dense"]),
        ({"tensor_parallel": 0}, ["tensor_parallel must be a whole number from 1 to", "0"]),
        ({"tensor_parallel": 2, "engine": "fused"}, ["engine fused runs on one device alone"]),
        ({"device": "tpu"}, ["device must be cpu, cuda or cuda:N", "'tpu'"]),
        ({"dtype": "int8", "device": "cpu"}, ["dtype must be one of float32", "'int8'"]),
        ({"model": "random:tiny", "max_len": 257}, ["max_len", "256", "257"]),
        ({"model": "gtp2"}, ["gtp2", "did you mean gpt2"]),
        ({"model": 5}, ["model must be a name", "5"]),
        ({"engine": []}, ["engine must be auto or one of", "[]"]),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        LLM(**arguments)
    for word in words:
        assert word in sentence(caught)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_is_said() -> None:
    with pytest.raises(ValueError, match=r"device cuda is not available: .*; use device cpu"):
        LLM("random:tiny", device="cuda")


@pytest.mark.gpu
def test_defaults_on_a_gpu() -> None:
    with LLM("random:tiny") as llm:
        assert llm.model.device.type == "cuda"
        assert llm.model.dtype in (torch.bfloat16, torch.float16)
        assert llm.engine == fastest(True, has_triton())
    with pytest.raises(ValueError, match="CUDA device"):
        LLM("random:tiny", device="cuda:99")


def test_auto_is_the_fastest_of_the_machine() -> None:
    """Ranks have no `fused`; without Triton a GPU runs no engine over pages."""
    on_gpu = [fastest(True, triton, ranks) for triton in (True, False) for ranks in (1, 2)]
    assert on_gpu == ["fused", "paged-graph", "dense-graph", "dense-graph"]
    assert fastest(False, True) == "dense"


def test_a_model_of_one_s_own_has_its_own_device(small_model: GPT2) -> None:
    with pytest.raises(ValueError, match="left out"):
        LLM(small_model, device="cpu")


@pytest.mark.parametrize(
    "prompts, words",
    [
        ("", ["prompt must have at least one token, but is empty"]),
        ([], []),
        ([[]], ["prompt must have at least one token"]),
        (["a", ""], ["prompt 1", "empty"]),
        ([[1, 2], [3, 211]], ["prompt 1", "0 to 210", "211"]),
        ([[-1]], ["-1"]),
        ([[1.5]], ["1.5"]),
        ([[True]], ["True"]),
        *((kind(b"bytes"), ["prompts must be"]) for kind in (bytes, bytearray, memoryview)),
        (None, ["prompts must be"]),
        ("a\ud800", ["lone surrogate", "U+D800"]),
        ([[1] * 100], ["100 tokens", "the context is 100"]),
        (" " * 1_000_000, ["1,000,000 bytes", "100 tokens"]),
    ],
)
def test_refused_prompts(llm: LLM, monkeypatch: pytest.MonkeyPatch, prompts: Any, words: list[str]) -> None:
    """Nothing is computed: the model is not run once, not even for the good prompts beside the bad one."""
    monkeypatch.setattr(GPT2, "forward", None)
    if not words:
        assert llm.generate(prompts) == []
        return
    with pytest.raises(ValueError) as caught:
        llm.generate(prompts)
    for word in words:
        assert word in sentence(caught)
    with pytest.raises(ValueError):
        llm.stream(prompts)  # a stream checks when it is made, not when it is read


@pytest.mark.parametrize("params", [[SHORT], "hot", [SHORT, None]])
def test_refused_params(llm: LLM, params: Any) -> None:
    with pytest.raises(ValueError, match="params must be"):
        llm.generate(prompts_of([2, 3]), params)


def test_forms_of_prompts() -> None:
    with LLM("random:tiny", device="cpu") as llm:
        assert (llm.model.device.type, llm.model.dtype, llm.max_len) == ("cpu", torch.float32, 256)
        ids = [15496, 995]
        for form in ("Hello world", ids, tuple(ids), [ids], ["Hello world", ids]):
            done = llm.generate(form, SHORT)
            assert {each.prompt_token_ids for each in done} == {(15496, 995)}
            assert done[0].text == llm.tokenizer.decode(done[0].token_ids)


def test_forward_logits(llm: LLM) -> None:
    logits = llm.forward_logits([[1, 2, 3], [4, 5, 6]])
    assert logits.shape == (2, 3, 211)
    assert logits.dtype == torch.float32
    for bad in ([1, 2], [[]], [[1] * 101], [[211]], [[-1]]):
        with pytest.raises(ValueError, match="token_ids must be"):
            llm.forward_logits(bad)


def test_a_pace_waits_behind_each_step(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only its waits move. The last wait is behind the text, which is handed over before it."""
    waits: list[float] = []
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: sum(waits)))
    monkeypatch.setattr(llm.loop.worker.stopping, "wait", waits.append)
    monkeypatch.setattr(llm.loop, "pace", 60.0)
    llm.generate([1, 2], SamplingParams(max_tokens=3, ignore_eos=True))
    assert sum(waits) >= 2 * 60 - 1e-6


def test_closed() -> None:
    llm = LLM("random:tiny", device="cpu")
    llm.close()
    llm.close()
    for call in (lambda: llm.generate("a"), lambda: llm.forward_logits([[1]]), llm.warm_up):
        with pytest.raises(RuntimeError, match="this LLM is closed"):
            call()


def test_a_program_ends_though_streams_are_open() -> None:
    """Without a word, and without their texts being finished first."""
    code = """
import asyncio, atexit
from nanoinfer import LLM, AsyncLLM, SamplingParams
made = [kind("random:tiny", device="cpu", max_len=256) for kind in (LLM, AsyncLLM)]
params = SamplingParams(max_tokens=250, ignore_eos=True)
streams = [made[0].stream(["a"] * 300, params)]
next(streams[0])
async def main():
    streams.append(made[1].stream(["a"] * 300, params))
    await anext(streams[1])
asyncio.run(main())
atexit.register(lambda: print([llm.stats.new_tokens < 300 * 250 for llm in made]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[True, True]\n", "")


@pytest.mark.parametrize("top_k", [0, 5])
def test_a_temperature_next_to_zero_is_greedy(small_model: GPT2, top_k: int) -> None:
    """1e-38 made infinities of the logits."""
    llm, prompts = LLM(small_model), prompts_of([3, 5])
    cold, greedy, warm = (replace(SHORT, temperature=t, top_k=top_k, max_tokens=20) for t in (1e-38, 0.0, 1e-5))
    done = [[c.token_ids for c in llm.generate(prompts, params)] for params in (cold, greedy, warm)]
    assert done[0] == done[1] == done[2]  # at 1e-5 noise hardly ever matters


def test_a_model_with_a_small_vocabulary_takes_ids(llm: LLM) -> None:
    with pytest.raises(ValueError, match="token ids from 0 to 210"):
        llm.generate("Hello world")


def test_the_front_door_loads_nothing_heavy() -> None:
    """Neither its names nor a refused argument."""
    code = """
import sys
from nanoinfer import LLM, SamplingParams, Completion, Piece
try:
    LLM(engine="no such engine")
except ValueError:
    heavy = "torch triton transformers tiktoken numpy huggingface_hub safetensors rich typer".split()
    print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        nanoinfer.LMM  # noqa: B018
    assert set(nanoinfer.__all__) <= set(dir(nanoinfer))
    assert all(getattr(nanoinfer, name) for name in nanoinfer.__all__)
