"""Which rows get how many tokens in the next step: host code that knows no tensor. Chapter 1.

Requests wait in order of arrival for a row, and for the room of their longest text. A row is fed what the model has not
seen of its text: first its prompt, in one piece or several, then its newest token at every step. Pieces and the idea of
a budget: Agrawal et al. 2023, "SARATHI: Efficient LLM Inference by Piggybacking Decodes with Chunked Prefills".
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from nanoinfer.requests import FinishReason, Metrics, Request


class Blocks(Protocol):
    """Whose room a row's text takes: chapter 3's block manager."""

    @property
    def available(self) -> int: ...
    def fits(self, tokens: int) -> bool: ...
    def reserve(self, row: int, tokens: int, text: Sequence[int]) -> bool: ...
    def grow(self, row: int, length: int) -> int: ...
    def release(self, row: int, text: Sequence[int]) -> None: ...
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...


@dataclass(eq=False)
class Row:
    """What the host knows of a request that runs, or waits for a row of the batch."""

    request: Request
    asked: float  # when it was asked for, time.perf_counter()
    listener: Callable[[Row], None] | None = None  # told, in the engine's thread, when it has ended
    every_token: bool = False  # whether it is told of each token as well
    slot: int = -1  # its row in the batch state and in the cache
    arrived: int = 0  # its number, in order of arrival
    length: int = 0  # tokens of the text so far, the newest, which is not fed yet, included
    fed: int = 0  # of these, tokens that the model has been given
    launched: int = 0  # new tokens whose step has been launched
    room: int = 0  # tokens that its blocks hold
    token_ids: list[int] = field(default_factory=list)  # new tokens that have reached the host
    times: list[float] = field(default_factory=list)  # when each did, time.perf_counter()
    finish_reason: FinishReason | None = None
    cancelled: BaseException | None = None  # why nothing more comes of it
    ended: bool = False

    def __post_init__(self) -> None:
        params = self.request.params
        self.length, self.limit = len(self.request.prompt_token_ids), self.request.limit
        self.prompt = array("q", self.request.prompt_token_ids)  # slices are copied as memory, not token by token
        self.sampler = 0 if params.greedy else 2 if params.filters else 1  # which of Samplers serves it
        self.newest = Work(self, 1)  # its part in each step once its prompt has been fed

    def metrics(self) -> Metrics:
        gaps = (after - before for before, after in zip(self.times, self.times[1:], strict=False))
        return Metrics(ttft_s=self.times[0] - self.asked, itl_s=tuple(gaps))


class Work(NamedTuple):
    """A row's part in a step: its next `tokens` tokens."""

    row: Row
    tokens: int

    @property
    def complete(self) -> bool:
        """Whether the row's text has then been fed as far as it goes, so that its next token follows."""
        return self.row.fed + self.tokens == self.row.length


class Scheduler:
    """Fills rows and steps.

    blocks: where rows have to share room; None where each has its own. max_batch: rows at most. max_batched_tokens:
    of a step, at least max_batch. prefill_chunk: of one prompt in a step. mixed: whether prompts share a step with rows
    that go on. If not, the two kinds of step take turns, so that neither waits for more than one of the other.
    """

    def __init__(
        self, blocks: Blocks | None, max_batch: int, max_batched_tokens: int, prefill_chunk: int | None, mixed: bool
    ) -> None:
        self.blocks, self.max_batch, self.max_batched_tokens = blocks, max_batch, max_batched_tokens
        self.prefill_chunk, self.mixed = prefill_chunk or max_batched_tokens, mixed
        self.waiting: deque[Row] = deque()
        self.rows: list[Row] = []  # the live rows, by slot
        self._arrivals, self._decode_next = 0, False

    def submit(self, row: Row) -> None:
        """Put the row at the end of those that wait."""
        row.arrived, self._arrivals = self._arrivals, self._arrivals + 1
        self.waiting.append(row)

    def schedule(self) -> tuple[list[Row], list[Work]]:
        """Rows that now begin, and the work of the next step: rows that go on, then prompts in order of arrival."""
        begun, work = self._choose()
        if self.blocks:
            for row, tokens in work:
                if row.fed + tokens > row.room:
                    row.room = self.blocks.grow(row.slot, row.fed + tokens)
        return begun, work

    def _choose(self) -> tuple[list[Row], list[Work]]:
        going = [row.newest for row in self.rows if row.launched]
        if going and self._decode_next:
            self._decode_next = False
            return [], going
        budget = self.max_batched_tokens - (len(going) if self.mixed else 0)
        prompts: list[Work] = []
        begun: list[Row] = []
        for row in sorted([row for row in self.rows if not row.launched], key=lambda row: row.arrived):
            budget -= self._feed(row, budget, prompts)
        while budget and self.waiting and self._admit(self.waiting[0]):
            begun.append(self.waiting.popleft())
            budget -= self._feed(begun[-1], budget, prompts)
        self._decode_next = bool(prompts) and not self.mixed
        return begun, going + prompts if self.mixed or not prompts else prompts

    def _feed(self, row: Row, budget: int, work: list[Work]) -> int:
        """Give a prompt its next piece; how many tokens of the budget that takes."""
        if tokens := min(row.length - row.fed, self.prefill_chunk, budget):
            work.append(Work(row, tokens))
        return tokens

    def _admit(self, row: Row) -> bool:
        """Give the request a row and room for its longest text, if there are."""
        slot = len(self.rows)
        if slot == self.max_batch:
            return False
        if self.blocks and not self.blocks.reserve(slot, row.length + row.request.limit, row.prompt):
            return False
        row.slot = slot
        self.rows.append(row)
        return True

    def launch(self, work: Sequence[Work]) -> list[Row]:
        """This work is on its way: count it, and return the rows that get a token by it."""
        complete = []
        for row, tokens in work:
            row.fed += tokens
            if row.fed == row.length:
                row.launched += 1
                row.length += 1
                complete.append(row)
        return complete

    def remove(self, rows: Sequence[Row]) -> tuple[list[int], list[int]]:
        """Take these live rows out. The last rows move into the gaps, so that live rows stay 0..n-1: from, to."""
        gone = {row.slot for row in rows}
        after = len(self.rows) - len(gone)
        moving = [row for row in self.rows[after:] if row.slot not in gone]
        sources, targets = [row.slot for row in moving], sorted(slot for slot in gone if slot < after)
        if self.blocks:
            for slot in gone:
                self.blocks.release(slot, ())
            self.blocks.move(sources, targets)
        for row, target in zip(moving, targets, strict=True):
            row.slot, self.rows[target] = target, row
        del self.rows[after:]
        return sources, targets
