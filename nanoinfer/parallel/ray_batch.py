"""The same shards by the workers of a Ray cluster: a Ray Data pipeline, in which each actor holds an engine. Chapter 8.

Ray starts a worker that is lost anew, and gives its shard to another. All machines must see the input and the output
folder under the same names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from nanoinfer.parallel.batch import Job, Shard


class Worker:
    """One engine for the shards that come."""

    def __init__(self, job: Job, make: Callable[[], Any]) -> None:
        self.job, self.llm = job, make()

    def __call__(self, shard: dict[str, int]) -> dict[str, int]:
        """Compute a shard; its row goes on with how many tokens it has."""
        return shard | {"tokens": self.job.run(Shard(**shard), self.llm)}


def run_on_ray(
    job: Job, shards: list[Shard], make: Callable[[], Any], gpus: int, workers: int,
    on_done: Callable[[Shard, int], None],
) -> None:  # fmt: skip
    """Compute these shards with as many workers, each of which makes an LLM, on so many GPUs where there are any.

    on_done: as in `run_here`.
    """
    import ray

    if not ray.is_initialized():
        # RAY_ADDRESS names a cluster; without it, this machine is one.
        ray.init(log_to_driver=False, logging_level=logging.WARNING)
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    gpus = gpus if ray.cluster_resources().get("GPU") else 0
    work = ray.data.from_items([shard._asdict() for shard in shards], override_num_blocks=len(shards))
    done = work.map(
        Worker,
        fn_constructor_args=(job, make),
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_gpus=gpus,
    )
    for row in done.iter_rows():
        tokens = row.pop("tokens")
        on_done(Shard(**row), tokens)
