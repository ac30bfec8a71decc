"""Engine `fused` in Triton's interpreter, against the oracle, with a model whose width is no power of two. Chapter 6.

`TRITON_INTERPRET=1 python chapters/06-kernels/running.py`. A CPU has no graphs, so a replay calls the step again.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from nanoinfer import LLM, Completion, SamplingParams
from nanoinfer.engine.fake_graph import FakeRecorder
from nanoinfer.engine.penalties import AllSamplers
from nanoinfer.kernels import sampling
from nanoinfer.kernels.fused_forward import FusedForward
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens

SHAPE = ModelConfig(n_layer=1, n_head=3, n_embd=96, n_positions=32, vocab_size=101)
PROMPTS = [list(range(1, 20)), [7, 5]]
PARAMS = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


class Rerun(FakeRecorder):
    """Its replays call the step again."""

    def record(self, step: Callable[[], object]) -> Any:
        return SimpleNamespace(replay=step)


def completed(model: GPT2, refreshed: bool) -> tuple[list[Completion], int]:
    """Greedy texts by engine `fused` after a change of weights in place, and its decode steps."""
    with warnings.catch_warnings():  # that a CPU records nothing: the fake does
        warnings.simplefilter("ignore", RuntimeWarning)
        llm = LLM(model, engine="fused", max_batch=2, max_graph_batch=2)
    core: Any = llm.core
    core.recorder, core.pinned, core.mixed = Rerun(), True, False
    core.forwards = [FusedForward(llm.model, core.cache, core.state)]
    core.samplers = AllSamplers(sampling.sample, sampling.sample, sampling.sample, core.samplers.scoring)
    with torch.no_grad():
        model.layers[0].c_fc[0].neg_()
    if refreshed:
        core.forwards[0].refresh()
    stats: Any = llm.stats
    return llm.generate(PROMPTS, PARAMS), stats.computed_by["fused"]


def main() -> None:
    """Tokens of the engine held against the oracle's, after other weights are loaded: with `refresh`, and without."""
    for name, refreshed in (("fused", True), ("without refresh", False)):
        model = random_model(SHAPE, 3, std=0.1)  # weights on which a mistake shows
        done, steps = completed(model, refreshed)
        try:
            told = f"{verify_tokens(LLM(model, engine='naive').forward_logits, done, PARAMS)}\n{steps} steps by fused"
        except AssertionError as error:
            told = textwrap.fill(f'"{error}"', 76)
        print(textwrap.indent(told, " " * 24).replace(" " * 24, f"{name:24}", 1))


if __name__ == "__main__":
    main()
