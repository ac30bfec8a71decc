"""Exercise 7.2: which drafts are kept, and which token comes after them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call


def accept(scores: Tensor, noise: Tensor, drafts: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens that each row goes on by, (R, k + 1) int64, -1 after them; and how many these are, (R,) int64.

    drafts: (R, k) int64, what somebody has guessed for the next k places of each row's text; -1 stands for no draft, on
    the right of rows that have fewer; k may be 0, and R is at least 1. scores: (R, k + 1, V) float32, what the model
    says of each place, where it has read the row's text and all of its drafts ahead of that place. noise: (R, k + 1, V)
    float32, each place's own noise: that which plain decoding would use in this place of this row; it is 0 where a row
    is greedy. The token of a place is the id whose score plus noise, added in float32, is highest; among equals the
    lowest id.
    A draft is kept if it is the token of its place, and all drafts before it are kept. A row goes on by the drafts that
    are kept and by one token more: that of the place after them. A row with n drafts has n + 1 places; what stands
    after these in scores and noise may be anything, NaN too.
    """
    tokens = (scores + noise).argmax(-1)  # (R, k + 1)
    counts = (tokens[:, :-1] == drafts).long().cumprod(1).sum(1) + 1
    places = torch.arange(tokens.shape[1], device=tokens.device)
    return torch.where(places < counts[:, None], tokens, -1), counts


def swap(mine: Function) -> Places:
    """A step with drafts asks it, of tokens that are chosen already: each has the one score that is not 0."""

    def accept(drafts: Tensor, chosen: Tensor) -> Tensor:
        scores = functional.one_hot(chosen).float()  # (R, k + 1, V)
        _, counts = mine(scores, torch.zeros_like(scores), drafts)
        return counts - 1

    return {"nanoinfer.speculate.verify:accept": accept}


def _example() -> Call:
    scores = torch.tensor([[[0.0, 3.0], [2.0, 0.0], [0.0, 4.0]], [[5.0, 0.0]] * 3])
    noise = torch.tensor([[[0.0, 0.0]] * 3, [[0.0, 9.0], [0.0, 1.0], [0.0, 0.0]]])
    return call(scores, noise, torch.tensor([[1, 1], [1, -1]]))


EXERCISE = Spec(
    reference=accept,
    lines=5,
    example=_example,
    swap=swap,
    section="Guess, then check all guesses at once",
    axes=(("tokens", "row", "place"), ("counts", "row")),
    typed=True,
    imports=("import torch", "from torch import Tensor"),
    refuse=("nanoinfer.speculate.verify:accept", "nanoinfer.speculate.verify:verify_step"),
)


def _made(
    case: Case, drafts: list[int], right: list[int], vocab: int, k: int = 0, far: float | Tensor = 0.0
) -> list[Tensor]:
    """Rows with so many drafts each, of which so many first ones are right; the others are so by chance only."""
    rows, places = len(drafts), max(k, *drafts) + 1
    scores = case.floats("scores", rows, places, vocab, scale=3.0) + far
    noise = case.floats("noise", rows, places, vocab)
    tokens = (scores + noise).argmax(-1)
    guesses = tokens[:, :-1].clone()
    for row, (count, first) in enumerate(zip(drafts, right, strict=True)):
        if first < count:  # a wrong one, and after it about half of them wrong
            shift = case.ints(f"wrong {row}", 0, 1, count - first)
            shift[0] = 1
            guesses[row, first:count] = (guesses[row, first:count] + shift) % vocab
        guesses[row, count:] = -1
    return [scores, noise, guesses]


def _counts(case: Case, rows: int, low: int, high: int) -> list[int]:
    return case.ints("counts", low, high, rows).tolist()


