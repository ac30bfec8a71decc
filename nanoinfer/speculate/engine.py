"""The engine with drafts: a step may give a row several tokens. Chapter 7.

Rows that have a draft are verified; a step without any draft is the plain one, by the plain way. Drafts are made on the
host, of tokens that are here: while there are any, the host looks at every step's tokens before the next. Where they do
not pay, it is as many steps behind as a plain engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from nanoinfer.engine.engine import Engine, InFlight, _chunk, on_device
from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.scheduler import Row, Step
from nanoinfer.engine.state import Fetch
from nanoinfer.model.batch import Chunk
from nanoinfer.speculate.adaptive import Adaptive
from nanoinfer.speculate.drafts import Drafter
from nanoinfer.speculate.scheduler import DraftScheduler
from nanoinfer.speculate.step import pack_runs, verify_step


class Verifying(NamedTuple):
    """A step with drafts whose tokens are not here yet: as `InFlight`, but several tokens a row."""

    rows: list[Row]
    places: Sequence[int]  # where each stands among the lines
    tokens: Fetch  # lines of a row's tokens, of which the first are its own, and how many that are
    drafts: list[int]  # of each row, how many it had
    logprobs: Fetch | None  # of the tokens after each row's newest one and after each draft
    scored: tuple[()] = ()  # no piece of a prompt has logprobs of its own here


class SpeculativeEngine(Engine):
    """An `Engine` whose rows bring up to `draft_tokens` drafts to a step. Its tokens are those of plain decoding.

    adaptive: how many of these pay; None brings as many as there may be, at every step.
    """

    _scheduler = DraftScheduler
    scheduler: DraftScheduler

    def __init__(
        self, *args: Any, drafter: Drafter, draft_tokens: int, adaptive: Adaptive | None = None, lag: int = 0,
        **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **settings)
        self.drafter, self.draft_tokens, self.adaptive, self._plain_lag = drafter, draft_tokens, adaptive, lag
        self._pays = True

    @on_device
    def step(self) -> list[Row]:
        """As the base's; but ahead of a step with drafts, those in flight are taken in, one at each call."""
        began, before = time.perf_counter(), (self.stats.new_tokens, self.stats.prefill_steps)
        going = sum(row.going for row in self.rows)
        self._pays = not self.adaptive or not going or self.adaptive.pays(going)
        self.lag = 0 if self._pays else self._plain_lag
        if self._pays and self._in_flight:
            return self._collect(0)
        settled = super().step()
        if self.adaptive and going and self.stats.prefill_steps == before[1]:
            tokens = self.stats.new_tokens - before[0] if self._pays else going  # which come late
            self.adaptive.note_step(going, time.perf_counter() - began, tokens)
        return settled

    def _launch(self, step: Step) -> None:
        drafts = self._drafts(step)
        if any(drafts):
            self._verify(step, drafts)
        else:
            super()._launch(step)

    def _drafts(self, step: Step) -> list[Sequence[int]]:
        """Of each row that goes on. None beside prompts whose own tokens are scored: those have steps of their own."""
        scored = any(row.request.params.prompt_logprobs is not None for row, _ in step.pieces)
        if not self._pays or not step.going or scored:
            return []
        limits = self.scheduler.draft_limits(step, self.draft_tokens)
        if self.adaptive:
            limits = [self.adaptive.most(row, limit) for row, limit in zip(step.going, limits, strict=True)]
        if not any(limits):
            return []
        drafts = zip(self.drafter.draft(step.going, limits), limits, strict=True)
        return self.scheduler.room_for(step, [draft[:limit] for draft, limit in drafts])

    def _verify(self, step: Step, drafts: Sequence[Sequence[int]]) -> None:
        """Run a step with drafts, and start the copy of its tokens."""
        self.cache.update()
        sampler = self._sampler([*step.going, *[row for row, _ in step.pieces]])
        slots, scores = [row.slot for row in step.going], None
        lines = self._replay(step, drafts, sampler)
        places: Sequence[int] = slots
        if lines is None:
            texts = [[row.token_ids[-1], *each] for row, each in zip(step.going, drafts, strict=True)]
            fed = [Chunk(row.slot, row.fed, text) for row, text in zip(step.going, texts, strict=True)]
            batch, runs = pack_runs(fed, [_chunk(work) for work in step.pieces], self.state.token.device)
            lines, scores = verify_step(self.runner.model, self.cache, self.state, batch, runs, sampler)
            places = range(len(lines))
        rows, stats = self.scheduler.launch(step), self.stats
        counts = [len(each) for each in drafts] + [0] * (len(rows) - len(drafts))
        made: Any = Verifying(rows, places, Fetch(lines), counts, None if scores is None else Fetch(scores))
        self._in_flight.append(made)
        stats.prefill_steps += bool(step.pieces)
        stats.decode_steps += not step.pieces
        stats.verify_steps += 1
        stats.draft_tokens += sum(counts)
        stats.recomputed_tokens = self.scheduler.recomputed

    def _replay(self, step: Step, drafts: Sequence[Sequence[int]], sampler: Sampler) -> Tensor | None:
        """The lines of a captured step, by slot; None where there is none that serves."""
        replay = getattr(self.runner, "verify", None)
        if not replay:
            return None
        scoring = "drafts beside penalties or logprobs" if sampler is self.samplers.scoring else None
        why_not = "drafts beside prompts" if step.pieces else scoring
        by_slot: list[Sequence[int]] = [()] * (step.going[-1].slot + 1)
        for row, each in zip(step.going, drafts, strict=True):
            by_slot[row.slot] = each
        longest = max(row.fed + 1 + len(each) for row, each in zip(step.going, drafts, strict=True))
        lines: Tensor | None = replay(by_slot, longest, sampler, why_not)
        return lines

    def _collect(self, lag: int) -> list[Row]:
        if not self._in_flight or isinstance(self._in_flight[0], InFlight):
            return super()._collect(lag)
        step: Any = self._in_flight.popleft()
        lines, now = step.tokens.wait(), time.perf_counter()
        scores = iter(step.logprobs.wait()) if step.logprobs else None
        for row, place, drafts in zip(step.rows, step.places, step.drafts, strict=True):
            *tokens, count = lines[place]
            values = [next(scores) for _ in range(1 + drafts)] if scores else None
            self.stats.accepted_tokens += count - 1
            if self.adaptive and drafts:
                self.adaptive.note_row(row, drafts, count - 1)
            kept = self._keep(row, tokens[:count], values, now)
            self.stats.dropped_tokens += count - kept
        self._tidy()
        return list(step.rows)

    def _keep(self, row: Row, tokens: Sequence[int], logprobs: Sequence[list[float]] | None, now: float) -> int:
        """Give a row its tokens one by one, up to where it ends; how many that are."""
        for at, token in enumerate(tokens):
            row.fed += at > 0  # a draft that is known now to be of the text
            if logprobs and row.request.params.logprobs is not None:
                row.logprobs.append(logprobs[at])  # ahead of the token: its reader may be another thread
            row.token_ids.append(token)
            row.times.append(now)
            self.stats.new_tokens += 1
            if row.watched or token in row.stop_ids or len(row.token_ids) == row.limit:
                self._settle(row, token)
            if row.ended:
                break
        self.scheduler.give_back(row)
        return at + 1
