"""`nanoinfer generate --mine DIR`: the learner's functions in the engine, beside the reference's figures."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanocourse.cli.console import patience, refusing
from nanocourse.cli.options import folder_at
from nanoinfer.cli.errors import Refused
from nanoinfer.cli.options import ModelOptions
from nanoinfer.cli.output import Writer, show_stats
from nanoinfer.cli.terminal import remark
from nanoinfer.requests import SamplingParams


def generate_mine(
    folder: Path,
    model: ModelOptions,
    prompts: Sequence[str],
    params: Sequence[SamplingParams],
    echo: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Check the folder, generate with the reference, then with the learner's functions; put both side by side.

    The text that is written is the learner's, and so are the counters, of both their runs: the short one that is not
    timed captures. Refused where none of their functions may run in the engine. Memory is left out where the stand-in
    records: most of it would be the stand-in's.
    """
    from nanocourse.learner import own_functions as learners
    from nanocourse.learner.side_by_side import last_token_bytes, side_by_side

    def tell(one: learners.Own) -> None:
        part = "yours" if one.status == "passed" else f"the reference's ({one.status})"
        if one.status != "not begun":
            remark(f"nanoinfer: {one.exercise.id} {one.exercise.spec.title}: {part}")

    remark(f"nanoinfer: checking what is in {folder}; results appear as they finish")
    with refusing():
        own = learners.own_functions(folder_at(folder).path, tell, patience())
    if idle := [one.exercise.id for one in own if one.status == "not begun"]:
        remark(f"nanoinfer: not begun, so the reference's: {', '.join(idle)}")
    used = [one for one in own if one.function is not None]
    if not used:
        raise Refused(f"{folder} has no function that passes its checks and has a place in the engine")
    if model.settings["engine"] == "auto":
        model = model.but(engine=used[-1].engine)
    if learners.interpreted():
        slow = "your kernel runs in Triton's interpreter, at about a token a second; the reference in PyTorch"
        remark(f"nanoinfer: {slow}")
    # Two tokens of each text before anything is timed: kernels are compiled by then.
    short = [replace(one, max_tokens=min(2, one.max_tokens)) for one in params]
    with warnings.catch_warnings(record=True) as held:
        loaded = model.load()
    with loaded as llm:
        with learners.quick_reference():
            llm.generate(list(prompts), short)
            reference = llm.generate(list(prompts), list(params))
            sizes = [last_token_bytes(llm, reference[0])]
        stats: Any = llm.stats
        vars(stats).update(vars(type(stats)()))
        with learners.in_the_engine(used, stats):
            stands_in = llm.facts.device == "cpu" and getattr(llm.core, "recorder", None) is not None
            for warning in () if stands_in else held:  # that a CPU records no steps
                warnings.warn(warning.message, stacklevel=2)
            llm.generate(list(prompts), short)
            before = stats.steps, stats.decode_steps
            writer = Writer(prompts, echo, progress=not quiet)
            with refusing():
                pieces = llm.stream(list(prompts), list(params))
            done = writer.run(pieces)
            replayed = getattr(stats, "replayed_steps", 0)  # which calls nobody
            ran = [one.ran(*before, stats) for one in used if one.steps and not replayed]
            if stands_in:
                steps = f"{replayed} of {stats.decode_steps} decode steps"
                remark(f"nanoinfer: no GPU here, so steps were recorded by the stand-in: {steps} were replayed")
            if verbose:
                show_stats(llm)
            sizes.insert(0, last_token_bytes(llm, done[0]))
    for line in side_by_side(done, reference, () if stands_in else sizes):
        remark(line)
    why = [(one.exercise.id, learners.why_not_called(one, used)) for one in used if not one.steps]
    for told in (*ran, *(f"{id} was never called: {reason}" for id, reason in why)):
        remark(f"nanoinfer: {told}")
