"""Exercise 3.7: the parts of a split context, joined."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call
from nanoinfer.cache.paged import choose_splits
from nanoinfer.kernels.paged_attention_torch import gather_pages


def join(maxima: Tensor, totals: Tensor, accs: Tensor, tokens: Tensor) -> Tensor:
    """Attention's result (N, D) in float32, from what S programs found in their parts of each of N contexts.

    maxima (N, S), float32 or float64: the highest score of each part. totals (N, S): the sum of exp(score - the part's
    maximum). accs (N, S, D): the values, each times its exp(score - the part's maximum), summed. tokens (N, S) int64:
    how many tokens the part had. Unlike in the engine, nothing was stored for a part without tokens: its entries may be
    anything, NaN too. All others are finite. A context without tokens gives 0. Scores may be of any size: added to one
    of 3e7, or in float64 to one of 1e17, the logarithm of a sum vanishes.
    """
    empty = tokens == 0
    top = maxima.masked_fill(empty, -torch.inf).amax(1, keepdim=True)  # (N, 1)
    share = (maxima - top).exp().masked_fill(empty, 0.0)  # (N, S) what a part's sums count, relative to the highest
    total = (totals.masked_fill(empty, 0.0) * share).sum(1, keepdim=True)
    acc = (accs.masked_fill(empty[:, :, None], 0.0) * share[:, :, None]).sum(1)  # (N, D)
    return (acc / total.clamp(min=1e-30)).float()


def swap(mine: Function) -> Places:
    """The parts are computed in PyTorch, as many as the engine would choose, and joined by it."""

    def attend(
        q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, lengths: Tensor, done: Tensor, splits: int = 1
    ) -> Tensor:
        B, H, D = q.shape
        splits = max(2, choose_splits(B, H, tables.shape[1] * k_pool.shape[2]))
        return mine(*parts(q, k_pool, v_pool, tables, lengths, splits)).view(B, H, D).to(q.dtype)

    places = {"nanoinfer.kernels.paged_attention_torch:attend_pages": attend}
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        from nanoinfer.kernels import paged_attention

        # Where a learner's own kernel stands already it does the work, and joins nothing.
        if paged_attention.attend_pages.__module__ == paged_attention.__name__:
            places["nanoinfer.kernels.paged_attention:attend_pages"] = attend
    return places


def parts(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, lengths: Tensor, splits: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the programs of a split context hand on: arguments of `join`, for N = B * H contexts."""
    B, H, D = q.shape
    keys, values = gather_pages(k_pool, tables).float(), gather_pages(v_pool, tables).float()  # (B, H, S, D)
    slot = torch.arange(keys.shape[2], device=q.device)
    each = (-(-lengths // splits)).clamp(min=1)  # (B,) tokens of a part
    own = (slot // each[:, None])[:, None] == torch.arange(splits, device=q.device)[:, None]  # (B, splits, S)
    own &= (slot < lengths[:, None])[:, None]
    scores = torch.einsum("bhd,bhsd->bhs", q.float(), keys)[:, :, None] * D**-0.5  # (B, H, 1, S)
    scores = scores.masked_fill(~own[:, None], -torch.inf)  # (B, H, splits, S)
    maxima = scores.amax(-1)
    weights = (scores - maxima[..., None]).exp().masked_fill(~own[:, None], 0.0)
    accs = torch.einsum(
        "bhps,bhsd->bhpd", weights, values.masked_fill((slot >= lengths[:, None])[:, None, :, None], 0.0)
    )
    tokens = own.sum(-1)[:, None].expand(B, H, splits)
    return tuple(x.flatten(0, 1) for x in (maxima, weights.sum(-1), accs, tokens))  # type: ignore[return-value]


def _example() -> Call:
    accs = torch.tensor([[[2.0, 0.0], [4.0, 8.0]]])
    return call(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]]), accs, torch.tensor([[1, 3]]))


EXERCISE = Spec(
    reference=join,
    lines=6,
    example=_example,
    section="The join",
    axes=("context", "channel"),
    typed=True,
    refuse=("nanoinfer.kernels.paged_attention_torch:attend_pages",),
    swap=swap,
    displaced={"3.6": "your 3.6 does not split, and 3.7 runs where 3.6 is the reference's"},
)


def _parts(
    case: Case,
    tokens: list[list[int]],
    spread: float,
    shift: float = 0.0,
    never_written: float = torch.nan,
    channels: int = 0,
) -> Call:
    """Parts as programs leave them: of random scores whose level differs from part to part."""
    N, S, D = len(tokens), len(tokens[0]), channels or case.size("channels", 1, 3)
    level = case.floats("level", N, S) * spread + shift
    maxima, totals, accs = (torch.full(shape, never_written) for shape in ((N, S), (N, S), (N, S, D)))
    for n, row in enumerate(tokens):
        for s, count in enumerate(row):
            if count:
                scores = case.floats(f"scores {n} {s}", count) + level[n, s]
                weights = (scores - scores.max()).exp()
                maxima[n, s], totals[n, s] = scores.max(), weights.sum()
                accs[n, s] = weights @ (case.floats(f"values {n} {s}", count, D) + s)
    return call(maxima, totals, accs, torch.tensor(tokens))


def full_parts(case: Case) -> Call:
    """Parts count by their maxima and their sums, not by how many they are or how long."""
    rows, splits = case.size("contexts", 1, 3), case.size("parts", 2, 4)
    return _parts(case, case.ints("tokens", 1, 6, rows, splits).tolist(), 1.5)


def empty_parts(case: Case) -> Call:
    """Parts without tokens, and contexts without any, bring nothing in, and what lies in their memory stays there."""
    tokens = case.ints("tokens", 1, 3, 3, case.size("parts", 2, 4))
    tokens[0, 1:], tokens[1] = 0, 0
    return _parts(case, tokens[: case.size("contexts", 1, 3)].tolist(), 0.0)


def far_apart(case: Case) -> Call:
    """Scores of hundreds, of either sign, neither overflow nor vanish, beside a context whose scores are others."""
    shift = case.turn((-300.0, 300.0))
    asked = _parts(case, [[1, 1]] * case.size("contexts", 1, 2), 0.0, shift)
    asked.args[0][1:] -= 2 * shift
    return asked


def any_parts(case: Case) -> Call:
    """Empty parts stand anywhere and hold anything, beside scores of -200, too; there is one part, many, no token."""
    tokens = [[0, 2, 0, 1, 0], [1, 0, 0, 0, 3], [0, 0, 0, 0, 2], [0, 0, 0, 0, 0]]
    kinds = (
        "NaN",
        "infinite",
        "lowest",
        "finite",
        "one part",
        "many",
        "low",
        "below all",
        "beside",
        "contexts",
        "deep",
        "double",
    )
    kind, dirt = case.turn(kinds), {"infinite": torch.inf}
    dirt |= {"lowest": -torch.inf, "finite": case.choice("finite", (1e30, 50.0))}
    if kind in ("below all", "beside"):  # maxima that hide what is added to them
        levels = (-1e38, 1e38) if kind == "below all" else (3e7, -1e17)  # float32 hides it at 3e7, float64 at 1e17
        values = case.ints("values", -4, 4, 2, 3, 2).float()
        totals = torch.tensor([[1.0, 3.0, 2.0], [2.0, 1.0, 5.0]])
        totals[1], values[1] = totals[1] * 2**26, values[1] * 2**26  # of more tokens than float32 counts
        maxima = torch.tensor(levels)[case.permutation("which", 2)].repeat(3, 1).T.clone()
        counts = torch.tensor([[2**32, 3, 0], [0, 2**40, 2**30]])
        maxima[counts == 0] = torch.nan
        return call(maxima, totals, values, counts)
    if kind == "double":  # which float32 does not tell apart
        maxima = torch.tensor([[1e10, 1e10 + 2, 0.0], [-1e10 - 2, -1e10, -1e10 - 6]], dtype=torch.float64)
        accs = case.ints("values", -4, 4, 2, 3, 2).float() + torch.tensor([9.0, 0.0, 9.0])[:, None]
        return call(maxima, torch.tensor([[1.0, 3.0, 2.0]] * 2), accs, torch.tensor([[1, 3, 0], [1, 3, 2]]))
    if kind == "deep":  # what hardly weighs is large; so is what comes out
        accs = torch.tensor([[[1.0, -2.0], [1e38, 3e38]], [[1e38, -1e38], [2e38, -1e38]]])
        accs *= case.choice("sign", (1, -1))
        return call(torch.tensor([[0.0, -87.25], [0.0, 0.0]]), torch.ones(2, 2), accs, torch.ones(2, 2).long())
    tokens = {"one part": [[3], [0], [1]], "many": [[1, 0, 2] * 44] * 2, "contexts": [[1, 2], [0, 1]] * 75}.get(
        kind, tokens
    )
    order = case.permutation("order", len(tokens)).tolist()
    shift = -200.0 if kind == "low" else 0.0
    channels = 130 if kind == "many" else 0
    return _parts(case, [tokens[row] for row in order], 1.5, shift, dirt.get(kind, torch.nan), channels)


SMALL = ([[0]], [[2]], [[0, 0]], [[0, 1]], [[3, 0]], [[1], [0]], [[0], [0]], [[0, 0], [0, 0]], [[0, 0, 0, 1]])


def any_mixture(case: Case) -> Call:
    """The smallest numbers of contexts, parts and channels, then others, with empty parts that hold anything."""
    tokens = case.turn((*SMALL, *[None] * 9))
    if tokens is None:
        tokens = case.ints("tokens", -2, 4, case.size("contexts", 1, 6), case.size("parts", 1, 6)).clamp(min=0).tolist()
    dirt = case.choice("dirt", (torch.nan, torch.inf, -torch.inf, 3e38, 0.0))
    return _parts(case, tokens, case.choice("spread", (0.0, 1.0, 30.0)), case.choice("shift", (0.0, -60.0)), dirt)


def tiny_values(case: Case) -> Call:
    """Values may be small: what they are small beside is not there."""
    maxima, totals, accs, tokens = _parts(case, [[2, 0, 1], [1, 3, 2]], 1.0).args
    return call(maxima, totals, accs * 1e-30, tokens)


CHECKS = (
    Check(full_parts, 4), Check(empty_parts, 3), Check(far_apart, 4), Check(any_parts, 12, wide=True),
    Check(any_mixture, 2 * len(SMALL), wide=True), Check(tiny_values, 2, wide=True, tolerance=1e-35),
)  # fmt: skip
