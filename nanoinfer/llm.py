"""The front door: put model, memory and engine together, and turn prompts into completions.

Every engine of the book is made here by its name. Checks come first: whatever is wrong with the arguments is said
before a model is loaded, and whatever is wrong with a prompt before anything is computed.
"""

from __future__ import annotations

import os
import random
import re
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.requests import MAX_SEED, Completion, Piece, Request, SamplingParams, check_int

if TYPE_CHECKING:
    import torch

    from nanoinfer.engine.engine import Engine, Row
    from nanoinfer.engine.stats import Stats
    from nanoinfer.model.gpt2 import GPT2
    from nanoinfer.text.prompts import Prompt
    from nanoinfer.threads import Threads

# Each later one is proven against the one before it.
ENGINES = ("naive", "dense", "paged", "dense-graph", "paged-graph")
LAG = 2  # steps that the host is behind a device that replays graphs
DTYPES = ("float32", "bfloat16", "float16")
DEFAULT_MODEL = "small"
DEFAULT_MAX_BATCH = 64


def check_arguments(
    engine: str,
    device: str | None,
    dtype: Any,
    max_batch: int,
    max_len: int | None,
    prefill_chunk: int | None,
    max_graph_batch: int | None = None,
    threads: int | None = None,
) -> None:
    """ValueError for arguments of an `LLM` that no machine and no model could meet; torch is not needed to say so."""
    if engine != "auto" and engine not in ENGINES:
        raise ValueError(f"engine must be auto or one of {', '.join(ENGINES)}, not {engine!r}")
    if device is not None and not (isinstance(device, str) and re.fullmatch(r"cpu|cuda(:\d+)?", device)):
        raise ValueError(f"device must be cpu, cuda or cuda:N, not {device!r}")
    if dtype is not None and str(dtype).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    check_int("max_batch", max_batch, 1)
    if max_len is not None:
        check_int("max_len", max_len, 2)
    if prefill_chunk is not None:
        check_int("prefill_chunk", prefill_chunk, 1)
    if max_graph_batch is not None:
        check_int("max_graph_batch", max_graph_batch, 0)
    if threads is not None:
        check_int("threads", threads, 1)


