"""Steps recorded once and replayed: a dict of CUDA graphs. Chapter 4.

At few rows the GPU waits for the host, which launches some hundred kernels a step. A CUDA graph is a recording of those
launches: replaying it is one call. It repeats them with the same addresses and the same Python numbers, so all that
changes must stand in tensors that stay where they are, and all that does not must be part of the key.
"""

from __future__ import annotations

import gc
import time
import warnings
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, cycle
from threading import Lock
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from nanoinfer.engine.late import LateEngine
from nanoinfer.engine.replays import Replays
from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.state import upload
from nanoinfer.engine.step import Layout, Prefill, Prompts, decode_step

PREFILL_TOKENS = 2048  # of a recorded prefill at most: with more, the GPU is busy and a graph gains nothing
KEPT = 512  # graphs at most

OnCapture = Callable[[int, int], None]  # told after a capture how many of how many are done


class Replayable(Protocol):
    """A recorded step."""

    def replay(self) -> None: ...


class Key(NamedTuple):
    """All that is baked into a captured step: its shape, and each Python branch that it took."""

    rows: int
    columns: int  # 1 is decode; else the columns of a rectangle, or, in pages, the tokens of all rows
    longest: int  # of a decode step, how much of a context it reads: the cache's bucket; of a prefill, its columns
    sampler: Sampler

    def __str__(self) -> str:
        rows = f"of {self.rows} rows"
        return f"decode {rows}" if self.columns == 1 else f"prefill {rows}, {self.columns} wide"


class CapturedStep(NamedTuple):
    """A recording; for a prefill, what it reads, to be written before each replay, and what it leaves."""

    graph: Replayable
    packed: Tensor  # (sum(layout.sizes),) int64; empty for decode
    tokens: Tensor  # (rows,) int64


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
            if not self._graphs:  # a pool is given up with its last graph, even while a tensor in it is alive
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
            # The outer stream is for a capture that fails: torch would then go on working on the capture's.
            with torch.cuda.stream(self._stream), capture:
                step()
        self._graphs.add(graph)
        return graph


