"""Several tokens a step: decoding sequences bring drafts, within recorded steps, and some steps ahead. Chapter 7.

A step with drafts is launched as every other is: packed into plain integers, run or replayed on the device, and settled
when its tokens have arrived. How many of them a sequence kept is known only then. So the host counts what a sequence
has at least, `cached`, and what it may have besides, `ahead`.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Ints
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.choice import ChoosingEngine
from nanoinfer.engine.choice_stats import ChoiceStats
from nanoinfer.engine.device import Launch
from nanoinfer.engine.engine import Sequence, Work
from nanoinfer.engine.graphs import Key, pick
from nanoinfer.engine.mixed import Mixed
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.queue import Queued
from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.scores import DeviceScores
from nanoinfer.speculate.drafts import NONE, Drafter
from nanoinfer.speculate.lookup import PromptLookup
from nanoinfer.speculate.pays import FIRST, Pays
from nanoinfer.speculate.verify import verify_step


@dataclass(eq=False)
class Drafting(Queued):
    """A `Queued` sequence that may bring drafts.

    ahead: tokens that it may have been fed beyond `cached`. share: how often a draft of it is right. learned: how much
    of its text a drafter has on the device. drafted: what a draft model has been fed behind that. characters: its text
    on the host, as `lookup.characters` keeps it.
    """

    ahead: int = 0
    share: float = FIRST
    learned: int = 0
    drafted: list[int] = field(default_factory=list)
    characters: str = ""


@dataclass(frozen=True)
class Drafts(Mixed):
    """A step with drafts, and no piece of a prompt: where the text of rows 0..live-1 must end, and what each brings."""

    ends: list[int]
    drafts: list[Ints[int]]
    context: int  # tokens of the longest text, drafts included

    def pack(self, layout: Any, dummy: int) -> Tensor:
        """What `verify_step` reads, (rows, columns) int64 on the host: ends, drafts, and padding."""
        (rows, columns), work = layout, array("q")
        for end, drafts in zip(self.ends, self.drafts, strict=True):
            work.append(end)
            work.extend(drafts)
            work.extend(repeat(NONE, columns - 1 - len(drafts)))
        work.extend(repeat(NONE, (rows - len(self.ends)) * columns))
        return torch.frombuffer(work, dtype=torch.int64).view(rows, columns)


class VerifyKey(NamedTuple):
    """All that is baked into a captured verify step. The last field tells it from a `Key`, which is a tuple as well."""

    rows: int
    columns: int  # the newest token and drafts, padding included
    longest: int  # the cache's bucket
    sampler: Sampler
    drafter: PromptLookup | None  # who drafts within the step

    def __str__(self) -> str:
        return f"verification of {self.rows} rows of {self.columns - 1} drafts"


class DraftEngine(DeviceScores, ChoosingEngine):
    """An engine whose decoding sequences bring up to `draft_tokens` drafts, where that pays.

    Prompts, penalties and logprobs have steps without drafts. adaptive: None brings as many drafts as there may be.
    Where a recorded step makes the drafts itself, the host is as many steps behind as without drafts. Else drafts are
    made of tokens that are here, and the host waits for every step's.
    """

    Stats, sequence = ChoiceStats, Drafting

    def __init__(self, *args: Any, drafter: Drafter, draft_tokens: int, adaptive: Pays | None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.draft_tokens, self.adaptive = draft_tokens, adaptive
        self.drafts: list[Ints[int]] = []  # of the work of this step; none: it is a plain one
        self.verifying = False  # whether the steps in flight have drafts
        k = draft_tokens
        self.widths = [*(1 << n for n in range(k.bit_length()) if 1 << n < k), k]
        self.begin_with(drafter)

    def begin_with(self, drafter: Drafter) -> None:
        """Take drafts from this one, while no sequence runs."""
        self.drafter: Any = drafter
        recorded = self.recorder is not None and isinstance(drafter, PromptLookup)
        self.within: Any = drafter if recorded else None  # who drafts within steps

    def leave(self, s: Any) -> None:
        s.learned, s.drafted = 0, []
        super().leave(s)

    def step(self) -> list[Sequence]:
        """As the base's; steps of decoding sequences alone are timed, and looked at.

        A call that only waits counts for the step before: it waits for that one's kind. Counted for the next, waits for
        verification would make plain steps look slow, the more so the more often the two change.
        """
        began, steps, captures = time.perf_counter(), self.stats.decode_steps, getattr(self.stats, "capture_s", 0)
        settled = super().step()
        seconds = time.perf_counter() - began - getattr(self.stats, "capture_s", 0) + captures
        if self.adaptive and not self.fed:
            self.adaptive.note_wait(seconds)
        elif self.adaptive and self.stats.decode_steps > steps:
            self.adaptive.note_step(len(self.fed), seconds, bool(self.drafts))
            if not self.drafts:
                self.adaptive.look(self.drafter, [s for s, _, _ in self.fed], self.draft_tokens)
        return settled

    # What the next step brings

    def schedule(self) -> list[Work]:
        """Decoding sequences with drafts, or a plain step; nothing where steps in flight must be known before that."""
        drafting, self.drafts = self.drafting(), []
        waits = drafting != self.verifying or (drafting and (not self.within or self.short()))
        if self.in_flight and waits:
            self.fed, self.decoded = [], 0
            return []
        work = super().schedule()
        if drafting and self.decoded == len(work):
            self.drafts = self.drafts_for(work)
        self.verifying = any(self.drafts) or (drafting and bool(self.in_flight))  # who knows how far the device is
        if not self.verifying:
            self.drafts = []
            return work
        return [(s, start, 1 + len(draft)) for (s, start, _), draft in zip(work, self.drafts, strict=True)]

    def drafting(self) -> bool:
        """Whether the next step may bring drafts: all that runs decodes, and nobody could be admitted."""
        if not self.running or (self.waiting and self.free):
            return False
        if self.adaptive and not self.adaptive.draft(self.running, self.draft_tokens, not self.waiting):
            return False
        return all(s.decoding and not s.params.scores for s in self.running)

    def drafts_for(self, work: list[Work]) -> list[Ints[int]]:
        """The drafts of this work; where the device makes them, as many zeros."""
        limits, sequences = self.limits(work), [s for s, _, _ in work]
        if self.within:
            if not self.in_flight:
                self.within.learn(sequences)
            return [[0] * limit for limit in limits]
        drafts = self.drafter.draft(sequences, limits) if any(limits) else []
        return [draft[:limit] for draft, limit in zip(drafts, limits, strict=False)]

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

    def short(self) -> bool:
        """Whether a sequence may lack room for its next token, which is known when nothing is in flight."""
        return bool(self.blocks) and any(self.room_for(s, 0) < 0 for s in self.running)

    # How it is launched

    def pack(self, work: list[Work]) -> Launch:
        """As the base's. Room is taken as if all drafts were right; what is known is one token more."""
        if not self.drafts:
            return super().pack(work)
        fed = [(s, min(start + s.ahead, s.end - 1), count) for s, start, count in work]
        launch = super().pack(fed)
        context = min(self.cache.max_len, max(start + count for _, start, count in fed))
        step = Drafts([], [], [], [0] * launch.live, [()] * launch.live, context)
        for (s, start, count), draft in zip(work, self.drafts, strict=True):
            room = self.blocks.room(s.row) if self.blocks else s.end
            step.ends[s.row], step.drafts[s.row] = min(room, s.end - 1), draft
            s.cached, s.ahead = start + 1, s.ahead + count - 1
        return launch._replace(prefill=step)

    def places(self, work: list[Work], step: Launch) -> list[int]:
        return [s.row for s, _, _ in work] if self.drafts else super().places(work, step)

    def place(self, step: Launch) -> None:
        super().place(step)
        if step.sources and hasattr(self.drafter, "move"):
            self.drafter.move(step.sources, step.targets)

    def prefill(self, prefill: Any, sampler: Sampler) -> Tensor:
        """Verify drafts: return the lines (live, ...) of `verify_step`, with a recording if there is one."""
        if not isinstance(prefill, Drafts):
            return super().prefill(prefill, sampler)
        live, most, context = len(prefill.ends), max(map(len, prefill.drafts)), prefill.context
        rows, columns = pick(self.rows, live), 1 + most
        if self.recorder is not None:  # few shapes, to record few of them
            columns, context = 1 + (pick(self.widths, most) or 0), self.cache.bucket(context)
        key: Any = VerifyKey(rows or live, columns, context, sampler, self.within)
        captured = self._captured(key, "more rows than the largest graph has" if rows is None else None)
        self.stats.verify_steps += 1
        if captured is None:
            run, work, lines = self._step(key)
        else:
            run, work, lines = captured.graph.replay, captured.packed, captured.tokens
            self.stats.replayed_steps += 1
            self.stats.replayed_rows += key.rows
            self.stats.padding_rows += key.rows - live
        self.bring(prefill, key[:2], work)
        run()
        return lines[:live]

    def _ladders(self, samplers: Ints[Sampler], reads: Ints[int]) -> list[Key]:
        sizes = [(rows, 1 + width, read) for rows in self.rows for width in self.widths for read in reads]
        plain = [sampler for sampler in samplers if not isinstance(sampler, PenaltySampler)]
        verified: list[Any] = [VerifyKey(*size, sampler, self.within) for sampler in plain for size in sizes]
        return super()._ladders(samplers, reads) + verified

    def _step(self, key: Any) -> tuple[Callable[[], object], Tensor, Tensor]:
        if not isinstance(key, VerifyKey):
            return super()._step(key)
        device = self.state.token.device
        work = torch.full((key.rows, key.columns), NONE, device=device)
        lines = torch.zeros(key.rows, key.columns + 2, dtype=torch.int64, device=device)
        arguments = self.model, self.cache, self.state, work, key.longest, key.sampler, key.drafter
        return lambda: lines.copy_(verify_step(*arguments)), work, lines

    # What its tokens mean

    def settle(self, work: list[Work], tokens: list[Any]) -> list[Sequence]:
        """Give each sequence its tokens one by one, as if each had come in a step of its own, at the same time."""
        if not tokens or not isinstance(tokens[0], list):
            return super().settle(work, tokens)
        runs: list[tuple[Any, list[int]]] = []
        for (s, _, count), (*chosen, own, drafts) in zip(work, tokens, strict=True):
            s.ahead -= count - 1
            s.cached = min(s.cached + max(0, own - 1), s.end - 1)  # a step past its end has fed nothing
            runs.append((s, chosen[:own]))
            if own and not s.ended:
                self.stats.draft_tokens += drafts
                self.stats.accepted_tokens += own - 1
                if self.adaptive and drafts:
                    self.adaptive.note(s, drafts, own - 1)
        settled: dict[Sequence, None] = {}
        self.now = time.perf_counter()
        for n in range(max(len(run) for _, run in runs)):
            now = [(s, run[n]) for s, run in runs if n < len(run)]
            settled |= dict.fromkeys(self.give([(s, len(s.tokens) - 1, 1) for s, _ in now], [t for _, t in now]))
        return list(settled)
