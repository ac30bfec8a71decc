"""`nanoinfer generate --mine DIR`: the learner's functions in the engine, and his numbers beside the reference's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanoinfer.cli.errors import Refused, refusing
from nanoinfer.cli.options import Place
from nanoinfer.cli.terminal import Bar, remark
from nanoinfer.cli.writers import TextWriter, run
from nanoinfer.requests import Completion, SamplingParams

if TYPE_CHECKING:
    from nanocourse.learner.own_functions import Own
    from nanoinfer.llm import LLM


def generate_mine(
    folder: Path,
    place: Place,
    prompts: Sequence[str],
    params: Sequence[SamplingParams],
    writer: TextWriter,
    quiet: bool,
) -> None:
    """Check the folder, generate with the reference, then with the learner's functions; put both side by side.

    The text that is written is the learner's. Refused where none of his functions may run in the engine.
    """
    from nanocourse.learner.own_functions import in_the_engine, own_functions

    with refusing():
        own = own_functions(folder)
    used = [one for one in own if one.function is not None]
    for one in own:
        remark(f"nanoinfer: {one.exercise.id} {one.exercise.spec.title}: {_part(one)}")
    if not used:
        raise Refused(f"{folder} has no function that passes its checks and has a place in the engine")
    if place.engine == "auto":
        place = dataclasses.replace(place, engine=used[-1].engine)
    with place.load() as llm:
        _warm_up(llm, prompts, params)
        reference = llm.generate(list(prompts), list(params))
        with in_the_engine(used):
            _warm_up(llm, prompts, params)
            with refusing():
                pieces = llm.stream(list(prompts), list(params))
            done = run(pieces, writer, Bar(len(prompts), wanted=not quiet))
            mine_bytes = _bytes(llm, done)
        reference_bytes = _bytes(llm, reference)
    for line in side_by_side(done, reference, (mine_bytes, reference_bytes)):
        remark(line)
    for one in used:
        if not one.calls:
            remark(f"nanoinfer: {one.exercise.id} was never called: {_why_not_called(one, used)}")


def _warm_up(llm: LLM, prompts: Sequence[str], params: Sequence[SamplingParams]) -> None:
    """Two tokens of each text: kernels are compiled before anything is timed."""
    llm.generate(list(prompts), [dataclasses.replace(one, max_tokens=min(2, one.max_tokens)) for one in params])


def _part(own: Own) -> str:
    if own.function is not None:
        return "yours"
    return f"the reference's ({own.status})"


def _why_not_called(own: Own, used: Sequence[Own]) -> str:
    """Another of the learner's functions has its place, as far as is known; else nothing asked for it."""
    displaced = own.exercise.spec.displaced
    told = (displaced[one.exercise.id] for one in used if one.calls and one.exercise.id in displaced)
    return next(told, "nothing in this run needed it")


def _bytes(llm: LLM, done: Sequence[Completion]) -> int:
    """Tensors alive at once while the last token of the first text is made once more."""
    from nanocourse.learner.own_functions import peak_bytes

    text = [*done[0].prompt_token_ids, *done[0].token_ids[:-1]]
    return peak_bytes(lambda: llm.generate([text], SamplingParams(max_tokens=1, temperature=0)))


def side_by_side(done: Sequence[Completion], reference: Sequence[Completion], sizes: tuple[int, int]) -> list[str]:
    """A small table: time to the first token, speed, memory; and whether the tokens are the same."""
    both = done, reference
    first = [f"{1000 * min(one.metrics.ttft_s for one in some):.1f} ms" for some in both]
    tokens = [sum(len(one.token_ids) for one in some) / max(one.metrics.total_s for one in some) for some in both]
    rows = [
        ("", ["yours", "reference"]),
        ("TTFT", first),
        ("speed", [f"{rate:.1f} tokens/s" for rate in tokens]),
        ("memory", [f"{size / 1e6:.2f} MB" for size in sizes]),
    ]
    return [f"{name:<8}{pair[0]:>18}{pair[1]:>18}" for name, pair in rows] + [f"text    {_parting(done, reference)}"]


def _parting(done: Sequence[Completion], reference: Sequence[Completion]) -> str:
    """Where the learner's tokens and the reference's part, if they do."""
    for one, other in zip(done, reference, strict=True):
        if one.token_ids != other.token_ids:
            pairs = enumerate(zip(one.token_ids, other.token_ids, strict=False))
            at = next(
                (i for i, (mine, theirs) in pairs if mine != theirs), min(len(one.token_ids), len(other.token_ids))
            )
            return f"other tokens: text {one.index + 1}, from new token {at + 1} on"
    return "the same tokens"
