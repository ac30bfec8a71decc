"""Exercise 1.4: which ids may be chosen. The engine's own `sampling.threshold` is the reference."""

from __future__ import annotations

import torch

from nanocourse.exercises import Call, Case, Check, Spec, call


def _example() -> Call:
    probs = torch.tensor([[0.15, 0.5, 0.05, 0.3], [0.15, 0.5, 0.05, 0.3]])
    return call(probs.log(), torch.tensor([0, 3], dtype=torch.int32), torch.tensor([0.6, 1.0]))


EXERCISE = Spec(
    reference="nanoinfer.engine.sampling:threshold",
    tolerance=1e-9,  # it is one of the scores, to the last digit
    lines=10,
    example=_example,
    section="Which tokens may be chosen",
    axes=("row", "column"),
)


ROWS = 600  # a right answer may call itself for each
TOP_P = (0.9, 0.7, 0.5, 0.3, 0.02, 1e-12)  # the last keeps a single id


def _distinct(case: Case, rows: int, vocab: int) -> torch.Tensor:
    """Scores without ties, in a random order: (rows, vocab)."""
    order = torch.stack([case.permutation(f"order {row}", vocab) for row in range(rows)])
    return order.float() * 0.4 + case.ints("shift", -3, 3, rows, 1)


def top_k(case: Case) -> Call:
    """With top_p 1, the threshold is the k-th highest score of a row; top_k 0, or beyond the vocabulary, keeps all."""
    rows, vocab = case.size("rows", 1, 4), case.size("vocabulary", 4, 8)
    ks = torch.tensor(case.sample("top_k", (0, 1, 2, vocab - 1, vocab + 7), rows), dtype=torch.int32)
    return call(_distinct(case, rows, vocab), ks, torch.ones(rows))


def top_p(case: Case) -> Call:
    """With top_k 0, the fewest most probable ids that reach the row's top_p are kept, with the one that crosses it."""
    rows = case.size("rows", 1, 4)
    scores = _distinct(case, rows, case.size("vocabulary", 3, 9))
    return call(scores, torch.zeros(rows, dtype=torch.int32), torch.tensor(case.sample("top_p", TOP_P, rows)))


def top_k_then_top_p(case: Case) -> Call:
    """top_p counts the probabilities that are left after top_k, which sum to 1 again."""
    vocab = case.size("vocabulary", 5, 12)
    scores = _distinct(case, 1, vocab) * case.choice("spread", (0.3, 0.8))
    k = 3 if vocab < 8 else case.choice("top_k", (5, 6))
    return call(scores, torch.tensor([k], dtype=torch.int32), torch.tensor([case.choice("top_p", (0.5, 0.6, 0.7))]))


def ties(case: Case) -> Call:
    """All ids that tie with the k-th are kept, and their probabilities count for top_p."""
    tied = case.size("tied", 2, 6)
    above = case.floats("above", 2).abs() * 0.1 + 0.1
    scores = torch.cat([torch.zeros(tied), above.cumsum(0), -above - 0.3])
    k = case.choice("top_k", (3, 4))
    return call(
        scores[case.permutation("order", tied + 4)][None] + case.ints("shift", -3, 3, 1),
        torch.tensor([k], dtype=torch.int32),
        torch.tensor([case.choice("top_p", (0.38, 0.5, 0.7))]),
    )


def top_p_one(case: Case) -> Call:
    """top_p 1 drops nothing, though the running total of rounded probabilities reaches 1.0 early."""
    scores = torch.tensor([90.0, 5.0, -80.0, -90.0]) + case.ints("shift", -9, 9, 4)
    k = torch.tensor([case.choice("top_k", (3, 4))], dtype=torch.int32)
    return call(scores[case.permutation("order", 4)][None], k, torch.ones(1))


def _far(case: Case) -> Call:
    """No stand-in for minus infinity is below these scores, and whole numbers tell them apart."""
    far = torch.tensor([[-(2.0**40)], [2.0**40], [-(2.0**40)]])
    return call(case.permutation("order", 5) * 2.0**20 + far, torch.tensor([2] * 3).int(), torch.tensor([0.5, 0.5, 1]))