def up_to_the_first_wrong(case: Case) -> Call:
    """Drafts are kept up to the first wrong one, whatever follows it; the model's own token takes its place."""
    rows, k = case.size("rows", 1, 3), case.size("drafts", 2, 5)
    right = [case.choice(f"right {row}", range(k)) for row in range(rows)]
    return call(*_made(case, [k] * rows, right, case.size("vocabulary", 4, 12)))


def fewer_drafts(case: Case) -> Call:
    """A row with fewer drafts than another ends at its own last place; what stands after it is not looked at."""
    k = case.size("drafts", 2, 5)
    counts = [case.turn((0, 1, k - 1)), k, 0]
    scores, noise, drafts = _made(case, counts, counts, case.size("vocabulary", 3, 9))
    scores[0, counts[0], 0] = 99.0  # its own last token is id 0
    for row, count in enumerate(counts):
        scores[row, count + 1 :] = case.turn((0.0, torch.nan, 7.0))
        noise[row, count + 1 :] = 0.0
    return call(scores, noise, drafts)


def equal_sums(case: Case) -> Call:
    """Among equal sums the lowest id is chosen, and a draft of another one is wrong."""
    vocab, k = case.size("vocabulary", 3, 6), case.size("drafts", 1, 3)
    scores, noise = torch.zeros(1, k + 1, vocab), torch.zeros(1, k + 1, vocab)
    scores[:, :, 1:] = case.choice("level", (1.0, -(2.0**40), 300.0))
    scores[:, :, 0] = scores[:, :, 1] - 1.0 - scores[:, :, 1].abs()
    return call(scores, noise, torch.tensor([[case.turn((1, vocab - 1))] * k]))


KINDS = (
    "one", "none at all", "nan", "infinite", "huge", "far", "low", "zero", "equal rows", "large ids", "long", "many",
)  # fmt: skip


def any_rows(case: Case) -> Call:
    """One row, one id, no draft, many rows, long runs; scores far from 0, and anything where no place is."""
    kind = case.turn(KINDS)
    if kind == "one":
        return call(*_made(case, [1], [case.choice("right", (0, 1))], 2))
    if kind == "none at all":
        return call(*_made(case, [0] * 3, [0] * 3, 5, case.choice("width", (0, 2))))
    if kind == "zero":
        zeros = torch.zeros(2, 4, 5)
        return call(zeros, zeros.clone(), torch.tensor([[0, 0, -1], [0, 4, 0]]))
    if kind == "large ids":
        return call(*_made(case, [2, 1], [2, 1], 70_000, far=20.0 * (torch.arange(70_000) > 66_000)))
    rows, k = case.most("rows", 2, {"many": 90, "long": 2}.get(kind, 5)), case.most("drafts", 1, 6)
    counts = _counts(case, rows, 60, 90) if kind == "long" else _counts(case, rows, 0, k)
    counts[0], counts[rows // 2], counts[-1] = (counts[0], 70, counts[-1]) if kind == "long" else (0, k, 0)
    right = [case.choice(f"right {row}", range(count + 1)) for row, count in enumerate(counts)]
    scores, noise, drafts = _made(
        case, counts, right, case.most("ids", 3, 7), far={"far": 200.0, "low": -(2.0**33)}.get(kind, 0.0)
    )
    if kind == "equal rows":
        scores, noise, drafts = (
            part[rows // 2 :][:1].repeat(4, *[1] * (part.dim() - 1)) for part in (scores, noise, drafts)
        )
    fill = {"nan": torch.nan, "infinite": torch.inf, "huge": 3e38}.get(kind)
    for row, count in enumerate(counts) if fill else ():
        scores[row, count + 1 :, case.turn((0, 1, 2)) :] = fill
        noise[row, count + 1 :] = case.choice(f"noise {row}", (fill, -torch.inf, 0.0)) if row else fill
    return call(scores, noise, drafts)


CHECKS = (
    Check(any_rows, len(KINDS), wide=True), Check(up_to_the_first_wrong, 4), Check(fewer_drafts, 6),
    Check(equal_sums, 4),
)  # fmt: skip
