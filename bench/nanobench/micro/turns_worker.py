"""What one checkout does for `turns.py`: a script that runs with that checkout's package, whatever its age."""

from __future__ import annotations

import json
import sys
import time
from random import Random
from typing import Any

import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.config import PRESETS
from nanoinfer.model.weights import random_model

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
MANY = 1000  # a batch of so many is run as requests of mixed lengths, 256 at a time
PROMPT, NEW = 64, 128  # tokens of each sequence of a smaller batch

cuda = torch.cuda.is_available()
kept: dict[str, LLM] = {}
models: dict[str, Any] = {}


def run(case: str) -> float:
    """Tokens a second of one generation; a case is MODEL:ENGINE:BATCH, its engine kept until another comes."""
    name, engine, batch = case.split(":")
    count, random = int(batch), Random(1)
    if case not in kept:
        for llm in kept.values():
            llm.close()
        kept.clear()
        if name in PRESETS and name not in models and name != "small":
            dtype = torch.bfloat16 if cuda else torch.float32
            models[name] = random_model(PRESETS[name], 0, device=torch.device("cuda" if cuda else "cpu"), dtype=dtype)
        kept[case] = LLM(models.get(name, name), engine=engine, max_batch=min(count, 256))
    lengths = [(PROMPT, NEW)] * count
    if count == MANY:
        lengths = [(random.randint(10, 300), random.randint(10, 200)) for _ in range(count)]
    prompts = [[random.randrange(50000) for _ in range(prompt)] for prompt, _ in lengths]
    begin = time.perf_counter()
    done = kept[case].generate(prompts, [SamplingParams(max_tokens=new, **GREEDY) for _, new in lengths])
    return sum(len(each.token_ids) for each in done) / (time.perf_counter() - begin)


for line in sys.stdin:
    try:
        answer: float | str = run(line.strip())
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), flush=True)