def _many_rows(case: Case) -> Call:
    ks, ps = case.ints("ks", 0, 4, ROWS), torch.tensor([0.3, 1.0, 0.5]).repeat(ROWS)[:ROWS]
    ks[:300:100] = torch.tensor([2**31 - 1, 65_537, 2**24 + 1])  # beyond any vocabulary
    return call(_distinct(case, ROWS, 5), ks.int(), ps.roll(1))


def _all_but_one(case: Case) -> Call:
    """0.731, then 0.9996, then 0.999995 of the probability are ahead; or 0.731 and 1 - 2e-7."""
    scores = torch.tensor([0.0, -1.0, -7.5, -12.0])[case.permutation("order", 4)]
    scores = torch.stack([scores, scores, torch.where(scores < -2, scores * 2, scores), scores * 28])
    return call(scores, torch.tensor([0, 0, 3, 0]).int(), torch.tensor([0.9992, 0.9999, 0.999999, 1 - 2**-24]))


def _between(case: Case) -> Call:
    """The end of the nucleus is half way from one of 3,000 ids to the next, which 16 bits do not tell apart."""
    scores = case.permutation("order", 3000)[None] * 0.0002
    ahead = scores[0].double().softmax(0).sort(descending=True).values.cumsum(0)
    return call(scores, torch.tensor([0]).int(), ahead[1500:1502].mean()[None].float())


def _all_but_ties(case: Case) -> Call:
    """Scores closely behind the k-th are no ties of it, and have no part in what top_p counts."""
    scores = torch.tensor([1.0, 0.0, *[-1e-6] * 6])[case.permutation("order", 8)]
    return call(scores[None], torch.tensor([2]).int(), torch.tensor([0.6]))


def _one_cut(case: Case) -> Call:
    """The running total of the first row reaches 1.0 before its last id."""
    plain, steep = torch.tensor([0.0, *[-18.0] * 9, -25.0]), torch.tensor([0.0, *[-50.0] * 9, -60.0])
    scores = torch.stack([steep, torch.arange(11.0) * 0.4, plain])
    return call(scores, torch.tensor([0, 0, 11]).int(), torch.tensor([1.0, 0.5, 1.0]))


def _thousands(case: Case) -> Call:
    """Ids in three levels, with 0.69 and 0.94 of the probability ahead of the second and the third."""
    level = torch.tensor([0.0, -1.0, -2.0]).repeat_interleave(torch.tensor([22_500, 22_500, 15_000]))
    order = case.permutation("order", 60_000)
    scores = torch.stack([level[order], order * 0.001, order * 0.001])
    return call(scores, torch.tensor([0, 50_000, 50_300]).int(), torch.tensor([0.8, 1.0, 1.0]))


def _ends_of_floats(case: Case) -> Call:
    """Scores as low and high as float32 has them."""
    low, wide = [-3e38, -2e38, -1e30, -1e38], [3e38, 1e-30, -3e38, 2e38]
    scores = torch.tensor([low, wide, low])[:, case.permutation("order", 4)]
    return call(scores, torch.tensor([3, 4, 3]).int(), torch.tensor([1.0, 1e-30, 0.9]))


def _high_and_close(case: Case) -> Call:
    """Scores so high, or low, that the logarithm of a sum vanishes beside them; the next one is 2 below."""
    scores = torch.tensor([[3e7], [-3e7]]) - 2 * torch.stack([case.permutation(f"row {row}", 4) for row in range(2)])
    return call(scores, torch.tensor([0, 3]).int(), torch.tensor([0.9, 0.9]))


def _both(case: Case) -> Call:
    """Of 3,000 ids 1,500 are kept, then the more probable of these; one top_p, and one top_k first and last."""
    scores = torch.stack([case.permutation(f"row {row}", 3000) * 0.002 for row in range(3)])
    return call(scores, torch.tensor([1500, 900, 1500]).int(), torch.tensor([0.8, 0.8, 0.8]))


