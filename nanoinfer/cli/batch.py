"""`nanoinfer batch`: a file of prompts into a folder of results, in shards, so that a run that was ended can go on."""

from __future__ import annotations

import time
import warnings
from functools import partial
from pathlib import Path

from nanoinfer.cli.errors import Refused, Stopped
from nanoinfer.cli.options import BATCH, ModelOptions, sampling_options, with_options
from nanoinfer.cli.plugins import needing
from nanoinfer.cli.terminal import progress_bar, remark
from nanoinfer.llm import LLM
from nanoinfer.parallel.batch import Shard, open_job, request_maker, run_here
from nanoinfer.records import check_int
from nanoinfer.requests import SamplingParams

MOST = 2**63 - 1  # lines of a shard, workers


@with_options(params=sampling_options("stop", "ignore_eos"), model=BATCH)
def batch(
    file: Path,
    *,
    out: Path,
    shard: int = 1000,
    replicas: int = 1,
    workers: int | None = None,
    quiet: bool = False,
    params: SamplingParams,
    model: ModelOptions,
) -> None:
    """Continue every prompt of a file; results lie in a folder, in shards of so many lines.

    A shard appears when all of it is done. Each line has a seed of its own, made
    of --seed and its id, so that its text depends neither on the shards nor on
    who computed them. What a line says of itself goes before the options.

    file FILE: prompts: JSON Lines in UTF-8, or .parquet.
    out DIR: the folder of the results; it is made.
    shard: lines of the input a file of results.
    replicas: engines on this machine; on GPUs, each with its own.
    workers: engines on a Ray cluster, or on this machine where RAY_ADDRESS names none. None: no Ray.
    quiet: no figures and no remarks.

    Examples:
    nanoinfer batch prompts.jsonl --out results --seed 1
    nanoinfer batch prompts.jsonl --out results --seed 1 -m gpt2 --replicas 8
    nanoinfer batch prompts.jsonl --out results --seed 1 -m gpt2 --workers 64
    cat results/*.jsonl
    A line of the file is a text in quotes, or {"id": "a", "prompt": "Once upon a time", "max_tokens": 64}.
    The same command goes on with a run that was ended; finished shards are not computed again.
    Exit code: 0 done, 1 failed, 2 refused, 130 stopped by Ctrl-C.
    """
    check_int("shard", shard, 1, MOST)
    check_int("workers", 1 if workers is None else workers, 1, MOST)
    if workers is not None and replicas > 1:
        raise Refused("--replicas and --workers contradict each other: a worker has one engine")
    if quiet:
        warnings.simplefilter("ignore", RuntimeWarning)
    here = model.but(replicas=replicas)
    chosen = {name: model.settings.get(name) for name in ("revision", "dtype", "max_len")}
    try:
        with needing("batch of a .parquet file", "ray"):
            maker = request_maker(model.name, chosen["revision"], chosen["max_len"])
            job = open_job(file, out, params, shard, maker, {"model": model.name, **chosen})
            missing = job.missing()
    except OSError as error:
        raise Refused(f"{error.filename} cannot be used: {error.strerror}") from None
    began, done = time.perf_counter(), list[int]()  # tokens of each shard
    bar = progress_bar(job.lines, wanted=not quiet)

    def on_done(one: Shard, tokens: int) -> None:
        done.append(tokens)
        bar.update(one.stop - one.start)

    try:
        with bar:
            bar.update(job.lines - sum(one.stop - one.start for one in missing))
            if missing and workers is not None:
                with needing("batch --workers", "ray"):
                    from nanoinfer.parallel.ray_batch import run_on_ray

                    make, gpus = partial(LLM, model.model, **model.settings), model.settings.get("tensor_parallel", 1)
                    run_on_ray(job, missing, make, gpus, workers, on_done)
            elif missing:
                with here.load() as llm:
                    run_here(job, missing, llm, on_done)
    except KeyboardInterrupt:
        how_far = f"{len(done)} of {len(missing)} shards are done; the same command goes on"
        raise Stopped(f"stopped by Ctrl-C: {how_far}") from None
    job.clean()
    if not quiet:
        told = f"{job.lines} prompts in {out}, {len(done)} of {len(missing)} shards now, {sum(done)} tokens"
        remark(f"{told} in {time.perf_counter() - began:.1f} s, seed {job.seed}")
