"""Drafts for what a model really writes, against plain decoding: stories, and text that repeats itself.

Prompts are the model's own: an opening and what it sampled behind that, by a row's seed. Greedy text of a small model
soon repeats itself; so where each row goes on behind its own greedy text, what comes now stands in the prompt already.
transformers drafts by prompt lookup as well, greedily and for one row, and is held against its own plain decoding. So
are we: each system takes turns with itself alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any, Literal, NamedTuple, cast

import torch
import typer

from nanobench.core.machine import place, stamp
from nanobench.core.records import Record, ResultsFile, Spread
from nanobench.core.timing import by_turns
from nanobench.micro.speculation import Ran, run, share_of_same
from nanobench.options import Device, Models, NewTokens, Out, Repeats, Rows
from nanobench.systems.base import Limits, Missing, System
from nanobench.systems.transformers import Transformers
from nanoinfer import LLM, SamplingParams
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model
from nanoinfer.speculate.engine import DraftEngine
from nanoinfer.speculate.pays import Pays

OPENING, SAMPLED = "Once upon a time", 64  # tokens behind it, so that no two rows tell the same story
TEMPERATURE = 0.8


class Drafted(Record):
    """One case: a whole `generate()` with drafts, and one without, by turns."""

    SHOWN = ("gain",)

    model: str
    system: str  # nanoinfer, transformers or vllm
    drafts: str  # who makes them
    draft_tokens: int  # of a row in a step at most
    text: Literal["story", "repeating"]
    temperature: float
    rows: int
    plain: Spread  # tokens a second, of the same system
    drafted: Spread
    accepted_share: float | None  # of the drafts that were brought; None where a peer does not say
    tokens_a_step: float | None  # of a row
    same_share: float  # of the tokens, that are those of the plain run

    @property
    def gain(self) -> float:
        """Speed over plain, medians."""
        return self.drafted.median / self.plain.median


class SpeculationTextsReport(ResultsFile):
    """One run of `python -m bench speculation-texts`."""

    kind: Literal["speculation-texts"] = "speculation-texts"
    dtype: str
    new_tokens: int
    cases: tuple[Drafted, ...] = ()
    missing: tuple[str, ...] = ()  # peers that did not run, and why


Runs = Callable[[list[list[int]], list[SamplingParams]], Ran]


class Arm(NamedTuple):
    """A system with drafts, and without."""

    system: str
    drafts: str
    plain: Runs
    drafted: Runs
    engine: DraftEngine | None = None  # ours

    def enters(self, temperature: float, rows: int) -> bool:
        """Whether it does this case: the peer drafts greedily, and for one row."""
        return self.engine is not None or (not temperature and rows == 1)


def measure(
    device: Device = None,
    out: Out = Path("my-bench/speculation-texts.json"),
    model: Models = ["small"],  # noqa: B006
    rows: Rows = [1, 4, 16, 64],  # noqa: B006
    speculate: Annotated[list[str], typer.Option(help="Who drafts, as in `nanoinfer generate`; repeatable.")] = [  # noqa: B006
        "lookup", "ngram",
    ],
    draft_tokens: Annotated[int, typer.Option(min=1, max=64, help="Of a row in a step at most.")] = 4,
    new_tokens: NewTokens = 256,
    repeats: Repeats = 5,
    peers: Annotated[bool, typer.Option(help="transformers too, where it is installed.")] = True,
) -> None:  # fmt: skip
    """Measure every case; write after each model. Rows bring fewer drafts, or none, where that is faster."""
    where, dtype = place(device)
    report = SpeculationTextsReport(new_tokens=new_tokens, **stamp(where, dtype))
    for name in model:
        weights, missing = load_model(name, where, dtype, seed=0), list[str]()
        longest = (
            SAMPLED + 2 * new_tokens + draft_tokens + 17
        )  # an opening, what is sampled, what is greedy, what is new
        limits = Limits(min(weights.config.n_positions, longest), max(rows))
        with ExitStack() as stack:
            plain, arms = _ours(stack, weights, limits, speculate, draft_tokens)
            if peers:
                try:
                    arms.append(_peer(weights, limits, draft_tokens))
                except Missing as error:
                    missing.append(f"transformers: {error}")
            report = report.add(out, missing=tuple(missing))
            report = report.fill(out, cases=_cases(name, plain, arms, sorted(rows), draft_tokens, new_tokens, repeats))


def _ours(
    stack: ExitStack, model: GPT2, limits: Limits, drafters: Sequence[str], most: int
) -> tuple[LLM, list[Arm]]:  # fmt: skip
    """The plain engine, and an arm for each drafter."""
    llms = []
    drafting: list[dict[str, Any]] = [{"speculate": drafter, "draft_tokens": most} for drafter in drafters]
    for settings in ({}, *drafting):
        sizes: dict[str, Any] = {"max_batch": limits.max_batch, "max_len": limits.max_len}
        llm = LLM(model, threads=torch.get_num_threads(), **sizes, **settings)  # as many threads as peers have
        llms.append(stack.enter_context(llm))
        llm.warm_up()
    plain, *drafted = llms
    return plain, [
        Arm("nanoinfer", drafter, partial(run, plain), partial(run, llm), cast(DraftEngine, llm.core))
        for drafter, llm in zip(drafters, drafted, strict=True)
    ]


def _peer(model: GPT2, limits: Limits, most: int) -> Arm:
    """transformers, with drafts from the prompt and without. Missing where it is not installed."""
    plain = Transformers("transformers", model, limits)
    drafted = copy(plain)  # the same model
    drafted.options = plain.options | {"prompt_lookup_num_tokens": most}
    return Arm("transformers", "lookup", partial(_run_peer, plain), partial(_run_peer, drafted))


def _run_peer(system: System, prompts: list[list[int]], params: list[SamplingParams]) -> Ran:
    """A greedy run. Its tokens a step are not known."""
    tensor, new = torch.tensor(prompts), params[0].max_tokens or 1
    started = perf_counter()
    rows = system.generate(tensor, new)
    seconds = perf_counter() - started
    return Ran(sum(map(len, rows)) / seconds, [tuple(row) for row in rows], 0.0, 0.0)


def _cases(
    name: str, plain: LLM, arms: Sequence[Arm], rows: Sequence[int], most: int, new: int, repeats: int
) -> Iterator[Drafted]:
    """Every text and temperature, at every number of rows."""

    def params_of(temperature: float, tokens: int, count: int) -> list[SamplingParams]:
        settings: dict[str, Any] = {"temperature": temperature, "max_tokens": tokens, "ignore_eos": True}
        return [SamplingParams(seed=row, **settings) for row in range(count)]

    def longer(prompts: list[list[int]], temperature: float, tokens: int) -> list[list[int]]:
        """The prompts with what the model writes behind them."""
        texts = run(plain, prompts, params_of(temperature, tokens, len(prompts))).texts
        return [[*prompt, *text] for prompt, text in zip(prompts, texts, strict=True)]

    stories = longer([plain.tokenizer.encode(OPENING)] * rows[-1], TEMPERATURE, SAMPLED)
    texts = {"story": stories, "repeating": longer(stories, 0.0, new)}
    for (text, prompts), temperature, count in itertools.product(texts.items(), (0.0, TEMPERATURE), rows):
        asked = prompts[:count], params_of(temperature, new, count)
        for arm in [arm for arm in arms if arm.enters(temperature, count)]:
            if arm.engine:
                arm.engine.adaptive = Pays()  # another text's is wrong here
            runs = by_turns({"plain": partial(arm.plain, *asked), "drafted": partial(arm.drafted, *asked)}, repeats)
            both = zip(runs["plain"], runs["drafted"], strict=True)
            yield Drafted(
                model=name, system=arm.system, drafts=arm.drafts, draft_tokens=most, text=cast(Any, text),
                temperature=temperature, rows=count,
                **{which: Spread.of([ran.tokens_per_s for ran in each]) for which, each in runs.items()},
                accepted_share=median(ran.accepted_share for ran in runs["drafted"]) if arm.engine else None,
                tokens_a_step=median(ran.tokens_a_step for ran in runs["drafted"]) if arm.engine else None,
                same_share=median(share_of_same(a.texts, b.texts) for a, b in both),
            )  # fmt: skip