def _stays_dropped(case: Case) -> Call:
    """The sum of 900 and more nearly equal probabilities is in some rows rounded to below a top_p of 1 - 2^-24."""
    scores = torch.stack([case.permutation(f"row {row}", 3000) * 0.0002 for row in range(64)])
    return call(scores, (torch.arange(64) * 31 + 900).int(), torch.full((64,), 1 - 2**-24))


def _sorted(case: Case) -> Call:
    """In order, from low to high, from high to low, and with ties; top_p as low as float32 has it."""
    rows = [torch.arange(6.0), torch.arange(6.0).flip(0), torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0, 3.0])]
    scores = torch.stack([*rows, *rows]) * 0.7 + case.ints("shift", -3, 3, 1)
    return call(scores, torch.tensor([0, 3, 3, 2, 0, 4]).int(), torch.tensor([0.7, 0.7, 1.0, 1.0, 1e-44, 1e-30]))


def _few(case: Case) -> Call:
    """One, two or three rows and ids."""
    rows, vocab = case.small("rows vocabulary")
    ks, ps = (
        case.sample(name, options, rows) for name, options in (("ks", (0, 1, 2, 3)), ("ps", (0.02, 0.3, 0.7, 0.9, 1.0)))
    )
    return call(_distinct(case, rows, vocab), torch.tensor(ks).int(), torch.tensor(ps))


OF_THEIR_OWN = {
    "one cut": _one_cut, "thousands": _thousands, "far": _far, "many rows": _many_rows, "all but one": _all_but_one,
    "between": _between, "all but ties": _all_but_ties, "ends of floats": _ends_of_floats, "both": _both, "few": _few,
    "sorted": _sorted, "high and close": _high_and_close, "stays dropped": _stays_dropped,
}  # fmt: skip


def any_batch(case: Case) -> Call:
    """A row's threshold is its own, in any batch: with and without filters, tied, far from other rows, 300 ids, one."""
    kind = case.turn(("one cut", "ties above", "many", "one id", "all tie", "low", "many, by top_k", "apart",
                      "thousands", "far", "many rows", "all but one", "between", "all but ties", "ends of floats",
                      "both", "sorted", "ties above", "high and close", "stays dropped", *["few"] * 9))  # fmt: skip
    if kind in OF_THEIR_OWN:
        return OF_THEIR_OWN[kind](case)
    shift = case.ints("shift", -3, 3, 1)
    if kind == "ties above":
        scores = torch.tensor([5.0, 5.0, 5.0, 4.0, 3.0])[case.permutation("order", 5)] + shift
        return call(torch.stack([scores] * 3), torch.tensor([2, 1, 3]).int(), torch.ones(3))
    if kind.startswith("many"):
        scores = case.permutation("order", 300)[None] * 0.002 + shift
        if kind == "many":
            return call(scores, torch.tensor([0]).int(), torch.tensor([0.9]))
        return call(scores.repeat(4, 1), torch.tensor([257, 299, 300, 301]).int(), torch.ones(4))
    scores, ks, ps = {
        "one id": (shift[:, None].float(), [case.choice("top_k", (0, 1, 5))], [0.5]),
        "all tie": (torch.zeros(4, 4) + shift, [0, 2, 2, 0], [0.3, 0.3, 1.0, 1.0]),
        "low": (_distinct(case, 3, 6) - torch.tensor([[200.0], [20_000.0], [200.0]]), [0, 2, 0], [0.5, 0.5, 1.0]),
        "apart": (_distinct(case, 3, 6) + torch.tensor([[100.0], [-100.0], [0.0]]), [0, 0, 3], [0.6, 0.6, 0.6]),
    }[kind]
    return call(scores, torch.tensor(ks).int(), torch.tensor(ps))


CHECKS = (
    Check(top_k, 3), Check(top_p, 4), Check(top_k_then_top_p, 3), Check(ties, 3), Check(top_p_one),
    Check(any_batch, 29, wide=True),
)  # fmt: skip
