"""`nanoinfer generate --mine DIR`: the learner's functions in the engine, beside the reference's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nanocourse.cli.console import refusing
from nanoinfer.cli.errors import Refused
from nanoinfer.cli.options import BatchOptions
from nanoinfer.cli.output import Writer
from nanoinfer.cli.terminal import remark
from nanoinfer.requests import SamplingParams


def generate_mine(
    folder: Path,
    model: BatchOptions,
    prompts: Sequence[str],
    params: Sequence[SamplingParams],
    echo: bool,
    quiet: bool,
) -> None:
    """Check the folder, generate with the reference, then with the learner's functions; put both side by side.

    The text that is written is the learner's. Refused where none of their functions may run in the engine.
    """
    from nanocourse.learner.own_functions import (
        Own,
        in_the_engine,
        interpreted,
        own_functions,
        quick_reference,
        why_not_called,
    )
    from nanocourse.learner.side_by_side import last_token_bytes, side_by_side

    def tell(one: Own) -> None:
        part = "yours" if one.status == "passed" else f"the reference's ({one.status})"
        remark(f"nanoinfer: {one.exercise.id} {one.exercise.spec.title}: {part}")

    remark(f"nanoinfer: checking what is in {folder}; each exercise is told as it is done")
    with refusing():
        own = own_functions(folder, tell)
    used = [one for one in own if one.function is not None]
    if not used:
        raise Refused(f"{folder} has no function that passes its checks and has a place in the engine")
    if model.engine == "auto":
        model = replace(model, engine=used[-1].engine)
    if interpreted():
        remark(
            "nanoinfer: your kernel runs in Triton's interpreter, at about a token a second; the reference in PyTorch"
        )
    # Two tokens of each text before anything is timed: kernels are compiled by then.
    short = [replace(one, max_tokens=min(2, one.max_tokens)) for one in params]
    with model.load() as llm:
        with quick_reference():
            llm.generate(list(prompts), short)
            reference = llm.generate(list(prompts), list(params))
            reference_bytes = last_token_bytes(llm, reference[0])
        with in_the_engine(used):
            llm.generate(list(prompts), short)
            with refusing():
                pieces = llm.stream(list(prompts), list(params))
            done = Writer(prompts, echo).run(pieces, progress=not quiet)
            mine_bytes = last_token_bytes(llm, done[0])
    for line in side_by_side(done, reference, (mine_bytes, reference_bytes)):
        remark(line)
    for one in used:
        if not one.calls:
            remark(f"nanoinfer: {one.exercise.id} was never called: {why_not_called(one, used)}")
