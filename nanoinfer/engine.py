"""The one generate loop, and the two steps it launches. Chapter 1.

The loop knows neither which memory the model reads nor how a step is launched: memories change in chapters 2 and 3,
the runner in chapter 4. It waits for the GPU in one place, `Engine._collect`. Text: chapters/01-naive.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from nanoinfer.model import GPT2, Memory, Step
from nanoinfer.requests import FinishReason, Metrics, Request
from nanoinfer.sampling import Sampler, greedy, sample, sample_filtered
from nanoinfer.state import BatchState, Fetch, upload


class RowMemory(Memory, Protocol):
    """A memory of rows that come and go: what the engine asks of it besides what the model does."""

    def can_admit(self, tokens: int) -> bool: ...
    def admit(self, row: int, tokens: int) -> None: ...
    def release(self, row: int) -> None: ...
    def move(self, source: int, target: int) -> None: ...


@torch.inference_mode()
def prefill_step(model: GPT2, memory: Memory, state: BatchState, prompts: Step, sampler: Sampler) -> Tensor:
    """Run whole prompts through the model; return each row's first new token (B,), written into the state as well."""
    tokens = sampler(model(memory.begin(prompts), memory), state.pick(prompts.rows))  # (B,)
    state.token[prompts.rows] = tokens
    state.position[prompts.rows] = prompts.last + 1  # a prompt's columns are its positions
    state.step[prompts.rows] += 1
    return tokens


@torch.inference_mode()
def decode_step(model: GPT2, memory: Memory, state: BatchState, batch: int, longest: int, sampler: Sampler) -> Tensor:
    """Feed the newest token of rows 0..batch-1 and advance them; return the tokens that follow (B,).

    Nothing comes from the host but `batch`, `longest` (no fed token stands at a position >= longest) and the choice
    of sampler. All else is read from the state and written back: the next call needs no input.
    """
    rows = state.first(batch)
    fed = Step(rows.token[:, None], rows.position[:, None], torch.zeros_like(rows.row), rows.row, longest)
    tokens = sampler(model(memory.begin(fed), memory), rows)  # (B,)
    rows.token.copy_(tokens)
    rows.position.add_(1)
    rows.step.add_(1)
    return tokens


@dataclass(eq=False)
class Row:
    """What the host knows of a running request."""

    request: Request
    slot: int  # its row in the batch state and in the memory
    asked: float  # when its generation began, time.perf_counter()
    launched: int = 0  # tokens whose step has been launched
    token_ids: list[int] = field(default_factory=list)  # tokens that have reached the host
    times: list[float] = field(default_factory=list)  # when each did, time.perf_counter()
    finish_reason: FinishReason | None = None

    @property
    def length(self) -> int:
        """Tokens of the text so far, the newest, which is not fed yet, included."""
        return len(self.request.prompt_token_ids) + self.launched

    def metrics(self) -> Metrics:
        gaps = (after - before for before, after in zip(self.times, self.times[1:], strict=False))
        return Metrics(ttft_s=self.times[0] - self.asked, itl_s=tuple(gaps))


@dataclass
class Stats:
    """Counters of an LLM since it was made."""

    requests: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0  # tokens that were kept
    dropped_tokens: int = 0  # computed past a stop that the host had not seen yet


