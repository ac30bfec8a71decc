"""Systems that need what is not here: vLLM by the files that it reads, torch.compile by one that does nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nanobench.core import token_check
from nanobench.systems import ON_REQUEST, OTHERS, PEERS, UNFUSED, make, vllm
from nanobench.systems.base import Limits, Missing
from nanobench.systems.ours import FixedDense, Ours
from nanoinfer.config import ENGINES
from nanoinfer.model.gpt2 import GPT2
from tests.conftest import SMALL

LIMITS = Limits(max_len=40, max_batch=4)
PROMPTS = torch.randint(0, SMALL.vocab_size, (3, 7), generator=torch.Generator().manual_seed(0))


def test_vllm_gets_the_same_weights(small_model: GPT2, tmp_path: Path) -> None:
    vllm.write_folder(small_model, tmp_path)
    config, written = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors")
    assert (config["architectures"], config["model_type"]) == (["GPT2LMHeadModel"], "gpt2")
    assert (config["vocab_size"], config["dtype"]) == (SMALL.vocab_size, "float32")
    weights = dict(small_model.named_parameters())
    assert written.keys() == {f"transformer.{name}" for name in weights}
    for name, shape in SMALL.parameter_shapes().items():
        assert torch.equal(written[f"transformer.{name}"], weights[name][: shape[0]]), name  # without padding


def test_without_vllm_it_says_so(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda"))
    with pytest.raises(Missing, match=r"pip install 'nanoinfer\[vllm\]'"):
        make("vllm", on_gpu, LIMITS)
    with pytest.raises(Missing, match="CUDA GPU alone"):
        make("vllm", small_model, LIMITS)


def test_the_compiled_step_is_the_engines_own_and_compiles_whole_and_once(
    small_model: GPT2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch's own tracer, without a compiler behind it: no break in the graph, and one graph for all steps."""
    from torch._dynamo.utils import counters

    asked: list[dict[str, Any]] = []
    real = torch.compile

    def traced(step: Any, **options: Any) -> Any:
        asked.append(options)
        return real(step, backend="eager", dynamic=options["dynamic"], fullgraph=options["fullgraph"])

    monkeypatch.setattr(torch, "compile", traced)
    torch._dynamo.reset()
    counters.clear()
    expected = make("dense", small_model, LIMITS).generate(PROMPTS, 20)
    system = make("dense-compile-max-autotune", small_model, LIMITS)
    for _ in range(2):  # over the same cache
        assert system.generate(PROMPTS, 20) == expected
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert asked == [{"mode": "max-autotune", "dynamic": False, "fullgraph": True}]
    assert isinstance(system, FixedDense)
    tensors = {name for name, value in vars(system.engine.cache).items() if isinstance(value, torch.Tensor)}
    assert tensors == {"k", "v", "positions"}  # no result of the graph is kept but the tokens
    assert system.generate(PROMPTS[:2], 6) == [row[:6] for row in expected[:2]]
    torch._dynamo.reset()


def test_every_name_is_made_or_refused(small_model: GPT2) -> None:
    assert list(OTHERS) == [*UNFUSED, *PEERS, *ON_REQUEST]
    assert set(UNFUSED) == {f"{engine}-unfused" for engine in ENGINES if engine.endswith("-graph")}
    for name in UNFUSED:
        got = make(name, small_model, LIMITS)
        assert isinstance(got, Ours)
        assert (got.name, got.llm.engine) == (name, name.removesuffix("-unfused"))
        assert (got.llm.max_len, got.llm.max_batch) == (LIMITS.max_len, LIMITS.max_batch)
    with pytest.raises(ValueError, match=r"engine must be one of naive, .*, not 'vlm'"):
        make("vlm", small_model, LIMITS)


def test_right_tokens_pass_and_wrong_ones_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours by ragged prompts, the fixed ones by even ones; a wrong token is found, and peers are not checked."""
    lengths: list[list[int]] = []
    verify = token_check.verify_tokens

    def watched(oracle: Any, completions: Any, params: Any) -> Any:
        lengths.append([len(c.prompt_token_ids) for c in completions])
        return verify(oracle, completions, params)

    monkeypatch.setattr(token_check, "model_config", lambda name: SMALL)
    monkeypatch.setattr(token_check, "verify_tokens", watched)
    monkeypatch.setattr(torch, "compile", lambda step, **options: step)
    names, cpu = ["dense", "paged-graph-unfused", "dense-compile-reduce-overhead"], torch.device("cpu")
    found = list(token_check.check_tokens("small", [*names, "dense-1024"], cpu))  # the last does not do this model
    assert [(check.engine, check.tokens) for check in found] == [(name, 8 * 40) for name in names]
    assert lengths == [list(range(1, 24, 3))] * 2 + [[24] * 8]
    assert [token_check.is_ours(name) for name in ("dense-1024", "vllm", "transformers")] == [True, False, False]
    right = FixedDense.generate
    wrong = lambda self, prompts, new: [[(t + 1) % 9 for t in row] for row in right(self, prompts, new)]  # noqa: E731
    monkeypatch.setattr(FixedDense, "generate", wrong)
    with pytest.raises(AssertionError, match="was chosen, but the oracle chooses"):
        list(token_check.check_tokens("small", names[2:], cpu))
