"""Correctness before speed: tokens against naive's logits, in float32, on weights with which mistakes show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from nanobench.core.case_runner import random_prompts, release_memory
from nanobench.core.records import TokenCheck
from nanobench.systems import ON_REQUEST, UNFUSED, make
from nanobench.systems.base import Limits, System
from nanobench.systems.ours import Ours
from nanoinfer import LLM, SamplingParams
from nanoinfer.config import ENGINES
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import model_config, random_model
from nanoinfer.requests import Completion, Metrics
from nanoinfer.verify import verify_tokens

STD = 0.1  # of the random weights: with GPT-2's own 0.02, hiding a key may change no token
ROWS, PROMPT = 8, 24
NEW_TOKENS = 40  # so that ragged rows of 1 to 22 tokens grow over two or three block boundaries


def is_ours(engine: str) -> bool:
    """Whether a system runs our own code: the tokens of peers are not checked."""
    return engine in ENGINES or engine in UNFUSED or (engine in ON_REQUEST and engine.startswith("dense-"))


def check_tokens(model_name: str, engines: Sequence[str], device: torch.device) -> Iterator[TokenCheck]:
    """Check each engine on this shape of model, with random weights. AssertionError where a token is wrong."""
    if not engines:
        return
    model = random_model(model_config(model_name), seed=1, std=STD, device=device)
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    oracle = LLM(model, engine="naive").forward_logits
    for engine in engines:
        try:
            system = make(engine, model, Limits(PROMPT + NEW_TOKENS, ROWS))
        except ValueError:
            continue  # it cannot run this model: its cases will say so
        found = verify_tokens(oracle, _completions(system, model, params), params)
        yield TokenCheck(engine=engine, model=model_name, batch=ROWS, tokens=found.tokens, near_ties=found.near_ties)
        del system
        release_memory(device)


def _completions(system: System, model: GPT2, params: SamplingParams) -> list[Completion]:
    """What a system generates: the engines from ragged prompts, the others, which take one length, from whole ones."""
    prompts = random_prompts(ROWS, PROMPT, model.config.vocab_size, seed=1)
    if isinstance(system, Ours):
        ragged = [prompt[: 3 * i + 1] for i, prompt in enumerate(prompts.tolist())]
        return system.llm.generate(ragged, params)
    rows = system.generate(prompts, params.max_tokens)
    return [
        Completion(i, tuple(prompt), tuple(row), "", "length", 0, Metrics(0.0, ()))
        for i, (prompt, row) in enumerate(zip(prompts.tolist(), rows, strict=True))
    ]
