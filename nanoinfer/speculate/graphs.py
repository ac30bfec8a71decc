"""Verification over the state that stays on the device: within recorded steps, and some steps ahead. Chapter 7."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.cache.ragged import CapturedRagged
from nanoinfer.engine.choice import ChoosingEngine
from nanoinfer.engine.device import Launch
from nanoinfer.engine.engine import Sequence as Running
from nanoinfer.engine.engine import Work
from nanoinfer.engine.graphs import Key, pick
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.scores import DeviceScores
from nanoinfer.engine.state import BatchState
from nanoinfer.kernels import paged_attention_torch
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2, Cache
from nanoinfer.speculate.drafts import NONE, DeviceDrafter, Drafter
from nanoinfer.speculate.engine import DraftEngine, Run

ONE_BY_ONE = 32  # tokens of a verify step: for more, the ragged kernel is as fast, which reads a context once a row


class Each(Batch):
    """Tokens that each read their sequence's pages for themselves, as a decode step of as many rows would."""

    @property
    def rows(self) -> int:
        return len(self.token_ids)


class Runs(Batch):
    """A rectangle of B rows, which may end in padding: what a row is, its first token says."""

    def last(self, x: Tensor) -> Tensor:
        return x.view(self.rows, self.longest, *x.shape[1:])[:, 0]


