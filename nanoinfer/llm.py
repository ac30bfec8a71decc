"""The front door: put model, cache and engine together, and turn prompts into completions.

Checks come first: whatever is wrong with the arguments is said before a model is loaded, and whatever is wrong with a
prompt before anything is computed. The engine runs in a thread of its own, so that whoever reads a stream slowly, or
not at all, holds up nobody.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from nanoinfer.config import EngineConfig, Facts, fastest
from nanoinfer.engine.loop import CLOSED, EngineLoop, Mailbox
from nanoinfer.requests import SAMPLES_LIMIT, Completion, Piece, Request, SamplingParams

if TYPE_CHECKING:
    import torch

    from nanoinfer.engine.queue import Queued as Row
    from nanoinfer.engine.stats import Stats
    from nanoinfer.model.gpt2 import GPT2
    from nanoinfer.parallel.rank import Rank
    from nanoinfer.text.prompts import Prompt

    Prompts = Prompt | Sequence[Prompt]
    Params = SamplingParams | Sequence[SamplingParams] | None

DEFAULT_MODEL = "small"


class LLM:
    """A GPT-2 that continues prompts.

    model: None for the small model that ships with the package, a name on the hub (`gpt2`, `owner/name`), a folder or
    file of safetensors, `random:PRESET`, or a `GPT2`. Its tokenizer must be GPT-2's; what ends a text, its files say.
    revision: of a model on the hub. settings: those of `EngineConfig`, by name.

    engine is the engine's name, core the `Engine` itself, and loop what runs it; facts: what was made, a `Facts`. stats
    counts since the LLM was made: a `Stats`, or a `GraphStats` of the engines with graphs. Several threads may call at
    once: their requests share the engine's rows.

    Raises ValueError, one sentence, for settings that cannot be met, and TypeError for one that does not exist.
    """

    _serves = False  # whether its requests are expected to come and go

    def __new__(cls, *_: Any, replicas: int = 1, **settings: Any) -> LLM:
        """Several engines are an `LLM` too, of a class of their own."""
        # By name: what runs on many devices holds LLMs itself.
        kind: type[LLM] = cls if replicas == 1 else import_module("nanoinfer.remote.llm").RemoteLLM
        return super().__new__(kind)

    def __init__(
        self, model: str | Path | GPT2 | None = None, *, revision: str | None = None, rank: Rank | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        config = EngineConfig(**settings)

        import torch  # here and not above: `import nanoinfer` and a refused argument cost no second

        from nanoinfer.devices import choose_device
        from nanoinfer.model.gpt2 import GPT2
        from nanoinfer.parallel.meeting import lead

        if not isinstance(model, str | Path | GPT2 | None):
            raise ValueError(f"model must be a name, a path, a GPT2 or None, not {model!r:.80}")
        if isinstance(model, GPT2) and (config.device is not None or config.dtype is not None):
            raise ValueError("device and dtype must be left out where model is a GPT2: it has its own")
        device = model.device if isinstance(model, GPT2) else choose_device(config.device)
        self.config = self._resolved(config, device)
        self._torch = torch
        model = DEFAULT_MODEL if model is None else model
        if config.tensor_parallel > 1 and not rank:
            rank = lead(self, LLM, vars(self.config), model, revision, device)
        self.rank = rank
        try:
            self._make(model, revision, rank.device if rank else device)
        except BaseException:
            if rank:
                rank.close()
            raise

    def _resolved(self, config: EngineConfig, device: torch.device) -> EngineConfig:
        """What was left to this machine and to how requests come. ValueError for what the machine cannot do."""
        from nanoinfer.kernels.available import has_triton

        on_gpu, compiles = device.type == "cuda", has_triton()
        if config.engine == "auto":
            config = replace(config, engine=fastest(on_gpu, compiles, config.tensor_parallel))
        paged = config.recipe.cache == "paged"
        if self._serves and paged:
            shares, preempts = config.prefix_caching is not False, config.preemption is not False
            config = replace(config, prefix_caching=shares, preemption=preempts)
        if paged and on_gpu and not compiles:
            what = f"engine {config.engine} needs Triton on a GPU"
            raise ValueError(f"{what}: pip install triton, or use an engine dense")
        if config.fused and not (on_gpu and compiles):
            raise ValueError("fused kernels need a CUDA GPU and Triton")
        return config

    def _make(self, model: str | Path | GPT2, revision: str | None, device: torch.device) -> None:
        """Load the model, and put all together."""
        from nanoinfer.devices import choose_dtype
        from nanoinfer.make import make_engine
        from nanoinfer.model.gpt2 import GPT2
        from nanoinfer.model.weights import load_model
        from nanoinfer.parallel.sharded import PartOf
        from nanoinfer.text.prompts import context_of
        from nanoinfer.threads import Threads

        config, rank, name = self.config, self.rank, "GPT2" if isinstance(model, GPT2) else str(model)
        if not isinstance(model, GPT2):
            load = PartOf(rank.group).load if rank else load_model
            model = load(model, device, choose_dtype(config.dtype, device), seed=config.seed, revision=revision)
        self.model, shape, max_len = model, model.config, context_of(model.config, config.max_len)
        self.core = core = make_engine(config, model, max_len, rank)
        self.stats: Stats = core.stats
        self.max_batched_tokens = core.budget
        facts = Facts(
            name, config.engine, str(device), str(model.dtype).removeprefix("torch."), len(core.free), max_len,
            shape.vocab_size, tuple(shape.end_of_text), core.gauges.blocks, config.block_size if core.blocks else 0,
        )  # fmt: skip
        self._know(facts, core.check)
        if device.type == "cuda":
            self.loop = EngineLoop(core)
        else:
            threads = Threads(rank.threads(config.threads) if rank else config.threads)
            self.loop = EngineLoop(core, threads.step)
        if rank:
            rank.least(0)  # all is made on the other ranks, too
            rank.on_failure = self.loop.fail

    def _know(self, facts: Facts, check: Callable[[Request], None]) -> None:
        """Hold what was made, and make requests by it. check: ValueError for a request that can never run."""
        from nanoinfer.text.samples import SampleMaker
        from nanoinfer.text.tokenizer import gpt2_tokenizer

        self.facts, self.engine, self.max_batch, self.max_len = facts, facts.engine, facts.max_batch, facts.max_len
        self.tokenizer, seeds, self._check = gpt2_tokenizer(), random.Random(self.config.seed), check
        self._maker = SampleMaker(self.tokenizer, facts.max_len, facts.vocab_size, seeds, facts.end_of_text)

    def generate(self, prompts: Prompts, params: Params = None) -> list[Completion]:
        """Continue one prompt or several; a list in the order of the prompts, also for a single one.

        prompts: text or token ids, or a list of these. params: one for all, one a prompt, or None for the defaults.
        Raises ValueError for a bad prompt, before anything is computed.
        """
        asked = time.perf_counter()
        pieces = self._run(self.requests(prompts, params), asked, every_token=False)
        done = [piece.completion for piece in pieces if piece.completion]
        # By numbers: as many new tuples would set off a collection of garbage.
        return sorted(done, key=lambda completion: completion.index * SAMPLES_LIMIT + completion.sample)

    def stream(self, prompts: Prompts, params: Params = None) -> Generator[Piece, None, None]:
        """As `generate`, but piece by piece as tokens come; pieces of several prompts come interleaved.

        The prompts are checked now, and computed from the first piece that is read on, however slowly the others are.
        Closing the iterator cancels what is left.
        """
        asked = time.perf_counter()
        return self._run(self.requests(prompts, params), asked, every_token=True)

    def _run(self, requests: list[Request], asked: float, every_token: bool) -> Generator[Piece, None, None]:
        """Submit the requests; yield each token as the engine goes on, or each row once it has ended."""
        from nanoinfer.outputs import RowReader

        self._check_open()
        posted: SimpleQueue[list[Row]] = SimpleQueue()
        mailbox = Mailbox(posted.put)
        left: dict[Row, Any] = dict.fromkeys(self.loop.submit(requests, mailbox, asked, every_token))
        del requests  # each goes with its row
        try:
            while left:
                try:
                    news = posted.get(timeout=0.5)  # in pieces, so that Ctrl-C ends the wait on Windows too
                except Empty:
                    continue
                for row in news:
                    if row.cancelled:
                        raise row.cancelled
                    reader = left[row] = left[row] or RowReader(row, self.tokenizer)
                    piece = reader.piece(1 if every_token else reader.unread)
                    if piece.completion:
                        del left[row], reader  # freed now, while the engine works, and not all of them at the end
                    yield piece
                    self._check_open()
        finally:
            self.loop.cancel(list(left))
            self.loop.leave(mailbox)

    def requests(self, prompts: Any, params: Any = None) -> list[Request]:
        """The checked requests that `generate` makes of these prompts. ValueError for a bad prompt.

        To look at rows, cache and counters between two steps, give them to `core.generate`.
        """
        self._check_open()
        requests = self._maker.requests(prompts, params)
        for request in requests:
            self._check(request)
        return requests

    def warm_up(self, on_capture: Callable[[int, int], None] | None = None) -> None:
        """Capture every step of the ladders now, so that no request has to wait for one; without graphs, nothing.

        on_capture: called after each capture with how many of how many are done.
        """
        self._check_open()
        if self.config.recipe.launch == "graph":
            self.loop.worker.submit(self._warm_up, on_capture).result()

    def _warm_up(self, on_capture: Callable[[int, int], None] | None) -> None:
        core: Any = self.core
        with self.rank.all_do("warm_up") if self.rank else nullcontext():
            core.warm_up(list(dict.fromkeys(core.samplers)), on_capture or (lambda done, of: None))

    def forward_logits(self, token_ids: Any) -> torch.Tensor:
        """Logits (B, T, vocab_size), float32, of token ids (B, T), by one plain pass over the full context."""
        from nanoinfer.cache.none import forward_logits

        self._check_open()
        tokens = self._torch.as_tensor(token_ids, dtype=self._torch.int64, device=self.model.device)
        context, vocab = self.model.config.n_positions, self.model.config.vocab_size
        if tokens.dim() != 2 or not 1 <= tokens.shape[1] <= context:
            raise ValueError(f"token_ids must be (B, T) with T from 1 to {context}, not {tuple(tokens.shape)}")
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
            raise ValueError(f"token_ids must be from 0 to {vocab - 1}")

        def run() -> torch.Tensor:
            told = self.rank.all_do("forward_logits", tokens.tolist()) if self.rank else nullcontext()
            with told, self._torch.cuda.device_of(tokens):  # type: ignore[no-untyped-call]
                return forward_logits(self.model, tokens)

        return self.loop.worker.submit(run).result() if self.rank else run()

    def close(self) -> None:
        """Give the model's memory back. The LLM cannot be used afterwards: its open streams raise RuntimeError."""
        if self.loop.closed:
            return
        self.loop.close()
        if self.rank:
            self.rank.close()
        del self.core, self.model, self._check
        if self._torch.cuda.is_available():
            self._torch.cuda.empty_cache()

    def _check_open(self) -> None:
        if self.loop.closed:
            raise RuntimeError(CLOSED)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
