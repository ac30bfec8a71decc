"""Several engines with the same model as one `LLM`, each in a process of its own. Chapter 8."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nanoinfer.async_llm import ServingLLM
from nanoinfer.config import EngineConfig
from nanoinfer.engine.stats import Stats
from nanoinfer.parallel.replica_loop import ReplicaLoop
from nanoinfer.serve.engine_link import Start
from nanoinfer.serve.engine_process import RemoteLLM, sendable

if TYPE_CHECKING:
    from nanoinfer.requests import Request

NUMBERS = 1 << 40  # of rows, for each engine


class ReplicatedLLM(ServingLLM):
    """What `LLM` and `AsyncLLM` make where `replicas` are asked for. core and model there are none in this process.

    Nothing of torch is loaded here. facts: as of one engine, its rows and blocks times the number of engines.
    """

    loop: Any

    def __init__(self, model: str | Path | None = None, *, revision: str | None = None, **settings: Any) -> None:
        self.config, settings = sendable(model, settings)
        each = [settings | {"replicas": 1} | device for device in devices(self.config)]
        with ThreadPoolExecutor(len(each)) as pool:
            starts = enumerate(Start(model, revision, one) for one in each)
            made = [pool.submit(RemoteLLM, start, self.config.seed, n * NUMBERS) for n, start in starts]
        if failed := next((one for one in made if one.exception()), None):
            for one in made:
                if not one.exception():
                    one.result().close()
            failed.result()
        self.llms, self._closed = [one.result() for one in made], False
        facts, count = self.llms[0].facts, len(self.llms)
        self.facts = replace(facts, max_batch=facts.max_batch * count, blocks=facts.blocks * count)
        self.engine, self.max_batch, self.max_len = facts.engine, self.facts.max_batch, facts.max_len
        self.tokenizer = self.llms[0].tokenizer
        shared = facts.block_size if self.config.prefix_caching is not False else 0
        self.loop = ReplicaLoop([llm.loop for llm in self.llms], shared)

    @property
    def stats(self) -> Stats:  # type: ignore[override]
        """Sums over all, of what every engine counts."""
        names = [field.name for field in fields(Stats)]
        return Stats(*[sum(map(attrgetter(name), [llm.stats for llm in self.llms])) for name in names])

    def requests(self, prompts: Any, params: Any = None) -> list[Request]:
        """As `LLM.requests`."""
        return self.llms[0].requests(prompts, params)

    def warm_up(self, on_capture: Callable[[int, int], None] | None = None) -> None:
        """As `LLM.warm_up`, of all at once; on_capture hears of the first one's captures."""
        with ThreadPoolExecutor(len(self.llms)) as pool:
            calls = [pool.submit(llm.warm_up, None if n else on_capture) for n, llm in enumerate(self.llms)]
        for call in calls:
            call.result()

    def forward_logits(self, token_ids: Any) -> NoReturn:
        """ValueError: the model is not in this process."""
        raise ValueError("forward_logits needs the model in this process: leave replicas out")

    def close(self) -> None:
        """As `LLM.close`, of all."""
        self._closed = True
        for llm in self.llms:
            llm.close()


def devices(config: EngineConfig) -> list[dict[str, str]]:
    """The first device of each replica. ValueError where there are too few GPUs."""
    replicas = config.replicas
    if config.device == "cpu":
        return [{}] * replicas
    code = "import torch; print(torch.cuda.device_count())"  # elsewhere, since this process does without torch
    count = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    if not count and config.device is None:
        return [{}] * replicas
    first = int((config.device or "cuda").partition(":")[2] or 0)
    needed = first + replicas * config.tensor_parallel
    if count < needed:
        raise ValueError(f"replicas {replicas} need {needed} CUDA devices, but there are {count}")
    return [{"device": f"cuda:{first + n * config.tensor_parallel}"} for n in range(replicas)]
