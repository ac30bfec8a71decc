"""Five hundred requests, and the tokens that the engine of before the rungs (ded77c2) gave them.

`python -m tests.engine.recorded` writes recorded.json with the tokens of whatever engine is installed. It was run once,
at ded77c2: to run it again is to give the record up.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model, random_model

FILE = Path(__file__).with_name("recorded.json")
# Odd sizes on purpose: a vocabulary that is padded, a head size of its own, a context that is no power of two.
ODD = ModelConfig(n_layer=3, n_head=4, n_embd=48, n_positions=100, vocab_size=211)
OPENINGS = [
    "Once upon a time",
    "The fox",
    "“Where are you",
    "She",
    "Über den See",
    "There was once a king who had three",
]


class Group(NamedTuple):
    """Requests of one model. longest: prompt and new tokens of the longest."""

    count: int
    longest: int

    def model(self, name: str) -> GPT2:
        """The model of that name, in float32 on the CPU."""
        if name == "small":
            return load_model("small", torch.device("cpu"), torch.float32)
        return random_model({"odd": ODD, "gpt2": PRESETS["gpt2"]}[name], seed=1, std=0.1 if name == "gpt2" else 0.25)

    def requests(self, name: str) -> tuple[list[Any], list[SamplingParams]]:
        """Prompts and parameters: ragged, up to the last position, greedy, sampled, filtered, stopped, penalised."""
        draw = random.Random(f"{name} {self.count}")
        prompts: list[Any] = []
        params = []
        for n in range(self.count):
            length = draw.choice([1, 2, draw.randint(3, 12), draw.randint(13, self.longest - 1)])
            ids = [draw.randrange(ODD.vocab_size) for _ in range(length)]
            prompts.append(draw.choice(OPENINGS) if name == "small" and n % 2 else ids)
            params.append(
                SamplingParams(
                    max_tokens=self.longest if n % 20 == 0 else draw.randint(1, 24),
                    temperature=0.0 if n % 3 == 0 else draw.choice([0.5, 0.8, 1.0, 1.7]),
                    top_k=draw.choice([0, 0, 1, 5, 40]),
                    top_p=draw.choice([1.0, 1.0, 0.9, 0.3]),
                    seed=n,
                    stop=draw.choice([(), (), (), ("e",), ("the", " w"), (".",)]),
                    stop_token_ids=draw.choice([(), (), (7, 11), (13,)]),
                    ignore_eos=n % 5 == 0,
                    presence_penalty=draw.choice([0.0, 0.0, 0.0, 0.5]),
                    frequency_penalty=draw.choice([0.0, 0.0, 0.0, -0.2]),
                )
            )
        return prompts, params


GROUPS = {"odd": Group(320, 100), "small": Group(160, 60), "gpt2": Group(20, 24)}


def main() -> None:
    """Write the record."""
    tokens = {}
    for name, group in GROUPS.items():
        with LLM(group.model(name), engine="naive", max_batch=8) as llm:
            tokens[name] = [completion.token_ids for completion in llm.generate(*group.requests(name))]
    lines = (f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, of)) + "\n]" for name, of in tokens.items())
    FILE.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
