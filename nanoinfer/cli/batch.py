"""`nanoinfer batch`: a file of prompts into a folder of results, in shards, so that a run that was ended can go on."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanoinfer.cli.errors import Refused, Stopped, refusing
from nanoinfer.cli.options import BatchOptions, SamplingOptions, sampling_option, with_options
from nanoinfer.cli.plugins import needing
from nanoinfer.cli.prompts import from_argument
from nanoinfer.cli.terminal import progress_bar, remark

if TYPE_CHECKING:
    from nanoinfer.parallel.batch import Shard

EPILOG = """\
Examples:
nanoinfer batch prompts.jsonl --out results --seed 1
nanoinfer batch prompts.jsonl --out results --seed 1 -m gpt2 --replicas 8
nanoinfer batch prompts.jsonl --out results --seed 1 -m gpt2 --workers 64
cat results/*.jsonl
A line of the file is a text in quotes, or {"id": "a", "prompt": "Once upon a time", "max_tokens": 64}.
The same command goes on with a run that was ended; finished shards are not computed again.
Exit code: 0 done, 1 failed, 2 refused, 130 stopped by Ctrl-C."""


@with_options
def batch(
    file: Annotated[Path, typer.Argument(help="Prompts: JSON Lines in UTF-8, or .parquet.", metavar="FILE")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the results; it is made.", metavar="DIR")],
    shard: Annotated[int, typer.Option("--shard", help="Lines of the input a file of results.")] = 1000,
    replicas: Annotated[int, typer.Option(help="Engines on this machine; on GPUs, each with its own.")] = 1,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Engines on a Ray cluster, or on this machine where RAY_ADDRESS names none.", show_default="no Ray"
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No figures and no remarks.")] = False,
    sampling: SamplingOptions,
    stop: Annotated[list[str] | None, sampling_option(help="End before this text; may be given again.")] = None,
    ignore_eos: Annotated[bool, sampling_option("--ignore-eos", help="Go on past the end-of-text token.")] = False,
    model: BatchOptions,
) -> None:
    """Continue every prompt of a file; results lie in a folder, in shards of so many lines.

    A shard appears when all of it is done. Each line has a seed of its own, made
    of --seed and its id, so that its text depends neither on the shards nor on
    who computed them. What a line says of itself goes before the options.
    """
    if shard < 1:
        raise Refused(f"--shard must be at least 1, not {shard}")
    for name, asked in (("replicas", replicas), ("workers", workers)):
        if asked is not None and asked < 1:
            raise Refused(f"--{name} must be at least 1, not {asked}")
    if workers is not None and replicas > 1:
        raise Refused("--replicas and --workers contradict each other: a worker has one engine")
    if quiet:
        warnings.simplefilter("ignore", RuntimeWarning)
    model.check()
    params = sampling.params(stop=[from_argument(text) for text in stop or ()], ignore_eos=ignore_eos)
    settings = {"model": model.model_name, "revision": model.revision, "dtype": model.dtype, "max_len": model.max_len}

    from nanoinfer.parallel.batch import open_job, request_maker, run_here

    try:
        with refusing(), needing("batch of a .parquet file", "ray"):
            maker = request_maker(model.model_name, model.revision, model.max_len)
            job = open_job(file, out, params, shard, maker, settings)
            missing = job.missing()
    except OSError as error:
        raise Refused(f"{error.filename} cannot be used: {error.strerror}") from None
    began, tokens, count = time.perf_counter(), 0, 0
    bar = progress_bar(job.lines, wanted=not quiet)
    bar.advance(bar.task_ids[0], job.lines - sum(one.stop - one.start for one in missing))

    def on_done(one: Shard, made: int) -> None:
        nonlocal tokens, count
        tokens, count = tokens + made, count + 1
        bar.advance(bar.task_ids[0], one.stop - one.start)

    try:
        with bar:
            if missing and workers is not None:
                with needing("batch --workers", "ray"):
                    from nanoinfer.parallel.ray_batch import run_on_ray

                    run_on_ray(job, missing, model.model, model.settings, workers, on_done)
            elif missing:
                with model.load(replicas=replicas) as llm, refusing():
                    run_here(job, missing, llm, on_done)
    except KeyboardInterrupt:
        raise Stopped(
            f"stopped by Ctrl-C: {count} of {len(missing)} shards are done; the same command goes on"
        ) from None
    job.clean()
    if not quiet:
        seconds = time.perf_counter() - began
        remark(
            f"{job.lines} prompts in {out}, {count} of {len(missing)} shards now, {tokens} tokens in {seconds:.1f} s,"
            f" seed {job.seed}"
        )
