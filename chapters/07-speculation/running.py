"""The running example of chapter 7: one row with drafts, in parts that a mistake can replace.

In float64, so that every machine prints the same digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanobook.examples import load
from nanobook.running import decode, encode, model
from nanoinfer import LLM
from nanoinfer.cache.dense import DenseCache
from nanoinfer.engine.sampling import gumbel
from nanoinfer.model.batch import Batch
from nanoinfer.model.gpt2 import GPT2

FOX = "The fox said to the hare, Come with me. The hare said to the fox,"
SEED, HEAT = 5, 0.8  # of the sampled texts: seed and temperature


class Step(NamedTuple):
    """What one step fed after the row's newest token, what the model chose after each, and what the row kept."""

    drafts: list[int]
    chosen: list[int]
    kept: list[int]


class Text:
    """One row that is drafted by what followed its last tokens before. heat: the temperature; 0 is greedy."""

    def __init__(self, prompt: str, heat: float = 0.0, k: int = 4, stops: Sequence[int] = (), seed: int = SEED) -> None:
        self.ids, self.heat, self.k, self.stops, self.seed = encode(prompt), heat, k, stops, seed
        self.prompt, self.in_cache, self.steps, self.ended = len(self.ids), 0, [], False
        self.cache = DenseCache(model().config, 1, 256, torch.device("cpu"), torch.float64)

    def run(self, new: int) -> Text:
        """Go on, by so many tokens at most."""
        end = self.prompt + new
        while len(self.ids) < end and not self.ended:
            fed = self.ids[-1:] if self.in_cache else self.ids
            drafts = self.drafts(min(self.k, end - len(self.ids) - 1))
            chosen = self.choose(self.logits([*fed, *drafts])[-len(drafts) - 1 :])
            kept = self.kept(drafts, chosen)
            self.in_cache += self.written(len(fed), drafts, kept)
            for token in kept:
                self.ids.append(token)
                if self.stopped(token, token is kept[-1]):
                    self.ended = True
                    break
            self.steps.append(Step(drafts, chosen, kept))
        return self

    def drafts(self, most: int) -> list[int]:
        """What followed the last two tokens, where they stood last."""
        return list(load(Path(__file__).parent / "small.py").guess(self.ids, most))

    @torch.inference_mode()
    def logits(self, new: Sequence[int]) -> Tensor:
        """(T, V) after each of T new tokens, which are written after what the cache holds."""
        T, at = len(new), self.in_cache
        positions, slots = torch.arange(at, at + T), torch.zeros(T, dtype=torch.int64)
        batch = Batch(torch.tensor(new), positions, slots, torch.tensor([0, T]), T, at)
        hidden = model().hidden(batch, partial(self.cache.attend, self.cache.plan(batch)))  # (T, C)
        return model().head(hidden)

    def noise_steps(self, count: int) -> list[int]:
        """Which noise each of the tokens is chosen with: that of its place among the row's new tokens."""
        begin = len(self.ids) - self.prompt
        return list(range(begin, begin + count))

    def choose(self, logits: Tensor) -> list[int]:
        """As the engine's samplers: the highest of logit / temperature + noise."""
        if not self.heat:
            return list(logits.argmax(-1).tolist())
        steps = torch.tensor(self.noise_steps(len(logits)))
        noise = gumbel(torch.full_like(steps, self.seed), steps, logits.shape[-1])
        return list((logits / self.heat + noise).argmax(-1).tolist())

    def kept(self, drafts: Sequence[int], chosen: Sequence[int]) -> list[int]:
        """The drafts that were chosen, up to the first that was not, and the token that was chosen there."""
        right = next((at for at, (draft, token) in enumerate(zip(drafts, chosen, strict=False)) if draft != token),
                     len(drafts))  # fmt: skip
        return list(chosen[: right + 1])

    def written(self, fed: int, drafts: Sequence[int], kept: Sequence[int]) -> int:
        """How many of the step's tokens are the row's own. The rest lie after its end, and are written over."""
        return fed + len(kept) - 1

    def stopped(self, token: int, last: bool) -> bool:
        """Whether the text ends with this token. last: of its step."""
        return token in self.stops

    def __str__(self) -> str:
        return decode(self.ids[self.prompt :])


class NoiseOfTheStep(Text):
    """All tokens of a step are chosen with the noise of one place: of how many steps there have been."""

    def noise_steps(self, count: int) -> list[int]:
        return [len(self.steps)] * count


class RejectedKept(Text):
    """What the step fed stays in the cache, and what comes next goes after it."""

    def written(self, fed: int, drafts: Sequence[int], kept: Sequence[int]) -> int:
        return fed + len(drafts)


class LastAlone(Text):
    """Whether the text ends is asked of a step's last token alone."""

    def stopped(self, token: int, last: bool) -> bool:
        return last and token in self.stops


class Plain(Text):
    """No drafts."""

    def drafts(self, most: int) -> list[int]:
        return []


def llm(engine: str = "dense", **settings: Any) -> LLM:
    """The small model, in float64. All drafts are brought unless something else is asked for."""
    return LLM(model(), engine=engine, **{"max_batch": 1, "max_len": 256, "adaptive_drafts": False, **settings})


@cache
def shallow(layers: int) -> GPT2:
    """The small model without its last layers: a worse one, with the same vocabulary, which drafts in less time."""
    from dataclasses import replace

    made = GPT2(replace(model().config, n_layer=layers), dtype=torch.float64)
    made.load_state_dict({name: value for name, value in model().state_dict().items() if name in made.state_dict()})
    return made.eval()
