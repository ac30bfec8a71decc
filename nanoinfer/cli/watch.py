"""`nanoinfer watch`: run prompts, and write what the engine did at each step into one HTML file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanoinfer.cli.errors import CommandError, Refused, refusing
from nanoinfer.cli.options import BatchOptions, SamplingOptions, output_file, with_options, with_seeds
from nanoinfer.cli.prompts import from_argument, read_prompts
from nanoinfer.cli.terminal import remark
from nanoinfer.requests import Request, SamplingParams

if TYPE_CHECKING:
    from nanoinfer.llm import LLM
    from nanoinfer.serve.events import Event

EPILOG = """\
Examples:
nanoinfer watch
nanoinfer watch "Once upon a time" "There was a cat" -o two.html --texts
nanoinfer watch -f prompts.txt --every 4 --kv-blocks 40 -m gpt2
Open the file in any browser; it needs no network. #step=12 behind its address shows step 12."""

BEGINNINGS = (
    "Once upon a time there was a little village by the sea. The people who lived there were kind, and every evening"
    " they met at the harbour to tell each other stories. One evening an old man began: ",
    "It was a cold night in the city. Snow lay on the roofs and in the narrow streets, and nobody was out of doors but"
    " a girl with a lantern, who was looking for something. She said to herself: ",
)
ENDS = (
    "the ship", "I have seen a light on the water", "my dog is gone", "listen", "it must be here, near the old gate",
    "when I was young I had a boat, and the boat had a name", "who is there?", "we have no time",
)  # fmt: skip
DEMO = {"max_batch": 6, "max_batched_tokens": 64, "prefill_chunk": 40, "kv_blocks": 30}


@with_options
def watch(
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Texts to continue; a demo where there is none.", metavar="PROMPT...")
    ] = None,
    *,
    file: Annotated[str | None, typer.Option("--file", "-f", help="Each line of this UTF-8 file is a prompt.")] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", parser=output_file, metavar="FILE", help="The file to write.")
    ] = Path("watch.html"),
    texts: Annotated[
        bool, typer.Option("--texts", help="It shows prompts and texts; those of the demo always.")
    ] = False,
    every: Annotated[
        float, typer.Option(help="Steps from one arrival to the next, on average; 0 is all at once.")
    ] = 0.0,
    kv_blocks: Annotated[
        int | None, typer.Option(help="Blocks of the pool.", show_default="what the rows need")
    ] = None,
    sampling: SamplingOptions,
    model: BatchOptions,
) -> None:
    """Record a run step by step, into one HTML file of at most 1 MB."""
    if prompt and file is not None:
        raise Refused("there are prompts as arguments and --file: give one of them")
    if not 0 <= every <= 1000:
        raise Refused(f"--every must be from 0 to 1000, not {every:g}")
    if not out.parent.is_dir():
        raise Refused(f"'{out}' cannot be written: its folder does not exist")
    demo = not prompt and file is None
    params = sampling.params()
    prompts = (
        read_prompts(None, file, lines=True) if file is not None else [from_argument(text) for text in prompt or ()]
    )
    model.check()
    random = Random(params.seed if params.seed is not None else 1)
    settings: dict[str, Any] = {} if kv_blocks is None else {"kv_blocks": kv_blocks}
    if demo:
        prompts, each, arrivals = demonstration(random)
        settings = DEMO | settings
        model = replace(model, max_batch=model.max_batch or DEMO["max_batch"])
    else:
        each = with_seeds(params, len(prompts))
        arrivals = [0, *accumulate(random.expovariate(1 / every) if every else 0 for _ in prompts[1:])]
    with loaded(model, settings) as llm:
        with refusing(file is not None):
            requests = llm.requests(prompts, each)
        began = time.perf_counter()
        write(out, list(recorded(llm, requests, arrivals, texts or demo)), f"{model.model_name}, engine {llm.engine}")
        remark(f"nanoinfer: {out} has {len(requests)} requests, run in {time.perf_counter() - began:.1f} s")


def demonstration(random: Random) -> tuple[list[str], list[SamplingParams], list[float]]:
    """Prompts that share their beginnings, and arrive a few at a time."""
    prompts = [random.choice(BEGINNINGS) * (random.random() < 0.75) + random.choice(ENDS) for _ in range(18)]
    each = [SamplingParams(random.choice([10, 24, 40, 70]), temperature=0.8, top_k=40, seed=i) for i in range(18)]
    return prompts, each, [0, 0, *accumulate(random.choice([0, 1, 3, 9]) for _ in prompts[2:])]


def loaded(model: BatchOptions, settings: dict[str, Any]) -> LLM:
    """The LLM, over pages that are shared where nobody has chosen another engine."""
    from nanoinfer.config import RECIPES
    from nanoinfer.devices import choose_device
    from nanoinfer.kernels.available import has_triton
    from nanoinfer.llm import LLM

    with refusing():
        given = settings | model.settings
        if model.engine == "auto":
            on_gpu = choose_device(model.device).type == "cuda" and has_triton()
            given["engine"] = "paged-graph" if on_gpu else "paged"
        if RECIPES[given["engine"]].cache == "paged":
            given |= {"prefix_caching": True, "preemption": True}
        return LLM(model.model, **{name: value for name, value in given.items() if name != "model"})


def recorded(llm: LLM, requests: Sequence[Request], arrivals: Sequence[float], texts: bool) -> Iterator[Event]:
    """The events of a run in which each request is asked for before the step of its arrival."""
    from nanoinfer.engine.recorder import Recorder
    from nanoinfer.serve.events import Events

    engine: Any = llm.core
    waits, steps = sorted(zip(arrivals, range(len(requests)), strict=True), reverse=True), 0
    found: list[Event] = []
    events, engine.observer = Events(llm.tokenizer if texts else None), Recorder(engine, found.append, texts)
    found.append(engine.observer.state())
    try:
        while waits or engine.busy:
            while waits and (waits[-1][0] <= steps or not engine.busy):
                engine.submit(requests[waits.pop()[1]])
            engine.step()
            steps += 1
            for facts in found:
                yield events.take(facts)
            found.clear()
    finally:
        engine.observer = None


def write(out: Path, events: Sequence[Event], title: str) -> None:
    """Write the file. CommandError where it cannot be."""
    from nanoinfer.serve.recording import as_html

    try:
        out.write_text(as_html(events, title), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror or error}") from None
