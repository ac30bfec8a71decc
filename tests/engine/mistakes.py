"""The table of planted mistakes: which of the engine's lives finds each, and what does not hold there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from nanoinfer.cache.blocks import BlockAllocator, BlockManager
from nanoinfer.cache.paged import PagedCache
from nanoinfer.cache.prefix import PrefixBlocks, SharedAllocator
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.scheduler import Row, Scheduler, Step
from nanoinfer.engine.state import BatchState
from nanoinfer.speculate import step as step_module
from nanoinfer.speculate.engine import SpeculativeEngine
from nanoinfer.speculate.scheduler import DraftScheduler
from tests.conftest import changed
from tests.engine.drafting import edited

Mutate = Callable[[pytest.MonkeyPatch], None]


class Mistake(NamedTuple):
    what: str  # does not hold; empty where it is the tokens, the listeners' calls or the counts
    mutate: Mutate
    parts: dict[str, Any]  # of the `History` that finds it


def nothing(*args: object) -> None:
    """In place of a method that should do something."""


def stopped(schedule: Any, self: Scheduler) -> Step:
    return Step([], [], [], [], [], slice(0, 0))


GOING = "going = [row for row in self._slots if row and row.going]"
STEP = "Step(going if self.mixed or not pieces else [], pieces,"
PLAIN: dict[str, tuple[str, Mutate]] = {
    "the last to come is the first": ("rows: first come, first served", edited(
        Scheduler, "submit", ".append(", ".appendleft(")),
    "the newest prompt is fed first": ("pieces: first come, first served", edited(
        Scheduler, "schedule", "key=lambda row: row.arrived", "key=lambda row: -row.arrived")),
    "rows go on as prompts": ("a row is fed its own text", edited(
        Scheduler, "schedule", STEP, "Step([], [*[Work(row, 1) for row in going], *pieces],")),
    "each piece is a token short": ("only the last piece is cut", edited(
        Scheduler, "_feed", "self.prefill_chunk, budget)", "self.prefill_chunk, budget, max(1, budget - 1))")),
    "one row at a time": ("nobody waits without a cause", edited(
        Scheduler, "_admit", "slot == self.max_batch", "slot")),
    "a step for nothing": ("no step is empty without a cause", changed(Scheduler, "schedule", stopped)),
    "one token more than the budget": ("the budget holds", edited(
        Scheduler, "_feed", "self.prefill_chunk, budget)", "self.prefill_chunk, budget + 1)")),
    "whole prompts": ("a piece is at most prefill_chunk", edited(
        Scheduler, "_feed", "self.prefill_chunk, budget)", "budget)")),
    "prompts push rows out": ("the oldest row goes on", edited(
        Scheduler, "schedule", STEP, "Step([] if pieces else going, pieces,")),
    "prompts always have their turn": ("a row that goes on waits one step at most", edited(
        Scheduler, "schedule", "going and self._decode_next, False", "False, False")),
    "prompts never have their turn": ("no prompt waits without a cause", edited(
        Scheduler, "schedule", "going and self._decode_next, False", "bool(going), False")),
    "both kinds in one step": ("the two kinds of step take turns", edited(
        Scheduler, "schedule", STEP, "Step(going, pieces,")),
    "one row is left out": ("all rows that go on do, by slot, or none", edited(
        Scheduler, "schedule", GOING, GOING + "[1:]")),
    "gaps stay": ("", changed(Scheduler, "_close_gaps", lambda *_: ([], [], slice(0, 0)))),
    "a moved row is forgotten": ("", edited(
        Scheduler, "_close_gaps", "return sources, targets", "return sources[1:], targets[1:]")),
    "a slot is not freed": ("", edited(
        Scheduler, "_close_gaps", "slice(after, before)", "slice(after + 1, before)")),
    "the same piece again": ("a slot is written once", edited(
        Scheduler, "launch", "row.fed += tokens", "row.fed += tokens * (row.fed + tokens == len(row.prompt))")),
    "what is computed again is not counted": ("", edited(
        Scheduler, "launch", "min(tokens, row.computed - row.fed)", "0")),
    "a cancelled row runs on": ("", changed(Engine, "cancel", nothing)),
    "tokens after the end": ("", edited(Engine, "_collect", "if not row.ended:", "if True:")),
    "the last token is told twice": ("", edited(
        Engine, "_settle", "self._notify(row)", "self._notify(row); row.ended and self._notify(row)")),
    "a row comes back at step 0": ("", edited(Engine, "place", "map(len, known)", "[0] * len(known)")),
    "rows that left are live": ("", changed(BatchState, "free", nothing)),
    "the state moves nothing": ("", changed(BatchState, "move", nothing)),
    "tables stay where they are": ("", changed(PagedCache, "move", nothing)),
    "no step is made for the longest text": ("no token stands behind the longest context", edited(
        Engine, "_launch", "1 + max([row.fed", "max([row.fed")),
}  # fmt: skip

WITH_PREEMPTION: dict[str, tuple[str, Mutate]] = {
    "a row gives way ahead of need": ("the youngest give way to one that lacks a block", edited(
        Scheduler, "_make_room", "can_grow(row.slot, row.fed + 1)", "can_grow(row.slot, row.fed + 99)")),
    "a preemption is not counted": ("preemptions are counted", edited(
        Scheduler, "_preempt", "self.preemptions += 1", "pass")),
    "preempted rows come back ahead of their tokens": ("", edited(
        Scheduler, "_admit", " or len(row.token_ids) < row.launched", "")),
    "a preempted row that is cancelled stays in line": ("", edited(
        Scheduler, "drop", "elif row in self.waiting:", "elif row in self.waiting and not row.launched:")),
    "a preempted row's tokens are kept, and not awaited": ("", edited(
        Scheduler, "_preempt", "row.fed - len(row.request.prompt_token_ids) + 1 if row.going else", "")),
}  # fmt: skip

AFTER_FAILURES: dict[str, tuple[str, Mutate]] = {
    "abandoned steps are collected": ("", edited(
        Engine, "abandon", "self._in_flight, launched = deque(), self._in_flight", "launched = list(self._in_flight)")),
    "who waits for no token is not told of a failure": ("", edited(
        Engine, "abandon", "in step.scored]", "in ()]")),
}  # fmt: skip

OWNED: dict[str, tuple[str, Mutate]] = {
    "a block for two": ("a block is free, idle or owned", edited(
        BlockAllocator, "allocate", "self.owned[block] = 1",
        "self.owned[block] = 1; self._free += [3] * (block == 3)")),
    "blocks are kept": ("a row's blocks stay its own", changed(BlockManager, "release", nothing)),
    "the reservation is kept": ("a row's reservation is its own", edited(
        BlockManager, "release", "self.reserved -= self.reservation[row]", "return")),
    "news of a block goes to where its row was": ("", edited(
        BlockManager, "move", "(to.get(row, row), column", "(row, column")),
    "one token too few is asked for": ("room is reserved for what comes", edited(
        Scheduler, "_admit", "else longest\n", "else longest - 1\n")),
    "blocks come out of no reservation": ("what is reserved is there", edited(
        BlockManager, "grow", "self.reserved -= 1", "pass")),
    "one token too few has room": ("a row has room for its text", edited(
        BlockManager, "grow", "self.block_size < length", "self.block_size < length - 1")),
    "a block too many": ("a text has its blocks, no more", edited(
        Scheduler, "_feed", "grow(row.slot, row.fed + tokens)", "grow(row.slot, len(row.prompt))")),
}  # fmt: skip

EXPECTED = "what is known is what should be"
SHARED: dict[str, tuple[str, Mutate]] = {
    "a hit includes the last token": ("what is found was computed, up to the last token", edited(
        PrefixBlocks, "reserve", "(len(text) - 1) // self.block_size", "len(text) // self.block_size")),
    "a hit in a prompt whose logits are asked for": ("", edited(
        Scheduler, "_admit", "() if row.request.params.prompt_logprobs is not None else prompt", "prompt")),
    "the keys of the text before": ("what is known is found", edited(
        PrefixBlocks, "reserve", "if data != self._asked[0]:", "if data and not self._asked[0]:")),
    "each attempt is counted": ("a refused row changes nothing", edited(
        PrefixBlocks, "reserve", "return False", "self.asked_tokens += len(text); return False")),
    "a row is counted twice": ("an admitted row is counted, once", edited(
        PrefixBlocks, "reserve", "+= len(text)", "+= 2 * len(text)")),
    "idle blocks are room, claimed or not": ("room is what no row owns, claims or has reserved", edited(
        PrefixBlocks, "reserve", "self.available - idle", "self.available")),
    "the device does not hear of hits": ("", edited(
        PrefixBlocks, "reserve", "self.begun.append((row, column, block))", "pass")),
    "a key is the block's tokens alone": (EXPECTED, edited(
        PrefixBlocks, "_extend", "keys[-1] if keys else self.identity", "self.identity")),
    "a block is found ahead of the step that fills it": (EXPECTED, edited(
        PrefixBlocks, "grow", "length // self.block_size", "len(self.owned[row])")),
    "a text is known before it is fed": ("a block that can be found is written", edited(
        Row, "text", ")[: self.fed]", ")")),
    "a forgotten block keeps its key": ("a key is its block's", edited(
        SharedAllocator, "forget", 'self.keys[block] = b""', "pass")),
    "what is held is forgotten": ("what a row owns is given to no other", edited(
        SharedAllocator, "forget", "block, _ = self.idle.popitem(last=False)",
        "block = next(iter(self.known.values())); self.idle.pop(block, None)")),
    "the newest is forgotten": ("the least recently used goes first", edited(
        SharedAllocator, "forget", "popitem(last=False)", "popitem()")),
    "evictions are counted twice": ("what is forgotten is counted", edited(
        SharedAllocator, "allocate", "self.evictions += 1", "self.evictions += 2")),
    "a hit is not counted": ("a block counts its rows", edited(
        SharedAllocator, "share", "self.owned[block] += 1", "self.owned[block] = 1")),
    "from the beginning on": ("the end of a text goes before its beginning", edited(
        PrefixBlocks, "release", "super().release(row)", "self.owned[row].reverse(); super().release(row)")),
    "texts stay where they are": ("a row takes its text along", edited(
        PrefixBlocks, "move", "self.texts[target], self.texts[source] = self.texts[source], []", "pass")),
}  # fmt: skip

KEPT = "(runs.offset < counts[runs.run]).int()"
DRAFTS: dict[str, Mutate] = {
    "the bonus token is forgotten": edited(step_module, "verify_step", "accepted + 1", "accepted.clamp(min=1)"),
    "the position of rejected tokens is kept": edited(
        step_module, "verify_step", "runs.positions + counts", "runs.positions + k + 1"),
    "a draft is kept behind a wrong one": edited(step_module, "verify_step", ".cumprod(1)", ".int()"),
    "noise by the step of the row": edited(
        step_module, "verify_step", "rows.step.add_(runs.offset)", "rows.step.add_(0)"),
    "drafts beyond the budget": edited(
        DraftScheduler, "draft_limit", "left) // max(1, len(step.going))", "left)"),
    "drafts beyond the pool": edited(DraftScheduler, "room_for", "wanted -= 1", "break"),
    "blocks of rejected drafts are kept": edited(
        DraftScheduler, "give_back", "blocks.truncate(row.slot, row.fed)", "pass"),
    "no row goes back over its drafts": edited(
        PrefixBlocks, "truncate", "self.published[row] * self.block_size", "len(self.owned[row]) * self.block_size"),
    "only the last of a run may end it": edited(
        SpeculativeEngine, "_keep", "token in row.stop_ids", "at == len(tokens) - 1 and token in row.stop_ids"),
    "a row goes on after its end": edited(SpeculativeEngine, "_keep", "if row.ended:", "if False:"),
    "every token chosen is counted": edited(step_module, "verify_step", KEPT, "torch.ones_like(runs.offset).int()"),
    "penalties know no drafts": edited(step_module, "choose_scored", "ahead.int()", "ahead.int() * 0"),
    "logprobs of one place for all": edited(SpeculativeEngine, "_keep", "logprobs[at]", "logprobs[0]"),
}  # fmt: skip

WITHIN: dict[str, Mutate] = {
    "a row goes on behind its room": edited(SpeculativeEngine, "_replay", "min(row.room, row.last)", "row.last"),
    "what was not fed is accepted": edited(step_module, "verify_rows", "& brought)", ")"),
    "captured noise by the step of the row": edited(
        step_module, "verify_rows", "each.step.add_((places - position).flatten())", "each.step.add_(0)"),
    "padding writes where its row is": edited(
        step_module, "verify_rows", "rows.row[:, None], state.dummy", "rows.row[:, None], rows.row[:, None]"),
    "plain steps behind drafts": edited(SpeculativeEngine, "step", 'or (way == "device") ==', "or () =="),
    "what is ahead stays ahead": edited(SpeculativeEngine, "_collect", "row.ahead -= ahead", "pass"),
}  # fmt: skip

LIVES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (PLAIN, {}),
    (WITH_PREEMPTION, {"preemption": True, "blocks": "owned", "fail_at": 0, "lag": 3}),
    (AFTER_FAILURES, {"fail_at": 0.03, "blocks": "shared"}),
    (OWNED, {"blocks": "owned"}),
    (SHARED, {"blocks": "shared"}),
    (DRAFTS, {"drafts": "here", "fail_at": 0, "alpha": 0.9, "penalised": 0.7}),
    (WITHIN, {"drafts": "within"}),
]
MISTAKES = {
    name: Mistake(*(each if isinstance(each, tuple) else ("", each)), parts)
    for table, parts in LIVES
    for name, each in table.items()
}
