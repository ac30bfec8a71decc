"""Penalties and logprobs, of new tokens and of a prompt's own, in every engine. Chapter 5."""

from __future__ import annotations

from collections.abc import Sequence as Ints
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.device import DeviceEngine, Launch
from nanoinfer.engine.engine import Sequence, Work
from nanoinfer.engine.logprobs import logprobs, prompt_logprobs
from nanoinfer.engine.mixed import Mixed, MixedEngine
from nanoinfer.engine.queue import Listener, Queued, QueueEngine
from nanoinfer.engine.state import Fetch, upload
from nanoinfer.model.batch import Batch
from nanoinfer.model.gpt2 import GPT2, Cache
from nanoinfer.requests import Request, SamplingParams


@dataclass(eq=False)
class Scored(Queued):
    """A `Queued` sequence with the logprobs of its tokens, and of its prompt's, as they reach the host."""

    logprobs: list[list[float]] = field(default_factory=list)
    prompt_logprobs: list[list[float]] = field(default_factory=list)


class Token(NamedTuple):
    """A token that comes with numbers: its own, and those of the tokens of the prompt that were fed."""

    token: int
    values: list[float] | None
    prompt: list[list[float]] | None


class ScoringModel:
    """A model for one step that looks at prompts too: `scores` are the logprobs of next_ids (S,).

    scored_at: (S,) int64, after which tokens of the batch each of these stands.
    """

    def __init__(self, model: GPT2, scored_at: Tensor, next_ids: Tensor) -> None:
        self.model, self.scored_at, self.next_ids = model, scored_at, next_ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, batch: Batch, cache: Cache) -> Tensor:
        plan = cache.plan(batch)
        hidden = self.model.hidden(batch, partial(cache.attend, plan))  # (N, C)
        self.scores = prompt_logprobs(self.model, hidden[self.scored_at], self.next_ids)
        return self.model.head(batch.last(hidden))


def following(s: Any, start: int, count: int) -> tuple[int, ...]:
    """The prompt's tokens that follow those of a chunk of it, where their logprobs are wanted."""
    wanted = s.params.prompt_logprobs is not None
    return s.request.prompt_token_ids[start + 1 : start + 1 + count] if wanted else ()


class ScoreEngine(QueueEngine):
    """What both kinds of engine do with scores once they have them."""

    def sequence(self, request: Request, listener: Listener | None, every_token: bool, asked: float) -> Queued:
        return Scored(request, listener=listener, every_token=every_token, asked=asked)

    def submit(self, request: Request, listener: Listener | None = None, **settings: Any) -> Queued:
        s: Any = super().submit(request, listener, **settings)
        s.logprobs += [[] for _ in range(s.generated)]
        return s  # type: ignore[no-any-return]

    def settle(self, work: list[Work], tokens: list[Any]) -> list[Sequence]:
        """Keep what comes with the tokens, ahead of them: a reader may be another thread.

        Logprobs of prompts are kept by place: a sequence that was preempted gets the same ones again.
        """
        if not tokens or not isinstance(tokens[0], Token):
            return super().settle(work, tokens)
        s: Any
        for (s, start, count), (_, values, prompt) in zip(work, tokens, strict=True):
            if prompt and not s.ended:
                s.prompt_logprobs[start : start + len(prompt)] = prompt
            if s.params.logprobs is not None and s.request.limit and start + count == len(s.tokens) and not s.ended:
                s.logprobs.append(values)
        return super().settle(work, [token.token for token in tokens])

    def take(self, s: Any, token: int) -> None:
        if s.request.limit:
            super().take(s, token)
        else:  # its prompt's logprobs were all that was asked for
            self.stats.new_tokens -= 1
            s.times.append(self.now)
            s.finish_reason = "length"
            self.leave(s)
            self.heard(s)


class PlainScores(ScoreEngine):
    """Scores over chapter 1's engine: whatever is counted, the host brings."""

    values: list[Any] | None = None  # logprobs of the tokens that were just chosen

    def run(self, work: list[Work]) -> list[Any]:
        wanted = [following(*w) for w in work]
        self.values, model = None, self.model
        if any(wanted):
            self.model = scoring_model(model, wanted, [count for _, _, count in work])  # type: ignore[assignment]
        try:
            tokens = super().run(work)
            scores = iter(self.model.scores.tolist() if any(wanted) else ())  # type: ignore[operator]
        finally:
            self.model = model
        if self.values is None and not any(wanted):
            return tokens
        values = self.values or [None] * len(work)
        return [
            Token(token, each, list(islice(scores, len(ids))))
            for token, each, ids in zip(tokens, values, wanted, strict=True)
        ]

    def choose(self, logits: Tensor, sequences: list[Any]) -> Tensor:
        if not any(s.params.scores for s in sequences):
            return super().choose(logits, sequences)
        logits = logits.float()
        counts = torch.zeros(logits.shape, dtype=torch.int32)  # (B, V), how often each id was generated
        for count, s in zip(counts, sequences, strict=True):
            new = torch.tensor(s.tokens[len(s.request.prompt_token_ids) :], dtype=torch.int64)
            count.index_add_(0, new, torch.ones_like(new, dtype=torch.int32))
        weights = torch.tensor([[s.params.presence_penalty, s.params.frequency_penalty] for s in sequences])
        counts, weights = counts.to(logits.device), weights.to(logits.device)  # (B, V), (B, 2)
        tokens = super().choose(logits - weights[:, :1] * (counts > 0) - weights[:, 1:] * counts, sequences)
        self.values = logprobs(logits, tokens).tolist()
        return tokens


