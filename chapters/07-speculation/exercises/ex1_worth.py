"""Exercise 7.1: how many tokens a step with drafts gives, and what that is worth."""

from __future__ import annotations

from nanocourse.exercises import Call, Case, Check, Spec, call


def worth(alpha: list[float], drafts: list[int], plain: float, verify: float) -> tuple[list[float], float]:
    """The tokens that a step gives each row on average, and how many times as fast all rows together go.

    alpha: for each row, from 0.0 to 1.0, both included, the probability that a draft is right where all drafts before
    it are right; at least one row. drafts: how many drafts each row brings to a step; 0 for none. A row keeps its
    drafts up to the first wrong one, without it, and gets one token more, which the model has chosen itself after
    those that are kept. plain: seconds of a step without drafts, which gives each row one token. verify: seconds of
    the step that verifies these drafts. Both are above 0.
    The second result is tokens a second of all rows together with drafts, over the same without them.
    """
    tokens = [sum(share**n for n in range(count + 1)) for share, count in zip(alpha, drafts, strict=True)]
    return tokens, sum(tokens) / len(tokens) * plain / verify


EXERCISE = Spec(
    reference=worth,
    lines=4,
    example=lambda: call([0.5, 0.9], [2, 0], 0.010, 0.011),
    section="What a draft is worth",
    axes=(("tokens", "row"), ("speed",)),
    tolerance=1e-6,
)  # fmt: skip


def _shares(case: Case, rows: int) -> list[float]:
    return [number / 100 for number in case.ints("alpha", 10, 95, rows).tolist()]


def one_row(case: Case) -> Call:
    """A row keeps drafts up to the first wrong one, and has one token more than it keeps."""
    return call(_shares(case, 1), [case.size("drafts", 2, 6)], 1.0, 1.0)


def ragged(case: Case) -> Call:
    """Each row has an alpha of its own, and drafts of its own number."""
    rows = case.size("rows", 2, 5)
    return call(_shares(case, rows), case.permutation("drafts", rows).clamp(max=1).tolist(), 1.0, 1.0)


def by_the_clock(case: Case) -> Call:
    """What counts is tokens a second: a step that verifies may take longer than a plain one, and is then worth less."""
    plain, more = case.size("plain", 1, 9) / 1000, case.size("more", 1, 9) / 2000
    return call([1.0], [case.size("drafts", 0, 1)], plain, plain + more)


def any_rows(case: Case) -> Call:
    """One row without drafts, many rows, very many drafts, rows that are equal, nobody with any draft."""
    kind = case.turn(("many", "one", "long", "equal", "none", "some", "nearly"))
    if kind == "one":
        return call([_shares(case, 1)[0]], [0], 0.5, 0.25)
    if kind == "long":
        return call([1.0, 0.99, 0.5], [70_000, 300, 5_000], 1.0, 3.5)
    if kind == "equal":
        return call([_shares(case, 1)[0]] * 4, [case.size("drafts", 1, 5)] * 4, 1.0, 1.25)
    if kind == "none":
        return call([*_shares(case, 3), 0.0, 1.0], [0] * 5, 1.0, 1.5)
    if kind == "nearly":
        return call([0.999, 0.001, 0.0, 1.0], case.ints("drafts", 1, 9, 4).tolist(), 0.25, 0.75)
    rows = case.most("rows", 1, 90 if kind == "many" else 6)
    drafts = case.ints("drafts", 0, 8, rows).tolist()
    drafts[0] = drafts[-1] = 0
    return call(_shares(case, rows), drafts, 0.5, case.choice("verify", (0.25, 0.75, 2.0)))


CHECKS = (Check(any_rows, 7, wide=True), Check(one_row, 3), Check(ragged, 3), Check(by_the_clock, 3))
