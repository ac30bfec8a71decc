"""The front door: put model, cache and engine together, and turn prompts into completions.

Checks come first: whatever is wrong with the arguments is said before a model is loaded, and whatever is wrong with a
prompt before anything is computed. The engine runs in a thread of its own, so that whoever reads a stream slowly, or
not at all, holds up nobody.
"""

from __future__ import annotations

import os
import random
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from nanoinfer.config import MAX_BATCH, RECIPES, EngineConfig
from nanoinfer.requests import Completion, Piece, Request, SamplingParams
from nanoinfer.worker import Worker

if TYPE_CHECKING:
    import torch

    from nanoinfer.engine.engine import Engine
    from nanoinfer.engine.scheduler import Row
    from nanoinfer.model.gpt2 import GPT2
    from nanoinfer.text.prompts import Prompt

LAG = 2  # steps that the host is behind a device that replays graphs
DEFAULT_MODEL = "small"


class LLM:
    """A GPT-2 that continues prompts.

    model: None for the small model that ships with the package, a name on the hub (`gpt2`, `owner/name`), a folder or
    file of safetensors, `random:PRESET`, or a `GPT2`. Its tokenizer must be GPT-2's; what ends a text, its files say.
    revision: of a model on the hub. settings: those of `EngineConfig`, by name.

    engine is the engine's name, and core the `Engine` itself. stats counts since the LLM was made: a `Stats`, or a
    `GraphStats` of the engines with graphs. Several threads may call at once: their requests share the engine's rows.

    Raises ValueError, one sentence, for settings that cannot be met, and TypeError for one that does not exist.
    """

    def __init__(self, model: str | Path | GPT2 | None = None, *, revision: str | None = None, **settings: Any) -> None:
        config = EngineConfig(**settings)

        import torch  # here and not above: `import nanoinfer` and a refused argument cost no second

        from nanoinfer.cache.make_cache import default_max_batch
        from nanoinfer.devices import batched_tokens, choose_device, choose_dtype, has_triton
        from nanoinfer.model.gpt2 import GPT2
        from nanoinfer.model.weights import load_model
        from nanoinfer.text.prompts import RequestMaker
        from nanoinfer.text.tokenizer import gpt2_tokenizer
        from nanoinfer.threads import Threads

        if isinstance(model, GPT2):
            if config.device is not None or config.dtype is not None:
                raise ValueError("device and dtype must be left out where model is a GPT2: it has its own")
            self.model = model
        else:
            name, place = DEFAULT_MODEL if model is None else model, choose_device(config.device)
            self.model = load_model(
                name, place, choose_dtype(config.dtype, place), seed=config.seed, revision=revision
            )  # fmt: skip
        context, device = self.model.config.n_positions, self.model.device
        if config.max_len is not None and config.max_len > context:
            raise ValueError(f"max_len must be at most the model's context of {context} tokens, not {config.max_len}")
        on_gpu = device.type == "cuda"
        if config.engine == "auto":
            config = replace(config, engine="paged-graph" if on_gpu and has_triton() else "dense")
        self.config, self.engine, self.max_len = config, config.engine, config.max_len or context
        if config.recipe.cache == "paged" and on_gpu and not has_triton():
            raise ValueError(f"engine {self.engine} needs Triton on a GPU: pip install triton, or use an engine dense")
        if config.fused and not (on_gpu and has_triton()):
            raise ValueError("fused kernels need a CUDA GPU and Triton")
        most = config.max_batched_tokens or MAX_BATCH
        self.max_batch = config.max_batch or min(most, default_max_batch(config, self.model, self.max_len))
        # Naive reads whole texts at every step: a prompt in pieces would be read again with each.
        most = self.max_batch * self.max_len if config.recipe.cache == "naive" else batched_tokens(device)
        self.max_batched_tokens = config.max_batched_tokens or max(most, self.max_batch)
        self.tokenizer = gpt2_tokenizer()
        self._torch, self._closed = torch, False
        self.core = self._make_engine()
        self.stats = self.core.stats
        end_of_text = self.model.config.end_of_text
        self._maker = RequestMaker(
            self.tokenizer, self.max_len, self.model.config.vocab_size, random.Random(config.seed), end_of_text
        )
        self._threads: Threads | None = None if on_gpu else Threads(config.threads)
        if self._threads is not None:
            self._threads.try_products(self.model.layers[0].c_fc[0].detach())
        self._worker = Worker("nanoinfer")
        self._running: deque[Row] = deque()  # in order of arrival
        self._made: list[tuple[SimpleQueue[Any], Any]] = []  # events of a step, and who waits for them

    def _make_engine(self) -> Engine:
        """The engine of the recipe, over a cache that stays where it is."""
        from nanoinfer.cache.make_cache import make_cache
        from nanoinfer.devices import has_triton
        from nanoinfer.engine import cpu_sampling
        from nanoinfer.engine.engine import Engine
        from nanoinfer.engine.sampling import SAMPLERS, Samplers

        config, model, on_gpu = self.config, self.model, self.model.device.type == "cuda"
        cache: Any = make_cache(config, model, self.max_batch, self.max_len, self.max_batched_tokens)
        limits: dict[str, Any] = {
            "max_batched_tokens": self.max_batched_tokens,
            "prefill_chunk": config.prefill_chunk,
            "mixed": config.recipe.cache == "paged" and on_gpu,  # elsewhere attention pads, and mixed rows the most
        }
        if config.recipe.launch == "eager":
            samplers = SAMPLERS if on_gpu else Samplers(filtered=cpu_sampling.sample_filtered)
            return Engine(model, cache, self.max_batch, samplers=samplers, **limits)

        from nanoinfer.engine.graph_stats import GraphStats
        from nanoinfer.engine.graphs import CudaRecorder, GraphRunner, affordable_rows

        recorder, why_not, samplers = None, None, SAMPLERS  # which a step that may be recorded can use, on a CPU too
        max_rows = min(
            self.max_batch, affordable_rows(model) if config.max_graph_batch is None else config.max_graph_batch
        )
        if on_gpu and os.environ.get("NANOINFER_GRAPHS") != "0":
            recorder = CudaRecorder(model.device)
        elif not on_gpu:
            why_not = "a CPU records no steps"
            what = f"engine {self.engine} runs as engine {self.engine.removesuffix('-graph')} does"
            warnings.warn(f"{what}: {why_not}", RuntimeWarning, stacklevel=3)
        if config.fused or (config.fused is None and on_gpu and has_triton()):
            from nanoinfer.kernels import sampling as sampling_kernels
            from nanoinfer.kernels.fused import FusedOps

            model = copy(model)  # the same weights
            model.ops = FusedOps()
            samplers = Samplers(sampling_kernels.greedy, sampling_kernels.sample, sampling_kernels.sample)
        stats = GraphStats()
        runner: Any = partial(
            GraphRunner, recorder=recorder, why_not=why_not, max_rows=max_rows, max_len=self.max_len, stats=stats
        )
        lag = LAG if recorder and max_rows else 0
        return Engine(model, cache, self.max_batch, stats, runner=runner, samplers=samplers, lag=lag, **limits)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Continue one prompt or several; a list in the order of the prompts, also for a single one.

        prompts: text or token ids, or a list of these. params: one for all, one a prompt, or None for the defaults.
        Raises ValueError for a bad prompt, before anything is computed.
        """
        asked = time.perf_counter()
        done = list(self._run(self.requests(prompts, params), asked, self._completion))
        return sorted(done, key=lambda completion: completion.index)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Generator[Piece, None, None]:
        """As `generate`, but piece by piece as tokens come; pieces of several prompts come interleaved.

        The prompts are checked now, and computed from the first piece that is read on, however slowly the others are.
        Closing the iterator cancels what is left.
        """
        from nanoinfer.text.stop import TextStream

        asked = time.perf_counter()
        requests = self.requests(prompts, params)
        requests = [replace(request, text=request.text or TextStream(self.tokenizer)) for request in requests]
        return self._run(requests, asked, self._piece, every_token=True)

    def _run(
        self, requests: list[Request], asked: float, event: Callable[[Row], Any], every_token: bool = False
    ) -> Generator[Any, None, None]:
        """Submit the requests; yield the events of their tokens, or of their ends, from the thread of the engine."""
        self._check_open()
        events: SimpleQueue[Any] = SimpleQueue()

        def listener(row: Row) -> None:
            self._made.append((events, row.cancelled or event(row)))

        rows = [self.core.submit(request, listener, every_token=every_token, asked=asked) for request in requests]
        self._running += rows
        left = len(rows)
        try:
            self._worker.submit(self._loop)
            while left:
                item = _next(events)
                if isinstance(item, BaseException):
                    raise item
                left -= not isinstance(item, Piece) or item.completion is not None
                yield item
                self._check_open()
        finally:
            if left and not self._closed:
                for row in rows:
                    self.core.cancel(row)

    def _loop(self) -> None:
        """In the engine's thread: steps, as long as there is anything to do."""
        try:
            steps = self._steps()
            for _ in steps if self._threads is None else self._threads.run(steps, _decoded):
                pass
        except BaseException as error:  # whatever it is, those who wait for tokens must hear of it
            try:
                self.core.abandon(error)
            finally:
                self._deliver()

    def _deliver(self) -> None:
        """Hand the events out, once a step is over: who gets the last one may use the engine."""
        made, self._made = self._made, []
        for events, item in made:
            events.put(item)

    def _steps(self) -> Iterator[list[Row]]:
        while self._running:
            if self._worker.stopping.is_set():
                raise RuntimeError("this LLM is closed")
            if self._running[0].listener is None:  # it has been told of the end
                self._running.popleft()
            else:
                settled = self.core.step()
                self._deliver()
                yield settled

    def _piece(self, row: Row) -> Piece:
        """What a row's newest token has made certain."""
        token, stream, completion = row.token_ids[-1], row.request.text, None
        assert stream is not None
        text = "" if token in row.request.stop_ids else stream.new
        if row.finish_reason is not None:
            text += stream.finish()
            completion = self._completion(row)
        return Piece(row.request.index, token, text, row.finish_reason, completion)

    def _completion(self, row: Row) -> Completion:
        """What came of a finished row."""
        request, ids = row.request, row.token_ids
        assert row.finish_reason is not None
        if request.text is not None:
            request.text.finish()
            text = request.text.text
        else:
            text = self.tokenizer.decode(ids[:-1] if ids[-1] in request.stop_ids else ids)
        return Completion(
            index=request.index,
            prompt_token_ids=request.prompt_token_ids,
            token_ids=tuple(ids),
            text=text,
            finish_reason=row.finish_reason,
            seed=request.seed,
            metrics=row.metrics(),
        )

    def requests(self, prompts: Any, params: Any = None) -> list[Request]:
        """The checked requests that `generate` makes of these prompts. ValueError for a bad prompt.

        To look at rows, cache and counters between two steps, give them to `core.generate`.
        """
        self._check_open()
        requests = self._maker.requests(prompts, params)
        for request in requests:
            self.core.check(request)
        return requests

    def warm_up(self, on_capture: Callable[[int, int], None] | None = None) -> None:
        """Capture every step of the ladders now, so that no request has to wait for one; without graphs, nothing.

        on_capture: called after each capture with how many of how many are done.
        """
        self._check_open()
        if RECIPES[self.engine].launch == "graph":
            runner: Any = self.core.runner
            self._worker.submit(runner.warm_up, list(dict.fromkeys(self.core.samplers)), on_capture).result()

    def forward_logits(self, token_ids: Any) -> torch.Tensor:
        """Logits (B, T, vocab_size), float32, of token ids (B, T), by one plain pass over the full context."""
        from nanoinfer.cache.naive import forward_logits

        self._check_open()
        tokens = self._torch.as_tensor(token_ids, dtype=self._torch.int64, device=self.model.device)
        if tokens.dim() != 2 or not 1 <= tokens.shape[1] <= self.model.config.n_positions:
            raise ValueError(
                f"token_ids must be (B, T) with T from 1 to {self.model.config.n_positions}, not {tuple(tokens.shape)}"
            )
        vocab = self.model.config.vocab_size
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
            raise ValueError(f"token_ids must be from 0 to {vocab - 1}")
        with self._torch.cuda.device_of(tokens):  # type: ignore[no-untyped-call]
            return forward_logits(self.model, tokens)

    def close(self) -> None:
        """Give the model's memory back. The LLM cannot be used afterwards: its open streams raise RuntimeError."""
        if self._closed:
            return
        self._closed = True
        self._worker.stop()
        del self.core, self.model
        if self._torch.cuda.is_available():
            self._torch.cuda.empty_cache()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this LLM is closed")

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _next(events: SimpleQueue[Any]) -> Any:
    """The next event. The wait is cut into pieces, so that Ctrl-C ends it on Windows too."""
    while True:
        try:
            return events.get(timeout=0.5)
        except Empty:
            pass


def _decoded(rows: list[Row]) -> int | None:
    """How many rows a step decoded; None for a step that ran prompts."""
    return len(rows) if rows and all(len(row.token_ids) > 1 for row in rows) else None