def scoring_model(model: GPT2, wanted: list[tuple[int, ...]], counts: list[int]) -> ScoringModel:
    """The model for a step of chunks of so many tokens each, and the tokens that follow them, where they are wanted."""
    starts = accumulate(counts, initial=0)
    at = [token for start, ids in zip(starts, wanted, strict=False) for token in range(start, start + len(ids))]
    scored_at, next_ids = upload([at, [token for ids in wanted for token in ids]], torch.int64, model.device)
    return ScoringModel(model, scored_at, next_ids)


class ScoredPiece(NamedTuple):
    """A `Piece`, and the tokens that follow its own in the prompt, where their logprobs are wanted."""

    row: int
    start: int
    token_ids: Ints[int]
    complete: bool
    following: tuple[int, ...]


class ScoredBegun(NamedTuple):
    """A `Begun`, with the tokens that the sequence had generated before, where they are penalised."""

    row: int
    seed: int
    step: int
    params: SamplingParams
    token_ids: list[int]


class DeviceScores(ScoreEngine, MixedEngine):
    """Scores over the state on the device: `samplers.scoring` counts what is generated, and keeps logprobs by row."""

    scores: Tensor  # logprobs of prompts in the step that was launched last

    def kind(self, s: Any) -> int:
        return 3 if s.params.scores else super().kind(s)

    def begun(self, s: Any) -> Any:
        known = s.tokens[len(s.request.prompt_token_ids) :] if s.params.penalises else []
        return ScoredBegun(s.row, s.request.seed, s.generated, s.params, known)

    def piece(self, work: Work) -> Any:
        row, start, token_ids, complete = super().piece(work)
        return ScoredPiece(row, start, token_ids, complete, following(*work))

    def move(self, sources: Tensor, targets: Tensor) -> None:
        super().move(sources, targets)
        self.samplers.scoring.move(sources, targets)

    def place(self, step: Launch) -> None:
        super().place(step)
        for each in step.begun:
            self.samplers.scoring.admit(each.row, each, each.token_ids)  # type: ignore[attr-defined]

    def prefill(self, prefill: Any, sampler: Any) -> Tensor:
        if not scores_prompts(prefill):
            return super().prefill(prefill, sampler)
        wanted = prefill_scores(prefill)
        self.eager("logprobs of a prompt")
        model = self.model
        counts = [1] * len(prefill.going) + [len(piece.token_ids) for piece in prefill.chunks]
        self.model = scoring_model(model, wanted, counts)  # type: ignore[assignment]
        try:
            tokens = DeviceEngine.prefill(self, prefill, sampler)
            self.scores = self.model.scores  # type: ignore[assignment]
        finally:
            self.model = model
        return tokens

    def fetch(self, step: Launch) -> Any:
        tokens = super().fetch(step)
        prefill: Any = step.prefill
        scored = prefill is not None and scores_prompts(prefill)
        if step.sampler < 3 and not scored:
            return tokens
        wanted = prefill_scores(prefill) if prefill else []
        rows = prefill.going + [piece.row for piece in prefill.chunks] if prefill else list(range(step.live))
        values = self.samplers.scoring.fetch(rows) if step.sampler == 3 else None
        return ScoredFetch(tokens, values, Fetch(self.scores) if scored else None, wanted)


def scores_prompts(prefill: Mixed) -> bool:
    """Whether logprobs of a prompt's tokens are wanted of a step."""
    return any(piece.following for piece in prefill.chunks)


def prefill_scores(prefill: Mixed) -> list[tuple[int, ...]]:
    """Of each sequence of a step, the tokens of its prompt whose logprobs are wanted."""
    return [()] * len(prefill.going) + [piece.following for piece in prefill.chunks]


class ScoredFetch(NamedTuple):
    """Tokens and their numbers on their way to the host."""

    tokens: Fetch
    values: Fetch | None
    scores: Fetch | None
    wanted: list[tuple[int, ...]]

    @property
    def arrived(self) -> bool:
        return self.tokens.arrived

    def wait(self) -> list[Token]:
        """The tokens; on a GPU, the host waits here until they have arrived."""
        tokens = self.tokens.wait()
        values = self.values.wait() if self.values else [None] * len(tokens)
        scores = iter(self.scores.wait() if self.scores else ())
        prompts: list[Any] = [list(islice(scores, len(ids))) for ids in self.wanted] or [None] * len(tokens)
        return [Token(*each) for each in zip(tokens, values, prompts, strict=True)]