class Engine:
    """Runs requests over one model and one memory.

    max_batch: rows at most. lag: how many steps the host may be behind the device when it looks at tokens. A row
    that ends by its count never runs over; one that ends by a stop token runs over by at most `lag` steps, and those
    tokens are dropped.
    """

    def __init__(
        self, model: GPT2, memory: RowMemory, max_batch: int, stats: Stats | None = None, lag: int = 0
    ) -> None:
        self.model, self.memory, self.max_batch, self.lag = model, memory, max_batch, lag
        self.stats = stats or Stats()
        with torch.inference_mode():
            self.state = BatchState.empty(max_batch, model.device)
        self._rows: list[Row] = []  # the live rows, by slot
        self._in_flight: deque[tuple[list[Row], Fetch]] = deque()  # launched steps whose tokens are not here yet

    def generate(self, requests: Sequence[Request]) -> Iterator[list[Row]]:
        """Run the requests; yield, as steps settle, the rows that got a token. A row is done at its finish_reason.

        Rows free up as requests end and are filled again from those that wait. However the caller leaves the
        iterator, launched steps are waited for and all rows are free afterwards.
        """
        waiting = deque(Row(request, slot=-1, asked=time.perf_counter()) for request in requests)
        try:
            while waiting or self._rows or self._in_flight:
                if admitted := self._admit(waiting):
                    self._prefill(admitted)
                elif self._rows:
                    self._decode()
                yield self._collect(self.lag if self._rows or waiting else 0)
        finally:
            self._abandon()

    @torch.inference_mode()
    def _admit(self, waiting: deque[Row]) -> list[Row]:
        """Give free rows to requests that wait, in order, as far as rows and memory reach."""
        admitted: list[Row] = []
        while waiting and len(self._rows) < self.max_batch:
            tokens = len(waiting[0].request.prompt_token_ids) + waiting[0].request.limit
            if not self.memory.can_admit(tokens):
                break
            row = waiting.popleft()
            row.slot = len(self._rows)
            self.memory.admit(row.slot, tokens)
            self._rows.append(row)
            admitted.append(row)
        return admitted

    @torch.inference_mode()
    def _prefill(self, admitted: list[Row]) -> None:
        """One padded pass over the prompts of newly admitted rows."""
        requests = [row.request for row in admitted]
        device = self.model.device
        rows = upload([row.slot for row in admitted], torch.int64, device)
        self.state.admit(rows, requests)
        prompts = prompt_step([request.prompt_token_ids for request in requests], rows)
        tokens = prefill_step(self.model, self.memory, self.state, prompts, self._sampler(admitted))
        self.stats.prefill_steps += 1
        self.stats.requests += len(admitted)
        self.stats.prompt_tokens += sum(len(request.prompt_token_ids) for request in requests)
        self._launched(admitted, tokens)

    def _decode(self) -> None:
        """One step for every live row."""
        rows = list(self._rows)
        longest = max(row.length for row in rows)
        sampler = self._sampler(rows)
        tokens = decode_step(self.model, self.memory, self.state, len(rows), longest, sampler)
        self.stats.decode_steps += 1
        self._launched(rows, tokens)

    def _launched(self, rows: list[Row], tokens: Tensor) -> None:
        """A step is on its way: start the copy of its tokens, and let rows go that need no further step."""
        self._in_flight.append((rows, Fetch(tokens)))
        for row in rows:
            row.launched += 1
            if row.launched == row.request.limit:
                self._leave(row)

    def _collect(self, lag: int) -> list[Row]:
        """Take in tokens of all but the newest `lag` steps. The one place where the host waits for the device."""
        changed = []
        while len(self._in_flight) > lag:
            rows, fetch = self._in_flight.popleft()
            tokens = fetch.wait()
            now = time.perf_counter()
            for row, token in zip(rows, tokens, strict=True):
                if row.finish_reason is None:
                    self._settle(row, token, now)
                    changed.append(row)
                else:
                    self.stats.dropped_tokens += 1
        return changed

    def _settle(self, row: Row, token: int, now: float) -> None:
        """Give a row its token; a row that a token stops leaves the batch."""
        row.token_ids.append(token)
        row.times.append(now)
        self.stats.new_tokens += 1
        ends_text = row.request.ends_text
        if token in row.request.stop_ids or (ends_text is not None and ends_text(token)):
            row.finish_reason = "stop"
            if row.launched < row.request.limit:
                self._leave(row)
        elif len(row.token_ids) == row.request.limit:
            row.finish_reason = "length"

    @torch.inference_mode()
    def _leave(self, row: Row) -> None:
        """Take a row out of the batch: the last row moves into its place, so that live rows stay 0..n-1."""
        last = self._rows.pop()
        self.memory.release(row.slot)
        if last is not row:
            self.state.move(last.slot, row.slot)
            self.memory.move(last.slot, row.slot)
            self._rows[row.slot] = last
            last.slot = row.slot

    def _abandon(self) -> None:
        """Wait for what was launched and free every row: after a stop of any kind the engine is as new."""
        self._in_flight, launched = deque(), self._in_flight
        for _, fetch in launched:
            fetch.wait()
        while self._rows:
            self._leave(self._rows[-1])

    def _sampler(self, rows: Sequence[Row]) -> Sampler:
        """The cheapest sampler that serves all these rows. Which one it is changes no row's token."""
        params = [row.request.params for row in rows]
        if all(p.greedy for p in params):
            return greedy
        return sample_filtered if any(p.filters for p in params) else sample


def prompt_step(prompts: Sequence[Sequence[int]], rows: Tensor) -> Step:
    """Prompts of different lengths as one step (B, T), padded on the right with id 0. rows: (B,) int64."""
    lengths = [len(prompt) for prompt in prompts]
    T, device = max(lengths), rows.device
    padded = [[*prompt, *[0] * (T - len(prompt))] for prompt in prompts]
    positions = torch.arange(T, device=device).expand(len(prompts), T)  # (B, T)
    last = upload([length - 1 for length in lengths], torch.int64, device)
    return Step(upload(padded, torch.int64, device), positions, last, rows, longest=T)
