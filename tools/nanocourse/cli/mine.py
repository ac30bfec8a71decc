"""`nanoinfer generate --mine DIR`: the learner's functions in the engine, beside the reference's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nanocourse.cli.console import refusing
from nanoinfer.cli.errors import Refused
from nanoinfer.cli.options import BatchOptions
from nanoinfer.cli.output import Writer
from nanoinfer.cli.terminal import remark
from nanoinfer.requests import Completion, SamplingParams

if TYPE_CHECKING:
    from nanocourse.learner.own_functions import Own
    from nanoinfer.llm import LLM


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
    from nanocourse.learner.own_functions import in_the_engine, own_functions

    with refusing():
        own = own_functions(folder)
    used = [one for one in own if one.function is not None]
    for one in own:
        part = "yours" if one.function is not None else f"the reference's ({one.status})"
        remark(f"nanoinfer: {one.exercise.id} {one.exercise.spec.title}: {part}")
    if not used:
        raise Refused(f"{folder} has no function that passes its checks and has a place in the engine")
    if model.engine == "auto":
        model = replace(model, engine=used[-1].engine)
    # Two tokens of each text before anything is timed: kernels are compiled by then.
    short = [replace(one, max_tokens=min(2, one.max_tokens)) for one in params]
    with model.load() as llm:
        llm.generate(list(prompts), short)
        reference = llm.generate(list(prompts), list(params))
        with in_the_engine(used):
            llm.generate(list(prompts), short)
            with refusing():
                pieces = llm.stream(list(prompts), list(params))
            done = Writer(prompts, echo).run(pieces, progress=not quiet)
            mine_bytes = _bytes(llm, done[0])
        reference_bytes = _bytes(llm, reference[0])
    rows = [("", "yours", "reference"), *zip(("TTFT", "speed"), _times(done), _times(reference), strict=True)]
    rows.append(("memory", f"{mine_bytes / 1e6:.2f} MB", f"{reference_bytes / 1e6:.2f} MB"))
    for name, mine, theirs in rows:
        remark(f"{name:<8}{mine:>18}{theirs:>18}")
    remark(f"text    {_first_difference(done, reference)}")
    for one in used:
        if not one.calls:
            remark(f"nanoinfer: {one.exercise.id} was never called: {_why_not_called(one, used)}")


def _why_not_called(own: Own, used: Sequence[Own]) -> str:
    """Another of the learner's functions has its place, as far as is known; else nothing asked for it."""
    displaced = own.exercise.spec.displaced
    told = (displaced[one.exercise.id] for one in used if one.calls and one.exercise.id in displaced)
    return next(told, "nothing in this run needed it")


def _bytes(llm: LLM, done: Completion) -> int:
    """Tensors alive at once while the last token of a text is made once more."""
    from nanocourse.learner.own_functions import peak_bytes

    text = [*done.prompt_token_ids, *done.token_ids[:-1]]
    return peak_bytes(lambda: llm.generate([text], SamplingParams(max_tokens=1, temperature=0)))


def _times(done: Sequence[Completion]) -> tuple[str, str]:
    """Time to the first token, and tokens a second of all texts together."""
    tokens, seconds = sum(len(one.token_ids) for one in done), max(one.metrics.total_s for one in done)
    return f"{1000 * min(one.metrics.ttft_s for one in done):.1f} ms", f"{tokens / seconds:.1f} tokens/s"


def _first_difference(done: Sequence[Completion], reference: Sequence[Completion]) -> str:
    """Where the learner's tokens and the reference's part, if they do."""
    for one, other in zip(done, reference, strict=True):
        mine, theirs = one.token_ids, other.token_ids
        if mine != theirs:
            same = (at for at, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1])
            at = next(same, min(len(mine), len(theirs)))
            return f"other tokens: text {one.index + 1}, from new token {at + 1} on"
    return "the same tokens"