class LLM:
    """A GPT-2 that continues prompts.

    model: None for the small model that ships with the package, a name on the hub (`gpt2`, `owner/name`), a folder or
    file of safetensors, `random:PRESET`, or a `GPT2`. Its tokenizer must be GPT-2's; what ends a text, its files say.
    engine: one of ENGINES, or "auto", which is "paged-graph" on a CUDA GPU with Triton, and "dense" elsewhere.
    device: "cpu", "cuda" or "cuda:N"; None takes a CUDA GPU where there is one.
    dtype: one of DTYPES; None is float32 on a CPU, bfloat16 on GPUs that compute in it, and float16 on others.
    max_batch: rows that run at once; further prompts wait for a row.
    max_len: context in tokens, prompt and new ones together; None is the model's own.
    block_size: tokens a block of the paged cache. kv_blocks: blocks of its pool; None takes what the requests can use,
    as far as memory goes.
    max_graph_batch: rows of the largest captured step, of the engines with graphs; 0 captures nothing, None captures
    what memory allows. NANOINFER_GRAPHS=0 in the environment is as 0. fused: whether those engines compute with the
    fused kernels of chapter 4; None is yes on a GPU with Triton.
    prefill_chunk: prompt tokens a row in one pass at most; None takes prompts whole.
    seed: of `random:` weights, and of the seeds of requests that bring none.
    revision: of a model on the hub.
    threads: of a step on a CPU; None tries what is fastest, again and again.

    stats counts since the LLM was made: a `Stats`, or a `GraphStats` of the engines with graphs, whose one engine is
    graph_engine (None of the others).

    Raises ValueError, one sentence, for arguments that cannot be met.
    """

    def __init__(
        self,
        model: str | Path | GPT2 | None = None,
        *,
        engine: str = "auto",
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        max_batch: int = DEFAULT_MAX_BATCH,
        max_len: int | None = None,
        block_size: int = 16,
        kv_blocks: int | None = None,
        max_graph_batch: int | None = None,
        fused: bool | None = None,
        prefill_chunk: int | None = None,
        seed: int = 0,
        revision: str | None = None,
        threads: int | None = None,
    ) -> None:
        check_arguments(engine, device, dtype, max_batch, max_len, prefill_chunk, max_graph_batch, threads)
        check_int("seed", seed, 0, MAX_SEED)
        check_int("block_size", block_size, 16, 256)
        if block_size & (block_size - 1):
            raise ValueError(f"block_size must be a power of two from 16 to 256, not {block_size}")
        if kv_blocks is not None:
            check_int("kv_blocks", kv_blocks, 1)

        import torch  # here and not above: `import nanoinfer` and a refused argument cost no second

        from nanoinfer.cache.make_cache import MemorySpec
        from nanoinfer.devices import choose_device, choose_dtype, has_triton
        from nanoinfer.engine import cpu_sampling
        from nanoinfer.engine.sampling import SAMPLERS, Samplers
        from nanoinfer.engine.stats import Stats
        from nanoinfer.model.gpt2 import GPT2
        from nanoinfer.model.weights import load_model
        from nanoinfer.text.prompts import RequestMaker
        from nanoinfer.text.tokenizer import gpt2_tokenizer
        from nanoinfer.threads import Threads

        if isinstance(model, GPT2):
            if device is not None or dtype is not None:
                raise ValueError("device and dtype must be left out where model is a GPT2: it has its own")
            self.model = model
        else:
            name, place = DEFAULT_MODEL if model is None else model, choose_device(device)
            self.model = load_model(name, place, choose_dtype(dtype, place), seed=seed, revision=revision)
        context = self.model.config.n_positions
        if max_len is not None and max_len > context:
            raise ValueError(f"max_len must be at most the model's context of {context} tokens, not {max_len}")
        on_gpu = self.model.device.type == "cuda"
        self.engine = ("paged-graph" if on_gpu and has_triton() else "dense") if engine == "auto" else engine
        if self.engine.startswith("paged") and on_gpu and not has_triton():
            raise ValueError(f"engine {self.engine} needs Triton on a GPU: pip install triton, or use an engine dense")
        if fused and not (on_gpu and has_triton()):
            raise ValueError("fused kernels need a CUDA GPU and Triton")
        self.max_batch, self.max_len, self.prefill_chunk = max_batch, max_len or context, prefill_chunk
        self.tokenizer = gpt2_tokenizer()
        self.samplers = SAMPLERS if on_gpu else Samplers(filtered=cpu_sampling.sample_filtered)
        self._spec = MemorySpec(
            self.engine, self.model.config, self.model.device, self.model.dtype, max_batch, block_size, kv_blocks
        )
        self.graph_engine: Engine | None = None  # the one engine of those that replay graphs: made once, and kept
        if self.engine.endswith("-graph"):
            fused = on_gpu and has_triton() if fused is None else fused
            self.graph_engine = self._make_graph_engine(max_graph_batch, fused)
        self.stats: Stats = Stats() if self.graph_engine is None else self.graph_engine.stats
        self._maker = RequestMaker(
            self.tokenizer,
            self.max_len,
            self.model.config.vocab_size,
            random.Random(seed),
            self.model.config.end_of_text,
        )
        self._threads: Threads | None = None if on_gpu else Threads(threads)
        if self._threads is not None:
            self._threads.try_products(self.model.layers[0].c_fc[0].detach())
        self._running = False
        self._closed = False
        self._torch = torch

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Continue one prompt or several; a list in the order of the prompts, also for a single one.

        prompts: text or token ids, or a list of these. params: one for all, one a prompt, or None for the defaults.
        Raises ValueError for a bad prompt, before anything is computed; RuntimeError while another generation runs.
        """
        done: list[Completion] = []
        with closing(self._run(self.requests(prompts, params))) as steps:
            for rows in steps:
                done += [self._completion(row) for row in rows if row.finish_reason is not None]
        return sorted(done, key=lambda completion: completion.index)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Generator[Piece, None, None]:
        """As `generate`, but piece by piece as tokens come; pieces of several prompts come interleaved.

        The prompts are checked now, and computed as the iterator is read. Closing it ends the generation.
        """
        return self._stream(self.requests(prompts, params))

    def _stream(self, requests: list[Request]) -> Generator[Piece, None, None]:
        from nanoinfer.text.stop import TextStream

        requests = [replace(request, text=request.text or TextStream(self.tokenizer)) for request in requests]
        with closing(self._run(requests)) as steps:  # a stream that is closed ends its generation at once
            for row in chain.from_iterable(steps):
                token, stream, completion = row.token_ids[-1], row.request.text, None
                assert stream is not None
                text = "" if token in row.request.stop_ids else stream.new
                if row.finish_reason is not None:
                    text += stream.finish()
                    completion = self._completion(row)
                yield Piece(row.request.index, token, text, row.finish_reason, completion)
                self._check_open()

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
        self._closed, self.graph_engine = True, None
        self.__dict__.pop("model", None)
        if self._torch.cuda.is_available():
            self._torch.cuda.empty_cache()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this LLM is closed")

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, requests: list[Request]) -> Generator[list[Row], None, None]:
        """The engine's loop over these requests, one generation at a time."""
        self._check_open()
        if self._running:
            raise RuntimeError("this LLM is generating already: finish or close the running generation first")
        self._running = True
        try:
            if requests:
                with closing(self.engine_for(requests).generate(requests)) as steps:
                    yield from steps if self._threads is None else self._threads.run(steps, _decoded)
        finally:
            self._running = False

    def engine_for(self, requests: list[Request]) -> Engine:
        """The engine that runs these requests: as large as they ask for, or the one that was made for all.

        `generate` is a loop over `engine_for(requests).generate(requests)`; call it yourself to look at the engine's
        rows, memory and counters between two steps. ValueError for a request that could never fit.
        """
        from nanoinfer.engine.engine import Engine

        lengths = [len(request.prompt_token_ids) + request.limit for request in requests]
        if self.graph_engine is not None:
            self._spec.check(self.graph_engine.memory, lengths)
            return self.graph_engine
        memory = self._spec.make(lengths)
        max_batch = min(self.max_batch, len(requests))
        return Engine(
            self.model, memory, max_batch, self.stats, samplers=self.samplers, prefill_chunk=self.prefill_chunk
        )

    def _make_graph_engine(self, max_graph_batch: int | None, fused: bool) -> Engine:
        """The engine that replays graphs, over a memory that stays where it is."""
        from nanoinfer.engine.engine import Engine
        from nanoinfer.engine.graph_stats import GraphStats
        from nanoinfer.engine.graphs import CudaRecorder, GraphRunner, affordable_rows
        from nanoinfer.engine.sampling import Samplers

        model, samplers, recorder, why_not = self.model, Samplers(), None, None
        max_rows = min(self.max_batch, affordable_rows(model) if max_graph_batch is None else max_graph_batch)
        if model.device.type == "cuda" and os.environ.get("NANOINFER_GRAPHS") != "0":
            recorder = CudaRecorder(model.device)
        elif model.device.type != "cuda":
            why_not = "a CPU records no steps"
            what = f"engine {self.engine} runs as engine {self.engine.removesuffix('-graph')} does"
            warnings.warn(f"{what}: {why_not}", RuntimeWarning, stacklevel=3)
        if fused:
            from nanoinfer.kernels import sampling as sampling_kernels
            from nanoinfer.kernels.fused import FusedOps

            model = copy(model)  # the same weights
            model.ops = FusedOps()
            samplers = Samplers(sampling_kernels.greedy, sampling_kernels.sample, sampling_kernels.sample)
        stats = GraphStats()
        return Engine(
            model,
            self._spec.make_once(self.max_len),
            self.max_batch,
            stats,
            runner=partial(
                GraphRunner, recorder=recorder, why_not=why_not, max_rows=max_rows, max_len=self.max_len, stats=stats
            ),
            samplers=samplers,
            prefill_chunk=self.prefill_chunk,
            lag=LAG if recorder and max_rows else 0,
        )

    def warm_up(self, on_capture: Callable[[int, int], None] | None = None) -> None:
        """Capture every step of the ladders now, so that no request has to wait for one; without graphs, nothing.

        on_capture: called after each capture with how many of how many are done.
        """
        self._check_open()
        if self.graph_engine is not None:
            from nanoinfer.engine.graphs import GraphRunner

            assert isinstance(self.graph_engine.runner, GraphRunner)
            self.graph_engine.runner.warm_up(list(dict.fromkeys(self.graph_engine.samplers)), on_capture)

    def requests(self, prompts: Any, params: Any = None) -> list[Request]:
        """The checked requests that `generate` makes of these prompts. ValueError for a bad prompt."""
        self._check_open()
        return self._maker.requests(prompts, params)

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


def _decoded(rows: list[Row]) -> int | None:
    """How many rows a step decoded; None for a step that ran prompts."""
    return len(rows) if rows and len(rows[0].token_ids) > 1 else None
