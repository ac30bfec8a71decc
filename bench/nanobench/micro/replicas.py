"""Several engines behind one queue beside one: tokens/s of many requests at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nanobench.core.machine import stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.core.timing import by_turns
from nanobench.micro.queue_load import Load, at_once, drawn, greedy, say
from nanobench.options import Device, Model, Out, Repeats
from nanoinfer.devices import choose_device
from nanoinfer.remote.llm import RemoteLLM

BURST, ROWS = Load(), 256  # its lengths, and how many rows each engine has


class Replicated(Record):
    """So many requests in one call, over so many engines."""

    replicas: int
    requests: int
    tokens_per_s: Spread


class ReplicasReport(ResultsFile):
    """One run of `python -m bench replicas`."""

    kind: Literal["replicas"] = "replicas"
    model: str
    engine: str
    dtype: str
    rows: int  # of each engine
    cases: tuple[Replicated, ...] = ()


def measure(
    device: Device = None,
    out: Out = Path("my-bench/replicas.json"),
    model: Model = "random:gpt2",
    replicas: Annotated[int, typer.Option(min=2, help="Engines beside one, a GPU each.")] = 2,
    requests: Annotated[list[int], typer.Option(min=1, help="At once; repeatable.")] = [1000, 4000],  # noqa: B006
    repeats: Repeats = 8,
    engine: Annotated[str | None, typer.Option(help="The fastest where none is named.")] = None,
) -> ReplicasReport:
    """One engine and `replicas` of them take turns at each number of requests; the first turn is not timed.

    The one has a process of its own, too. The file is written after each number of requests.
    """
    where = choose_device(device)
    engine = engine or ("fused" if where.type == "cuda" else "paged")
    blocks = ROWS * -(-(BURST.prompt[1] + BURST.new[1]) // 16)  # what they can use, and no more
    options: dict[str, Any] = {"device": device, "engine": engine, "max_batch": ROWS, "kv_blocks": blocks}
    with ExitStack() as stack:
        llms = {}
        for count in (1, replicas):
            llms[count] = llm = RemoteLLM(
                model, replicas=count, prefix_caching=False, preemption=False, **options
            )  # fmt: skip
            stack.enter_context(llm)
            llm.warm_up()
            say(f"{model}, {count} engines: {llm.facts}")
        report = ReplicasReport(model=model, engine=engine, dtype=llm.facts.dtype, rows=ROWS, **stamp(where))
        for count in requests:
            arms = {n: partial(next, _rates(n, llm, count)) for n, llm in llms.items()}
            rates = by_turns(arms, repeats).items()
            found = (Replicated(replicas=n, requests=count, tokens_per_s=Spread.of(each)) for n, each in rates)
            report = report.fill(out, cases=found)
    return report


def _rates(engines: int, llm: RemoteLLM, count: int) -> Iterator[float]:
    """Tokens a second of turn after turn, each with prompts of its own."""
    for turn in itertools.count():
        prompts, lengths = drawn(count, BURST.prompt, BURST.new, llm.facts.vocab_size, turn=turn)
        run = at_once(llm, prompts, list(map(greedy, lengths)))
        say(f"{count} requests, {engines} engines{'' if turn else ', not counted'}: {run}")
        yield run.tokens_per_s
