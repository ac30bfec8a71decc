"""`python -m bench load`: the options, and the results file."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from nanobench.options import Device, Out, integers

say = partial(print, flush=True)


def load(
    engine: Annotated[bool, typer.Option("--engine", help="Load an engine in this process: no HTTP.")] = False,
    process: Annotated[
        bool, typer.Option("--process", help="Load an engine in a process of its own: no HTTP.")
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Start `nanoinfer serve`, load it, and stop it.")] = False,
    serve_options: Annotated[str, typer.Option(help="More options of `nanoinfer serve`, in one string.")] = "",
    url: Annotated[
        list[str] | None,
        typer.Option(help="Load a server with /v1/completions that runs: URL or NAME=URL; repeatable."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="As in `nanoinfer generate`; with --url, what the server calls it.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="NANOINFER_BENCH_API_KEY", show_default=False, help="Of --url.")
    ] = None,
    extra: Annotated[
        str | None,
        typer.Option(
            help="""JSON object of fields that each request of --url and --serve has besides, such as
            '{"ignore_eos": true}'. That, and return_token_ids, is what --serve has by itself."""
        ),
    ] = None,
    device: Device = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16, of our engines.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="That our engines run at once; 256 on a GPU, else 8.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Of a run; 1,000 on a GPU, else 24.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Tokens LOW,HIGH, uniform; 16,512 on a GPU, else 8,64.")] = None,
    new: Annotated[str | None, typer.Option(help="New tokens LOW,HIGH, uniform; 16,256 on a GPU, else 4,32.")] = None,
    shared: Annotated[float, typer.Option(help="Share of requests that begin with a system prompt, 0 to 1.")] = 0.0,
    shared_tokens: Annotated[int, typer.Option(min=1, help="Of a system prompt; the prompt follows.")] = 128,
    shared_prompts: Annotated[int, typer.Option(min=1, help="System prompts that there are.")] = 1,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="""JSONL, a request a line: max_tokens; prompt (token ids) or prompt_tokens (how many); arrival_s, if
            any; prefix (a name) and prefix_tokens, where requests begin alike. In place of the lengths above; its
            arrivals hold where neither --rates nor --concurrency is given."""
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            help="""Open arrivals (Poisson), requests a second: 10,20. With %, of what the first target answers when
            all are sent at once, which is measured first: 50%,80%,95%. Without rates: all at once."""
        ),
    ] = None,
    group: Annotated[int, typer.Option(min=1, help="Requests that arrive together, with --rates: bursts.")] = 1,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Of a run with a rate, in place of --requests.")
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="A closed loop: so many at once, the next when one is answered; the clock starts at the send."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of all at once; the median is what % is taken of.")] = 1,
    ttft: Annotated[float, typer.Option(min=0, help="Goodput: ms at most to the first token.")] = 1000.0,
    itl: Annotated[
        float, typer.Option(min=0, help="Goodput: ms at most in the mean of a request's gaps, first token to last.")
    ] = 50.0,
    seed: Annotated[int, typer.Option(help="The same seed, the same requests, whatever the target.")] = 7,
    vocab: Annotated[int, typer.Option(min=1, help="Prompts are of random token ids below this.")] = 50257,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Processes that send HTTP; by default a quarter of the cores, 1 to 8.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one answer over HTTP.")] = 300.0,
    out: Out = Path("my-bench/load.json"),
) -> None:
    """Requests that arrive at an engine, at this server or at another: tokens/s, TTFT, ITL and goodput.

    Each target meets the same requests: token ids by a seed, or a trace. When each is due is decided before a run, and
    its clock starts then, however late it is sent; a run whose sends are off by more than 1% is marked OFF. TTFT and
    ITL are of the requests that are ok; refused, failed and cancelled ones are counted beside them. A gap of ITL is
    there for each token but the first: of k tokens that come in one piece, the first has the time since the piece
    before, and the others 0. Goodput counts the requests that are ok and meet --ttft and --itl.

    Tokens are counted by the ids that come, else by the server's own usage, else by pieces of text. Texts over HTTP
    end where the server ends them, unless a field of --extra says otherwise; shorter answers are counted. Each request
    has a connection of its own, which is part of its TTFT. Ctrl-C prints what was measured, and writes no file.
    """
    from nanobench.core.machine import stamp
    from nanobench.load.choice import targets
    from nanobench.load.clients import default_clients
    from nanobench.load.measure import Rate, Schedule, runs, summary
    from nanobench.load.records import Limits, LoadReport, LoadRun
    from nanobench.load.requests import Mix, Source
    from nanoinfer.config import EngineConfig
    from nanoinfer.devices import choose_device, choose_dtype

    EngineConfig(device=device, dtype=dtype, max_batch=rows)  # which checks them
    where = choose_device(device)
    on_gpu = where.type == "cuda"
    if trace and seconds:
        raise ValueError("seconds cannot be given with a trace: it says how many requests there are")
    mix = Mix(
        requests=requests or (1000 if on_gpu else 24), prompt=_pair("prompt", prompt, (16, 512) if on_gpu else (8, 64)),
        new=_pair("new", new, (16, 256) if on_gpu else (4, 32)), seed=seed, vocab=vocab, shared_share=shared,
        shared_tokens=shared_tokens, shared_prompts=shared_prompts,
    )  # fmt: skip
    every = tuple(map(Rate.of, rates.split(","))) if rates else ()
    schedule = Schedule(every, integers("concurrency", concurrency) or (), group, seconds, repeats)
    kinds = [kind for kind, given in (("engine", engine), ("process", process), ("serve", serve)) if given]
    name = model or ("random:gpt2" if on_gpu else "small")
    processes = clients or default_clients()
    source, limits = Source.of(mix, trace), Limits(ttft_s=ttft / 1000, itl_s=itl / 1000)
    settings = {"model": name, "device": device, "dtype": dtype, "engine": "paged-graph" if on_gpu else "paged"}
    chosen = targets(
        kinds or ([] if url else ["engine"]), url or (), {**settings, "max_batch": rows or (256 if on_gpu else 8)},
        {"model": name, "clients": processes, "timeout": timeout}, api_key, shlex.split(serve_options), _fields(extra),
    )  # fmt: skip
    found, ours = list[LoadRun](), bool(kinds or not url)
    try:
        for run in runs([target.opened for target in chosen], source, schedule, limits, say):
            found.append(run)
        interrupted = any(run.interrupted for run in found)
    except KeyboardInterrupt:
        interrupted = True
    if found:
        say("\n".join(["", *summary(found)]))
    if interrupted:
        print("interrupted: no file is written", file=sys.stderr)
        raise typer.Exit(130)
    facts = {"dtype": None} | stamp(where, choose_dtype(dtype, where) if ours else None)
    report = LoadReport(
        model=name, targets={target.name: target.what for target in chosen}, mix=source.mix, limits=limits,
        clients=processes, runs=tuple(found), **facts,
    )  # fmt: skip
    report.save(out)


def _pair(name: str, text: str | None, default: tuple[int, int]) -> tuple[int, int]:
    found = integers(name, text) or default
    if len(found) > 2:
        raise ValueError(f"{name} must be LOW,HIGH, not {text!r}")
    return found[0], found[-1]


def _fields(text: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text) if text is not None else None
    except ValueError:
        found = 0
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"extra must be a JSON object, not {text!r}")
    return found