class GraphEngine(LateEngine):
    """A `LateEngine` that replays a step where it has a recording, and makes one where it can.

    recorder: a `CudaRecorder`, or what does the same on a CPU. None turns graphs off; the class and its dict, which
    stays empty, are the same. why_not: the reason where it was not asked for; each step is then counted as a fallback.
    max_rows: of a captured decode step at most; further rows run eagerly.
    """

    Stats: Any = Replays

    def __init__(self, *args: Any, recorder: Any, max_rows: int, why_not: str | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.recorder, self.stats, self.why_not = recorder if max_rows else None, self.Stats(), why_not
        self.rows = ladder(max_rows)
        self.shapes = self.cache.shapes(max(self.rows, default=0), PREFILL_TOKENS)  # of prefills, smallest first
        self.graphs: OrderedDict[Key, CapturedStep] = OrderedDict()  # the least recently used comes first
        self.failed: set[Key] = set()
        self._layers = range(len(self.model.layers) + 1)  # of weights; the last is no block
        self._turn = cycle(self._layers)
        self._note_addresses()

    def decode(self, rows: int, context: int, sampler: Sampler) -> Tensor:
        size = pick(self.rows, rows)
        key = Key(size or rows, 1, self.cache.bucket(context), sampler)
        captured = self._captured(key, "more rows than the largest graph has" if size is None else None)
        if captured is None:
            return super().decode(rows, context, sampler)
        captured.graph.replay()
        self.stats.replayed_steps += 1
        self.stats.replayed_rows += key.rows
        self.stats.padding_rows += key.rows - rows
        return self.state.token[:rows]

    def prefill(self, prefill: Prefill, sampler: Sampler) -> Tensor:
        exact = prefill.layout
        wanted = self.cache.wanted(exact)
        fits = (each for each in self.shapes if each[0] >= wanted[0] and each[1] >= wanted[1])
        rows, columns = next(fits, (0, 0))
        why_not = None if rows else "a prefill of too many tokens"
        captured = self._captured(Key(rows, columns, columns, sampler), why_not, all_layers=not exact.past)
        if captured is None:
            return super().prefill(prefill, sampler)
        layout = self.cache.layout(rows, columns)
        self.bring(prefill, layout, captured.packed)
        captured.graph.replay()
        self.stats.replayed_prefills += 1
        self.stats.padding_tokens += layout.tokens - exact.tokens
        return captured.tokens[: exact.rows]

    def bring(self, prefill: Prefill, layout: Layout, packed: Tensor) -> None:
        """Put a prefill where its recording reads it, in one copy that the host does not wait for."""
        host = prefill.pack(layout, self.state.dummy)
        packed.copy_(host.pin_memory() if packed.is_cuda else host, non_blocking=True)

    def warm_up(self, samplers: Sequence[Sampler], on_capture: OnCapture = lambda done, of: None) -> None:
        """Capture the ladders now, for all samplers: afterwards a step is replayed, or runs eagerly and is counted."""
        reads = sorted({self.cache.bucket(context) for context in range(1, self.cache.max_len + 1)})
        keys = self._ladders(samplers, reads)
        new = [key for key in keys if key not in self.graphs and key not in self.failed][: KEPT - len(self.graphs)]
        if self.recorder is not None:
            with torch.cuda.device_of(self.state.integers):  # type: ignore[no-untyped-call]
                self._capture(sorted(new, key=lambda key: key[:3], reverse=True), on_capture)

    def _ladders(self, samplers: Sequence[Sampler], reads: Sequence[int]) -> list[Key]:
        """All that may be captured. reads: the cache's buckets."""
        keys = [Key(rows, columns, columns, sampler) for sampler in samplers for rows, columns in self.shapes]
        return keys + [Key(rows, 1, read, sampler) for sampler in samplers for read in reads for rows in self.rows]

    def _captured(self, key: Key, why_not: str | None, all_layers: bool = False) -> CapturedStep | None:
        """The step of that key, captured now if need be; None where it has to run eagerly, which is counted.

        all_layers: whether to look if a weight has moved in any, not in one: for a step with which a generation begins.
        """
        if self.recorder is not None:
            if self._moved(self._layers if all_layers else (next(self._turn),)):  # all would take long at each step
                self._warn("all graphs are dropped", "a tensor that they knew has moved")
                self._drop()
            if why_not is None and key not in self.graphs and key not in self.failed:
                self._capture([key])
            if why_not is None and key in self.graphs:
                self.graphs.move_to_end(key)
                return self.graphs[key]
        self.eager(why_not or "not captured")
        return None

    def eager(self, why: str) -> None:
        """Count a step that runs eagerly, where graphs were asked for."""
        cause = self.why_not if self.recorder is None else why
        if cause:
            self.stats.fallbacks[cause] += 1

    def _drop(self) -> None:
        """Forget all graphs."""
        self.graphs.clear()

    @torch.inference_mode()
    def _capture(self, keys: Sequence[Key], on_capture: OnCapture = lambda done, of: None) -> None:
        """Warm every step, then record every step."""
        assert self.recorder is not None
        torch.cuda.empty_cache()  # a capture does so too, and what it gives back is not a graph's
        started, free = time.perf_counter(), _free_bytes(self.state.token.device)
        steps = {key: self._step(key) for key in keys}  # of each what is run, and a prefill's input and result
        with self.all_padding():
            for key, (run, *_) in steps.items():
                self._warm(key, run)
            for done, (key, (run, packed, tokens)) in enumerate(steps.items(), start=1):
                if key not in self.failed and (graph := self._try(key, partial(self.recorder.record, run))):
                    self.graphs[key] = CapturedStep(graph, packed, tokens)
                    self.stats.captures += 1
                on_capture(done, len(steps))
        while len(self.graphs) > KEPT:
            self.graphs.popitem(last=False)
        self.stats.capture_s += time.perf_counter() - started
        self.stats.graph_bytes += max(0, free - _free_bytes(self.state.token.device))

    @contextmanager
    def all_padding(self) -> Iterator[None]:
        """Meanwhile no row is live, so that a step that is only tried harms none."""
        saved = self.state.integers.clone(), self.state.floats.clone()
        self.state.free(slice(0, len(self.state.token)))
        gc.collect()  # an old graph that is collected during a capture would invalidate it
        try:
            yield
        finally:
            self.state.integers.copy_(saved[0])
            self.state.floats.copy_(saved[1])

    def _warm(self, key: Key, run: Callable[[], object]) -> None:
        """Run a step once, ahead of its recording."""
        assert self.recorder is not None
        self._try(key, partial(self.recorder.warm, run))

    def _step(self, key: Key) -> tuple[Callable[[], object], Tensor, Tensor]:
        """What is recorded under that key, what it reads (padding, until it is replayed) and the tokens it leaves."""
        arguments, device = (self.model, self.cache, self.state), self.state.token.device
        tokens = torch.zeros(key.rows, dtype=torch.int64, device=device)
        if key.columns == 1:
            return partial(decode_step, *arguments, key.rows, key.longest, key.sampler), tokens[:0], tokens[:0]
        layout = self.cache.layout(key.rows, key.columns)
        packed = upload(Prefill([]).pack(layout, self.state.dummy), torch.int64, device)

        def run() -> None:
            tokens.copy_(self.prefill_step(*arguments, Prompts.of_packed(packed, layout), key.sampler))

        return run, packed, tokens

    def _try(self, key: Key, attempt: Callable[[], Replayable | None]) -> Replayable | None:
        """What the attempt gives. Whatever it raises costs this key alone its graph: the step then runs eagerly."""
        try:
            return attempt()
        except Exception as error:
            self.failed.add(key)
            self._warn(f"{key} runs without a graph", in_a_line(error))
            return None

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


def in_a_line(error: Exception) -> str:
    """Its kind, and the first line of what it says."""
    first, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {first}"


def _free_bytes(device: torch.device) -> int:
    """Of the device's memory, as its driver counts; 0 where there is no driver to ask."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