@torch.inference_mode()
def verify_step(
    model: GPT2, cache: Cache, state: BatchState, work: Tensor, context: int, sampler: Sampler,
    drafter: DeviceDrafter | None = None,
) -> Tensor:  # fmt: skip
    """Feed the newest token and the drafts of rows 0..B-1, and advance each by what it would have chosen anyway.

    work: (B, 1 + k), where each row's text must end, up to which there is room; and its drafts, NONE on the right where
    it has fewer. With a drafter only which are NONE counts, and the drafts are made here. Rows that are not live, or
    have come to their end, are padding. Nothing else comes from the host but `context`, as for `decode_step`.
    Returns (B, k + 3): the tokens that a row chose, how many of them are its own, and how many drafts it had.
    """
    (B, columns), device = work.shape, work.device
    k, rows = columns - 1, state.at(slice(0, B))
    drafts, position = work[:, 1:], rows.position[:, None]
    if drafter:
        drafts = torch.where(drafts == NONE, NONE, drafter.propose(rows.row, rows.position, k))
    places = position + torch.arange(k + 1, device=device)  # (B, k + 1)
    real = F.pad(drafts != NONE, (1, 0), value=True) & (rows.live[:, None] > 0) & (places < work[:, :1])
    row_of = torch.where(real, rows.row[:, None], state.dummy).flatten()
    token_ids = torch.cat([rows.token[:, None], drafts.clamp(min=0)], 1).flatten()
    positions = torch.where(real, places, 0).flatten()
    if B * (k + 1) <= getattr(cache, "one_by_one", 0):
        batch: Batch = Each(token_ids, positions, row_of, row_of, 1, context - 1)
    else:
        starts = torch.arange(B + 1, device=device) * (k + 1)
        batch = Runs(token_ids, positions, row_of, starts, k + 1, context - 1)
    each = state.at(torch.arange(B * (k + 1), device=device) // (k + 1))  # copies
    each.step.add_((places - position).flatten())
    hidden = model.hidden(batch, partial(cache.attend, cache.plan(batch)))  # (B * (k + 1), C)
    chosen = sampler(model.head(hidden), each).view(B, k + 1)
    going, brought = real[:, :1], real[:, 1:]
    accepted = ((chosen[:, :k] == drafts) & brought).cumprod(1).sum(1, keepdim=True)  # (B, 1)
    counts = (accepted + 1) * going
    if drafter:
        drafter.note(row_of.view(B, k + 1), places + 1, chosen)
    rows.token.copy_(torch.where(going, chosen.gather(1, accepted), rows.token[:, None])[:, 0])
    rows.integers[1:3].add_(counts[:, 0])  # position and step
    return torch.cat([chosen, counts, brought.sum(1, keepdim=True)], 1)


class VerifiedPaged(CapturedRagged):
    """A `CapturedRagged` cache with room for the kernel's sums of so few tokens that each reads for itself."""

    one_by_one = 0

    def __init__(self, config: ModelConfig, *args: Any, **settings: Any) -> None:
        super().__init__(config, *args, **settings)
        if self.kernels is not paged_attention_torch:
            self.one_by_one, rows = ONE_BY_ONE, max(len(self.tables), ONE_BY_ONE)
            self.splits_done = torch.zeros(rows * config.n_head, dtype=torch.int32, device=self.k.device)


class VerifyKey(NamedTuple):
    """All that is baked into a captured verify step. The last field tells it from a `Key`, which is a tuple as well."""

    rows: int
    columns: int  # the newest token and drafts, padding included
    longest: int  # the cache's bucket
    sampler: Sampler
    drafter: DeviceDrafter | None  # who drafts within the step

    def __str__(self) -> str:
        return f"verification of {self.rows} rows of {self.columns - 1} drafts"


class Verify(NamedTuple):
    """A `Launch` of a step with drafts: of rows 0..live-1, where each must end, and what it brings."""

    launch: Launch
    ends: list[int]
    drafts: list[Sequence[int]]
    prefill: None = None

    @property
    def sampler(self) -> int:
        return self.launch.sampler


class GraphDrafts(DraftEngine, DeviceScores, ChoosingEngine):
    """Drafts over chapter 4's engine.

    Where the device makes the drafts, of what it keeps there, the host is as many steps behind as without drafts: it
    knows how many tokens a sequence has at least, `cached`, and how many it may have besides, `ahead`. Else drafts are
    made of tokens that are here, and the host waits for every step's.
    """

    def begin_with(self, drafter: Drafter) -> None:
        super().begin_with(drafter)
        self.within = self.texts if self.recorder is not None else None  # who drafts within steps
        k = self.draft_tokens
        self.widths = [*(1 << n for n in range(k.bit_length()) if 1 << n < k), k]
        self.verifying = False

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

    def drafts_for(self, work: list[Work]) -> list[Sequence[int]]:
        """The drafts of this work; where the device makes them, as many zeros."""
        limits, sequences = self.limits(work), [s for s, _, _ in work]
        if self.within:
            if not self.in_flight:
                self.within.learn(sequences)  # type: ignore[arg-type]
            return [[0] * limit for limit in limits]
        drafts = self.drafter.draft(sequences, limits) if any(limits) else []  # type: ignore[arg-type]
        return [draft[:limit] for draft, limit in zip(drafts, limits, strict=False)]

    def short(self) -> bool:
        """Whether a sequence may lack room for its next token, which is known when nothing is in flight."""
        return bool(self.blocks) and any(self.room_for(s, 0) < 0 for s in self.running)

    def pack(self, work: list[Work]) -> Any:
        if not self.drafts:
            return super().pack(work)
        launch = super().pack([(s, start, 1) for s, start, _ in work])
        fed = [(s, min(start + s.ahead, s.end - 1), count) for s, start, count in work]  # type: ignore[attr-defined]
        context = min(self.cache.max_len, max(start + count for _, start, count in fed))
        launch = launch._replace(news=launch.news + self.cache.news(fed), context=context)
        ends: list[int] = [0] * launch.live
        drafts: list[Sequence[int]] = [()] * launch.live
        for (s, _, count), draft in zip(work, self.drafts, strict=True):
            room = self.blocks.room(s.row) if self.blocks else s.end
            ends[s.row], drafts[s.row] = min(room, s.end - 1), draft
            s.ahead += count - 1  # type: ignore[attr-defined]
        return Verify(launch, ends, drafts)

    def place(self, step: Launch) -> None:
        super().place(step)
        if step.sources and self.texts:
            self.texts.move(step.sources, step.targets)

    @torch.inference_mode()
    def launch(self, step: Any) -> Tensor:
        if not isinstance(step, Verify):
            return super().launch(step)
        self.place(step.launch)
        live, drafts = step.launch.live, step.drafts
        rows, width = pick(self.rows, live), pick(self.widths, max(map(len, drafts))) or 0
        key: Any = VerifyKey(
            rows or live, 1 + width, self.cache.bucket(step.launch.context), self.samplers[step.sampler], self.within
        )
        captured = self._captured(key, "more rows than the largest graph has" if rows is None else None)
        packed = packed_drafts(step, key)
        self.stats.verify_steps += 1
        if captured is None:
            run, work, lines = self._step(key)
        else:
            run, work, lines = captured.graph.replay, captured.packed, captured.tokens
            self.stats.replayed_steps += 1
            self.stats.replayed_rows += key.rows
            self.stats.padding_rows += key.rows - live
        work.copy_(packed.pin_memory() if work.is_cuda else packed, non_blocking=True)
        run()
        return lines[:live]

    def settle(self, work: list[Work], tokens: list[Any]) -> list[Running]:
        if not tokens or not isinstance(tokens[0], list):
            return super().settle(work, tokens)
        runs = []
        for (s, _, count), (*chosen, own, drafts) in zip(work, tokens, strict=True):
            s.ahead -= count - 1  # type: ignore[attr-defined]
            s.cached = min(s.cached + max(0, own - 1), s.end - 1)  # a step past its end has fed nothing
            runs.append(Run(chosen[:own], drafts))
        return super().settle(work, runs)

    def _ladders(self, samplers: Sequence[Sampler], reads: Sequence[int]) -> list[Key]:
        sizes = [(rows, 1 + width, read) for rows in self.rows for width in self.widths for read in reads]
        plain = [sampler for sampler in samplers if not isinstance(sampler, PenaltySampler)]
        verified: list[Any] = [VerifyKey(*size, sampler, self.within) for sampler in plain for size in sizes]
        return super()._ladders(samplers, reads) + verified

    def _step(self, key: Any) -> tuple[Callable[[], object], Tensor, Tensor]:
        if not isinstance(key, VerifyKey):
            return super()._step(key)
        device = self.state.token.device
        work = torch.full((key.rows, key.columns), NONE, device=device)
        left = torch.zeros(key.rows, key.columns + 2, dtype=torch.int64, device=device)
        arguments = self.model, self.cache, self.state, work, key.longest, key.sampler, key.drafter
        return lambda: left.copy_(verify_step(*arguments)), work, left


def packed_drafts(step: Verify, key: VerifyKey) -> Tensor:
    """What a verify step reads, (rows, columns) int64 on the host: where rows end, their drafts, and padding."""
    work = array("q")
    for end, drafts in zip(step.ends, step.drafts, strict=True):
        work.append(end)
        work.extend(drafts)
        work.extend(repeat(NONE, key.columns - 1 - len(drafts)))
    work.extend(repeat(NONE, (key.rows - len(step.ends)) * key.columns))
    return torch.frombuffer(work, dtype=torch.int64).view(key.rows, key.columns)
