"""`nanoinfer generate`: continue a prompt as it is written, or many in order, for a reader or for a program."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import typer

from nanoinfer.cli import plugins
from nanoinfer.cli.errors import Refused
from nanoinfer.cli.options import BATCH, ModelOptions, sampling_options, with_options, with_seeds
from nanoinfer.cli.output import Writer, figures, json_line, show_stats, write_steps
from nanoinfer.cli.terminal import read_prompts, remark
from nanoinfer.config import MAX_BATCH
from nanoinfer.llm import LLM
from nanoinfer.requests import SamplingParams

DEFAULT_NOTE = "nanoinfer: this is `small`, the small model that ships; `-m gpt2` takes GPT-2 from the Hugging Face hub"


@with_options(params=sampling_options("stop", "stop_token_ids", "ignore_eos"), model=BATCH)
def generate(
    prompt: str | None = None,
    *,
    file: typer.FileBinaryRead | None = None,
    lines: bool = False,
    echo: bool = True,
    as_json: bool = False,
    show_steps: bool = False,
    quiet: bool = False,
    verbose: bool = False,
    params: SamplingParams,
    model: ModelOptions,
    mine: Path | None = None,
) -> None:
    """Continue a text, printing it as it comes.

    The prompt is the argument, a file, or standard input (all of it, less one
    newline at its end; at most 16 MiB). With --lines each line is a prompt, and
    the texts come in order, each under a heading ==> 1 <==.

    prompt PROMPT: the text to continue; standard input where it is missing or `-`.
    file: read the prompt from this UTF-8 file.
    lines: every line is a prompt of its own.
    echo: print the prompt before its continuation.
    as_json: one JSON object a prompt and line, for programs.
    show_steps: write the text when it is done, the tokens of each step in another colour; | between steps without.
    quiet: no figures and no remarks.
    verbose: the engine's counters besides.
    mine DIR: run the functions of this course folder that pass their checks, beside the reference.

    Examples:
    nanoinfer generate "Once upon a time" -m gpt2
    nanoinfer generate -f story.txt -n 200 --temperature 0.7 --seed 1
    echo "2, 4, 6," | nanoinfer generate -m gpt2 --greedy -n 9 --no-echo -q
    nanoinfer generate -f prompts.txt --lines --json > results.jsonl
    nanoinfer generate -- "-5 degrees"
    The line of figures goes to standard error.
    Exit code: 0 done, 1 failed, 2 refused, 130 stopped by Ctrl-C.
    """
    if quiet and verbose:
        raise Refused("--quiet and --verbose contradict each other: give one of them")
    if mine is not None and as_json:
        raise Refused("--mine puts two runs side by side for a reader: leave out --json")
    if quiet:
        warnings.simplefilter("ignore", RuntimeWarning)
    if show_steps and (lines or as_json or mine is not None):
        raise Refused("--show-steps is for one text and a reader: leave out --lines, --json and --mine")
    prompts = read_prompts(prompt, file, lines)
    if len(prompts) < model.settings.get("max_batch", MAX_BATCH):  # the cache needs no more rows than there are prompts
        model = model.but(max_batch=len(prompts))
    each = with_seeds(params, len(prompts))
    if mine is not None:
        with plugins.needing("generate --mine", plugins.EXTRAS["course"]):
            plugins.load("nanoinfer.generate", "mine")(mine, model, prompts, each, echo, quiet, verbose)
        return
    with model.load() as llm:
        if lines:
            check_lines(llm, prompts)
        record = partial(json_line, prompts=prompts, llm=llm) if as_json else None
        writer = Writer(prompts, echo, record, progress=not quiet)
        pieces = llm.stream(prompts, each)
        if model.model is None and not quiet:
            remark(DEFAULT_NOTE)
        done = write_steps(prompts[0] * echo, pieces) if show_steps else writer.run(pieces)
        if not quiet and not as_json:
            remark(figures(done, llm, params.greedy))
        if verbose:
            show_stats(llm)


def check_lines(llm: LLM, prompts: list[str]) -> None:
    """Raise ValueError for the first line that is no prompt of this model, with its number, counted from 1."""
    for number, prompt in enumerate(prompts, 1):
        try:
            llm.requests(prompt)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
