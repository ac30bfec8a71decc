"""Systems that need what is not here: vLLM by a fake of its module, torch.compile by one that does nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nanobench.core.presets import PRESETS
from nanobench.core.token_check import check_tokens, is_ours
from nanobench.systems import ON_REQUEST, OTHERS, PEERS, UNFUSED, make
from nanobench.systems import vllm as peer
from nanobench.systems.base import Limits, Missing
from nanobench.systems.fixed import FixedDense
from nanobench.systems.ours import Ours
from nanoinfer.config import ENGINES
from nanoinfer.model.gpt2 import GPT2
from tests.conftest import SMALL

LIMITS = Limits(max_len=40, max_batch=4)
PROMPTS = torch.randint(0, SMALL.vocab_size, (3, 7), generator=torch.Generator().manual_seed(0))


class FakeVLLM(ModuleType):
    """`vllm` with the two classes that the system uses; each row gets its prompt's ids again, one a step."""

    def __init__(self) -> None:
        super().__init__("vllm")
        self.made: list[dict[str, Any]] = []
        self.asked: list[tuple[list[Any], Any]] = []
        self.files: dict[str, Any] = {}
        fake = self

        class LLM:
            def __init__(self, model: str, **options: Any) -> None:
                fake.made.append(options)
                fake.files = {
                    "config": json.loads((Path(model) / "config.json").read_text()),
                    "weights": load_file(Path(model) / "model.safetensors"),
                }
                self.llm_engine = fake
                self.queue: list[Any] = []

            def generate(self, prompts: list[Any], params: Any, use_tqdm: bool) -> list[Any]:
                assert not use_tqdm
                fake.asked.append((prompts, params))
                return [fake.answer(str(i), p["prompt_token_ids"], params.max_tokens) for i, p in enumerate(prompts)]

        self.LLM, self.SamplingParams, self.__version__ = LLM, SimpleNamespace, "0.24.0"
        self.queue: list[tuple[str, list[int], int]] = []
        self.done = 0

    def answer(self, name: str, ids: list[int], tokens: int) -> Any:
        out = SimpleNamespace(token_ids=tuple((ids * tokens)[:tokens]))
        return SimpleNamespace(request_id=name, outputs=[out])

    def add_request(self, name: str, prompt: Any, params: Any) -> None:
        self.queue.append((name, prompt["prompt_token_ids"], params.max_tokens))
        self.done = 0

    def has_unfinished_requests(self) -> bool:
        return any(self.done < tokens for _, _, tokens in self.queue)

    def step(self) -> list[Any]:
        self.done += 1
        return [self.answer(name, ids, self.done) for name, ids, _ in self.queue]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> FakeVLLM:
    fake = FakeVLLM()
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)  # and put back as it was, afterwards
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * 10**9, 100 * 10**9))
    return fake


def on_gpu(model: GPT2) -> Any:
    """The model, as one that says that it is on a GPU."""
    return SimpleNamespace(
        device=torch.device("cuda"), dtype=model.dtype, config=model.config, parameters=model.parameters,
        named_parameters=model.named_parameters,
    )  # fmt: skip


def test_vllm_gets_the_same_weights(vllm: FakeVLLM, small_model: GPT2) -> None:
    make("vllm", on_gpu(small_model), LIMITS)
    config, weights = vllm.files["config"], vllm.files["weights"]
    assert (config["architectures"], config["model_type"]) == (["GPT2LMHeadModel"], "gpt2")
    assert (config["vocab_size"], config["n_layer"], config["dtype"]) == (SMALL.vocab_size, SMALL.n_layer, "float32")
    assert {name: tuple(t.shape) for name, t in weights.items()} == {
        f"transformer.{name}": shape for name, shape in SMALL.parameter_shapes().items()
    }
    for name, value in small_model.named_parameters():
        assert torch.equal(weights[f"transformer.{name}"], value[: len(weights[f"transformer.{name}"])]), name


def test_vllm_is_asked_as_the_others_are(vllm: FakeVLLM, small_model: GPT2) -> None:
    system = make("vllm", on_gpu(small_model), LIMITS)
    assert system.generate(PROMPTS, 5) == [row[:5] for row in PROMPTS.tolist()]
    ((prompts, params),) = vllm.asked
    assert prompts == [{"prompt_token_ids": row} for row in PROMPTS.tolist()]
    assert (params.temperature, params.max_tokens, params.ignore_eos) == (0.0, 5, True)
    (options,) = vllm.made
    assert options["enable_prefix_caching"] is False
    assert options["skip_tokenizer_init"] is True
    assert (options["max_model_len"], options["max_num_seqs"]) == (40, 4)
    assert options["gpu_memory_utilization"] == pytest.approx(0.08, abs=1e-3)  # 8 GB and a little, of 100
    assert len(system.step_times(PROMPTS, 5)) == 4
    assert vars(system)["note"] == "vLLM 0.24.0"  # into the results file
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"  # or it would import what it does not need


def test_vllm_takes_no_more_than_is_free(vllm: FakeVLLM, small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * 10**9, 100 * 10**9))
    assert peer.share_of_memory(on_gpu(small_model), LIMITS) == 0.045


