"""The commands that measure one thing each: `python -m bench attention`, `kernels`, `memory` and so on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nanoinfer.cli.options import output_file

Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; the GPU where there is one.")]
Out = Annotated[Path, typer.Option(parser=output_file, metavar="FILE", help="Results file.")]

app = typer.Typer()


@app.command()
def attention(
    device: Device = None,
    out: Out = Path("my-bench/attention.json"),
) -> None:
    """Which SDPA backend runs, with and without a mask; and what the dense cache's read length costs."""
    from nanobench.micro.attention import measure

    measure(device, out)


@app.command()
def kernels(
    device: Annotated[str | None, typer.Option(help="cuda or cuda:N.")] = None,
    out: Out = Path("my-bench/kernels.json"),
) -> None:
    """The paged kernel alone, against SDPA on a dense cache and FlashInfer's: cold L2, inside a graph."""
    from nanobench.micro.paged_kernel import measure

    measure(device, out)


@app.command()
def ragged(
    device: Device = None,
    out: Out = Path("my-bench/ragged.json"),
    model: Annotated[str | None, typer.Option(help="As in `nanoinfer generate`.")] = None,
) -> None:
    """Short prompts beside a long one, a row that runs while a prompt arrives, and the ragged kernel alone."""
    from nanobench.micro.ragged import measure

    measure(device, out, model)


@app.command()
def queue(
    device: Device = None,
    out: Out = Path("my-bench/queue.json"),
    model: Annotated[str | None, typer.Option(help="As in `nanoinfer generate`.")] = None,
    part: Annotated[list[str] | None, typer.Option(help="burst, arrivals, prefix or pool; repeatable.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="Of burst, at once at most; repeatable.")] = None,
    budget: Annotated[
        list[int] | None, typer.Option(help="max_batched_tokens of burst; 0 is the engine's own choice; repeatable.")
    ] = None,
    chunk: Annotated[list[int] | None, typer.Option(help="The same of arrivals.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Of burst.")] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="Of arrivals.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs of all parts but arrivals.")] = None,
) -> None:
    """Requests that arrive while others run: a burst, arrivals, shared prefixes, a pool too small for all rows."""
    from nanobench.micro.queue import measure

    budgets, chunks = ([each or None for each in values or ()] for values in (budget, chunk))
    measure(
        device, out, model, part or (), rows=rows, budgets=budgets, chunks=chunks, requests=requests, seconds=seconds,
        repeats=repeats,
    )  # fmt: skip


@app.command()
def speculation(
    device: Device = None,
    out: Out = Path("my-bench/speculation.json"),
    model: Annotated[list[str], typer.Option(help="As in `nanoinfer generate`; repeatable.")] = ["random:gpt2"],  # noqa: B006
    rows: Annotated[list[int], typer.Option(min=1, help="At once; repeatable.")] = [1, 4, 16, 64],  # noqa: B006
    alpha: Annotated[list[float], typer.Option(min=0, max=1, help="Chance of a right draft; repeatable.")] = [  # noqa: B006
        0.6, 0.8, 0.9,
    ],
    drafts: Annotated[list[int], typer.Option(min=1, max=64, help="Of a row in a step; repeatable.")] = [2, 4, 8],  # noqa: B006
    new_tokens: Annotated[int, typer.Option(min=2)] = 256,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
) -> None:  # fmt: skip
    """Drafts of which a known share is right, against plain decoding: what a step of several tokens brings."""
    from nanobench.micro.speculation import measure

    measure(device, out, model, rows, alpha, drafts, new_tokens, repeats)


@app.command("speculation-texts")
def speculation_texts(
    device: Device = None,
    out: Out = Path("my-bench/speculation-texts.json"),
    model: Annotated[list[str], typer.Option(help="As in `nanoinfer generate`; repeatable.")] = ["small"],  # noqa: B006
    rows: Annotated[list[int], typer.Option(min=1, help="At once; repeatable.")] = [1, 4, 16, 64],  # noqa: B006
    speculate: Annotated[list[str], typer.Option(help="Who drafts, as in `nanoinfer generate`; repeatable.")] = [  # noqa: B006
        "lookup", "ngram",
    ],
    draft_tokens: Annotated[int, typer.Option(min=1, max=64, help="Of a row in a step at most.")] = 4,
    new_tokens: Annotated[int, typer.Option(min=2)] = 256,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    peers: Annotated[bool, typer.Option(help="transformers and vLLM too, where they are installed.")] = True,
) -> None:  # fmt: skip
    """Drafts for what a model really writes, against plain decoding: stories, and text that repeats itself."""
    from nanobench.micro.speculation_texts import measure

    measure(device, out, model, rows, speculate, draft_tokens, new_tokens, repeats, peers)


