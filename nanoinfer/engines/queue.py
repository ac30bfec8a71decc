"""Chapter 5's engines: those of chapters 1 to 4, behind a queue."""

from __future__ import annotations

from typing import Any

from nanoinfer.cache.captured import CapturedDense
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.none import NoCache
from nanoinfer.cache.ragged import CapturedRagged, RaggedPaged
from nanoinfer.engine import cpu_sampling
from nanoinfer.engine.graphs import CudaRecorder
from nanoinfer.engine.late import LAG
from nanoinfer.engine.penalties import AllSamplers, PenaltySampler
from nanoinfer.engine.samplers import SAMPLERS, Samplers
from nanoinfer.engine.scores import DeviceScores, PlainScores
from nanoinfer.engines.graphs import fused as with_kernels
from nanoinfer.engines.paged import BLOCK
from nanoinfer.kernels.available import has_triton
from nanoinfer.model.gpt2 import GPT2

BUDGET = 256  # tokens of a step, where nobody says how many


class QueueMaker:
    """Puts the parts of chapters 1 to 5 together. Each later chapter replaces a method or two.

    engine: naive, dense, paged, dense-graph or paged-graph. max_batched_tokens, prefill_chunk: the queue's budget and
    chunk. block_size, kv_blocks: of a pool of pages; None: blocks for all the longest texts. prefix_caching: whether
    texts that begin alike share blocks. preemption: as for `SharedRoom`. max_graph_batch: rows of a recorded step at
    most. fused: whether recorded steps use chapter 4's fused kernels; None: where there is a GPU with Triton.
    """

    eager: Any = PlainScores
    on_device: Any = DeviceScores
    captured_pages: Any = CapturedRagged

    def __init__(
        self, engine: str, model: GPT2, max_batch: int, max_len: int, *, max_batched_tokens: int | None = None,
        prefill_chunk: int | None = None, block_size: int = BLOCK, kv_blocks: int | None = None,
        prefix_caching: bool | None = False, preemption: bool | None = False, max_graph_batch: int | None = None,
        fused: bool | None = None,
    ) -> None:  # fmt: skip
        self.model, self.max_batch, self.max_len, self.block_size = model, max_batch, max_len, block_size
        self.kind, _, launch = engine.partition("-")
        self.on_gpu, self.graphs = model.device.type == "cuda", launch == "graph"
        self.device_state = self.graphs
        self.budget, self.chunk = max_batched_tokens or max(BUDGET, max_batch), prefill_chunk
        self.prefix_caching, self.preemption = bool(prefix_caching), bool(preemption)
        self.kv_blocks, self.max_rows = kv_blocks, max_graph_batch
        self.kernels = self.on_gpu and has_triton() if fused is None else fused

    def make(self) -> Any:
        """Make the engine."""
        settings, cache = self.settings(), self.cache()  # ahead of what may be recorded: the cache takes most memory
        if self.device_state:
            settings |= self.recording() | {"samplers": self.samplers()}
        kind = self.on_device if self.device_state else self.eager
        return kind(self.model, cache, self.max_batch, **settings)

    def settings(self) -> dict[str, Any]:
        """Return what every `QueueEngine` is told."""
        if self.kind == "naive":  # with each piece of a prompt, all before it would be read again
            return {"budget": self.max_batch * self.max_len}
        mixed = self.kind == "paged" and self.on_gpu  # elsewhere attention pads, and mixed steps the most
        return {"budget": self.budget, "chunk": self.chunk, "mixed": mixed}

    def recording(self) -> dict[str, Any]:
        """Return whether and up to how many rows steps are recorded."""
        rows = self.max_batch if self.max_rows is None else min(self.max_batch, self.max_rows)
        if not self.on_gpu:
            return {"recorder": None, "max_rows": rows, "lag": 0, "why_not": "a CPU records no steps"}
        recorder = CudaRecorder(self.model.device) if rows else None
        return {"recorder": recorder, "max_rows": rows, "lag": LAG if rows else 0}

    def samplers(self) -> Any:
        """Return what chooses tokens, penalties and logprobs included."""
        samplers, shape = self.plain_samplers(), self.model.config
        scoring = PenaltySampler(self.max_batch, shape.vocab_size, self.model.device, samplers.filtered)
        return AllSamplers(*samplers, scoring)

    def plain_samplers(self) -> Samplers:
        """Return chapter 4's samplers. With its kernels, the model has them from now on, too."""
        if not (self.graphs and self.kernels):
            return SAMPLERS if self.on_gpu or self.graphs else cpu_sampling.SAMPLERS
        self.model, samplers = with_kernels(self.model)
        return samplers

    def cache(self) -> Any:
        """Return a cache that is sized once for the most that may ever be asked: addresses stay."""
        shape, kind = self.model.config, (self.model.device, self.model.dtype)
        if self.kind == "naive":
            return NoCache()
        if self.kind == "dense":
            return (CapturedDense if self.device_state else DenseCache)(shape, self.max_batch, self.max_len, *kind)
        blocks = self.kv_blocks or self.max_batch * -(-self.max_len // self.block_size)
        identity = repr((shape, self.model.dtype)).encode() if self.prefix_caching else None
        return (self.captured_pages if self.device_state else RaggedPaged)(
            shape, self.max_batch, self.max_len, blocks, self.block_size, *kind,
            preemption=self.preemption, identity=identity,
        )  # fmt: skip
