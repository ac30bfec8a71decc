"""The table of planted mistakes: which of the engine's lives finds each, and what does not hold there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from nanoinfer.cache.blocks import BlockAllocator, BlockManager
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.paged import PagedCache
from nanoinfer.cache.prefix import PrefixBlocks, SharedAllocator
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.scheduler import Row, Scheduler, Step
from nanoinfer.engine.state import BatchState
from nanoinfer.speculate import step as step_module
from nanoinfer.speculate.engine import SpeculativeEngine
from nanoinfer.speculate.lookup import PromptLookup
from nanoinfer.speculate.scheduler import DraftScheduler
from tests.conftest import changed
from tests.engine.audit import Audit
from tests.engine.drafting import edited

Mutate = Callable[[pytest.MonkeyPatch], None]


class Mistake(NamedTuple):
    mutate: Mutate
    parts: dict[str, Any]  # of the `History` that finds it
    what: str  # does not hold there; empty where it is the tokens, the listeners' calls or the counts


def nothing(*args: object) -> None:
    """In place of a method that should do something."""


def stopped(schedule: Any, self: Scheduler) -> Step:
    return Step([], [], [], [], [], slice(0, 0))


def starving(patch: pytest.MonkeyPatch) -> None:
    """No step at all, and nobody looks for a cause."""
    patch.setattr(Audit, "check_causes", nothing)
    changed(Scheduler, "schedule", stopped)(patch)


GOING = "going = [row for row in self._slots if row and row.going]"
STEP = "Step(going if self.mixed or not pieces else [], pieces,"
FIRST_COME, WORK = "rows: first come, first served", "all rows that go on do, by slot, or none"
PLAIN: dict[str, tuple[str, Mutate]] = {
    "the last to come is the first": (FIRST_COME, edited(Scheduler, "submit", ".append(", ".appendleft(")),
    "whoever fits comes first": (FIRST_COME, edited(
        Scheduler, "schedule", "self._make_room()",
        "self._make_room(); self.waiting = deque(sorted(self.waiting, key=lambda row: row.last))")),
    "a request falls out": (FIRST_COME, edited(
        Scheduler, "schedule", "sources, targets, freed =",
        "len(self.waiting) > 3 and self.waiting.popleft(); sources, targets, freed =")),
    "the newest prompt is fed first": ("pieces: first come, first served", edited(
        Scheduler, "schedule", "key=lambda row: row.arrived", "key=lambda row: -row.arrived")),
    "rows go on as prompts": ("a row is fed its own text", edited(
        Scheduler, "schedule", STEP, "Step([], [*[Work(row, 1) for row in going], *pieces],")),
    "each piece is a token short": ("only the last piece is cut", edited(
        Scheduler, "_feed", "self.prefill_chunk, budget)", "self.prefill_chunk, budget, max(1, budget - 1))")),
    "pieces are cut in half": ("no prompt waits without a cause", edited(
        Scheduler, "_feed", "self.prefill_chunk, budget)", "self.prefill_chunk, -(-budget // 2))")),
    "one row at a time": ("nobody waits without a cause", edited(
        Scheduler, "_admit", "slot == self.max_batch", "slot")),
    "a step for nothing": ("no step is empty without a cause", changed(Scheduler, "schedule", stopped)),
    "no step at all": ("nobody starves", starving),
    "one token more than the budget": ("the budget holds", edited(
        Scheduler, "_feed", "self.prefill_chunk, budget)", "self.prefill_chunk, budget + 1)")),
    "whole prompts": ("a piece is at most prefill_chunk", edited(
        Scheduler, "_feed", "self.prefill_chunk, budget)", "budget)")),
    "prompts push rows out": ("the oldest row goes on", edited(
        Scheduler, "schedule", STEP, "Step([] if pieces else going, pieces,")),
    "prompts always have their turn": ("a row that goes on waits one step at most", edited(
        Scheduler, "schedule", "going and self._decode_next, False", "False, False")),
    "prompts never have their turn": ("a prompt waits for one step at most", edited(
        Scheduler, "schedule", "going and self._decode_next, False", "bool(going), False")),
    "both kinds in one step": ("the two kinds of step take turns", edited(
        Scheduler, "schedule", STEP, "Step(going, pieces,")),
    "one row is left out": (WORK, edited(Scheduler, "schedule", GOING, GOING + "[1:]")),
    "more rows than there are": ("each row has a slot", edited(
        Scheduler, "_admit", "slot == self.max_batch", "slot == 99")),
    "gaps stay": ("each row has a slot", changed(Scheduler, "_close_gaps", lambda *_: ([], [], slice(0, 0)))),
    "a gap is filled twice": ("each row has a slot", edited(
        Scheduler, "_admit", "= [row]", "= [row if slot == len(self._slots) else None]")),
    "rows keep their slots": ("rows are slots 0..n-1", edited(
        Scheduler, "_close_gaps", "row.slot = target", "pass")),
    "rows close up": ("rows move only into gaps", edited(
        Scheduler, "_close_gaps", "range(after, before) if self._slots[slot]",
        "range(before) if self._slots[slot] and None in self._slots[:slot]",
        "[slot for slot in range(after) if not self._slots[slot]] if sources else []",
        "[slot - self._slots[:slot].count(None) for slot in sources]")),
    "a moved row is forgotten": ("the device hears of each move", edited(
        Scheduler, "_close_gaps", "return sources, targets", "return sources[1:], targets[1:]")),
    "the moves are crossed": ("the device hears of each move", edited(
        Scheduler, "_close_gaps", "return sources, targets", "return sources[::-1], targets")),
    "a slot is not freed": ("slots without a row are freed", edited(
        Scheduler, "_close_gaps", "slice(after, before)", "slice(after + 1, before)")),
    "a token after each piece": ("", edited(Scheduler, "launch", "if row.fed == len(row.prompt):", "if True:")),
    "the same piece again": ("a slot is written once", edited(
        Scheduler, "launch", "row.fed += tokens", "row.fed += tokens * (row.fed + tokens == len(row.prompt))")),
    "rows that end by count stay": ("", edited(Scheduler, "launch", "self.remove(done)", "pass")),
    "what is computed again is not counted": ("", edited(
        Scheduler, "launch", "min(tokens, row.computed - row.fed)", "0")),
    "a cancelled row runs on": ("", changed(Engine, "cancel", nothing)),
    "tokens after the end": ("", edited(Engine, "_collect", "if not row.ended:", "if True:")),
    "slots of now": ("", edited(
        Engine, "_collect", "if places is not None:",
        "places = places or range(len(rows))\n"
        "    places = [row.slot if 0 <= row.slot < len(tokens) else at for row, at in zip(rows, places)]\n"
        "    if True:")),
    "the last token is told twice": ("", edited(
        Engine, "_settle", "self._notify(row)", "self._notify(row); row.ended and self._notify(row)")),
    "one who asks too much ends all": ("", edited(Engine, "generate", "self.check(request)", "pass")),
    "rows that come back are new ones": ("", edited(Engine, "_count", "if not row.computed:", "if True:")),
    "a row comes back at step 0": ("", edited(Engine, "place", "map(len, known)", "[0] * len(known)")),
    "rows begin anywhere": ("", changed(
        BatchState, "admit", lambda admit, self, rows, *given: admit(self, range(len(rows)), *given))),
    "rows that left are live": ("", changed(BatchState, "free", nothing)),
    "the state moves nothing": ("", changed(BatchState, "move", nothing)),
    "tables stay where they are": ("", changed(PagedCache, "move", nothing)),
    "dense rows stay where they are": ("", changed(DenseCache, "move", nothing)),
    "no step is made for the longest text": ("no token stands behind the longest context", edited(
        Engine, "_launch", "1 + max([row.fed", "max([row.fed")),
}  # fmt: skip

YOUNGEST = "the youngest give way to one that lacks a block"
WITH_PREEMPTION: dict[str, tuple[str, Mutate]] = {
    "the oldest gives way": (YOUNGEST, edited(Scheduler, "_make_room", "max(self.rows", "min(self.rows")),
    "a row gives way ahead of need": (YOUNGEST, edited(
        Scheduler, "_make_room", "can_grow(row.slot, row.fed + 1)", "can_grow(row.slot, row.fed + 99)")),
    "a preemption is not counted": ("preemptions are counted", edited(
        Scheduler, "_preempt", "self.preemptions += 1", "pass")),
    "preempted rows wait behind the others": (FIRST_COME, edited(Scheduler, "_preempt", ".appendleft(", ".append(")),
    "preempted rows come back ahead of their tokens": ("", edited(
        Scheduler, "_admit", " or len(row.token_ids) < row.launched", "")),
    "preempted rows come back without their tokens": ("", edited(Scheduler, "_admit", "if row.launched:", "if False:")),
    "a preempted row that is cancelled stays in line": ("", edited(
        Scheduler, "drop", "elif row in self.waiting:", "elif row in self.waiting and not row.launched:")),
    "what a row waits for is never collected": ("", edited(
        Engine, "step", "launched and self.scheduler.busy", "self.scheduler.busy")),
    "preempted rows give a block back twice": ("a block is free, idle or owned", edited(
        Scheduler, "_preempt", "self.remove([row])",
        "owned = self.blocks.owned[row.slot][-1:]; self.remove([row]); self.blocks.allocator._free += owned")),
    "a preempted row's tokens are dropped, and awaited": ("", edited(
        Engine, "_collect", "if not row.ended:", "if not row.ended and row not in self.scheduler.waiting:")),
    "a preempted row's tokens are kept, and not awaited": ("", edited(
        Scheduler, "_preempt", "row.fed - len(row.request.prompt_token_ids) + 1 if row.going else", "")),
}  # fmt: skip

AFTER_FAILURES: dict[str, tuple[str, Mutate]] = {
    "abandoned steps are collected": ("", edited(
        Engine, "abandon", "self._in_flight, launched = deque(), self._in_flight", "launched = list(self._in_flight)")),
    "slots that a failed step should free are not": ("", edited(
        Engine, "abandon", "slice(0, self.max_batch)", "slice(0, len(self.scheduler._slots))")),
    "who waits for no token is not told of a failure": ("", edited(
        Engine, "abandon", "in step.scored]", "in ()]")),
    "blocks of a failed step are found": ("a block is free, idle or owned", edited(
        PrefixBlocks, "clear", "while self.allocator.idle", "while False")),
}  # fmt: skip

OWNED: dict[str, tuple[str, Mutate]] = {
    "a block for two": ("a block is free, idle or owned", edited(
        BlockAllocator, "allocate", "self.owned[block] = 1",
        "self.owned[block] = 1; self._free += [3] * (block == 3)")),
    "blocks are kept": ("a row's blocks stay its own", changed(BlockManager, "release", nothing)),
    "the reservation is kept": ("a row's reservation is its own", edited(
        BlockManager, "release", "self.reserved -= self.reservation[row]", "return")),
    "blocks are forgotten": ("a block counts its rows", edited(
        BlockManager, "release", "self.truncate(row, 0)",
        "self.reserved += len(self.owned[row]); self.owned[row] = []")),
    "blocks stay where they are": ("a row's blocks stay its own", changed(BlockManager, "move", nothing)),
    "news of a block goes to where its row was": ("", edited(
        BlockManager, "move", "(to.get(row, row), column", "(row, column")),
    "reservations are not counted": ("room is what no row owns, claims or has reserved", edited(
        BlockManager, "reserve", "wanted > self.available", "wanted > self.allocator.free_blocks")),
    "one token too few is reserved": ("a row's reservation is its own", edited(
        BlockManager, "reserve", "blocks_of(tokens)", "blocks_of(tokens - 1)")),
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
    "one token too few is reserved where blocks are shared": ("a row's reservation is its own", edited(
        PrefixBlocks, "reserve", "blocks_of(tokens)", "blocks_of(tokens - 1)")),
    "a hit includes the last token": ("what is found was computed, up to the last token", edited(
        PrefixBlocks, "reserve", "(len(text) - 1) // self.block_size", "len(text) // self.block_size")),
    "a hit in a prompt whose logits are asked for": ("", edited(
        Scheduler, "_admit", "() if row.request.params.prompt_logprobs is not None else prompt", "prompt")),
    "the last token of a hit is fed again": ("a slot is written once", edited(
        Scheduler, "_admit", "row.fed = row.room = self.blocks.grow(slot, 0)",
        "row.room = self.blocks.grow(slot, 0); row.fed = max(0, row.room - 1)")),
    "the keys of the text before": ("what is known is found", edited(
        PrefixBlocks, "reserve", "if data != self._asked[0]:", "if data and not self._asked[0]:")),
    "nothing is found": ("what is known is found", edited(
        PrefixBlocks, "reserve", "hits = list(", "hits = [] and list(")),
    "each attempt is counted": ("a refused row changes nothing", edited(
        PrefixBlocks, "reserve", "return False", "self.asked_tokens += len(text); return False")),
    "a row is counted twice": ("an admitted row is counted, once", edited(
        PrefixBlocks, "reserve", "+= len(text)", "+= 2 * len(text)")),
    "idle blocks are room, claimed or not": ("room is what no row owns, claims or has reserved", edited(
        PrefixBlocks, "reserve", "self.available - idle", "self.available")),
    "hits are reserved as well": ("what is reserved is there", edited(
        PrefixBlocks, "reserve", "wanted - len(hits)\n    self.asked", "wanted\n    self.asked")),
    "the device does not hear of hits": ("", edited(
        PrefixBlocks, "reserve", "self.begun.append((row, column, block))", "pass")),
    "a key is the block's tokens alone": (EXPECTED, edited(
        PrefixBlocks, "_extend", "keys[-1] if keys else self.identity", "self.identity")),
    "a hash too weak": (EXPECTED, edited(
        PrefixBlocks, "_extend", "+ data[start : start + size]", "+ bytes([max(data[start : start + size])])")),
    "a block that is not written": (EXPECTED, edited(PrefixBlocks, "_publish", "min(full,", "min(full + 1,")),
    "a block is found ahead of the step that fills it": (EXPECTED, edited(
        PrefixBlocks, "grow", "length // self.block_size", "len(self.owned[row])")),
    "nothing is published": (EXPECTED, changed(PrefixBlocks, "_publish", nothing)),
    "a text is known before it is fed": ("a block that can be found is written", edited(
        Row, "text", ")[: self.fed]", ")")),
    "of two blocks, the second": (EXPECTED, edited(
        SharedAllocator, "publish", "if key not in self.known:", "if True:")),
    "the map still points there": (EXPECTED, edited(
        SharedAllocator, "forget", "del self.known[self.keys[block]]", "pass")),
    "a forgotten block keeps its key": ("a key is its block's", edited(
        SharedAllocator, "forget", 'self.keys[block] = b""', "pass")),
    "what is held is forgotten": ("what a row owns is given to no other", edited(
        SharedAllocator, "forget", "block, _ = self.idle.popitem(last=False)",
        "block = next(iter(self.known.values())); self.idle.pop(block, None)")),
    "the newest is forgotten": ("the least recently used goes first", edited(
        SharedAllocator, "forget", "popitem(last=False)", "popitem()")),
    "forgotten without need": ("the least recently used goes first", edited(
        SharedAllocator, "allocate", "not self._free and self.idle", "self.idle")),
    "evictions are counted twice": ("what is forgotten is counted", edited(
        SharedAllocator, "allocate", "self.evictions += 1", "self.evictions += 2")),
    "a hit is not counted": ("a block counts its rows", edited(
        SharedAllocator, "share", "self.owned[block] += 1", "self.owned[block] = 1")),
    "freed twice": ("a block is free, idle or owned", edited(
        SharedAllocator, "free", "super().free(block)", "super().free(block); self._free.append(block)")),
    "from the beginning on": ("the end of a text goes before its beginning", edited(
        PrefixBlocks, "release", "super().release(row)", "self.owned[row].reverse(); super().release(row)")),
    "texts stay where they are": ("a row takes its text along", edited(
        PrefixBlocks, "move", "self.texts[target], self.texts[source] = self.texts[source], []", "pass")),
    "blocks change places": ("a row's blocks stay its own", edited(
        PrefixBlocks, "grow", "room = super().grow(row, length)",
        "room = super().grow(row, length); self.owned[row].reverse()")),
}  # fmt: skip

KEPT = "(runs.offset < counts[runs.run]).int()"
DRAFTS: dict[str, Mutate] = {
    "the bonus token is forgotten": edited(step_module, "verify_step", "accepted + 1", "accepted.clamp(min=1)"),
    "the position of rejected tokens is kept": edited(
        step_module, "verify_step", "runs.positions + counts", "runs.positions + k + 1"),
    "a draft is kept behind a wrong one": edited(step_module, "verify_step", ".cumprod(1)", ".int()"),
    "noise by the step of the row": edited(
        step_module, "verify_step", "rows.step.add_(runs.offset)", "rows.step.add_(0)"),
    "noise goes on by one a step": edited(
        step_module, "verify_step", "state.step[runs.rows] + counts", "state.step[runs.rows] + 1"),
    "the right token is thrown away": edited(
        step_module, "verify_step", "accepted[:, None])", "(accepted[:, None] + 1).clamp(max=k))"),
    "drafts are held against the token before": edited(
        step_module, "verify_step", "chosen[:, :k] ==", "chosen[:, 1:] =="),
    "drafts beyond the budget": edited(
        DraftScheduler, "draft_limit", "left) // max(1, len(step.going))", "left)"),
    "drafts beyond the context": edited(
        DraftScheduler, "room_for", "row.last) - row.fed - 1", "row.last) - row.fed + 1"),
    "drafts beyond the pool": edited(DraftScheduler, "room_for", "wanted -= 1", "break"),
    "blocks of rejected drafts are kept": edited(
        DraftScheduler, "give_back", "blocks.truncate(row.slot, row.fed)", "pass"),
    "reservations for drafts are kept": edited(DraftScheduler, "give_back", "blocks.unreserve(", "sum(()) or max("),
    "a row without room goes on": edited(DraftScheduler, "give_back", "row.fed == row.room", "False"),
    "no row goes back over its drafts": edited(
        PrefixBlocks, "truncate", "self.published[row] * self.block_size", "len(self.owned[row]) * self.block_size"),
    "accepted tokens were not fed": edited(SpeculativeEngine, "_keep", "row.fed += fed", "row.fed += fed and not at"),
    "only the last of a run may end it": edited(
        SpeculativeEngine, "_keep", "token in row.stop_ids", "at == len(tokens) - 1 and token in row.stop_ids"),
    "a row goes on after its end": edited(SpeculativeEngine, "_keep", "if row.ended:", "if False:"),
}  # fmt: skip

SCORED: dict[str, Mutate] = {
    "every token chosen is counted": edited(step_module, "verify_step", KEPT, "torch.ones_like(runs.offset).int()"),
    "no token chosen is counted": edited(step_module, "verify_step", KEPT, "torch.zeros_like(runs.offset).int()"),
    "penalties know no drafts": edited(step_module, "choose_scored", "ahead.int()", "ahead.int() * 0"),
    "logprobs of one place for all": edited(SpeculativeEngine, "_keep", "logprobs[at]", "logprobs[0]"),
    "logprobs of another row": edited(SpeculativeEngine, "_collect", "range(1 + drafts)", "range(count)"),
}  # fmt: skip

WITHIN: dict[str, Mutate] = {
    "who begins again is not forgotten": changed(PromptLookup, "forget", nothing),
    "texts stay when rows move": edited(
        PromptLookup, "move", "self.texts[target] =", "self.texts[target] = self.texts[target] if sources else"),
    "a row goes on behind its room": edited(SpeculativeEngine, "_replay", "min(row.room, row.last)", "row.last"),
    "a row goes on behind its end": edited(SpeculativeEngine, "_replay", "min(row.room, row.last)", "row.room"),
    "what was not fed is accepted": edited(step_module, "verify_rows", "& brought)", ")"),
    "a row at its end chooses": edited(step_module, "verify_rows", "(accepted + 1) * going", "accepted + 1"),
    "ends are of the next token": edited(step_module, "verify_rows", "places < work", "places - 1 < work"),
    "captured noise by the step of the row": edited(
        step_module, "verify_rows", "each.step.add_((places - position).flatten())", "each.step.add_(0)"),
    "padding writes where its row is": edited(
        step_module, "verify_rows", "rows.row[:, None], state.dummy", "rows.row[:, None], rows.row[:, None]"),
    "every row goes on by one": edited(step_module, "verify_rows", "(accepted + 1) * going", "going.long()"),
    "a captured draft is kept behind a wrong one": edited(step_module, "verify_rows", ".cumprod(1)", ".int()"),
    "padding stands where its row is": edited(
        step_module, "verify_rows", "torch.where(real, places, 0)", "torch.where(real, position, 0)"),
    "plain steps behind drafts": edited(SpeculativeEngine, "step", 'or (way == "device") ==', "or () =="),
    "a row at its end gives tokens": edited(SpeculativeEngine, "_collect", "not row.ended and count", "count"),
    "what is ahead stays ahead": edited(SpeculativeEngine, "_collect", "row.ahead -= ahead", "pass"),
}  # fmt: skip

LIVES: list[tuple[dict[str, tuple[str, Mutate]], dict[str, Any]]] = [
    (PLAIN, {}),
    (WITH_PREEMPTION, {"preemption": True, "blocks": "owned", "fail_at": 0, "lag": 3}),
    (AFTER_FAILURES, {"fail_at": 0.03, "blocks": "shared"}),
    (OWNED, {"blocks": "owned"}),
    (SHARED, {"blocks": "shared"}),
    ({name: ("", mutate) for name, mutate in DRAFTS.items()}, {"drafts": "here", "fail_at": 0, "alpha": 0.9}),
    (
        {name: ("", mutate) for name, mutate in SCORED.items()},
        {"drafts": "here", "fail_at": 0, "alpha": 0.9, "penalised": 0.7},
    ),
    ({name: ("", mutate) for name, mutate in WITHIN.items()}, {"drafts": "within"}),
]
MISTAKES = {name: Mistake(mutate, parts, what) for each, parts in LIVES for name, (what, mutate) in each.items()}
