"""Several tokens a step: drafts go in beside the newest token, and what is right of them comes out. Chapter 7.

Position i of a text is sampled with its own noise, a function of (seed, i, id), so what a sequence chooses there
depends on the text before it alone. A draft is kept as long as it is what was chosen in its place: then the text that
the model read after it was the sequence's own, and the tokens are those of plain decoding, sampled ones too. The idea
that drafter and model share their noise: Daliri, Musco, Suresh 2024, "Coupling without Communication and
Drafter-Invariant Speculative Decoding". Drafts and verification: Leviathan et al. 2023, "Fast Inference from
Transformers via Speculative Decoding".
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Lists
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.engine import Sequence, Work
from nanoinfer.engine.queue import Queued, QueueEngine
from nanoinfer.engine.scores import PlainScores
from nanoinfer.model.batch import Batch
from nanoinfer.requests import Request, SamplingParams
from nanoinfer.speculate.drafts import DeviceDrafter, Drafter, agreeing
from nanoinfer.speculate.pays import Pays


@dataclass(eq=False)
class Drafting(Queued):
    """A `Queued` sequence that may bring drafts. ahead: tokens that it may have been fed beyond `cached`."""

    ahead: int = 0


class Run(NamedTuple):
    """The tokens that a sequence chose in one step, and how many drafts it had brought."""

    tokens: Lists[int]
    drafts: int


class DraftEngine(QueueEngine):
    """A `QueueEngine` whose decoding sequences bring up to `draft_tokens` drafts, where that pays.

    Prompts, penalties and logprobs have steps without drafts. pays: None brings as many drafts as there may be.
    """

    sequence = Drafting

    def __init__(self, *args: Any, drafter: Drafter, draft_tokens: int, adaptive: Pays | None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.draft_tokens, self.adaptive, self.seconds = draft_tokens, adaptive, 0.0
        self.drafts: list[Lists[int]] = []  # of the work of this step; none: it is a plain one
        self.begin_with(drafter)

    def begin_with(self, drafter: Drafter) -> None:
        """Take drafts from this one, while no sequence runs."""
        self.drafter = drafter
        self.texts = drafter if isinstance(drafter, DeviceDrafter) else None

    def leave(self, s: Sequence) -> None:
        if self.texts:
            self.texts.forget([s])  # type: ignore[list-item]
        super().leave(s)

    def step(self) -> list[Sequence]:
        """As the base's; steps of decoding sequences alone are timed, and looked at.

        A call that only waits for the steps before counts for the next one.
        """
        began, steps, captures = time.perf_counter(), self.stats.decode_steps, getattr(self.stats, "capture_s", 0)
        settled = super().step()
        self.seconds += time.perf_counter() - began - getattr(self.stats, "capture_s", 0) + captures
        seconds, self.seconds = self.seconds, 0.0 if self.fed or not self.busy else self.seconds
        if self.adaptive and self.fed and self.stats.decode_steps > steps:
            self.adaptive.note_step(len(self.fed), seconds, bool(self.drafts))
            if not self.drafts:
                self.adaptive.look(self.drafter, [s for s, _, _ in self.fed], self.draft_tokens)
        return settled

    def drafting(self) -> bool:
        """Whether the next step may bring drafts: all that runs decodes, and nobody could be admitted."""
        steady = self.running and not (self.waiting and self.free)
        if not steady or not all(s.decoding and not s.params.scores for s in self.running):
            return False
        return not self.adaptive or self.adaptive.draft(self.running, self.draft_tokens, not self.waiting)

    def limits(self, work: list[Work]) -> list[int]:
        """How many drafts each sequence may bring: within the budget, its end, and the room that there is."""
        most = min(self.draft_tokens, max(0, self.budget - len(work)) // max(1, len(work)))
        limits = []
        for s, start, count in work:
            limit = min(most, s.end - 1 - start - count - s.ahead)
            limit = self.adaptive.most(s, limit) if self.adaptive and limit > 0 else limit
            limits.append(max(0, self.room_for(s, limit) if self.blocks else limit))
        return limits

    def room_for(self, s: Any, limit: int) -> int:
        """Of so many drafts, how many there is room for: the last blocks are left to others."""
        need: int = min(s.cached + s.ahead + 1, s.end)  # one that may have come to its end runs on until that is known
        if self.blocks.available > len(self.running) and self.blocks.claim(s.row, need + limit):
            return limit
        return min(limit, int(self.blocks.room(s.row)) - need)

    def settle(self, work: list[Work], tokens: list[Any]) -> list[Sequence]:
        """Give each sequence its tokens one by one, as if each had come in a step of its own, at the same time."""
        if not tokens or not isinstance(tokens[0], Run):
            return super().settle(work, tokens)
        for (s, _, _), run in zip(work, tokens, strict=True):
            if s.ended or not run.tokens:
                continue
            accepted = len(run.tokens) - 1
            self.stats.draft_tokens += run.drafts
            self.stats.accepted_tokens += accepted
            if self.adaptive and run.drafts:
                self.adaptive.note(s, run.drafts, accepted)
        settled: dict[Sequence, None] = {}
        self.now = time.perf_counter()
        for n in range(max(len(run.tokens) for run in tokens)):
            each = [(s, run.tokens[n]) for (s, _, _), run in zip(work, tokens, strict=True) if n < len(run.tokens)]
            now = [(s, len(s.tokens) - 1, 1) for s, _ in each]
            settled |= dict.fromkeys(self.give(now, [token for _, token in each]))
        return list(settled)


class Place(NamedTuple):
    """A sequence as it will be when so many tokens have been generated: what the choice of the next one goes by."""

    request: Request
    generated: int

    @property
    def params(self) -> SamplingParams:
        return self.request.params


class Guessed(NamedTuple):
    """A sequence as it will be if its drafts are right: what its part of a batch is made of."""

    row: int
    tokens: list[int]


class PlainDrafts(DraftEngine, PlainScores):
    """Drafts over chapter 1's engine: a sequence brings its newest token and its drafts, as if they were its text."""

    def schedule(self) -> list[Work]:
        drafting, self.drafts = self.drafting(), []
        work = super().schedule()
        if drafting and self.decoded == len(work) and any(limits := self.limits(work)):
            drafts = self.drafter.draft([s for s, _, _ in work], limits)
            self.drafts = [draft[:limit] for draft, limit in zip(drafts, limits, strict=True)]
        return work

    @torch.inference_mode()
    def run(self, work: list[Work]) -> list[Any]:
        if not any(self.drafts):
            self.drafts = []
            return super().run(work)
        batch = self.lay_out(work)
        after: list[int] = []  # of the batch's tokens, those after which one is chosen
        for (s, start, count), draft, end in zip(work, self.drafts, batch.starts[1:].tolist(), strict=True):
            after += range(end - len(draft) - 1, end)
            s.cached = self.cache.keep(s, start + count + len(draft))
        plan = self.cache.plan(batch)
        hidden = self.model.hidden(batch, partial(self.cache.attend, plan))[after]  # (K, C)
        chosen = self.choose_each(work, self.model.head(hidden)).tolist()
        self.stats.verify_steps += 1
        runs = accept(self.drafts, chosen)
        for (s, start, count), run in zip(work, runs, strict=True):
            s.cached = min(s.cached, start + count + len(run.tokens) - 1)
        return runs

    def lay_out(self, work: list[Work]) -> Batch:
        """Put the newest token of each sequence and its drafts into a batch."""
        fed: list[Any] = []
        for (s, start, count), draft in zip(work, self.drafts, strict=True):
            fed.append((Guessed(s.row, [*s.tokens, *draft]), start, count + len(draft)))
        return Batch.of(fed, self.model.device)

    def choose_each(self, work: list[Work], logits: Tensor) -> Tensor:
        """Choose a token (K,) after each newest token and each draft, logits (K, V), as if the drafts were the text."""
        pairs = zip(work, self.drafts, strict=True)
        places = [Place(s.request, s.generated + n) for (s, _, _), draft in pairs for n in range(len(draft) + 1)]
        return self.choose(logits, places)  # type: ignore[arg-type]


def accept(drafts: Lists[Lists[int]], chosen: Lists[int]) -> list[Run]:
    """Keep of each sequence the drafts that it would have chosen, and the token that it chose after them.

    chosen: what each chose after its newest token and after each of its drafts, side by side.
    """
    runs, tokens = [], iter(chosen)
    for draft in drafts:
        own = list(islice(tokens, len(draft) + 1))
        runs.append(Run(own[: agreeing(draft, own) + 1], len(draft)))
    return runs