def test_without_vllm_it_says_so(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(Missing, match=r"pip install 'nanoinfer\[vllm\]'"):
        make("vllm", on_gpu(small_model), LIMITS)
    with pytest.raises(Missing, match="CUDA GPU alone"):
        make("vllm", small_model, LIMITS)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """torch.compile that notes how it was called, and with which numbers the step then was."""
    noted: list[dict[str, Any]] = []

    def compile_nothing(step: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        noted.append({**options, "shapes": set()})

        def run(model: Any, cache: Any, state: Any, batch: int, longest: int, sampler: Any) -> Any:
            noted[-1]["shapes"].add((batch, longest))
            return step(model, cache, state, batch, longest, sampler)

        return run

    monkeypatch.setattr(torch, "compile", compile_nothing)
    return noted


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_the_compiled_step_is_the_engines_own(small_model: GPT2, compilations: list[dict[str, Any]], mode: str) -> None:
    expected = make("dense", small_model, LIMITS).generate(PROMPTS, 20)
    system = make(f"dense-compile-{mode}", small_model, LIMITS)
    assert system.generate(PROMPTS, 20) == expected
    assert system.generate(PROMPTS, 20) == expected  # over the same cache
    assert system.generate(PROMPTS[:2], 6) == [row[:6] for row in expected[:2]]
    assert len(system.step_times(PROMPTS, 6)) == 5
    assert [(c["mode"], c["dynamic"], c["fullgraph"]) for c in compilations] == [(mode, False, True)] * 3
    # One shape a batch: the read length is rounded up, so that growing texts compile nothing.
    assert [len(c["shapes"]) for c in compilations] == [1, 1, 1]


def test_the_step_compiles_whole_and_once(small_model: GPT2) -> None:
    """By torch's own tracer, without a compiler behind it: no break in the graph, and one graph for all steps."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    real = torch.compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda step, mode, **options: real(step, backend="eager", **options))
        system = make("dense-compile-reduce-overhead", small_model, LIMITS)
        got = system.generate(PROMPTS, 20)
    assert got == make("dense", small_model, LIMITS).generate(PROMPTS, 20)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert isinstance(system, FixedDense)
    assert system.engine is not None
    tensors = {name for name, value in vars(system.engine.cache).items() if isinstance(value, torch.Tensor)}
    assert tensors == {"k", "v", "position"}  # no result of the graph is kept but the tokens
    torch._dynamo.reset()


def test_a_cache_of_1024_reads_all_of_it(small_model: GPT2) -> None:
    with pytest.raises(ValueError, match="dense-1024 needs a context of 1024 tokens, not 100"):
        make("dense-1024", small_model, LIMITS)
    system = FixedDense("dense-90", small_model, LIMITS, length=90)
    assert system.generate(PROMPTS, 9) == make("dense", small_model, LIMITS).generate(PROMPTS, 9)
    assert system.engine is not None
    cache: Any = system.engine.cache
    assert (cache.max_len, cache.bucket(8), len(cache.k[0])) == (90, 90, 4)


def test_an_engine_without_its_fused_kernels_is_a_row_of_its_own(small_model: GPT2) -> None:
    assert set(UNFUSED) == {f"{engine}-unfused" for engine in ENGINES if engine.endswith("-graph")}
    for name in UNFUSED:
        got = make(name, small_model, LIMITS)
        assert isinstance(got, Ours)
        assert (got.name, got.llm.engine) == (name, name.removesuffix("-unfused"))
        assert (got.llm.max_len, got.llm.max_batch) == (LIMITS.max_len, LIMITS.max_batch)
        assert got.generate(PROMPTS, 9) == make("naive", small_model, LIMITS).generate(PROMPTS, 9)


def test_names() -> None:
    with pytest.raises(ValueError, match=r"engine must be one of naive, .*, not 'vlm'"):
        make("vlm", SimpleNamespace(), LIMITS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not 'vlm'"):
        PRESETS["gpu"].changed(engines=("vlm",))
    assert list(OTHERS) == [*UNFUSED, *PEERS, *ON_REQUEST]
    others = [preset for name, preset in PRESETS.items() if name not in ("ratios", "compile", "graphs")]
    assert not {engine for preset in others for engine in preset.engines} & set(ON_REQUEST)  # by name alone
    assert ("vllm", 256) in {(c.engine, c.batch) for c in PRESETS["graphs"].cases()}
    assert [is_ours(name) for name in (*ENGINES, *UNFUSED, "dense-1024", "vllm", "transformers")] == [
        *[True] * (len(ENGINES) + len(UNFUSED) + 1), False, False,
    ]  # fmt: skip


def test_right_tokens_pass_and_wrong_ones_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours by ragged prompts, the fixed ones by even ones; a wrong token is found."""
    import nanobench.core.token_check

    monkeypatch.setattr(nanobench.core.token_check, "load_config", lambda name: SMALL)
    names = ["dense", "paged-graph-unfused", "dense-compile-reduce-overhead"]
    lengths: list[list[int]] = []
    verify = nanobench.core.token_check.verify_tokens

    def watched(oracle: Any, completions: Any, params: Any) -> Any:
        lengths.append([len(c.prompt_token_ids) for c in completions])
        return verify(oracle, completions, params)

    monkeypatch.setattr(nanobench.core.token_check, "verify_tokens", watched)
    monkeypatch.setattr(torch, "compile", lambda step, **options: step)
    found = list(check_tokens("small", [*names, "dense-1024"], torch.device("cpu")))  # the last does not do this model
    assert [(p.engine, p.tokens) for p in found] == [(name, 8 * 40) for name in names]
    assert lengths == [list(range(1, 24, 3))] * 2 + [[24] * 8]
    original = FixedDense.generate
    wrong = lambda self, prompts, new: [[(t + 1) % 9 for t in row] for row in original(self, prompts, new)]  # noqa: E731
    monkeypatch.setattr(FixedDense, "generate", wrong)
    with pytest.raises(AssertionError, match="was chosen, but the oracle chooses"):
        list(check_tokens("small", ["dense-compile-reduce-overhead"], torch.device("cpu")))
