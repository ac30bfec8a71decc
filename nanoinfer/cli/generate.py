"""`nanoinfer generate`: continue a prompt as it is written, or many in order, for a reader or for a program."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from nanoinfer.cli import options as opt
from nanoinfer.cli import plugins
from nanoinfer.cli.errors import Refused, refusing
from nanoinfer.cli.report import figures, show_stats
from nanoinfer.cli.sources import check_lengths, from_argument, read_prompts
from nanoinfer.cli.terminal import Bar, remark
from nanoinfer.cli.writers import JsonWriter, TextWriter, Writer, run
from nanoinfer.llm import DEFAULT_MAX_BATCH
from nanoinfer.requests import MAX_SEED, SamplingParams

EPILOG = """\
Examples:

nanoinfer generate "Once upon a time" -m gpt2

nanoinfer generate -f story.txt -n 200 --temperature 0.7 --seed 1

echo "2, 4, 6," | nanoinfer generate -m gpt2 --greedy -n 9 --no-echo -q

nanoinfer generate -f prompts.txt --lines --json > results.jsonl

nanoinfer generate -- "-5 degrees"

The line of figures goes to standard error.

Exit code: 0 done, 1 failed, 2 refused, 130 stopped by Ctrl-C."""


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="The text to continue; standard input where it is missing or `-`.",
            metavar="PROMPT",
            show_default=False,
        ),
    ] = None,
    *,
    file: Annotated[str | None, typer.Option("--file", "-f", help="Read the prompt from this UTF-8 file.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Every line is a prompt of its own.")] = False,
    echo: Annotated[bool, typer.Option("--echo/--no-echo", help="Print the prompt before its continuation.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt and line, for programs.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No figures and no remarks.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="The engine's counters besides.")] = False,
    mine: opt.Mine = None,
    max_tokens: opt.MaxTokens = 128,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = opt.TOP_K,
    top_p: opt.TopP = 1.0,
    greedy: opt.Greedy = False,
    seed: opt.Seed = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help="End before this text; may be given again.", rich_help_panel="Sampling"),
    ] = None,
    stop_token_id: Annotated[
        list[int] | None,
        typer.Option("--stop-token-id", help="End at this token; may be given again.", rich_help_panel="Sampling"),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end-of-text token.", rich_help_panel="Sampling")
    ] = False,
    model: opt.Model = None,
    revision: opt.Revision = None,
    engine: opt.EngineName = "auto",
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    max_len: opt.MaxLen = None,
    max_batch: Annotated[
        int | None,
        typer.Option(
            "--max-batch", help="Rows that run at once.", rich_help_panel="Model and engine", show_default="64"
        ),
    ] = None,
    max_graph_batch: opt.MaxGraphBatch = None,
) -> None:
    """Continue a text, printing it as it comes.

    The prompt is the argument, a file, or standard input (all of it, less one
    newline at its end; at most 16 MiB). With --lines each line is a prompt, and
    the texts come in order, each when it is done, under a heading ==> 1 <==.
    """
    if quiet and verbose:
        raise Refused("--quiet and --verbose contradict each other: give one of them")
    if mine is not None and as_json:
        raise Refused("--mine puts two runs side by side for a reader: leave out --json")
    params = opt.sampling(
        temperature, greedy, max_tokens=max_tokens, top_k=top_k, top_p=top_p, seed=seed, ignore_eos=ignore_eos,
        stop=[from_argument(text) for text in stop or ()], stop_token_ids=stop_token_id or (),
    )  # fmt: skip
    place = opt.Place(model, revision, engine, device, dtype, max_len, max_batch, max_graph_batch)
    place.check()
    prompts = read_prompts(prompt, file, lines)
    # Engines with graphs keep a cache for all rows: no more of it than there are prompts.
    place = dataclasses.replace(place, max_batch=min(max_batch or DEFAULT_MAX_BATCH, len(prompts)))
    each = with_seeds(params, len(prompts))
    check_lengths(prompts, lines, place.model_name, max_len)
    if mine is not None:
        plugins.load("nanoinfer.generate", "mine")(mine, place, prompts, each, TextWriter(prompts, echo), quiet)
        return
    with place.load() as llm:
        writer: Writer = JsonWriter(prompts, place.model_name, llm) if as_json else TextWriter(prompts, echo)
        with refusing(lines):
            pieces = llm.stream(prompts, each)
        if model is None and not quiet:
            remark(default_note(place.model_name))
        done = run(pieces, writer, Bar(len(prompts), wanted=not quiet))
        if not quiet and not as_json:
            remark(figures(done, llm, params.greedy))
        if verbose:
            show_stats(llm)


def with_seeds(params: SamplingParams, count: int) -> list[SamplingParams]:
    """Parameters for each prompt: seeds follow each other, so that one line alone can be had again by its seed."""
    first = opt.new_seed() if params.seed is None else params.seed
    if first + count - 1 > MAX_SEED:
        raise Refused(f"--seed must leave room for {count} seeds up to {MAX_SEED}, not {first}")
    return [dataclasses.replace(params, seed=first + i) for i in range(count)]


def default_note(name: str) -> str:
    """Which model it is where nobody chose one, and how to choose."""
    return f"nanoinfer: this is `{name}`, the small model that ships; `-m gpt2` takes GPT-2 from the Hugging Face hub"
