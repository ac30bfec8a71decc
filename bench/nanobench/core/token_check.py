"""Correctness before speed: tokens held against naive's logits, in float32, on weights on which mistakes show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from nanobench.core.case_runner import free, random_prompts
from nanobench.core.model_shapes import load_config
from nanobench.core.records import Proof
from nanobench.systems import ON_REQUEST, UNFUSED, Contestant, Limits, make
from nanobench.systems.ours import Ours
from nanoinfer import LLM, SamplingParams
from nanoinfer.llm import ENGINES
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.requests import Completion, Metrics
from nanoinfer.verify import prove_tokens

STD = 0.1  # of the random weights: on GPT-2's own 0.02 a hidden key may change no token
ROWS, PROMPT = 8, 24
NEW_TOKENS = 40  # so that ragged rows of 1 to 22 tokens grow over two or three block boundaries


def provable(engine: str) -> bool:
    """Whether an engine is our own code; peers are taken at their word."""
    return engine in ENGINES or engine in UNFUSED or (engine in ON_REQUEST and engine.startswith("dense-"))


def proofs(model_name: str, engines: Sequence[str], device: torch.device) -> Iterator[Proof]:
    """A proof of each engine, for this shape of model with random weights. AssertionError where one is wrong."""
    if not engines:
        return
    shape = load_config(model_name)
    model = random_model(shape, seed=1, std=STD, device=device)
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    oracle = LLM(model, engine="naive").forward_logits
    limits = Limits(PROMPT + NEW_TOKENS, ROWS)
    for engine in engines:
        try:
            contestant = make(engine, model, limits)
        except ValueError:
            continue  # it does not do this model: its cases will say so
        proof = prove_tokens(oracle, _completions(contestant, model, params), params)
        yield Proof(engine=engine, model=model_name, batch=ROWS, tokens=proof.tokens, near_ties=proof.near_ties)
        del contestant
        free(device)


def _completions(contestant: Contestant, model: GPT2, params: SamplingParams) -> list[Completion]:
    """What an engine makes of ragged prompts; the other contestants take prompts of one length."""
    prompts = random_prompts(ROWS, PROMPT, model.config.vocab_size, seed=1)
    if isinstance(contestant, Ours):
        ragged = [prompt[: 3 * i + 1] for i, prompt in enumerate(prompts.tolist())]
        return contestant.llm.generate(ragged, params)
    rows = contestant.generate(prompts, params.max_tokens)
    nothing = Metrics(0.0, ())
    return [
        Completion(i, tuple(prompt), tuple(row), "", "length", 0, nothing)
        for i, (prompt, row) in enumerate(zip(prompts.tolist(), rows, strict=True))
    ]
