"""Penalties and logprobs, of new tokens and of a prompt's own, in every engine. Chapter 5."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.cpu_sampling import SAMPLERS
from nanoinfer.engine.device import DeviceEngine, Launch
from nanoinfer.engine.engine import Sequence, Work
from nanoinfer.engine.mixed import MixedEngine
from nanoinfer.engine.penalties import logprobs, penalised, prompt_logprobs
from nanoinfer.engine.queue import QueueEngine, Token
from nanoinfer.engine.samplers import cheapest
from nanoinfer.engine.sampling import Choices
from nanoinfer.engine.state import Fetch, upload
from nanoinfer.model.batch import Batch
from nanoinfer.model.gpt2 import GPT2, Attend, Cache

SCORING = 3  # which of `AllSamplers` serves rows with penalties or logprobs


class ScoringModel:
    """While it is entered, the engine's model, and looks at prompts too: `scores` are the logprobs of what is wanted.

    wanted: for each chunk of the step, the tokens that follow its own, or none. counts: how many tokens each chunk has.
    """

    def __init__(self, engine: Any, wanted: list[tuple[int, ...]], counts: Iterable[int]) -> None:
        self.engine, starts = engine, accumulate(counts, initial=0)
        self.model: GPT2 = engine.model
        at = [place for start, ids in zip(starts, wanted, strict=False) for place in range(start, start + len(ids))]
        next_ids = [token for ids in wanted for token in ids]
        self.scored_at, self.next_ids = upload([at, next_ids], torch.int64, self.model.device)  # (S,) each

    def __enter__(self) -> ScoringModel:
        self.engine.model = self
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.model = self.model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, batch: Batch, cache: Cache) -> Tensor:
        return type(self.model).forward(self, batch, cache)  # type: ignore[arg-type]  # over this one's `hidden`

    def hidden(self, batch: Batch, attend: Attend) -> Tensor:
        hidden = self.model.hidden(batch, attend)  # (N, C)
        self.scores = prompt_logprobs(self.model, hidden[self.scored_at], self.next_ids)
        return hidden


def joined(tokens: list[int], own: Any, scores: Any, wanted: list[tuple[int, ...]]) -> list[Token]:
    """Each token with its logprobs, if there are any, and those of the prompt's tokens that were wanted before it."""
    rest = iter(scores or ())
    of_prompts = [[*islice(rest, len(ids))] for ids in wanted or [()] * len(tokens)]
    return [Token(*each) for each in zip(tokens, own or [None] * len(tokens), of_prompts, strict=True)]


class PlainScores(QueueEngine):
    """Over chapter 1's engine: whatever is counted, the host brings. Each step has the cheapest sampler that serves."""

    own: Any = None  # logprobs of the tokens that were just chosen

    def run(self, work: list[Work]) -> list[Any]:
        wanted, self.own = [s.following(start, count) for s, start, count in work], None
        asked = ScoringModel(self, wanted, [count for *_, count in work]) if any(wanted) else nullcontext()
        with asked as model:
            tokens = super().run(work)
        scores = model.scores.tolist() if model else None
        return joined(tokens, self.own, scores, wanted) if self.own or scores else tokens

    def choose(self, logits: Tensor, sequences: list[Any]) -> Tensor:
        params = [s.params for s in sequences]
        kind = max(map(cheapest, params))
        sampler = SAMPLERS[kind]  # the first, greedy, looks at no row
        rows: Any = Choices.of([(s.request, s.generated) for s in sequences], logits.device) if kind else None
        if not any(each.scores for each in params):
            return sampler(logits, rows)
        V, device, logits = logits.shape[-1], logits.device, logits.float()
        counts = [torch.bincount(torch.tensor(s.token_ids, dtype=torch.int64), minlength=V) for s in sequences]
        weights = [[each.presence_penalty for each in params], [each.frequency_penalty for each in params]]
        penalties = torch.tensor(weights, device=device)[..., None]  # (2, B, 1)
        tokens = sampler(penalised(logits, torch.stack(counts).to(device), *penalties), rows)
        self.own = logprobs(logits, tokens).tolist()
        return tokens


class ScoredBegun(NamedTuple):
    """A `Begun`, with the tokens that the sequence had generated before, where they are penalised."""

    row: int
    seed: int
    step: int
    params: Any
    token_ids: list[int]


class ScoredFetch(NamedTuple):
    """Tokens and their numbers on their way to the host."""

    tokens: Fetch
    own: Fetch | None
    scores: Fetch | None
    wanted: list[tuple[int, ...]]

    @property
    def arrived(self) -> bool:
        return self.tokens.arrived

    def wait(self) -> list[Token]:
        """The tokens; on a GPU, the host waits here until they have arrived."""
        own, scores = (each and each.wait() for each in (self.own, self.scores))
        return joined(self.tokens.wait(), own, scores, self.wanted)


class DeviceScores(MixedEngine):
    """Over the state on the device: `samplers.scoring` counts what is generated, and keeps logprobs by row."""

    scores: Tensor  # logprobs of prompts in the step that was launched last

    def kind(self, s: Sequence) -> int:
        return SCORING if s.params.scores else super().kind(s)  # type: ignore[attr-defined]

    def begun(self, s: Any) -> Any:
        return ScoredBegun(*super().begun(s), s.token_ids if s.params.penalises else [])

    def move(self, sources: Tensor, targets: Tensor) -> None:
        super().move(sources, targets)
        self.samplers.scoring.move(sources, targets)

    def place(self, step: Launch) -> None:
        super().place(step)
        for each in step.begun:
            self.samplers.scoring.admit(each.row, each.params, each.token_ids)  # type: ignore[attr-defined]

    def prefill(self, prefill: Any, sampler: Any) -> Tensor:
        if not any(prefill.wanted):
            return super().prefill(prefill, sampler)
        self.eager("logprobs of a prompt")
        counts = [1] * len(prefill.going) + [len(each.token_ids) for each in prefill.chunks]
        with ScoringModel(self, prefill.wanted, counts) as model:
            tokens = DeviceEngine.prefill(self, prefill, sampler)
        self.scores = model.scores
        return tokens

    def fetch(self, step: Any) -> Any:
        tokens, prefill = super().fetch(step), step.prefill
        wanted = prefill.wanted if prefill else []
        if step.sampler < SCORING and not any(wanted):
            return tokens
        rows = [*prefill.going, *(each.row for each in prefill.chunks)] if prefill else range(step.live)
        own = self.samplers.scoring.fetch(rows) if step.sampler == SCORING else None
        return ScoredFetch(tokens, own, Fetch(self.scores) if any(wanted) else None, wanted)
