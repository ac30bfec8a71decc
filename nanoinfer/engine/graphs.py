"""Steps recorded once and replayed: a dict of CUDA graphs. Chapter 4.

At few rows the GPU waits for the host, which launches some hundred kernels a step. A CUDA graph is a recording of those
launches: replaying it is one call. It repeats them with the same addresses and the same Python numbers, so all that
changes must stand in tensors that stay where they are, and all that does not must be part of the key.
Text: chapters/04-cuda-graphs.
"""

from __future__ import annotations

import gc
import time
import warnings
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

from nanoinfer.devices import free_memory
from nanoinfer.engine.eager import EagerRunner
from nanoinfer.engine.engine import RowCache
from nanoinfer.engine.forward import Forward
from nanoinfer.engine.graph_stats import GraphStats
from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.state import BatchState, upload
from nanoinfer.engine.step import Model, decode_step, prefill_step
from nanoinfer.model.batch import Chunk, Layout, pack, unpack
from nanoinfer.model.gpt2 import GPT2

T = TypeVar("T")
PREFILL_TOKENS = 2048  # of a captured prefill at most: with more, the GPU is busy and a graph gains nothing
KEPT = 512  # graphs at most
OP_BY_OP = "op by op"
MEMORY_SHARE = 0.1  # of free memory that a captured step may take
ROUNDS, REPLAYS = 5, 8  # in which graphs of the same step take turns, to find the fastest


class GraphCache(RowCache, Protocol):
    """What a cache must say besides, to be captured."""

    def bucket(self, longest: int) -> int: ...
    def tensors(self) -> tuple[Tensor, ...]: ...
    def scattered(self, rows: int, position: int) -> AbstractContextManager[None]: ...
    def shapes(self, rows: int, tokens: int) -> list[tuple[int, int]]: ...
    def captured(self, going: Sequence[int], chunks: Sequence[Chunk]) -> tuple[int, int] | None: ...
    def layout(self, rows: int, columns: int) -> Layout: ...


