"""One engine beside several: the burst of `bench queue`, over engines that have a process and a GPU each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from nanobench.core.machine import stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.micro.queue_load import Load, at_once, drawn, greedy, say
from nanoinfer.devices import choose_device
from nanoinfer.remote.llm import RemoteLLM

BURST = Load()  # its lengths


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
    device_name: str | None, path: Path, model: str, replicas: int, requests: Sequence[int], repeats: int, *,
    engine: str | None = None, rows: int = 256, prompt: tuple[int, int] = BURST.prompt,
    new: tuple[int, int] = BURST.new,
) -> ReplicasReport:  # fmt: skip
    """One engine and `replicas` of them take turns at each number of requests; the first turn is not timed.

    The one has a process of its own, too. engine: None is the fastest. rows: of each engine. path is written after each
    number of requests.
    """
    device = choose_device(device_name)
    engine = engine or ("fused" if device.type == "cuda" else "paged")
    with ExitStack() as stack:
        arms = {}
        for count in (1, replicas):
            arms[count] = llm = stack.enter_context(
                RemoteLLM(
                    model, replicas=count, device=device_name, engine=engine, max_batch=rows,
                    kv_blocks=rows * -(-(prompt[1] + new[1]) // 16),  # what they can use, and no more
                    prefix_caching=False, preemption=False,
                )
            )  # fmt: skip
            llm.warm_up()
            say(f"{model}, {count} engines: {llm.facts}")
        report = ReplicasReport(model=model, engine=engine, dtype=llm.facts.dtype, rows=rows, **stamp(device))
        for count in requests:
            rates: dict[int, list[float]] = {n: [] for n in arms}
            for turn in range(repeats + 1):
                prompts, lengths = drawn(count, prompt, new, arms[1].facts.vocab_size, turn=turn)
                for n, llm in arms.items():
                    run = at_once(llm, prompts, list(map(greedy, lengths)))
                    say(f"{count} requests, {n} engines{'' if turn else ', not counted'}: {run}")
                    rates[n] += [run.tokens_per_s] * (turn > 0)
            found = [Replicated(replicas=n, requests=count, tokens_per_s=Spread.of(each)) for n, each in rates.items()]
            one, several = (each.tokens_per_s.median for each in found)
            say(f"{count} requests: {several / one:.3f} times one engine")
            report = report.model_copy(update={"cases": (*report.cases, *found)})
            report.save(path)
    return report
