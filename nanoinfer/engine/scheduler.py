"""Which rows get how many tokens in the next step: host code that knows no tensor. Chapter 1.

Requests wait in order of arrival for a row, and for the room of their longest text. A row is fed what the model has not
seen of its text: first its prompt, in one chunk or several, then its newest token at every step. Chunks and the idea of
a budget: Agrawal et al. 2023, "SARATHI: Efficient LLM Inference by Piggybacking Decodes with Chunked Prefills".
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import NamedTuple, Protocol

from nanoinfer.requests import FinishReason, Metrics, Request

AHEAD = 64  # tokens past its prompt for which a row has room when it is admitted, where rows may be preempted


class Blocks(Protocol):
    """Whose room a row's text takes: chapter 3's block manager."""

    def fits(self, tokens: int) -> bool: ...
    def reserve(self, row: int, tokens: int, text: Sequence[int]) -> bool: ...
    def can_grow(self, row: int, length: int) -> bool: ...
    def grow(self, row: int, length: int) -> int: ...
    def release(self, row: int, text: Sequence[int]) -> None: ...
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...
    def clear(self) -> None: ...


def check_room(request: Request, blocks: Blocks | None) -> None:
    """ValueError for a request whose longest text these blocks cannot hold, even if it were alone."""
    longest = len(request.prompt_token_ids) + request.limit
    if blocks and not blocks.fits(longest):
        raise ValueError(
            f"prompt {request.index} may grow to {longest} tokens, which {blocks} cannot hold: "
            "lower its max_tokens, or raise kv_blocks"
        )


@dataclass(eq=False)
class Row:
    """What the host knows of a request that runs, or waits for a row of the batch."""

    request: Request
    asked: float  # when it was asked for, time.perf_counter()
    listener: Callable[[Row], None] | None = None  # told, in the engine's thread, when it has ended
    every_token: bool = False  # whether it is told of each token as well
    began: float = 0.0  # when it got a row of the batch, the first time; 0.0 before
    slot: int = -1  # its row in the batch state and in the cache; -1 where it has none
    arrived: int = 0  # its number, in order of arrival
    fed: int = 0  # tokens of its text that the model has been given
    ahead: int = 0  # and at most so many more, by steps in flight that may give it several: chapter 7
    going: bool = False  # whether its prompt has been fed, so that each step feeds its newest token
    room: int = sys.maxsize  # tokens that its blocks hold
    token_ids: list[int] = field(default_factory=list)  # new tokens that have reached the host
    times: list[float] = field(default_factory=list)  # when each did, time.perf_counter()
    finish_reason: FinishReason | None = None
    cancelled: BaseException | None = None  # why nothing more comes of it
    ended: bool = False

    def __post_init__(self) -> None:
        request, params = self.request, self.request.params
        self.prompt = array("q", request.prompt_token_ids)  # what is fed before it goes on; slices are copied as memory
        self.last = len(request.prompt_token_ids) + max(0, request.limit - 1)  # tokens that are ever fed
        self.due = self.last  # how many may be fed until it has ended, or needs a block
        self.computed = self.launched = 0  # when it was preempted: tokens fed, new tokens whose step was launched
        self.limit, self.stop_ids = request.limit, request.stop_ids
        self.watched = self.every_token or request.text is not None  # whether each token is looked at
        self.sampler = 3 if params.scores else 0 if params.greedy else 2 if params.filters else 1  # of Samplers
        self.logprobs: list[list[float]] = []  # of the new tokens, and of the prompt's, as they reach the host
        self.prompt_logprobs: list[list[float]] = []

    def go_on_after(self, known: Sequence[int]) -> None:
        """It has these tokens already, and is admitted like a row that was preempted behind them."""
        self.token_ids, self.launched = list(known), len(known)
        self.times, self.logprobs = [self.asked] * len(known), [[] for _ in known]

    def text(self) -> array[int]:
        """Its tokens, as far as the host knows them and the model has been given them."""
        return (array("q", self.request.prompt_token_ids) + array("q", self.token_ids))[: self.fed]

    def metrics(self) -> Metrics:
        return Metrics(ttft_s=self.times[0] - self.asked, itl_s=tuple(map(sub, self.times[1:], self.times)))


class Work(NamedTuple):
    """A row's part in a step: the next `tokens` tokens of its prompt."""

    row: Row
    tokens: int

    @property
    def complete(self) -> bool:
        """Whether the prompt has then been fed, so that a token follows."""
        return self.row.fed + self.tokens == len(self.row.prompt)


