"""Exercise 8.4: the next token, where each rank has the scores of some ids alone."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import IMPORTS, Call, Case, Check, Function, Spec, beside, call
from nanoinfer.engine.sampling import gumbel

RANKS = beside(__file__, "ranks.py")


def choose(rank: int, logits: Tensor, first: int, vocab: int, rows: dict[str, Tensor]) -> Generator[Any, Any, Tensor]:
    """A rank's program for a head that is cut by vocabulary: it returns the next tokens, (B,) int64, on every rank.

    rank: its number, from 0. logits: (B, width) float32: of ids `first` to first + width - 1 of each of B rows; at
    least one row and one id. Each rank has its own width, and a run of ids of its own; runs do not overlap, and stand
    in any order: rank 0 need not have the lowest ids. Ids from 0 to vocab - 1 exist, each on one rank. Ids from `vocab`
    on do not: their logits are anything at all, and they are never chosen; a rank may have no others. Of ids that exist
    logits are finite, or -inf where an id is forbidden; each row has a finite one.
    rows: "temperature", (B,) float32; "seed" and "step", (B,) int64; the same on all ranks.
    A row's token is the id that exists with the highest score, among equal ones the lowest id. Where the temperature is
    0 the score is the logit. Elsewhere it is the logit over the temperature, and on it the noise of the row's seed,
    its step and the id: gumbel(seed, step, V) gives it for tensors (B,) and ids 0 to V - 1, (B, V). All in float32.
    A rank is a generator. each = yield tensor is an all-gather: it takes a tensor from every rank, all of the same
    shape and dtype, and gives each of them the list of all, in the order of ranks. Of each row a rank may give away two
    numbers in all, in one tensor or two. What a rank is given stays as it is, also what is gathered.
    """
    ids = torch.arange(first, first + logits.shape[1])  # (width,)
    noise = gumbel(rows["seed"], rows["step"], first + logits.shape[1])[:, first:]
    warm = rows["temperature"] > 0
    scores = logits.clone()
    scores[warm] = logits[warm] / rows["temperature"][warm, None] + noise[warm]
    scores = scores.masked_fill(ids >= vocab, -torch.inf)
    best = scores.argmax(1)
    pairs = torch.stack([scores.amax(1).double(), ids[best].double()], 1)  # (B, 2), exact
    every = torch.stack((yield pairs))  # (size, B, 2)
    top = every[..., 0].amax(0)
    return every[..., 1].masked_fill(every[..., 0] < top, torch.inf).amin(0).long()


def played(answer: Function, logits: list[Tensor], firsts: list[int], vocab: int, rows: dict[str, Tensor]) -> Any:
    """Play one rank for each tensor of logits: what each of them returns."""
    count, given = len(rows["seed"]), [0] * len(logits)

    def gather(tensors: list[Any]) -> list[list[Tensor]]:
        for rank, one in enumerate(tensors):
            says = f"rank {rank} brings {_told(one)} to an all-gather"
            if not isinstance(one, Tensor):
                raise RANKS.LostError(f"{says}, and no tensor")
            if one.shape != tensors[0].shape or one.dtype != tensors[0].dtype:
                raise RANKS.LostError(f"{says}, and rank 0 {_told(tensors[0])}")
            given[rank] += one.numel()
            if given[rank] > 2 * count:
                raise RANKS.LostError(f"{says}: {given[rank]} numbers in all, for {count} rows")
        return [[one.clone() for one in tensors] for _ in tensors]

    try:
        ranks = RANKS.launch(answer, [(n, own, firsts[n], vocab, rows) for n, own in enumerate(logits)])
        RANKS.together(ranks, gather)
    except RANKS.LostError as error:
        return str(error)
    return [rank.returned for rank in ranks]


def _told(one: Any) -> str:
    return f"{one.dtype} of shape {tuple(one.shape)}" if isinstance(one, Tensor) else type(one).__name__


NAMES = ("temperature", "seed", "step")


def _example() -> Call:
    rows = {"temperature": torch.tensor([0.0, 0.0]), "seed": torch.tensor([1, 2]), "step": torch.tensor([0, 0])}
    own = [torch.tensor([[-4.0, -2.0], [-3.0, -7.0]]), torch.tensor([[-2.0, 0.0], [-1.5, 9.0]])]
    return call(own, [0, 2], 3, rows)


EXERCISE = Spec(
    reference=choose,
    lines=11,
    example=_example,
    section="The logits, split by vocabulary",
    axes=("rank", "row"),
    typed=True,
    imports=(*IMPORTS, "", "from nanoinfer.engine.sampling import gumbel"),
    refuse=("nanoinfer.engine.sampling:noisy",),
    scene=played,
)


def _cut(
    case: Case, logits: Tensor, widths: list[int], padding: int, mixed: bool = False
) -> tuple[list[Any], list[int]]:
    """Logits of all ids, and behind them padding, dealt out to ranks, in order or not."""
    firsts = [sum(widths[:at]) for at in range(len(widths))]
    order = case.permutation("order", len(widths)).tolist() if mixed else range(len(widths))
    garbage = torch.tensor([0.0, torch.inf, torch.nan, 1e30, 50.0])[case.ints("garbage", 0, 4, len(logits), padding)]
    all_ids = torch.cat([logits, garbage], 1)
    return [all_ids[:, firsts[at] : firsts[at] + widths[at]].clone() for at in order], [firsts[at] for at in order]


def _rows(case: Case, warm: list[float], names: tuple[str, ...] = NAMES) -> dict[str, Tensor]:
    own = {
        "temperature": torch.tensor(warm), "seed": case.ints("seed", 0, 2**40, len(warm)),
        "step": case.ints("step", 0, 9, len(warm)),
    }  # fmt: skip
    return {name: own[name] for name in names}


def ties(case: Case) -> Call:
    """The highest of all ranks wins, by its id in the whole vocabulary; among equal ones the lowest id."""
    ranks, width = case.turn((2, 3, 2, 4)), case.size("width", 2, 4)
    logits = -case.ints("logits", 1, 2, 2, ranks * width).float()
    parts, firsts = _cut(case, logits, [width] * ranks, 0, mixed=case.turn((False, True, True)))
    return call(parts, firsts, ranks * width, _rows(case, [0.0, 0.0]))


def below_padding(case: Case) -> Call:
    """All logits are far below 0, and ids that do not exist hold anything: they never win."""
    width, padding = case.size("width", 3, 5), case.turn((1, 2, 3, 2))
    low = case.turn((0.0, 34.0, 103.0, 20_000.0, 1e12))
    logits = -case.floats("logits", 2, 2 * width - padding).abs() - low
    parts, firsts = _cut(case, logits, [width] * 2, padding)
    return call(parts, firsts, 2 * width - padding, _rows(case, [0.0, 0.0]))


def its_own_noise(case: Case) -> Call:
    """A sampled row has the noise of its seed, its step and the ids, wherever the vocabulary is cut."""
    width, ranks, rows = case.size("width", 4, 9), case.size("ranks", 2, 3), case.size("rows", 1, 3)
    logits = case.floats("logits", rows, width * ranks, scale=0.3)
    parts, firsts = _cut(case, logits, [width] * ranks, 0)
    warm = [case.choice(f"warm {row}", (0.7, 1.0, 1.5)) for row in range(rows)]
    return call(parts, firsts, width * ranks, _rows(case, warm))


KINDS = (
    "one", "alone", "mixed", "no order", "uneven", "large ids", "many", "forbidden", "far", "low", "zeros", "equal",
    "names", "all padding", "late", "cold", "close", "lowest",
)  # fmt: skip


def any_head(case: Case) -> Call:
    """One id, one rank, many; greedy rows beside sampled ones; runs in no order; large ids, forbidden ones, padding."""
    kind = case.turn(KINDS)
    widths, padding, warm = [4, 5, 3], 2, [1.0, 0.0, 0.5, 2.0]
    if kind == "one":
        return call([torch.tensor([[-5.0]])], [0], 1, _rows(case, [1.0]))
    if kind == "alone":
        widths = [9]
    if kind == "large ids":
        logits = case.floats("logits", 3, 70_000) + 6.0 * (torch.arange(70_000) > 65_700)
        parts, firsts = _cut(case, logits, [33_000, 37_001], 1, mixed=True)
        return call(parts, firsts, 70_000, _rows(case, [0.0, 1.0, 1.0]))
    if kind == "many":
        widths, warm = [3] * 9, [float(at % 3) for at in range(70)]
    if kind in ("all padding", "lowest", "uneven"):
        widths, padding = ([4, 4, 4, 4], 7) if kind != "uneven" else ([1, 7, 2, 9], 3)
    total = sum(widths) - padding
    logits = case.floats("logits", len(warm), total)
    low = {"far": 300.0, "low": -(2.0**40), "late": -60.0, "no order": -80.0}.get(kind, 0.0)
    logits = logits + low
    if kind in ("zeros", "no order"):
        logits = logits.round() if kind == "no order" else logits * 0
    if kind == "lowest":  # as low as float32 has them, and some forbidden
        logits, warm = torch.finfo().min + logits.abs() * 1e34, [0.0, 0.0, 1.0, 2.0]
        logits[:, :2] = -torch.inf
    if kind == "cold":
        logits = logits * 0.001
    if kind == "close":
        logits = 1.0 + case.ints("close", 0, 40, *logits.shape) * 2.0**-22
    if kind == "forbidden":
        logits[:, : widths[0]] = -torch.inf
        logits[0, widths[0] + 1 :] = -torch.inf
    names = NAMES[::-1] if kind == "names" else NAMES
    rows = _rows(case, {"cold": [0.001] * 4, "close": [0.0] * 4}.get(kind, warm), names)
    if kind == "late":
        rows["step"] = rows["step"] + 2**33
    if kind == "equal":
        logits, rows = logits[:1].repeat(len(warm), 1), {name: own[:1].repeat(len(warm)) for name, own in rows.items()}
    parts, firsts = _cut(case, logits, widths, padding, mixed=kind not in ("mixed", "alone"))
    return call(parts, firsts, total, rows)


CHECKS = (Check(any_head, len(KINDS), wide=True), Check(ties, 6), Check(below_padding, 5), Check(its_own_noise, 4))
