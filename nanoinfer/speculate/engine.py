"""The engine with drafts: a step may give a row several tokens. Chapter 7.

Rows that have a draft are verified; a step without any draft is the plain one, by the plain way. Where the device makes
the drafts, of what it keeps there, the host is as many steps behind as a plain engine: it knows how many tokens a row
has at least, and how many at most. Else drafts are made of tokens that are here, and the host waits for every step's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median_high
from typing import Any, Literal, NamedTuple, cast

from torch import Tensor

from nanoinfer.engine.engine import Engine, InFlight, _chunk, on_device
from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.scheduler import Row, Step
from nanoinfer.engine.state import Fetch
from nanoinfer.model.batch import Chunk
from nanoinfer.speculate.adaptive import Adaptive
from nanoinfer.speculate.drafts import DeviceDrafter, Drafter
from nanoinfer.speculate.scheduler import DraftScheduler
from nanoinfer.speculate.step import pack_runs, verify_step

Way = Literal["plain", "here", "device"]  # no drafts, drafts of tokens that the host has, or drafts within the step


class Verifying(NamedTuple):
    """A step with drafts whose tokens are not here yet: as `InFlight`, but several tokens a row."""

    rows: list[Row]
    places: Sequence[int]  # where each stands among the lines
    tokens: Fetch  # lines of a row's tokens, of which the first are its own, how many that are, and how many drafts
    ahead: list[int]  # of each row, how many tokens it was fed at most; 0 where they are counted, a prompt's
    logprobs: Fetch | None  # of the tokens after each row's newest one and after each draft
    scored: tuple[()] = ()  # no piece of a prompt has logprobs of its own here


class SpeculativeEngine(Engine):
    """An `Engine` whose rows bring up to `draft_tokens` drafts to a step. Its tokens are those of plain decoding.

    adaptive: how many of these pay; None brings as many as there may be, at every step.
    """

    _scheduler = DraftScheduler
    scheduler: DraftScheduler

    def __init__(
        self, *args: Any, drafter: Drafter, draft_tokens: int, adaptive: Adaptive | None = None, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.draft_tokens, self.adaptive = draft_tokens, adaptive
        self._way: Way = "plain"
        self.begin_with(drafter)

    def begin_with(self, drafter: Drafter) -> None:
        """Take drafts from this one, while no row runs. Steps that are captured draft by themselves, where it can."""
        self.drafter, runner = drafter, cast(Any, self.runner)
        self._texts = drafter if isinstance(drafter, DeviceDrafter) else None
        self._within = self._texts is not None and getattr(runner, "recorder", None) is not None
        runner.drafter = self._texts if self._within else None

    def step(self) -> list[Row]:
        """As the base's; but where steps in flight must be known before the next, one of them is taken in."""
        rows = self.rows
        if self.adaptive and not rows:
            self.adaptive.begin()
        elif self.adaptive and self.adaptive.rests():
            return super().step()
        began, before = self._seconds(), (self.stats.new_tokens, self.stats.prefill_steps)
        pays = not self.adaptive or not rows or self.adaptive.pays(len(rows))
        self._way = way = "plain" if not pays else "here" if not self._within else self._device_way(rows)
        if self._in_flight and (way == "here" or (way == "device") == isinstance(self._in_flight[0], InFlight)):
            return self._take_one()
        settled = super().step()
        seconds = self._seconds() - began
        if self.adaptive and rows and self.stats.prefill_steps == before[1] and pays == (way != "plain"):
            if not pays:
                self.adaptive.look(self.drafter, rows, self.draft_tokens)
            tokens = self.stats.new_tokens - before[0] if pays else len(rows)  # which come late
            if tokens:
                alone = () if self.scheduler.waiting or self._inbox else rows
                self.adaptive.note_step(len(rows), seconds, tokens, alone)
        return settled

    def _seconds(self) -> float:
        """A clock that stands still during captures, since a step is captured once and replayed from then on."""
        return time.perf_counter() - getattr(self.stats, "capture_s", 0.0)

    @on_device
    def _take_one(self) -> list[Row]:
        """Take in the oldest step, and launch none."""
        self._take_in()
        if self._texts and self._way == "device":
            self._texts.learn(self.rows)  # what is known, while the device is busy
        settled = self._collect(0)
        if self.observer:
            self.observer(Step([], [], [], [], [], slice(0)), settled)
        return settled

    def _device_way(self, rows: Sequence[Row]) -> Way:
        """Drafts within the step, if it has rows that go on and nothing else: nobody to admit, no room to make."""
        scheduler = self.scheduler
        admits = scheduler.waiting and len(rows) < self.max_batch
        steady = not (self._inbox or admits or scheduler.crowded or (scheduler.short and self._in_flight))
        return "device" if steady and all(row.going and row.sampler < 3 for row in rows) else "plain"

    def _arrange(self, step: Step) -> None:
        super()._arrange(step)
        if self._texts:
            if step.sources:
                self._texts.move(step.sources, step.targets)
            self._texts.forget(step.begun)

    def _launch(self, step: Step) -> None:
        if self._way == "device" and step.going:
            if self._texts and not self._in_flight:
                self._texts.learn(step.going)
            self._verify(step, [[0] * count for count in self.scheduler.room_for(step, self._limits(step))])
        elif self._way == "here" and any(drafts := self._drafts(step)):
            self._verify(step, drafts)
        else:
            super()._launch(step)

    def _drafts(self, step: Step) -> list[Sequence[int]]:
        """Of each row that goes on. None beside prompts whose own tokens are scored: those have steps of their own."""
        if not step.going:
            return []
        scored = any(row.request.params.prompt_logprobs is not None for row, _ in step.pieces)
        if scored or not any(limits := self._limits(step)):
            return []
        drafts = [draft[:limit] for draft, limit in zip(self.drafter.draft(step.going, limits), limits, strict=True)]
        fitting = self.scheduler.room_for(step, list(map(len, drafts)))
        return [draft[:count] for draft, count in zip(drafts, fitting, strict=True)]

    def _limits(self, step: Step) -> list[int]:
        """How many drafts each row that goes on is to bring."""
        limit = self.scheduler.draft_limit(step, self.draft_tokens)
        if not self.adaptive:
            return [limit] * len(step.going)
        limits = [self.adaptive.most(row, limit) for row in step.going]
        if self._way == "device":  # where all rows are as wide as the widest, a few do not make it wide
            middle = median_high([each for each in limits if each] or [0])
            limits = [min(each, middle) for each in limits]
        return limits

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
        counts, stats = [len(each) for each in drafts], self.stats
        rows = self.scheduler.launch_drafts(step, counts)
        ahead = [1 + count for count in counts] + [0] * (len(rows) - len(counts))
        made: Any = Verifying(rows, places, Fetch(lines), ahead, None if scores is None else Fetch(scores))
        self._in_flight.append(made)
        stats.prefill_steps += bool(step.pieces)
        stats.decode_steps += not step.pieces
        stats.verify_steps += 1
        stats.recomputed_tokens = self.scheduler.recomputed

    def _replay(self, step: Step, drafts: Sequence[Sequence[int]], sampler: Sampler) -> Tensor | None:
        """The lines of a captured step, by slot; None where there is none that serves."""
        replay = getattr(self.runner, "verify", None)
        if not replay:
            return None
        scoring = "drafts beside penalties or logprobs" if sampler is self.samplers.scoring else None
        why_not = "drafts beside prompts" if step.pieces else scoring
        rows = step.going[-1].slot + 1
        by_slot: list[Sequence[int]] = [()] * rows
        ends, longest = [0] * rows, 0
        for row, each in zip(step.going, drafts, strict=True):
            by_slot[row.slot], ends[row.slot] = each, min(row.room, row.last)
            longest = max(longest, row.fed + row.ahead + 1 + len(each))
        longest = min(longest, self.cache.max_len)
        lines: Tensor | None = replay(by_slot, ends, longest, sampler, why_not)
        return lines

    def _collect(self, lag: int) -> list[Row]:
        lag = 0 if self._way == "here" else lag
        first: Any = self._in_flight[0] if self._in_flight else None
        if not isinstance(first, Verifying):
            return super()._collect(lag)
        if len(self._in_flight) <= lag and not first.tokens.arrived:
            return []
        step: Any = self._in_flight.popleft()
        lines, now = step.tokens.wait(), time.perf_counter()
        scores, settled, stats = iter(step.logprobs.wait()) if step.logprobs else None, [], self.stats
        for row, place, ahead in zip(step.rows, step.places, step.ahead, strict=True):
            *tokens, count, drafts = lines[place]
            values = [next(scores) for _ in range(1 + drafts)] if scores else None
            row.ahead -= ahead
            if not row.ended and count:
                stats.draft_tokens += drafts
                stats.accepted_tokens += count - 1
                if self.adaptive and drafts:
                    self.adaptive.note_row(row, drafts, count - 1)
                count -= self._keep(row, tokens[:count], ahead > 0, values, now)
                settled.append(row)
            stats.dropped_tokens += count
        if not self._in_flight:
            self.scheduler.give_back()
        self._tidy()
        return settled

    def _keep(
        self, row: Row, tokens: Sequence[int], fed: bool, logprobs: Sequence[list[float]] | None, now: float
    ) -> int:
        """Give a row its tokens one by one, up to where it ends; how many that are.

        fed: whether the token before each of them is to be counted as fed, now that it is known to be of the text.
        """
        on = not (row.watched or logprobs) and len(row.token_ids) + len(tokens) < row.limit
        if on and row.stop_ids.isdisjoint(tokens):  # as below, but at once
            row.fed += len(tokens) * fed
            row.token_ids += tokens
            row.times += [now] * len(tokens)
            self.stats.new_tokens += len(tokens)
            return len(tokens)
        for at, token in enumerate(tokens):
            row.fed += fed
            if logprobs and row.request.params.logprobs is not None:
                row.logprobs.append(logprobs[at])  # ahead of the token: its reader may be another thread
            row.token_ids.append(token)
            row.times.append(now)
            self.stats.new_tokens += 1
            if row.watched or token in row.stop_ids or len(row.token_ids) == row.limit:
                self._settle(row, token)
            if row.ended:
                break
        return at + 1
