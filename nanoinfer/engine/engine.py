"""The one generate loop: admit, prefill, decode, collect. Chapter 1.

The loop knows neither which cache the model reads nor how a step is launched: caches change in chapters 2 and 3, the
runner in chapter 4. It waits for the GPU in one place, `Engine._collect`. Text: chapters/01-naive.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from nanoinfer.engine.eager import EagerRunner
from nanoinfer.engine.sampling import SAMPLERS, Sampler, Samplers
from nanoinfer.engine.state import BatchState, Fetch, upload
from nanoinfer.engine.stats import Stats
from nanoinfer.model.batch import Step
from nanoinfer.model.gpt2 import GPT2, Memory
from nanoinfer.requests import FinishReason, Metrics, Request

P = ParamSpec("P")
T = TypeVar("T")


def on_device(method: Callable[Concatenate[Engine, P], T]) -> Callable[Concatenate[Engine, P], T]:
    """An engine's method in inference mode, its GPU the current one: events, pinned memory and Triton go by that."""

    @wraps(method)
    def inside(self: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(), torch.cuda.device_of(self.state.integers):  # type: ignore[no-untyped-call]
            return method(self, *args, **kwargs)

    return inside


class RowMemory(Memory, Protocol):
    """A memory of rows that come and go: what the engine asks of it besides what the model does."""

    max_len: int

    def can_admit(self, tokens: int) -> bool: ...
    def admit(self, row: int, tokens: int) -> None: ...
    def grow(self, lengths: Sequence[int]) -> None: ...
    def release(self, rows: Sequence[int]) -> None: ...
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...


@dataclass(eq=False)
class Row:
    """What the host knows of a running request."""

    request: Request
    slot: int  # its row in the batch state and in the memory
    asked: float  # when its generation began, time.perf_counter()
    length: int = 0  # tokens of the text so far, the newest, which is not fed yet, included
    launched: int = 0  # tokens whose step has been launched
    token_ids: list[int] = field(default_factory=list)  # tokens that have reached the host
    times: list[float] = field(default_factory=list)  # when each did, time.perf_counter()
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        params = self.request.params
        self.length = len(self.request.prompt_token_ids)
        self.sampler = 0 if params.greedy else 2 if params.filters else 1  # which of Samplers serves it

    def metrics(self) -> Metrics:
        gaps = (after - before for before, after in zip(self.times, self.times[1:], strict=False))
        return Metrics(ttft_s=self.times[0] - self.asked, itl_s=tuple(gaps))


class Engine:
    """Runs requests over one model and one memory.

    runner: who runs a step, made over model, memory and the batch state. samplers: who chooses tokens.
    max_batch: rows at most. prefill_chunk: columns of one prefill pass at most; None takes prompts whole.
    lag: how many steps the host may be behind the device when it looks at tokens. A row that ends by its count never
    runs over; one that ends by a stop token runs over by at most `lag` steps, and those tokens are dropped.
    """

    def __init__(
        self,
        model: GPT2,
        memory: RowMemory,
        max_batch: int,
        stats: Stats | None = None,
        *,
        runner: Callable[[GPT2, RowMemory, BatchState], EagerRunner] = EagerRunner,
        samplers: Samplers = SAMPLERS,
        prefill_chunk: int | None = None,
        lag: int = 0,
    ) -> None:
        self.memory, self.max_batch, self.device = memory, max_batch, model.device
        self.samplers, self.prefill_chunk, self.lag = samplers, prefill_chunk, lag
        self.stats = stats or Stats()
        with torch.inference_mode():
            self.state = BatchState.empty(max_batch, model.device)
        self.runner = runner(model, memory, self.state)
        self.rows: list[Row] = []  # the live rows, by slot
        self._in_flight: deque[tuple[list[Row], Fetch]] = deque()  # launched steps whose tokens are not here yet

    def generate(self, requests: Sequence[Request]) -> Generator[list[Row], None, None]:
        """Run the requests; yield, as steps settle, the rows that got a token. A row is done at its finish_reason.

        Rows free up as requests end and are filled again from those that wait. However the caller leaves the
        iterator, launched steps are waited for and all rows are free afterwards.
        """
        waiting = deque(Row(request, slot=-1, asked=time.perf_counter()) for request in requests)
        try:
            while waiting or self.rows or self._in_flight:
                if admitted := self._admit(waiting):
                    self._prefill(admitted)
                elif self.rows:
                    self._decode()
                elif not self._in_flight:
                    raise RuntimeError("the memory has no room for a request, though nothing else is running")
                yield self._collect(self.lag if self.rows else 0)
        finally:
            self._abandon()

    @on_device
    def _admit(self, waiting: deque[Row]) -> list[Row]:
        """Give free rows to requests that wait, in order, as far as rows and memory reach."""
        admitted: list[Row] = []
        while waiting and len(self.rows) < self.max_batch:
            tokens = waiting[0].length + waiting[0].request.limit
            if not self.memory.can_admit(tokens):
                break
            row = waiting.popleft()
            row.slot = len(self.rows)
            self.memory.admit(row.slot, tokens)
            self.rows.append(row)
            admitted.append(row)
        return admitted

    @on_device
    def _prefill(self, admitted: list[Row]) -> None:
        """Run the prompts of newly admitted rows: all rows in one padded pass, or in one a chunk."""
        self.memory.grow([row.length for row in self.rows])
        slots = slice(admitted[0].slot, admitted[-1].slot + 1)
        self.state.admit(slots, [row.request for row in admitted])
        longest = max(row.length for row in admitted)
        sampler, chunk = self._sampler(admitted), self.prefill_chunk or longest
        for start in range(0, longest, chunk):
            self.runner.prefill(self._prompt_step(admitted, start, chunk), sampler)
            self.stats.prefill_steps += 1
        self.stats.requests += len(admitted)
        self.stats.prompt_tokens += sum(row.length for row in admitted)
        self._launched(admitted, self.state.token[slots])

    def _prompt_step(self, admitted: list[Row], start: int, chunk: int) -> Step:
        """Tokens `start` to `start + chunk` of the prompts that reach so far, padded on the right with id 0."""
        rows = [row for row in admitted if row.length > start]
        parts = [row.request.prompt_token_ids[start : start + chunk] for row in rows]
        B, T = len(rows), max(map(len, parts))
        buffer = bytearray(8 * B * (T + 2))  # zeros; written as a whole part each, many times as fast as a nested list
        for number, (part, row) in enumerate(zip(parts, rows, strict=True)):
            begin = 8 * number * (T + 2)
            struct.pack_into(f"{len(part)}q", buffer, begin, *part)
            struct.pack_into("2q", buffer, begin + 8 * T, len(part) - 1, row.slot)
        columns = torch.frombuffer(buffer, dtype=torch.int64).view(B, T + 2)
        packed = upload(columns, torch.int64, self.device)  # in one copy
        positions = torch.arange(start, start + T, device=self.device).expand(B, T)
        return Step(packed[:, :T], positions, packed[:, T], packed[:, T + 1], longest=start + T, fresh=start == 0)

    @on_device
    def _decode(self) -> None:
        """One step for every live row."""
        rows = list(self.rows)
        lengths = [row.length for row in rows]
        self.memory.grow(lengths)
        tokens = self.runner.decode(len(rows), max(lengths), self._sampler(rows))
        self.stats.decode_steps += 1
        self._launched(rows, tokens)

    def _launched(self, rows: list[Row], tokens: Tensor) -> None:
        """A step is on its way: start the copy of its tokens, and let rows go that need no further step."""
        self._in_flight.append((rows, Fetch(tokens)))
        for row in rows:
            row.launched += 1
            row.length += 1
        self._leave([row for row in rows if row.launched == row.request.limit])

    def _collect(self, lag: int) -> list[Row]:
        """Take in the tokens of the oldest step but for the newest `lag`. The one place where the host waits."""
        if len(self._in_flight) <= lag:
            return []
        rows, fetch = self._in_flight.popleft()
        tokens = fetch.wait()
        now = time.perf_counter()
        going = [row for row in rows if row.finish_reason is None]
        self.stats.dropped_tokens += len(rows) - len(going)
        for row, token in zip(rows, tokens, strict=True):
            if row.finish_reason is None:
                self._settle(row, token, now)
        # Rows that ended by their count have left already, when their last step was launched.
        self._leave([row for row in going if row.finish_reason and row.launched < row.request.limit])
        return going

    def _settle(self, row: Row, token: int, now: float) -> None:
        """Give a row its token, and its finish reason where it ends."""
        row.token_ids.append(token)
        row.times.append(now)
        self.stats.new_tokens += 1
        stopped, text = token in row.request.stop_ids, row.request.text
        if text is not None and not stopped:
            text.push(token)
            stopped = text.stopped
        if stopped:
            row.finish_reason = "stop"
        elif len(row.token_ids) == row.request.limit:
            row.finish_reason = "length"

    @on_device
    def _leave(self, rows: list[Row]) -> None:
        """Take rows out of the batch: the last rows move into the gaps, so that live rows stay 0..n-1.

        Steps in flight may still write for a row that leaves. They were launched before whatever its room is given to
        next, and a stream runs in order.
        """
        if not rows:
            return
        gone = {row.slot for row in rows}
        before, after = len(self.rows), len(self.rows) - len(rows)
        self.memory.release(sorted(gone))
        moving = [row for row in self.rows[after:] if row.slot not in gone]
        if moving:
            gaps = sorted(slot for slot in gone if slot < after)
            sources = [row.slot for row in moving]
            self.memory.move(sources, gaps)
            source, target = upload([sources, gaps], torch.int64, self.device)
            self.state.move(source, target)
            for row, gap in zip(moving, gaps, strict=True):
                row.slot, self.rows[gap] = gap, row
        del self.rows[after:]
        self.state.free(slice(after, before))

    def _abandon(self) -> None:
        """Wait for what was launched and free every row: after a stop of any kind the engine is as new."""
        self._in_flight, launched = deque(), self._in_flight
        for _, fetch in launched:
            fetch.wait()
        self._leave(list(self.rows))

    def _sampler(self, rows: Sequence[Row]) -> Sampler:
        """The cheapest sampler that serves all these rows. Which one it is changes no row's token."""
        return self.samplers[max(row.sampler for row in rows)]