class Replayable(Protocol):
    """A recorded step."""

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Who records: `CudaRecorder`, or a fake where there is no GPU."""

    def warm(self, step: Callable[[], object]) -> None: ...
    def record(self, step: Callable[[], object]) -> Replayable: ...


class Key(NamedTuple):
    """All that is baked into a captured step: its shape, and each Python branch that it took."""

    rows: int
    columns: int  # 1 is decode; else the columns of a rectangle, or, in pages, the tokens of all rows
    longest: int  # how much of a context a decode step reads: the cache's bucket
    sampler: Sampler

    def __str__(self) -> str:
        return (
            f"decode of {self.rows} rows" if self.columns == 1 else f"prefill of {self.rows} rows, {self.columns} wide"
        )


@dataclass(frozen=True)
class CapturedStep:
    """A recording; for a prefill, what it reads, to be written before each replay, and what it leaves."""

    graph: Replayable
    packed: Tensor  # (layout.numbers,) int64; empty for decode
    tokens: Tensor  # (rows,) int64
    computed_by: str = OP_BY_OP


class Way(NamedTuple):
    """One of several ways to do a step, not yet recorded."""

    computed_by: str
    run: Callable[[], object]
    packed: Tensor  # as of a `CapturedStep`, and so is the next
    tokens: Tensor


class CudaRecorder:
    """Records CUDA graphs on a stream of its own, all in one memory pool: they never run at once.

    Other engines go on in threads of their own: what these do must not end a capture, nor a capture them.
    """

    _turn = Lock()  # of all recorders: a capture begins by waiting for the device, which one that is running forbids

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def warm(self, step: Callable[[], object]) -> None:
        """Run the step, so that kernels are compiled and workspaces are there: a capture may not wait for either."""
        caller = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(caller)
        try:
            with torch.cuda.stream(self._stream):
                step()
        finally:  # where it fails, too: what it has launched must be over before the state is put back
            caller.wait_stream(self._stream)

    def record(self, step: Callable[[], object]) -> Replayable:
        """A graph of the step, which is not executed."""
        with self._turn:
            # The matrix library's workspace then comes out of the graphs' own pool. One from outside is let go by
            # whoever clears them, torch.compile among others, and the graph would go on writing there: pytorch#193402.
            torch._C._cuda_clearCublasWorkspaces()
            if not self._graphs:  # a pool ends with its last graph, though a tensor of it may live on
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            capture = torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            )  # fmt: skip
            # The outer stream is for a capture that fails: torch would then go on working on the capture's.
            with torch.cuda.stream(self._stream), capture:
                step()
        self._graphs.add(graph)
        return graph


class GraphRunner(EagerRunner):
    """Replays a step where it has one, records it where it can, and else runs it as `EagerRunner` does.

    recorder: None turns graphs off; the class and its dict, which stays empty, are the same. why_not: the reason
    where it was not asked for; each step is then counted as a fallback.
    max_rows: of a captured decode step at most; further rows run eagerly. max_len: of a row's text.
    forwards: what may compute captured decode steps besides `decode_step`, which does what none of them serves. The
    fastest is kept, by time of each captured shape; if pinned, the first that serves.
    agree: where several ranks capture the same steps, whether an attempt succeeded on all of them, from whether it did
    here: a step that one replays and another runs eagerly would meet in collectives of different sizes.
    """

    cache: GraphCache

    def __init__(
        self,
        model: GPT2,
        cache: GraphCache,
        state: BatchState,
        *,
        recorder: Recorder | None,
        why_not: str | None = None,
        max_rows: int,
        max_len: int,
        stats: GraphStats,
        forwards: Callable[[GPT2, Any, BatchState], Sequence[Forward]] | None = None,
        pinned: bool = False,
        agree: Callable[[bool], bool] | None = None,
    ) -> None:
        super().__init__(model, cache, state)
        self.forwards, self.pinned = forwards(model, cache, state) if forwards else (), pinned
        self.recorder, self.stats, self.agree = recorder if max_rows else None, stats, agree
        self.why_not = why_not
        self.max_len, self.rows = max_len, ladder(max_rows)
        self.shapes = cache.shapes(max(self.rows, default=0), PREFILL_TOKENS)  # of captured prefills, smallest first
        self.graphs: OrderedDict[Key, CapturedStep] = OrderedDict()  # the least recently used comes first
        self.failed: set[Key] = set()
        self._broken: dict[tuple[Key, str], str] = {}  # by what computes it: why that could not be captured
        self._layers = range(len(model.layers) + 1)  # of weights; the last is no block
        self._turn = cycle(self._layers)
        self._note_addresses()

    def decode(self, batch: int, longest: int, sampler: Sampler) -> Tensor:
        rows = pick(self.rows, batch)
        key = Key(rows or batch, 1, self.cache.bucket(longest), sampler)
        captured = self._captured(key, "more rows than the largest graph has" if rows is None else None)
        if captured is None:
            return super().decode(batch, longest, sampler)
        captured.graph.replay()
        self.stats.replayed_steps += 1
        self.stats.replayed_rows += key.rows
        self.stats.padding_rows += key.rows - batch
        if self.forwards:
            self.stats.computed_by[captured.computed_by] += 1
        return self.state.token[:batch]

    def prefill(
        self, going: Sequence[int], chunks: Sequence[Chunk], sampler: Sampler, model: Model | None = None
    ) -> Tensor:
        shape, why_not = self.cache.captured(going, chunks), "logprobs of a prompt" if model else None
        if shape is None:
            shape, why_not = (0, 0), "a piece of a prompt, where prompts are captured whole"
        fits = (each for each in self.shapes if each[0] >= shape[0] and each[1] >= shape[1])
        rows, columns = next(fits, (0, 0))
        if not why_not and not rows:
            why_not = "a prefill of too many tokens"
        key = Key(rows, columns, columns, sampler)
        captured = self._captured(key, why_not, all_layers=not going)
        if captured is None:
            return super().prefill(going, chunks, sampler, model)
        layout, count = self.cache.layout(rows, columns), len(going) + sum(len(chunk.token_ids) for chunk in chunks)
        write_chunks(captured.packed, going, chunks, layout, self.state.dummy)
        captured.graph.replay()
        self.stats.replayed_prefills += 1
        self.stats.padding_tokens += layout.tokens - count
        return captured.tokens[: len(going) + sum(chunk.complete for chunk in chunks)]

    def warm_up(self, samplers: Sequence[Sampler], on_capture: Callable[[int, int], None] | None = None) -> None:
        """Capture the ladders now, for all samplers: afterwards a step is replayed, or runs eagerly and is counted.

        on_capture: told after each how many of how many are done.
        """
        keys = self._ladders(samplers, sorted({self.cache.bucket(longest) for longest in range(1, self.max_len + 1)}))
        new = [key for key in keys if key not in self.graphs and key not in self.failed][: KEPT - len(self.graphs)]
        if self.recorder is not None:
            with torch.cuda.device_of(self.state.integers):  # type: ignore[no-untyped-call]
                self._capture(sorted(new, key=lambda key: key[:3], reverse=True), on_capture)

    def _ladders(self, samplers: Sequence[Sampler], reads: Sequence[int]) -> list[Key]:
        """All that may be captured. reads: the cache's buckets."""
        keys = [Key(*shape, shape[1], sampler) for sampler in samplers for shape in self.shapes]
        return keys + [Key(rows, 1, read, sampler) for sampler in samplers for read in reads for rows in self.rows]

    def _captured(self, key: Key, why_not: str | None, all_layers: bool = False) -> CapturedStep | None:
        """The step of that key, captured now if need be; None where it has to run eagerly, which is counted.

        all_layers: whether to look if a weight has moved in any, not in one: for a step with which a generation begins.
        """
        if self.recorder is None:
            if self.why_not:
                self.stats.fallbacks[self.why_not] += 1
            return None
        if self._moved(self._layers if all_layers else (next(self._turn),)):  # all would take long at each step
            self._warn("all graphs are dropped", "a tensor that they knew has moved")
            self.graphs.clear()
            for forward in self.forwards:
                forward.refresh()
        if why_not is None and key not in self.graphs and key not in self.failed:
            self._capture([key])
        if why_not is None and key in self.graphs:
            self.graphs.move_to_end(key)
            return self.graphs[key]
        self.stats.fallbacks[why_not or "not captured"] += 1
        return None

    @torch.inference_mode()
    def _capture(self, keys: Sequence[Key], on_capture: Callable[[int, int], None] | None = None) -> None:
        """Warm every step, then record every step. Meanwhile all rows are padding, so that no live one is touched."""
        assert self.recorder is not None
        torch.cuda.empty_cache()  # a capture does so too, and what it gives back is not a graph's
        started, free = time.perf_counter(), _free_bytes(self.state.token.device)
        steps = {key: self._ways(key) for key in keys}
        saved = self.state.integers.clone(), self.state.floats.clone()
        self.state.free(slice(0, len(self.state.token)))
        gc.collect()  # an old graph that is collected during a capture would invalidate it
        try:
            for key, ways in steps.items():
                if self.agree:
                    self.recorder.warm(ways[0].run)  # where it fails, other ranks wait in it, so all must end
                else:
                    steps[key] = [way for way, _ in self._try(key, ways, self.recorder.warm)]
            for done, (key, ways) in enumerate(steps.items(), start=1):
                if key not in self.failed and (made := self._try(key, ways, self.recorder.record)):
                    way, graph = self._fastest(key, made)
                    self.graphs[key] = CapturedStep(graph, way.packed, way.tokens, self._counted_as(key, way))
                    self.stats.captures += 1
                if on_capture:
                    on_capture(done, len(steps))
        finally:
            self.state.integers.copy_(saved[0])
            self.state.floats.copy_(saved[1])
        while len(self.graphs) > KEPT:
            self.graphs.popitem(last=False)
        self.stats.capture_s += time.perf_counter() - started
        self.stats.graph_bytes += max(0, free - _free_bytes(self.state.token.device))

    def _ways(self, key: Key) -> list[Way]:
        """What may be recorded under that key: by the forwards that serve it, in order, and operation by operation."""
        step = self._step(key)
        serving = [each for each in self.forwards if key.columns == 1 and each.why_not(key.rows, key.sampler) is None]
        ways = [Way(f.name, partial(f.decode, key.rows, key.longest, key.sampler), *step[1:]) for f in serving]
        return [*ways, Way(OP_BY_OP, *step)]

    def _step(self, key: Key) -> tuple[Callable[[], object], Tensor, Tensor]:
        """The step operation by operation, what it reads (padding, until it is replayed) and the tokens it leaves."""
        arguments, device = (self.model, self.cache, self.state), self.state.token.device
        tokens = torch.zeros(key.rows, dtype=torch.int64, device=device)
        if key.columns == 1:
            return partial(decode_step, *arguments, key.rows, key.longest, key.sampler), tokens[:0], tokens[:0]
        layout = self.cache.layout(key.rows, key.columns)
        packed = upload(pack([], [], layout, self.state.dummy), torch.int64, device)

        def run() -> None:
            tokens.copy_(prefill_step(*arguments, unpack(packed, layout), key.sampler))

        return run, packed, tokens

    def _try(self, key: Key, ways: Sequence[Way], attempt: Callable[[Callable[[], object]], T]) -> list[tuple[Way, T]]:
        """What the attempt gives for each way that it succeeds for, or for the first such one alone if pinned.

        What it raises costs a way its place; a key that no way is left for runs eagerly.
        """
        made, cause = list[tuple[Way, T]](), ""
        for way in ways:
            try:
                made.append((way, attempt(way.run)))
            except Exception as error:
                first, _, _ = str(error).partition("\n")
                cause = f"{type(error).__name__}: {first}"
                self._broken[key, way.computed_by] = cause
            if made and self.pinned:
                break
        if not made if self.agree is None else not self.agree(bool(made)):
            self.failed.add(key)
            self._warn(f"{key} runs without a graph", cause or "its capture has failed on another rank")
            return []
        return made

    def _fastest(self, key: Key, made: Sequence[tuple[Way, Replayable]]) -> tuple[Way, Replayable]:
        """Of graphs of the same step, the one whose replays take least, of texts half as long as they may become."""
        if len(made) == 1:
            return made[0]
        position, best = self.max_len // 2, [float("inf")] * len(made)
        self.state.position[: key.rows] = position
        self.state.row[: key.rows] = torch.arange(key.rows, device=self.state.row.device)
        with self.cache.scattered(key.rows, position):
            for _ in range(ROUNDS):
                best = [min(old, self._seconds(graph)) for old, (_, graph) in zip(best, made, strict=True)]
        self.state.free(slice(0, key.rows))
        name = getattr(key.sampler, "__name__", type(key.sampler).__name__)
        self.stats.timed[f"{key}, {name}"] = {
            way.computed_by: seconds for (way, _), seconds in zip(made, best, strict=True)
        }
        return made[best.index(min(best))]

    def _seconds(self, graph: Replayable) -> float:
        """Of one replay, of several in a row."""
        self.state.token[0].item()  # waits for the device
        began = time.perf_counter()
        for _ in range(REPLAYS):
            graph.replay()
        self.state.token[0].item()
        return (time.perf_counter() - began) / REPLAYS

    def _counted_as(self, key: Key, chosen: Way) -> str:
        """The name of what computes a decode step; where it is not the first of the forwards, with the cause."""
        if key.columns != 1 or not self.forwards or chosen.computed_by == self.forwards[0].name:
            return chosen.computed_by
        first = self.forwards[0]
        cause = (
            first.why_not(key.rows, key.sampler) or self._broken.get((key, first.name)) or f"faster than {first.name}"
        )
        return f"{chosen.computed_by}: {cause}"

    def _warn(self, what: str, cause: str) -> None:
        warnings.warn(f"{what}: {cause}", RuntimeWarning, stacklevel=2)

    def _moved(self, layers: Iterable[int]) -> bool:
        """Whether a tensor that all steps share, or a weight of these layers, is no longer where it was."""
        same = self._addresses == self._current_addresses()
        if same and all(self._weights[layer] == self._weight_addresses(layer) for layer in layers):
            return False
        self._note_addresses()
        return True

    def _note_addresses(self) -> None:
        self._addresses = self._current_addresses()
        self._weights = list(map(self._weight_addresses, self._layers))

    def _weight_addresses(self, layer: int) -> tuple[int, ...]:
        """Of one layer; the one after the last is the model's end, with the table of positions."""
        model = self.model
        if layer < len(model.layers):
            return tuple(map(Tensor.data_ptr, chain.from_iterable(model.layers[layer])))
        return tuple(map(Tensor.data_ptr, (model.ln_f.weight, model.ln_f.bias, model.wpe.weight)))

    def _current_addresses(self) -> tuple[int, ...]:
        tensors = self.state.integers, self.state.floats, *self.cache.tensors(), self.model.wte.weight
        return tuple(tensor.data_ptr() for tensor in tensors)


