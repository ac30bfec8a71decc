"""Exercise 6.7: attention out of parts, some of them without a token: the engine's own join."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.cases import Call, Case, call
from nanocourse.exercises.exercise import Check, Spec

NOTHING = -1e30  # the highest score of a part without tokens


def join(parts: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Attention's output (D,) float32, from what programs have made of some tokens each.

    parts: at least one; of each the output not yet divided (D,), the highest score () and the sum of weights (), all
    float32. Of tokens with scores s and values v these are the sum of exp(s - highest) * v, highest, and the sum of
    exp(s - highest). A part without tokens has zeros, -1e30 and 0. At least one part has tokens; their scores lie
    anywhere from -1e5 to 1e5. What comes out is what attention over all of these tokens gives: the sum of weight times
    value over the sum of weights, with the weights of one softmax. A value that is infinite or NaN shows in it.
    """
    outs, tops, totals = (torch.stack(each) for each in zip(*parts, strict=True))
    weight = (tops - tops.max()).exp()
    return weight @ outs / (weight @ totals)


def _part(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the engine's kernel makes it, out of scores that are given as keys of one number."""
    scores = keys @ query
    top = scores.max() if len(scores) else torch.tensor(NOTHING)
    weight = (scores - top).exp()
    return weight @ values, top, weight.sum()


EXERCISE = Spec(
    title="One head, many programs",
    reference="nanoinfer.kernels.persistent_torch:join",
    task=(
        "In the one-kernel step several programs share a head: each attends to some of the tokens, and its own\n"
        "highest score is what its weights are measured by. Put the parts together to what one program would have."
    ),
    invariants=(
        "how tokens are cut into parts changes nothing but the last bits",
        "a part without tokens changes nothing",
        "no weight overflows, wherever the scores lie",
    ),
    lines=4,
    example=lambda: call([
        (torch.tensor([2.0, 0.0]), torch.tensor(0.0), torch.tensor(1.0)),
        (torch.tensor([0.0, 3.0]), torch.tensor(0.0), torch.tensor(1.5)),
    ]),
    section="Attention in parts",
    axes=("dimension",),
    typed=True,
    imports=("import torch", "from torch import Tensor"),
    hints=(
        "Invariant: the weights of a part are too large by exp(all's highest score - its own highest score), all by the\n"
        "same factor. So are its output and its sum.",
        "Place: one factor for each part, 1 for the one with the highest score of all, at most 1 for the others. It\n"
        "belongs to outputs and to sums alike, and the division comes last.",
        "Pseudocode:\n"
        "  all highest scores in one tensor; how far below the highest of them each lies; exp of that\n"
        "  outputs, times these factors, added up; sums of weights, times these factors, added up\n"
        "  the one by the other",
    ),
)


def _parts(case: Case, lengths: list[int], width: int, far: float = 0.0, spread: float = 2.0) -> list[tuple[Tensor, ...]]:
    total = sum(lengths)
    scores = case.floats("scores", total, 1, scale=spread) + far
    values = case.floats("values", total, width)
    made, at = [], 0
    for length in lengths:
        made.append(_part(torch.ones(1), scores[at : at + length], values[at : at + length]))
        at += length
    return made


def two_parts(case: Case) -> Call:
    """Parts are weighed by their highest scores, and sums of weights are as well as outputs."""
    return call(_parts(case, [case.size("first", 1, 4), case.size("second", 1, 6)], case.size("width", 1, 4)))


def empty_parts(case: Case) -> Call:
    """A part without tokens changes nothing, first, in the middle, or last, and wherever scores lie."""
    count = case.size("tokens", 1, 4)
    lengths = case.turn(([0, count], [count, 0], [count, 0, 2], [0, 0, count, 0], [0, 3, count]))
    return call(_parts(case, lengths, 2, case.turn((0.0, -3000.0, 500.0, -90.0, 90.0))))


KINDS = (
    "one", "one of many", "high", "low", "highest", "lowest", "apart", "ties", "many", "long", "nan", "infinite", "huge",
    "zeros", "wide",
)  # fmt: skip


def any_parts(case: Case) -> Call:
    """One part, one token, many parts; scores far above 0 and below, apart or equal; values that are no numbers."""
    kind = case.turn(KINDS)
    if kind == "one":
        return call(_parts(case, [1], 1))
    far = {"high": 300.0, "low": -300.0, "highest": 9e4, "lowest": -9e4}.get(kind, 0.0)
    lengths = {"one of many": [0, 0, 1], "many": [3] * 90, "long": [400, 1, 300], "wide": [2, 5]}.get(kind, [3, 5, 1])
    spread = {"apart": 4e4, "ties": 0.0}.get(kind, 2.0)
    parts = _parts(case, lengths, 70 if kind == "wide" else 3, far, spread)
    if kind == "zeros":
        parts = [(torch.zeros(3), torch.tensor(0.0), total) for _, _, total in parts]
    fill = {"nan": torch.nan, "infinite": torch.inf, "huge": 1e38}.get(kind)
    if fill is not None:
        parts[1][0][case.turn((0, 1, 2))] = fill
    return call(parts)


CHECKS = (Check(any_parts, len(KINDS), wide=True), Check(two_parts, 3), Check(empty_parts, 5))
