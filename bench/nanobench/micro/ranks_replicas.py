"""One engine beside several: the burst of `bench queue`, over engines that have a process and a GPU each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from nanobench.core.records import Record, Spread
from nanobench.micro.queue_load import Load, at_once, drawn, greedy, say
from nanoinfer.devices import choose_device
from nanoinfer.parallel.replicas import ReplicatedLLM

BURST = Load()  # its lengths


class Replicated(Record):
    """So many requests in one call, over so many engines."""

    model: str
    engine: str
    replicas: int
    requests: int
    tokens_per_s: Spread


def measure_replicas(
    model: str, device_name: str | None, replicas: int, requests: Sequence[int], path: Path | None = None, *,
    engine: str | None = None, rows: int = 256, prompt: tuple[int, int] = BURST.prompt,
    new: tuple[int, int] = BURST.new, repeats: int = 3,
) -> list[Replicated]:  # fmt: skip
    """One engine and `replicas` of them take turns at each number of requests; the first turn is not timed.

    engine: None is the fastest. rows: of each engine. The one has a process of its own, too. path: of the records as
    JSON, written after each number of requests.
    """
    found = list[Replicated]()
    engine = engine or ("fused" if choose_device(device_name).type == "cuda" else "paged")
    with ExitStack() as stack:
        arms = {}
        for count in (1, replicas):
            arms[count] = llm = stack.enter_context(
                ReplicatedLLM(
                    model, replicas=count, device=device_name, engine=engine, max_batch=rows,
                    kv_blocks=rows * -(-(prompt[1] + new[1]) // 16),  # what they can use, and no more
                    prefix_caching=False, preemption=False,
                )
            )  # fmt: skip
            llm.warm_up()
            say(f"{model}, {count} engines: {llm.facts}")
        for count in requests:
            rates: dict[int, list[float]] = {n: [] for n in arms}
            for turn in range(repeats + 1):
                prompts, lengths = drawn(count, prompt, new, arms[1].facts.vocab_size, turn=turn)
                for n, llm in arms.items():
                    run = at_once(llm, prompts, list(map(greedy, lengths)))
                    say(f"{count} requests, {n} engines{'' if turn else ', not counted'}: {run}")
                    rates[n] += [run.tokens_per_s] * (turn > 0)
            found += [
                Replicated(model=model, engine=engine, replicas=n, requests=count, tokens_per_s=Spread.of(each))
                for n, each in rates.items()
            ]
            one, several = (each.tokens_per_s.median for each in found[-2:])
            say(f"{count} requests: {several / one:.3f} times one engine")
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps([each.model_dump() for each in found], indent=1) + "\n", encoding="utf-8")
    return found