@app.command()
def ranks(
    device: Device = None,
    out: Out = Path("my-bench/ranks.json"),
    model: Annotated[list[str], typer.Option(help="As in `nanoinfer generate`; repeatable.")] = ["random:gpt2-xl"],  # noqa: B006
    tensor_parallel: Annotated[int, typer.Option(min=2, help="GPUs beside one; processes on a CPU.")] = 2,
    rows: Annotated[list[int], typer.Option(min=1, help="At once; repeatable.")] = [1, 8, 64, 256],  # noqa: B006
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 128,
    new_tokens: Annotated[int, typer.Option(min=2)] = 512,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """One model on one GPU and on several: tokens/s, time of a step, of a sum over ranks."""
    from nanobench.micro.ranks import measure

    measure(device, out, model, tensor_parallel, rows, prompt_tokens, new_tokens, repeats)


@app.command()
def replicas(
    device: Device = None,
    out: Out = Path("my-bench/replicas.json"),
    model: Annotated[str, typer.Option(help="As in `nanoinfer generate`.")] = "random:gpt2",
    count: Annotated[int, typer.Option("--replicas", min=2, help="Engines beside one, a GPU each.")] = 2,
    requests: Annotated[list[int], typer.Option(min=1, help="At once; repeatable.")] = [1000, 4000],  # noqa: B006
    repeats: Annotated[int, typer.Option(min=1)] = 8,
    engine: Annotated[str | None, typer.Option(help="The fastest where none is named.")] = None,
) -> None:
    """Several engines behind one queue beside one: tokens/s of many requests at once."""
    from nanobench.micro.replicas import measure

    measure(device, out, model, count, requests, repeats, engine=engine)


@app.command()
def sampling(
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    out: Out = Path("my-bench/sampling.json"),
) -> None:
    """Choosing tokens alone: the kernel against a sort, torch.topk and rejection, in a graph; or what a CPU does."""
    from nanobench.micro.sampling import measure

    measure(device, out)


@app.command("one-kernel")
def one_kernel(
    device: Annotated[str | None, typer.Option(help="cuda or cuda:N.")] = None,
    out: Out = Path("my-bench/one-kernel.json"),
    model: Annotated[str, typer.Option(help="gpt2, with random weights, or another size's name.")] = "gpt2",
    rows: Annotated[list[int] | None, typer.Option(min=1, help="At once, of whole texts; repeatable.")] = None,
    texts: Annotated[bool, typer.Option("--texts", help="Whole texts alone.")] = False,
) -> None:
    """Chapter 6: a matrix over rows, a graph's node, three kinds of exchange, and a token by each way."""
    from nanobench.micro.one_kernel import measure

    measure(device, out, model, tuple(rows or (1, 2, 4, 8, 16, 64, 256)), texts)


@app.command()
def graphs(
    device: Annotated[str | None, typer.Option(help="cuda or cuda:N.")] = None,
    out: Out = Path("my-bench/graphs.json"),
    model: Annotated[str, typer.Option(help="As in `nanoinfer generate`.")] = "random:gpt2",
) -> None:
    """Chapter 4's costs and gains: the ladder, its start-up, a batch that drains, TTFT by length, sampling."""
    from nanobench.micro.graphs import measure

    measure(device, out, model)


@app.command()
def timeline(
    out: Out = Path("my-bench/timeline.json"),
    device: Device = None,
    model: Annotated[str, typer.Option(help="As in `nanoinfer generate`.")] = "random:gpt2",
    batch: Annotated[int, typer.Option(min=1)] = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each row before the steps.")] = 128,
    engines: Annotated[str | None, typer.Option(help="Comma-separated; by default all of ours.")] = None,
) -> None:
    """One decode step of each engine, by torch's profiler: the host's operators and launches, the GPU's kernels."""
    from nanobench.micro.timeline import engines_named, measure

    measure(device, out, model, batch, context, engines_named(engines))


@app.command()
def memory(
    device: Device = None,
    out: Out = Path("my-bench/memory.json"),
    model: Annotated[str | None, typer.Option(help="As in `nanoinfer generate`.")] = None,
    pool: Annotated[float | None, typer.Option(help="MB of keys and values that both caches get.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Short ones; 512 on a GPU, 24 on a CPU.")] = None,
) -> None:
    """KV usage of dense and paged caches; many short requests in a fixed pool that is too small for dense rows."""
    from nanobench.micro.kv_usage import measure

    measure(device, out, model, None if pool is None else int(pool * 1e6), requests)


@app.command()
def recompiles(
    device: Annotated[str | None, typer.Option(help="cuda or cuda:N.")] = None,
    out: Out = Path("my-bench/recompiles.json"),
    model: Annotated[str, typer.Option(help="As in `nanoinfer generate`.")] = "random:gpt2",
    engine: Annotated[str, typer.Option(help="paged or paged-graph.")] = "paged",
) -> None:
    """Kernels that Triton compiles over 512 steps of growing contexts and 1 to 32 rows: none after the first."""
    from nanobench.micro.recompiles import measure

    raise typer.Exit(measure(device, out, model, engine))


@app.command()
def sanitize(
    out: Annotated[
        Path | None, typer.Option(parser=output_file, metavar="FILE", help="Results file; none by default.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Names of cases, comma-separated; by default all.")] = None,
) -> None:
    """compute-sanitizer's memcheck and racecheck over every kernel, and over a planted overrun that it must catch."""
    from nanobench.micro.sanitize import sanitize as run_sanitizer

    raise typer.Exit(run_sanitizer(only.split(",") if only else None, out))


@app.command()
def turns(
    before: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A checkout, as it was.")],
    after: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A checkout with the change.")],
    case: Annotated[list[str], typer.Option(help="MODEL:ENGINE:BATCH; 1000 are mixed requests; repeatable.")],
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each checkout.")] = 5,
    out: Out = Path("my-bench/turns.json"),
) -> None:
    """Two checkouts by turns: how fast generation is after a change, over what it was."""
    from nanobench.micro.turns import measure

    measure(before, after, case, repeats, out)
