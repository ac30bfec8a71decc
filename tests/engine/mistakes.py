"""The table of planted mistakes: which of the engine's lives finds each, and what does not hold there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from nanoinfer.cache.blocks import BlockManager
from nanoinfer.cache.captured import CapturedPaged
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.sharing import SharedBlocks, SharedRoom
from nanoinfer.engine.device import DeviceEngine
from nanoinfer.engine.late import LateEngine
from nanoinfer.engine.queue import QueueEngine
from nanoinfer.engine.state import BatchState
from nanoinfer.speculate import verify
from nanoinfer.speculate.engine import DraftEngine
from tests.conftest import changed
from tests.engine.drafting import edited

Mutate = Callable[[pytest.MonkeyPatch], None]


class Mistake(NamedTuple):
    what: str  # does not hold; empty where it is the tokens, the listeners' calls or the counts
    mutate: Mutate
    parts: dict[str, Any]  # of the `History` that finds it


def nothing(*args: object) -> None:
    """In place of a method that should do something."""


def stopped(schedule: Any, self: QueueEngine) -> list[Any]:
    self.fed, self.decoded = [], 0
    return []


COUNT = "min(pending, self.chunk, left)"
DECODED = "self.pending(decoding) if self.mixed or not chunks else []"
TURN = "not (decoding and self.decodes_next)"
PLAIN: dict[str, tuple[str, Mutate]] = {
    "the last to come is the first": ("rows: first come, first served", edited(
        QueueEngine, "take_in", "waiting.append(", "waiting.appendleft(")),
    "the newest prompt is fed first": ("pieces: first come, first served", edited(
        QueueEngine, "schedule", "key=ARRIVED", "key=lambda s: -s.arrived")),
    "rows go on as prompts": ("a row is fed its own text", edited(
        QueueEngine, "schedule", "decoded + chunks, len(decoded)", "decoded + chunks, 0")),
    "each piece is a token short": ("only the last piece is cut", edited(
        QueueEngine, "feed", COUNT, "min(pending, self.chunk, left, max(1, left - 1))")),
    "one row at a time": ("nobody waits without a cause", edited(
        QueueEngine, "admit_next", "not self.free", "self.running")),
    "a step for nothing": ("no step is empty without a cause", changed(QueueEngine, "schedule", stopped)),
    "one token more than the budget": ("the budget holds", edited(
        QueueEngine, "feed", COUNT, "min(pending, self.chunk, left + 1)")),
    "whole prompts": ("a piece is at most prefill_chunk", edited(
        QueueEngine, "feed", COUNT, "min(pending, left)")),
    "prompts push rows out": ("the oldest row goes on", edited(
        QueueEngine, "schedule", DECODED, "self.pending(decoding) if not chunks else []")),
    "prompts always have their turn": ("a row that goes on waits one step at most", edited(
        QueueEngine, "schedule", TURN, "True")),
    "prompts never have their turn": ("no prompt waits without a cause", edited(
        QueueEngine, "schedule", TURN, "self.mixed or not decoding")),
    "both kinds in one step": ("the two kinds of step take turns", edited(
        QueueEngine, "schedule", DECODED, "self.pending(decoding)")),
    "one row is left out": ("all rows that go on do, in order, or none", edited(
        QueueEngine, "schedule", "in self.running if s.decoding])", "in self.running if s.decoding][1:])")),
    "gaps stay": ("", changed(DeviceEngine, "close_gaps", lambda *_: ([], []))),
    "a moved row is forgotten": ("", edited(
        DeviceEngine, "close_gaps", "return sources, gaps", "return sources[1:], gaps[1:]")),
    "the observer does not hear of all": ("", edited(
        QueueEngine, "step", "self.observer.stepped(settled)", "self.observer.stepped(settled[1:])")),
    "a row is not freed": ("", edited(
        DeviceEngine, "place", "state.free(slice(step.live,", "state.free(slice(step.live + 1,")),
    "the same piece again": ("a place is written once", edited(
        DeviceEngine, "pack", "s.cached = start + count", "s.cached = start + count * s.decoding")),
    "what is computed again is not counted": ("", edited(
        QueueEngine, "feed", "min(count, s.computed - s.cached)", "0")),
    "a cancelled row runs on": ("", changed(QueueEngine, "cancel", nothing)),
    "tokens after the end": ("", edited(
        QueueEngine, "give", "if s.ended or length", "if not s.ended and length")),
    "pieces bring tokens": ("", edited(QueueEngine, "give", "if s.ended or length != len(text)", "if s.ended")),
    "the last token is told twice": ("", edited(QueueEngine, "finish", "self.tell(s)", "self.tell(s), self.tell(s)")),
    "rows that left are live": ("", changed(BatchState, "free", nothing)),
    "the state moves nothing": ("", changed(BatchState, "move", nothing)),
    "tables stay where they are": ("", changed(CapturedPaged, "move", nothing)),
    "no step is made for the longest text": ("no token stands behind the longest context", edited(
        DeviceEngine, "pack", "1 + max([start for", "max([start for")),
}  # fmt: skip

WITH_PREEMPTION: dict[str, tuple[str, Mutate]] = {
    "a row gives way ahead of need": ("the youngest give way to one that lacks a block", edited(
        QueueEngine, "with_room", "claim(s.row, s.cached + 1)", "claim(s.row, s.cached + 99)")),
    "a preemption is not counted": ("preemptions are counted", edited(
        QueueEngine, "preempt", "self.stats.preemptions += 1", "pass")),
    "preempted rows come back ahead of their tokens": ("", edited(
        QueueEngine, "admit_next", "len(s.tokens) < s.awaited or", "")),
    "a row comes back at step 0": ("", edited(DeviceEngine, "begun", "s.generated", "0")),
    "a row that comes back does not begin": ("", edited(DeviceEngine, "leave", "self.kinds.pop(s, None)", "pass")),
    "a preempted row that has ended comes back": ("", edited(
        QueueEngine, "finish", "(s.cancelled or s.awaited)", "s.cancelled")),
    "a preempted row's tokens are kept, and not awaited": ("", edited(
        QueueEngine, "preempt", "s.cached + 1 if s.decoding else len(s.tokens)", "len(s.tokens)")),
}  # fmt: skip

AFTER_FAILURES: dict[str, tuple[str, Mutate]] = {
    "abandoned steps are collected": ("", edited(LateEngine, "abandon", "while self.in_flight:", "while False:")),
    "who waits for no token is not told of a failure": ("", edited(
        QueueEngine, "abandon", "[*self.open,", "[*self.running, *self.waiting,")),
    "blocks that a failed step should have written are known": ("", edited(
        QueueEngine, "abandon", "self.blocks.forget()", "pass")),
}  # fmt: skip

DENSE = {"a row is not emptied": ("a place is written once", changed(DenseCache, "release", nothing))}

OWNED: dict[str, tuple[str, Mutate]] = {
    "a block for two": ("a block is free, idle or owned", edited(
        SharedBlocks, "allocate", "self.users[block] = 1", "self.users[block] = 1; self.free += [3] * (block == 3)")),
    "blocks are kept": ("a row's blocks stay its own", changed(BlockManager, "release", nothing)),
    "the reservation is kept": ("a row's reservation is its own", edited(
        BlockManager, "release", "self.owned[row], self.reserved[row] = [], 0", "self.owned[row] = []")),
    "news of a block goes to where its row was": ("", edited(
        SharedBlocks, "rename", "self.told[target], self.told[source] = self.told[source], 0", "pass")),
    "one token too few is asked for": ("room is reserved for what comes", edited(
        SharedRoom, "admit", "else longest\n", "else longest - 1\n")),
    "blocks come out of no reservation": ("a row's reservation is its own", edited(
        BlockManager, "grow", "self.reserved[row] -= 1", "pass")),
    "one token too few has room": ("a row has room for its text", edited(
        BlockManager, "grow", "self.block_size < tokens", "self.block_size < tokens - 1")),
    "a block too many": ("a text has its blocks, no more", edited(
        CapturedPaged, "news", "grow(s.row, start + count)", "grow(s.row, len(s.tokens))")),
}  # fmt: skip

EXPECTED = "what is known is what should be"
SHARED: dict[str, tuple[str, Mutate]] = {
    "a hit includes the last token": ("what is found was computed, up to the last token", edited(
        SharedBlocks, "find", "(len(text) - 1) // self.block_size", "len(text) // self.block_size")),
    "a hit in a prompt whose logits are asked for": ("", edited(
        SharedRoom, "admit", "() if sequence.params.prompt_logprobs is not None else known", "known")),
    "the keys of the text before": ("what is known is found", edited(
        SharedBlocks, "find", "if data != self._asked[0]:", "if data and not self._asked[0]:")),
    "a refused row has its text": ("a refused row changes nothing", edited(
        SharedBlocks, "reserve", "return False", "self.texts[row] = [b'']; return False")),
    "idle blocks are room, claimed or not": ("room is what no row owns, claims or has reserved", edited(
        SharedBlocks, "reserve", "self.available - sum(block in self.idle for block in hits)", "self.available")),
    "what is known is no room": ("what is reserved is there", lambda patch: patch.setattr(
        SharedBlocks, "available", BlockManager.available)),
    "tables do not hear of hits": ("", edited(
        SharedBlocks, "reserve", "wanted - len(hits), 0", "wanted - len(hits), len(hits)")),
    "a key is the block's tokens alone": (EXPECTED, edited(
        SharedBlocks, "_extend", "keys[-1] if keys else self.identity", "self.identity")),
    "a block is found ahead of the step that fills it": (EXPECTED, edited(
        SharedBlocks, "extend", "tokens // self.block_size)", "len(self.owned[row]))")),
    "a text is known before it is fed": ("a block that can be found is written", edited(
        QueueEngine, "leave", "s.tokens, s.cached", "s.tokens, len(s.tokens)")),
    "a forgotten block keeps its key": ("a key is its block's", edited(
        SharedBlocks, "_evict", "self.keys.pop(block)", "self.keys[block]")),
    "what is held is forgotten": ("what a row owns is given to no other", edited(
        SharedBlocks, "_evict", "block, _ = self.idle.popitem(last=False)",
        "block = next(iter(self.known.values())); self.idle.pop(block, None)")),
    "the newest is forgotten": ("the least recently used goes first", edited(
        SharedBlocks, "_evict", "popitem(last=False)", "popitem()")),
    "a hit is not counted": ("a block counts its rows", edited(
        SharedBlocks, "reserve", "self.users.get(block, 0) + 1", "1")),
    "from the beginning on": ("the end of a text goes before its beginning", edited(
        SharedBlocks, "release", "super().release(row)", "self.owned[row].reverse(); super().release(row)")),
    "texts stay where they are": ("a row takes its text along", edited(
        SharedBlocks, "rename", "self.texts[target], self.texts[source] = self.texts[source], []", "pass")),
}  # fmt: skip

DRAFTS: dict[str, tuple[str, Mutate]] = {
    "drafts beyond the budget": ("the budget holds", edited(DraftEngine, "limits", "// max(1, len(work))", "")),
    "drafts beyond the pool": ("", edited(
        DraftEngine, "room_for", "return min(limit, int(self.blocks.room(s.row)) - need)", "return limit")),
    "drafts beside penalties": ("", edited(DraftEngine, "drafting", "and not s.params.scores", "")),
    "tokens of one step come in two": ("", edited(DraftEngine, "settle", "if n < len(run)", "if n == 0")),
}  # fmt: skip

WITHIN: dict[str, tuple[str, Mutate]] = {
    "the position of rejected tokens is kept": ("", edited(
        verify, "verify_step", "add_(counts)", "add_(going * work.shape[1])")),
    "a draft is kept behind a wrong one": ("", edited(verify, "accept", ".cumprod(1)", "")),
    "noise by the step of the row": ("", edited(verify, "choose_each", "each % columns", "0")),
    "padding writes where its row is": ("", edited(
        verify, "lay_out", "rows.row[:, None], state.dummy", "rows.row[:, None], rows.row[:, None]")),
    "drafts beyond the end": ("", edited(verify, "verify_step", "(places < work[:, :1])", "(places > -1)")),
    "plain steps behind drafts": ("", edited(DraftEngine, "schedule", "or (drafting and bool(self.in_flight))", "")),
    "nobody waits for drafts on their way": ("", edited(
        DraftEngine, "schedule", "drafting != self.verifying", "False")),
    "no step waits for room": ("", edited(DraftEngine, "short", "bool(self.blocks)", "False")),
    "what is ahead stays ahead": ("", edited(DraftEngine, "settle", "s.ahead -= count - 1", "pass")),
    "nothing is ahead": ("", edited(DraftEngine, "pack", "s.ahead + count - 1", "s.ahead")),
    "accepted tokens are not cached": ("", edited(DraftEngine, "settle", "max(0, own - 1)", "0")),
    "a step past the end has fed a token": ("", edited(DraftEngine, "settle", ", s.end - 1)", ", s.end)")),
    "blocks past the end": ("room is reserved for what comes", edited(
        DraftEngine, "room_for", "min(s.cached + s.ahead + 1, s.end)", "s.cached + s.ahead + 1")),
    "blocks for the newest token alone": ("", edited(DraftEngine, "pack", "super().pack(fed)", "super().pack(work)")),
    "what is looked up stays where it is": ("", edited(
        DraftEngine, "place", "self.drafter.move(step.sources, step.targets)", "pass")),
    "a text that comes back is known": ("", edited(DraftEngine, "leave", "s.learned, s.drafted = 0, []", "pass")),
    "drafts are of texts that nobody has told": ("", edited(
        DraftEngine, "drafts_for", "self.within.learn(sequences)", "pass")),
}  # fmt: skip

LIVES: list[tuple[dict[str, tuple[str, Mutate]], dict[str, Any]]] = [
    (PLAIN, {}),
    (WITH_PREEMPTION, {"preemption": True, "blocks": "owned", "fail_at": 0, "engine": "graph", "lag": 3}),
    (AFTER_FAILURES, {"fail_at": 0.03, "blocks": "shared"}),
    (DENSE, {"engine": "eager", "blocks": "none"}),
    (OWNED, {"blocks": "owned"}),
    (SHARED, {"blocks": "shared"}),
    (DRAFTS, {"drafts": "here", "alpha": 0.9, "penalised": 0.3}),
    (WITHIN, {"drafts": "within", "lag": 2}),
]
MISTAKES = {name: Mistake(*each, parts) for table, parts in LIVES for name, each in table.items()}