class Step(NamedTuple):
    """What is to be done next. On the device, rows move, then rows begin, and then the model runs."""

    going: list[Row]  # rows that are fed their newest token, by slot
    pieces: list[Work]  # chunks of prompts, in order of arrival
    begun: list[Row]
    sources: list[int]  # slots of rows that move
    targets: list[int]
    freed: slice  # slots that no row has any more


class Scheduler:
    """Fills rows and steps.

    blocks: where rows have to share room; None where each has its own. max_batch: rows at most. max_batched_tokens:
    of a step, at least max_batch. prefill_chunk: of one prompt in a step. mixed: whether prompts share a step with rows
    that decode. If not, the two kinds of step take turns, so that neither waits for more than one of the other.
    preemption: whether a row is admitted with room for its prompt and little more. Where none is left for a row to go
    on, the youngest gives its own back and waits again, ahead of all others; the oldest row never does.
    """

    def __init__(
        self,
        blocks: Blocks | None,
        max_batch: int,
        max_batched_tokens: int,
        prefill_chunk: int | None,
        mixed: bool,
        preemption: bool = False,
    ) -> None:
        self.blocks, self.max_batch, self.max_batched_tokens = blocks, max_batch, max_batched_tokens
        self.prefill_chunk, self.mixed, self.preemption = prefill_chunk or max_batched_tokens, mixed, preemption
        self.waiting: deque[Row] = deque()
        self.refused: list[Row] = []  # requests whose admission failed; the engine tells who asked
        self.preemptions = self.recomputed = 0  # rows that gave their room back, tokens that were fed again for it
        self._slots: list[Row | None] = []  # None: left since the last step
        self._full: list[Row] = []  # rows that need a block before they go on
        self._arrivals, self._decode_next = 0, False

    @property
    def rows(self) -> list[Row]:
        """The live rows, by slot."""
        return [row for row in self._slots if row]

    @property
    def busy(self) -> bool:
        """Whether a row lives or waits."""
        return bool(self.waiting) or any(self._slots)

    def submit(self, row: Row) -> None:
        """Put the row at the end of those that wait."""
        row.arrived, self._arrivals = self._arrivals, self._arrivals + 1
        self.waiting.append(row)

    def schedule(self) -> Step:
        """The next step: rows that decode, then prompts in order of arrival, within the budget."""
        self._make_room()
        going = [row for row in self._slots if row and row.going]
        decode, self._decode_next = going and self._decode_next, False
        pieces: list[Work] = []
        begun: list[Row] = []
        if not decode:
            budget = self.max_batched_tokens - (len(going) if self.mixed else 0)
            for row in sorted([row for row in self._slots if row and not row.going], key=lambda row: row.arrived):
                budget -= self._feed(row, budget, pieces)
            while budget and self.waiting and self._admits_next():
                begun.append(self.waiting.popleft())
                budget -= self._feed(begun[-1], budget, pieces)
            self._decode_next = bool(pieces) and not self.mixed
        sources, targets, freed = self._close_gaps()
        if sources:
            going.sort(key=lambda row: row.slot)
        return Step(going if self.mixed or not pieces else [], pieces, begun, sources, targets, freed)

    def _admits_next(self) -> bool:
        """Admit the first request that waits, if there is room. One whose admission raises is refused, and no other."""
        while self.waiting:
            try:
                return self._admit(self.waiting[0])
            except Exception as error:
                self.refused.append(self.waiting.popleft())
                self.refused[-1].cancelled = error
        return False

    def _feed(self, row: Row, budget: int, pieces: list[Work]) -> int:
        """Give a prompt its next chunk; how many tokens of the budget that takes."""
        if tokens := min(len(row.prompt) - row.fed, self.prefill_chunk, budget):
            pieces.append(Work(row, tokens))
            if self.blocks and row.fed + tokens > row.room:
                row.room = self.blocks.grow(row.slot, row.fed + tokens)
        return tokens

    def _admit(self, row: Row) -> bool:
        """Give the request a row and room, for its longest text or the next tokens, if there are."""
        slot = next((slot for slot, taken in enumerate(self._slots) if not taken), len(self._slots))
        if slot == self.max_batch or len(row.token_ids) < row.launched:  # tokens of before are on their way
            return False
        prompt, longest = row.prompt, len(row.request.prompt_token_ids) + row.request.limit
        if row.launched:
            prompt = array("q", [*row.request.prompt_token_ids, *row.token_ids])
        if self.blocks:
            tokens = min(longest, len(prompt) + AHEAD) if self.preemption else longest
            known = () if row.request.params.prompt_logprobs is not None else prompt  # a hit would compute no logits
            if not self.blocks.reserve(slot, tokens, known):
                return False
            row.fed = row.room = self.blocks.grow(slot, 0)  # the tokens that its blocks hold already
        row.slot, row.prompt = slot, prompt
        self._slots[slot : slot + 1] = [row]
        return True

    def _make_room(self) -> None:
        """A block for each row that cannot go on without one, the oldest first."""
        for row in sorted(self._full, key=lambda row: row.arrived) if self._full else ():
            assert self.blocks
            while row.slot >= 0 and not self.blocks.can_grow(row.slot, row.fed + 1):
                self._preempt(max(self.rows, key=lambda row: row.arrived))
            if row.slot >= 0:
                row.room = self.blocks.grow(row.slot, row.fed + 1)
                row.due = min(row.room, row.last)
        self._full = []

    def _preempt(self, row: Row) -> None:
        """Take the row's blocks; it is fed anew later. Tokens of steps in flight are awaited, and kept."""
        row.launched = row.fed - len(row.request.prompt_token_ids) + 1 if row.going else len(row.token_ids)
        self.remove([row])
        row.computed, row.fed = max(row.computed, row.fed), 0
        self.waiting.appendleft(row)
        self.preemptions += 1

    def launch(self, step: Step) -> list[Row]:
        """This step is on its way: let rows go that need no further one, and return those that get a token."""
        complete = list(step.going)
        done: list[Row] = []
        for row in step.going:
            row.fed += 1
            if row.fed >= row.due:
                (done if row.fed == row.last else self._full).append(row)
        for row, tokens in step.pieces:
            self.recomputed += max(0, min(tokens, row.computed - row.fed))
            row.fed += tokens
            if row.fed == len(row.prompt):
                row.going, row.due = True, min(row.room, row.last)
                if row.limit:
                    complete.append(row)
                if row.fed >= row.due:
                    (done if row.fed == row.last else self._full).append(row)
        self.remove(done)
        return complete

    def remove(self, rows: Sequence[Row]) -> None:
        """Take these live rows out. Their slots are gaps until the next step."""
        for row in rows:
            if self.blocks:
                self.blocks.release(row.slot, row.text())
            self._slots[row.slot] = None
            row.slot, row.going = -1, False

    def drop(self, row: Row) -> None:
        """Nothing more comes of this row: take it out, wherever it is."""
        if row.slot >= 0:
            self.remove([row])
        elif row in self.waiting:
            self.waiting.remove(row)

    def _close_gaps(self) -> tuple[list[int], list[int], slice]:
        """Move the last rows into the gaps that are left, so that live rows are 0..n-1: from, to, and what is free."""
        before = len(self._slots)
        after = before - self._slots.count(None)
        sources = [slot for slot in range(after, before) if self._slots[slot]]
        targets = [slot for slot in range(after) if not self._slots[slot]] if sources else []
        for source, target in zip(sources, targets, strict=True):
            row = self._slots[target] = self._slots[source]
            assert row
            row.slot = target
        if sources and self.blocks:
            self.blocks.move(sources, targets)
        del self._slots[after:]
        return sources, targets, slice(after, before)
