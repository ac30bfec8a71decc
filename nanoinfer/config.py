"""The engines by name, and how one is to be made: checked once, before torch is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from nanoinfer.records import MAX_SEED, check_int
from nanoinfer.speculate.drafts import LOOKUP, NGRAM

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from nanoinfer.model.gpt2 import GPT2

DTYPES = ("float32", "bfloat16", "float16")
MAX_BATCH = 64  # rows, where nobody says how many
MOST_DRAFTS = 64  # of a row in one step
INT32 = 2**31 - 1  # the largest position, block and count of tokens on a device
# The least and the most that a field may be: no machine has more, or no machine type holds more.
BOUNDS = {
    "max_batch": (1, 1 << 16),
    "max_len": (2, INT32),
    "max_batched_tokens": (1, INT32),
    "prefill_chunk": (1, INT32),
    "block_size": (16, 256),
    "kv_blocks": (1, INT32 - 1),  # besides the null block
    "max_graph_batch": (0, 1 << 16),
    "draft_tokens": (1, MOST_DRAFTS),
    "seed": (0, MAX_SEED),
    "threads": (1, 1024),
    "tensor_parallel": (1, 1024),
    "replicas": (1, 256),
}


@dataclass(frozen=True)
class Recipe:
    """What an engine is made of: where keys and values lie, how a step is launched, and what a decode step computes."""

    cache: Literal["naive", "dense", "paged"]
    launch: Literal["eager", "graph"] = "eager"
    forward: Literal["ops", "fused", "persistent"] = "ops"


# Each later one is proven against the one before it.
RECIPES = {
    "naive": Recipe("naive"),
    "dense": Recipe("dense"),
    "paged": Recipe("paged"),
    "dense-graph": Recipe("dense", "graph"),
    "paged-graph": Recipe("paged", "graph"),
    "fused": Recipe("paged", "graph", "fused"),
    "persistent": Recipe("paged", "graph", "persistent"),
}
ENGINES = tuple(RECIPES)


def fastest(on_gpu: bool, has_triton: bool, ranks: int = 1) -> str:
    """Return the fastest engine of such a machine. Without Triton a GPU has no paged one."""
    if not on_gpu:
        return "dense"
    if not has_triton:
        return "dense-graph"
    return "fused" if ranks == 1 else "paged-graph"


@dataclass(frozen=True)
class Facts:
    """What was made of a model and an `EngineConfig`: what one must know to ask it, wherever it runs.

    blocks, block_size: of a paged cache; 0 elsewhere. end_of_text: ids that end a text.
    """

    model: str
    engine: str
    device: str
    dtype: str
    max_batch: int
    max_len: int
    vocab_size: int
    end_of_text: tuple[int, ...]
    blocks: int
    block_size: int


@dataclass(frozen=True)
class EngineConfig:
    """How an engine is made. The command line's help is made of these lines: `None:` says what None means.

    engine: which chapter's engine; `nanoinfer doctor` lists them. auto is the fastest here: fused on a CUDA GPU with
    Triton (paged-graph with tensor_parallel), dense-graph on one without, dense on a CPU.
    device: where it runs: cpu, cuda or cuda:N. None: a GPU where there is one.
    dtype: one of float32, bfloat16 and float16. None: float32 on a CPU, 16 bits on a GPU.
    max_batch: rows that run at once; further prompts wait for a row. None: 64, or as many dense rows as half of the
    free memory holds.
    max_len: context in tokens, prompt and new ones together. None: the model's own.
    max_batched_tokens: of one step at most, prompts and rows that decode together; at least max_batch. Engine naive
    takes whole prompts. None: 256 on a CPU and 2,048 on a GPU, or max_batch where that is more.
    prefill_chunk: tokens of one prompt in one step at most. None: no limit of its own.
    block_size: tokens a block of the paged cache.
    kv_blocks: blocks of the paged cache's pool. None: what the rows can use, as far as memory goes.
    prefix_caching: whether texts that begin alike share the blocks of a paged cache, and find them again later. None:
    yes for an `AsyncLLM` over pages, no for an `LLM`.
    preemption: whether paged rows are admitted with the room of their prompt and little more. A row that finds no room
    to go on then makes the youngest give its room back; that one is computed again later. If not, each reserves the
    room of its longest text. None: as for prefix_caching.
    max_graph_batch: rows of the largest captured step, of the engines with graphs; 0 captures nothing, as does
    NANOINFER_GRAPHS=0 in the environment. None: what memory allows.
    fused: whether engines with graphs compute with the fused kernels of chapter 4. None: yes on a GPU with Triton.
    pinned: engines fused and persistent use what they are called after wherever it serves; else they measure each
    captured shape, and keep what is fastest. In 16 bits, which of them it is may change a token.
    speculate lookup|ngram|MODEL: who drafts the next tokens, so that a step verifies several: lookup, which takes what
    followed the last time that the text went like this; ngram, which does so where two tokens or more repeat, and else
    goes by a table made for the small model; or a model of the same vocabulary. None of these changes a token. None:
    nobody.
    draft_tokens: drafts of a row in a step at most, 1 to 64.
    adaptive_drafts: whether rows bring fewer drafts, or none, where that is faster.
    seed: of `random:` weights, and of the seeds of requests that bring none.
    threads: threads of a step on a CPU. None: what is fastest, tried again and again as it runs.
    tensor_parallel: GPUs that hold one model together, from `device` on, or processes on a CPU: each has some of the
    heads.
    replicas: engines behind one queue, each in a process of its own as an `AsyncLLM` would make it, with GPUs of its
    own from `device` on. A request goes to the one with the fewest rows. What ran on one that dies goes on elsewhere.

    Raises ValueError, one sentence, for what no machine and no model could meet.
    """

    engine: str = "auto"
    device: str | None = None
    dtype: str | torch.dtype | None = None
    max_batch: int | None = None
    max_len: int | None = None
    max_batched_tokens: int | None = None
    prefill_chunk: int | None = None
    block_size: int = 16
    kv_blocks: int | None = None
    prefix_caching: bool | None = None
    preemption: bool | None = None
    max_graph_batch: int | None = None
    fused: bool | None = None
    pinned: bool = False
    speculate: str | Path | GPT2 | None = None
    draft_tokens: int = 4
    adaptive_drafts: bool = True
    seed: int = 0
    threads: int | None = None
    tensor_parallel: int = 1
    replicas: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.engine, str) or self.engine not in ("auto", *RECIPES):
            raise ValueError(f"engine must be auto or one of {', '.join(RECIPES)}, not {self.engine!r}")
        if not re.fullmatch(r"None|'cpu'|'cuda(:\d{1,2})?'", repr(self.device)):  # it may be anything
            raise ValueError(f"device must be cpu, cuda or cuda:N, not {self.device!r}")
        if self.dtype is not None and str(self.dtype).removeprefix("torch.") not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        self._check_values()
        for name in ("prefix_caching", "preemption"):
            if getattr(self, name) and self.engine != "auto" and self.recipe.cache != "paged":
                what = f"{name} needs the paged cache"
                raise ValueError(f"{what}: use engine paged, paged-graph or fused, not {self.engine}")
        if self.speculate is not None and (not self.speculate or isinstance(self.speculate, bool | int | float)):
            raise ValueError(f"speculate must be {LOOKUP!r}, {NGRAM!r}, a model, or None, not {self.speculate!r}")
        if self.tensor_parallel > 1 and self.engine in ("fused", "persistent"):
            what = f"engine {self.engine} runs on one device alone"
            raise ValueError(f"{what}: leave tensor_parallel out, or use paged-graph")
        if self.tensor_parallel > 1 and self.speculate is not None:
            raise ValueError("speculate works on one device alone: leave tensor_parallel out")

    def _check_values(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if field.name in BOUNDS:
                check_int(field.name, value, *BOUNDS[field.name])
            elif str(field.type).startswith("bool") and type(value) is not bool:
                raise ValueError(f"{field.name} must be True or False, not {value!r}")
        least, tokens = self.max_batch or 1, self.max_batched_tokens
        if tokens is not None and tokens < least:
            raise ValueError(f"max_batched_tokens must be a whole number of at least {least}, not {tokens}")
        if self.block_size & (self.block_size - 1):
            raise ValueError(f"block_size must be a power of two from 16 to 256, not {self.block_size}")

    @property
    def recipe(self) -> Recipe:
        """What the engine is made of; `engine` must not be "auto" any more."""
        return RECIPES[self.engine]