def write_chunks(packed: Tensor, going: Sequence[int], chunks: Sequence[Chunk], layout: Layout, dummy: int) -> None:
    """Put rows, chunks and padding of row `dummy` where a captured prefill reads them (layout.numbers,), in a copy."""
    host = pack(going, chunks, layout, dummy)
    packed.copy_(host.pin_memory() if packed.is_cuda else host, non_blocking=True)


def affordable_rows(model: GPT2) -> int:
    """Rows of a step that may be captured without taking more than a tenth of the memory that is free now.

    A step's largest tensors are its logits, twice in float32 where a sampler filters them, and the widest sublayer's.
    """
    free = free_memory(model.device)
    per_row = 12 * model.config.padded_vocab + 16 * model.config.inner
    return 2**31 if free is None else int(free * MEMORY_SHARE) // per_row


def ladder(maximum: int) -> list[int]:
    """Batch sizes that are captured: 1, 2, 4, 8, then one to four in each doubling; always ends in `maximum`."""
    sizes = [1, 2, 4, 8]
    while sizes[-1] < maximum:
        sizes.append(sizes[-1] + max(8, (1 << sizes[-1].bit_length()) // 8))
    return [*(size for size in sizes if size < maximum), maximum] if maximum else []


def pick(sizes: Sequence[int], wanted: int) -> int | None:
    """The smallest of the sorted `sizes` that is at least `wanted`; None where there is none."""
    at = bisect_left(sizes, wanted)
    return sizes[at] if at < len(sizes) else None


def _free_bytes(device: torch.device) -> int:
    """Of the device's memory, as its driver counts; 0 where there is no driver to ask."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
