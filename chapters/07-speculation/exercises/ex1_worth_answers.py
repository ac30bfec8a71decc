"""Exercise 7.1: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from itertools import accumulate, repeat
from operator import mul

from nanocourse.exercises.exercise import edition

Answer = tuple[list[float], float]


def by_formula(alpha: list[float], drafts: list[int], plain: float, verify: float) -> Answer:
    """The geometric sum in closed form, where there is one."""
    tokens = []
    for at in range(len(alpha)):
        if alpha[at] == 1:
            tokens += [drafts[at] + 1.0]
        else:
            tokens += [(1 - alpha[at] ** (drafts[at] + 1)) / (1 - alpha[at])]
    with_drafts, without = sum(tokens) / verify, len(alpha) / plain
    return tokens, with_drafts / without


def by_products(alpha: list[float], drafts: list[int], plain: float, verify: float) -> Answer:
    """Running products of alpha; and the mean of what each row gains."""
    tokens = [sum(accumulate(repeat(share, count), mul, initial=1.0)) for share, count in zip(alpha, drafts)]  # noqa: B905
    gains = [mine / verify / (1 / plain) for mine in tokens]
    return [float(mine) for mine in tokens], sum(gains) / len(gains)


@edition(
    "by-row",
    "rows and seconds are dicts, drafts are told by how often they are wrong, and the answer is a dict",
    args=lambda alpha, drafts, plain, verify: (
        [{"wrong": 1 - share, "drafts": count} for share, count in zip(alpha, drafts, strict=True)],
        {"plain": plain, "verify": verify},
    ),
    back=lambda rows, seconds: (
        [1 - row["wrong"] for row in rows],
        [int(row["drafts"]) for row in rows],
        seconds["plain"],
        seconds["verify"],
    ),
    result=lambda result, *plain: {"tokens": result[0], "speed": result[1]},
    axes=("item",),
)
def gained(rows: list[dict[str, float]], seconds: dict[str, float]) -> dict[str, object]:
    """The mean "tokens" of each row in a step with drafts, and the "speed" of all rows together, over plain steps.

    rows: of each row "wrong", from 0.0 to 1.0, both included, the probability that a draft is wrong where all drafts
    before it are right, and "drafts", how many it brings to a step; 0 for none. At least one row. A row keeps its
    drafts up to the first wrong one, without it, and gets one token more, which the model has chosen itself after
    those that are kept.
    seconds: "plain", what a step without drafts takes, which gives each row one token, and "verify", what the step
    takes that verifies these drafts; both above 0. The speed is tokens a second of all rows together with drafts, over
    the same without them.
    """
    tokens = [sum((1 - row["wrong"]) ** n for n in range(int(row["drafts"]) + 1)) for row in rows]
    return {"tokens": tokens, "speed": sum(tokens) * seconds["plain"] / (len(rows) * seconds["verify"])}
