"""Exercise 7.1: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from itertools import accumulate, repeat
from operator import mul

from nanocourse.exercises.exercise import Edition, Right, Wrong

Answer = tuple[list[float], float]

TOKENS = "sum(share**n for n in range(count + 1))"
MEAN = "sum(tokens) / len(tokens)"
WRONG = (
    Wrong.patch(
        "bonus-forgotten", "A step gives the drafts that are kept.", "range(count + 1)", "range(1, count + 1)",
        "an author's own slip: the token that the model chooses after the last kept draft comes free of charge",
    ),
    Wrong.patch(
        "one-too-few", "A step of k drafts gives k tokens at most.", "range(count + 1)", "range(max(1, count))",
        "vllm-project/vllm#4212, where bonus tokens were switched off: if all are right, one more comes",
    ),
    Wrong.patch(
        "each-on-its-own", "Each draft is right with probability alpha.", TOKENS, "1 + share * count",
        "the share of right drafts times their number: those after a wrong one are not kept, right or not",
    ),
    Wrong.patch(
        "all-or-nothing", "A run is kept if all of it is right.", TOKENS, "1 + count * share**count",
        "a plausible slip: a step is a vote on the whole guess",
    ),
    Wrong.patch(
        "endless", "The mean run of right guesses is 1 / (1 - alpha).", TOKENS,
        "1 / (1 - share) if share < 1 else count + 1",
        "the mean of the geometric distribution, of the textbooks, which knows no last draft",
    ),
    Wrong.patch(
        "wrong-one-counted", "The first wrong draft is kept too, and the model's own token comes after it.",
        TOKENS, "sum(share**n for n in range(count + 1)) + (1 - share**count)",
        "an author's own slip: the token in place of the wrong draft, counted twice",
    ),
    Wrong.patch(
        "one-length-for-all", "All rows are verified as long as the longest one.", TOKENS,
        "sum(share**n for n in range(max(drafts) + 1))",
        "padding of drafts taken for drafts: what the short rows have in their empty columns is no guess",
    ),
    Wrong.patch(
        "one-alpha-for-all", "What counts is the mean alpha.", TOKENS,
        "sum((sum(alpha) / len(alpha)) ** n for n in range(count + 1))",
        "an acceptance rate as servers print it, one number for all rows; powers of a mean are not the mean of powers",
    ),
    Wrong.patch(
        "slowest-row", "A step gives all rows as many tokens as the row that gets the fewest.", MEAN, "min(tokens)",
        "batched generation that cuts all rows to the shortest accepted run, so that the cache stays a rectangle",
    ),
    Wrong.patch(
        "best-row", "A step is as good as its best row.", MEAN, "max(tokens)",
        "a figure from one row, printed for a batch",
    ),
    Wrong.patch(
        "all-rows-added", "Tokens of all rows count.", MEAN, "sum(tokens)",
        "an author's own slip: plain steps give every row a token as well",
    ),
    Wrong.patch(
        "time-is-free", "Verification costs nothing, since the weights are read anyway.", " * plain / verify", "",
        "vllm-project/vllm#2607, a comment: 3.06 requests a second with drafts, 3.75 without",
    ),
    Wrong.patch(
        "upside-down", "The speed is what verifying takes over what a plain step takes.", "plain / verify",
        "verify / plain", "an author's own slip",
    ),
    Wrong.patch(
        "drafts-cost-steps", "Each draft costs a plain step.", "* plain / verify",
        "* plain / (verify + sum(drafts) * plain)",
        "drafts of a model as large as the one that verifies: what drafting costs is not asked here",
    ),
)  # fmt: skip


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


def from_behind(alpha: list[float], drafts: list[int], plain: float, verify: float) -> Answer:
    """Horner's scheme: the last draft first."""
    tokens = []
    for share, count in zip(alpha, drafts, strict=True):
        value = 1.0
        while count:
            value, count = 1 + share * value, count - 1  # noqa: PLW2901
        tokens.append(value)
    return tokens, plain * sum(tokens) / (len(tokens) * verify)


def by_products(alpha: list[float], drafts: list[int], plain: float, verify: float) -> Answer:
    """Running products of alpha; and the mean of what each row gains."""
    tokens = [sum(accumulate(repeat(share, count), mul, initial=1.0)) for share, count in zip(alpha, drafts)]  # noqa: B905
    gains = [mine / verify / (1 / plain) for mine in tokens]
    return [float(mine) for mine in tokens], sum(gains) / len(gains)


def by_outcomes(alpha: list[float], drafts: list[int], plain: float, verify: float) -> Answer:
    """Each number of kept drafts with its probability."""

    def mean(share: float, count: int) -> float:
        chances = [share**kept * (1 - share) for kept in range(count)] + [share**count]
        return sum((kept + 1) * chance for kept, chance in enumerate(chances))

    tokens = list(map(mean, alpha, drafts))
    return tokens, (sum(tokens) / verify) / (len(drafts) / plain)


RIGHT = (Right(by_formula), Right(from_behind), Right(by_products), Right(by_outcomes))
EQUIVALENT = {
    "tokens = [sum((share ** n for n in range(count + 1))) for share, count in zip(alpha, drafts, strict=False)]":
        "each row has an alpha and a number of drafts",
}  # fmt: skip


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


EDITIONS = (
    Edition(
        "by-row", "rows and seconds are dicts, drafts are told by how often they are wrong, and the answer is a dict",
        gained,
        args=lambda alpha, drafts, plain, verify: (
            [{"wrong": 1 - share, "drafts": count} for share, count in zip(alpha, drafts, strict=True)],
            {"plain": plain, "verify": verify},
        ),
        back=lambda rows, seconds: (
            [1 - row["wrong"] for row in rows], [int(row["drafts"]) for row in rows], seconds["plain"],
            seconds["verify"],
        ),
        result=lambda result, *plain: {"tokens": result[0], "speed": result[1]}, axes=("item",),
    ),
)  # fmt: skip
