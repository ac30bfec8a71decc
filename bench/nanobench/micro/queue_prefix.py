"""`bench queue --part prefix`: long prompts that begin alike, with the shared part cached and without."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median

from nanobench.core.records import Record
from nanobench.micro.queue_load import SEED, Load, at_once, by_turns, greedy, ids, say
from nanobench.micro.queue_records import Run
from nanoinfer import LLM
from nanoinfer.model.gpt2 import GPT2


class PrefixRuns(Record):
    """The same prompts, an engine with prefix caching and one without by turns."""

    model: str
    shared_share: float  # of the prompts' tokens
    cached: tuple[Run, ...]
    plain: tuple[Run, ...]

    @property
    def computed_share(self) -> float:
        """Of the prompts' tokens, with prefix caching: the largest of the runs."""
        return max(run.computed_share for run in self.cached)

    @property
    def gain(self) -> float:
        """p50 of TTFT without over p50 with prefix caching, medians of the runs."""
        plain, cached = (median(run.ttft.p50 for run in runs) for runs in (self.plain, self.cached))
        return plain / cached


def prefix(name: str, model: GPT2, load: Load) -> PrefixRuns:
    """Each turn has a shared part of its own, which one request brings before the others come."""
    draws, vocab = random.Random(SEED), model.config.vocab_size

    def turn() -> Callable[[LLM], Run]:
        shared = ids(draws, load.shared, vocab)
        first, *prompts = (shared + ids(draws, load.long - load.shared, vocab) for _ in range(load.sharing + 1))

        def run(llm: LLM) -> Run:
            llm.generate([first], greedy(1))
            return at_once(llm, prompts, [greedy(load.sharing_new)] * load.sharing)

        return run

    say(f"{name}: {load.sharing} prompts of {load.long} tokens, {load.shared} of them shared")
    cached, plain = by_turns(
        model, load.sharing, "prefix_caching", [turn() for _ in range(load.repeats)],
        lambda run: f"{run.computed_share:.3f} of {run.prompt_tokens:,} prompt tokens computed",
    )  # fmt: skip
    return PrefixRuns(model=name, shared_share=load.shared / load.long, cached=cached, plain=plain)
