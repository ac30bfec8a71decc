"""`nanoinfer watch`: run prompts, and write what the engine did at each step into one HTML file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import Any

import typer

from nanoinfer.cli.errors import Refused
from nanoinfer.cli.generate import check_lines
from nanoinfer.cli.options import BATCH, ModelOptions, of, output_file, sampling_options, with_options, with_seeds
from nanoinfer.cli.terminal import from_argument, read_prompts, remark
from nanoinfer.config import EngineConfig
from nanoinfer.engine.recorder import Recorder
from nanoinfer.llm import LLM
from nanoinfer.records import Bounds
from nanoinfer.requests import Request, SamplingParams
from nanoinfer.serve.events import Event, Events
from nanoinfer.serve.recording import as_html

BEGINNINGS = (
    "Once upon a time there was a little village by the sea. The people who lived there were kind, and every evening"
    " they met at the harbour to tell each other stories. One evening an old man began: ",
    "It was a cold night in the city. Snow lay on the roofs and in the narrow streets, and nobody was out of doors but"
    " a girl with a lantern, who was looking for something. She said to herself: ",
)
ENDS = ("the ship", "I have seen a light on the water", "my dog is gone", "it must be here, near the old gate")
DEMO = {"max_batch": 6, "max_batched_tokens": 64, "prefill_chunk": 40, "kv_blocks": 30}


@with_options(params=sampling_options(), model=(ModelOptions, BATCH[1] + of(EngineConfig, "kv_blocks")))
def watch(
    prompt: list[str] | None = None,
    *,
    file: typer.FileBinaryRead | None = None,
    out: str = "watch.html",
    texts: bool = False,
    every: float = 0.0,
    params: SamplingParams,
    model: ModelOptions,
) -> None:
    """Record a run step by step, into one HTML file of at most 1 MB.

    prompt PROMPT...: texts to continue; a demo where there is none.
    file: each line of this UTF-8 file is a prompt.
    out FILE: the file to write.
    texts: it shows prompts and texts; those of the demo always.
    every: steps from one arrival to the next, on average; 0 is all at once.

    Examples:
    nanoinfer watch
    nanoinfer watch "Once upon a time" "There was a cat" -o two.html --texts
    nanoinfer watch -f prompts.txt --every 4 --kv-blocks 40 -m gpt2
    Open the file in any browser; it needs no network. #step=12 behind its address shows step 12.
    """
    if prompt and file is not None:
        raise Refused("there are prompts as arguments and --file: give one of them")
    Bounds("float32", 0, 1000, "from 0 to 1000").check("every", every)
    page = output_file(out)
    random = Random(1 if params.seed is None else params.seed)
    if demo := not prompt and file is None:
        prompts, each, arrivals = demonstration(random)
        model = model.but(**(DEMO | model.settings))
    else:
        prompts = [from_argument(text) for text in prompt] if prompt else read_prompts(None, file, lines=True)
        each = with_seeds(params, len(prompts))
        arrivals = [0, *accumulate(random.expovariate(1 / every) if every else 0 for _ in prompts[1:])]
    from nanoinfer.async_llm import ServingLLM  # and asyncio, for which no other command should wait

    with over_pages(model).load(kind=ServingLLM) as llm:
        if file is not None:
            check_lines(llm, prompts)
        requests = llm.requests(prompts, each)
        began = time.perf_counter()
        events = list(recorded(llm, requests, arrivals, texts or demo))
        seconds = time.perf_counter() - began
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(as_html(events, f"{model.name}, engine {llm.engine}"), encoding="utf-8")
        remark(f"nanoinfer: {page} has {len(requests)} requests, run in {seconds:.1f} s")


def demonstration(random: Random) -> tuple[list[str], list[SamplingParams], list[float]]:
    """Prompts that share their beginnings, and arrive a few at a time."""
    prompts = [random.choice(BEGINNINGS) * (random.random() < 0.75) + random.choice(ENDS) for _ in range(18)]
    each = [SamplingParams(random.choice([10, 24, 40, 70]), temperature=0.8, top_k=40, seed=i) for i in range(18)]
    return prompts, each, [0, 0, *accumulate(random.choice([0, 1, 3, 9]) for _ in prompts[2:])]


def over_pages(model: ModelOptions) -> ModelOptions:
    """The same with an engine over pages, where no other one is chosen."""
    from nanoinfer.devices import choose_device
    from nanoinfer.kernels.available import has_triton

    paged = choose_device(model.settings.get("device")).type == "cuda" and has_triton()
    return model if paged or model.settings["engine"] != "auto" else model.but(engine="paged")


def recorded(llm: LLM, requests: Sequence[Request], arrivals: Sequence[float], texts: bool) -> Iterator[Event]:
    """The events of a run in which each request is asked for before the step of its arrival."""
    engine: Any = llm.core
    waits, steps = sorted(zip(arrivals, range(len(requests)), strict=True), reverse=True), 0
    found: list[Event] = []
    events, engine.observer = Events(llm.tokenizer if texts else None), Recorder(engine, found.append, texts, step=-1)
    engine.observer.stepped(())
    while waits or engine.busy:
        while waits and (waits[-1][0] <= steps or not engine.busy):
            engine.submit(requests[waits.pop()[1]])
        engine.step()
        steps += 1
        yield from map(events.take, found)
        found.clear()
    engine.observer = None
