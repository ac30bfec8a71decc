"""Exercise 8.1: which part of each parameter a rank holds."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Spec, call


def cut(name: str, whole: Tensor, heads: int, rank: int, size: int) -> Tensor:
    """A rank's part of one parameter of GPT-2, of the same dtype as the whole, which stays as it is.

    name: as in the published files: "wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias", and of layer n "h.n." and
    one of "ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", each with ".weight" and ".bias".
    whole: the parameter, floating point. The matrix of each map "c_..." has a row for each input and a column for each
    output, (in, out); its bias is (out,). heads: how many the whole model has. rank: from 0 to size - 1.
    What is cut is cut into `size` runs, in order, rank 0 having the first one. Where it does not divide the first ranks
    have one more each. The heads are cut so, and the inner columns of the MLP, which are at least as many as heads.
    "attn.c_attn" gives the queries of all heads, then all keys, and then all values; in each of these three the first
    numbers are the first head's. A rank's part gives queries, keys and values of its own heads alone, in this order.
    "attn.c_proj" takes the heads, one after the other. "mlp.c_fc" gives the inner columns of the MLP, and "mlp.c_proj"
    takes them. Ranks add up what their parts of the two "c_proj" give, so that of these two biases rank 0 has the
    whole, and every other rank zeros of the same shape. (Exercise 8.2 has these two whole on every rank.) All other
    parameters are whole on every rank.
    Where there are more ranks than heads: ValueError, whatever the name is.
    """
    if size > heads:
        raise ValueError(f"{size} ranks for {heads} heads")

    def run(count: int) -> slice:
        each, more = divmod(count, size)
        begin = rank * each + min(rank, more)
        return slice(begin, begin + each + (rank < more))

    kind = name.split(".", 2)[-1]
    if kind.startswith("attn.c_attn"):
        thirds = whole.unflatten(-1, (3, heads, -1))
        return thirds[..., run(heads), :].flatten(-3)
    if kind == "attn.c_proj.weight":
        return whole.unflatten(0, (heads, -1))[run(heads)].flatten(0, 1)
    if kind.startswith("mlp.c_fc"):
        return whole[..., run(whole.shape[-1])]
    if kind == "mlp.c_proj.weight":
        return whole[run(len(whole))]
    if kind.endswith("c_proj.bias") and rank > 0:
        return torch.zeros_like(whole)
    return whole


EXERCISE = Spec(
    reference=cut,
    lines=16,
    example=lambda: call("h.0.attn.c_attn.bias", torch.arange(15.0), 5, 1, 2),
    section="A head stays whole",
    axes=("row", "column"),
    typed=True,
    tolerance=1e-9,
    refuse=("nanoinfer.parallel.shard:Shard.pieces", "nanoinfer.parallel.shard:Shard.part"),
)

CUT = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


def _shape(kind: str, heads: int, head: int, inner: int) -> tuple[int, ...]:
    """Of a weight; of a bias the last of it."""
    width = heads * head
    shapes = {
        "attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width), "mlp.c_fc": (width, inner),
        "mlp.c_proj": (inner, width), "wte": (5, width), "wpe": (7, width),
    }  # fmt: skip
    return shapes.get(kind, (width,))


def _name(case: Case, kind: str, part: str) -> str:
    layer = case.choice("layer", (0, 1, 3, 10, 47))
    return f"{kind}.{part}" if kind in ("wte", "wpe", "ln_f") else f"h.{layer}.{kind}.{part}"


def _parameter(case: Case, kind: str, part: str, heads: int, head: int, inner: int) -> torch.Tensor:
    shape = _shape(kind, heads, head, inner)
    return case.floats("whole", *(shape if part == "weight" else shape[-1:]))


def even(case: Case) -> Call:
    """Each rank has its heads of all three parts of c_attn, its columns, and the rows of the matrix behind them."""
    kind = case.turn(CUT)
    size, head = case.size("ranks", 2, 3), case.size("head", 1, 3)
    heads, rank = size * case.size("heads a rank", 1, 2), case.choice("rank", (1, size - 1))
    whole = _parameter(case, kind, "weight", heads, head, 4 * heads * head)
    return call(_name(case, kind, "weight"), whole, heads, rank, size)


def uneven(case: Case) -> Call:
    """Heads and columns that do not divide: the first ranks have one more, and a head stays whole."""
    kind = case.turn(CUT)
    size, head = case.turn((2, 3, 4, 3, 4, 7, 2, 5)), case.size("head", 2, 3)
    heads = size + case.choice("more", range(1, size))
    inner = heads * head * case.choice("inner", (1, 3)) + case.choice("odd", (1, 2))
    whole = _parameter(case, kind, "weight", heads, head, inner)
    return call(_name(case, kind, "weight"), whole, heads, case.choice("rank", range(size)), size)


def biases(case: Case) -> Call:
    """What is added to a rank's own is cut as it is; what is added to the sum of all ranks is there once."""
    kind, rank = case.turn(("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")), case.choice("rank", (0, 1, 1))
    rank = {"attn.c_proj": 1, "mlp.c_proj": case.turn((1, 1, 1, 2, 1, 1, 1, 0))}.get(kind, rank)
    heads, head = case.size("heads", 3, 5), case.size("head", 1, 2)
    whole = _parameter(case, kind, "bias", heads, head, 2 * heads + 1)
    return call(_name(case, kind, "bias"), whole, heads, rank, 3)


def on_every_rank(case: Case) -> Call:
    """Embeddings and norms are whole on every rank."""
    kind, part = case.turn(
        (("wte", "weight"), ("wpe", "weight"), ("ln_1", "weight"), ("ln_2", "bias"), ("ln_f", "bias"), ("ln_1", "bias"))
    )
    heads = case.size("heads", 2, 4)
    return call(_name(case, kind, part), _parameter(case, kind, part, heads, 2, 8), heads, 1, 2)


def too_many_ranks(case: Case) -> Call:
    """More ranks than heads: ValueError, for every name, and on every rank."""
    kind, part = case.turn(
        (("attn.c_attn", "weight"), ("wte", "weight"), ("mlp.c_fc", "weight"), ("mlp.c_proj", "bias"))
    )
    heads = case.size("heads", 1, 4)
    size = heads + case.turn((1, 2, 1, 5))
    rank = case.choice("rank", (0, size - 1))
    return call(_name(case, kind, part), _parameter(case, kind, part, heads, 2, 16), heads, rank, size)


KINDS = (
    "alone", "wide", "one head", "each one", "narrow", "double", "nan", "zeros", "equal", "many", "inner least", "huge",
    "half", "narrow once", "double once", "again", "again",
)  # fmt: skip


def any_part(case: Case) -> Call:
    """One rank, one head, a head a rank, many; NaN and infinite numbers, all equal ones, wide tables, other dtypes."""
    kind = case.turn(KINDS)
    sort, part = case.choice("name", [(one, part) for one in CUT for part in ("weight", "bias")])
    heads, size, head, inner = 5, case.choice("ranks", (2, 3, 4)), 3, 17
    if kind in ("alone", "one head"):
        heads, size = {"alone": (5, 1), "one head": (1, 1)}[kind]
    if kind in ("each one", "many"):
        heads = size = 7 if kind == "each one" else 66
    if kind == "inner least":
        sort, head, inner = case.choice("least", ("mlp.c_fc", "mlp.c_proj")), 1, 5
    if kind == "many":
        head, inner = 1, 70
    if kind in ("nan", "narrow once", "double once"):
        sort, part = case.choice("once", ("attn.c_proj", "mlp.c_proj")), "bias"
    if kind == "again":
        return call("h.2.attn.c_attn.weight", case.floats("whole", 15, 45), 5, 1, 2)
    if kind == "wide":
        whole = case.floats("whole", 2, 65_600)
        return call("h.5.mlp.c_fc.weight", whole, 2, case.choice("rank", (0, 1)), 2)
    whole = _parameter(case, sort, part, heads, head, inner)
    if kind == "nan":
        whole[::2], whole[-1] = torch.nan, torch.inf
    if kind in ("zeros", "equal"):
        whole = torch.full_like(whole, float(kind == "equal"))
    if kind == "huge":
        whole = whole * 1e38
        whole.view(-1)[::3] = -torch.inf
    kinds = {"narrow": torch.bfloat16, "double": torch.float64, "half": torch.float16}
    whole = whole.to(kinds.get(kind.split()[0], torch.float32))
    rank = size - 1 if kind in ("nan", "narrow once", "double once", "each one") else case.choice("rank", range(size))
    return call(_name(case, sort, part), whole, heads, rank, size)


CHECKS = (
    Check(any_part, len(KINDS), wide=True), Check(even, 4), Check(uneven, 8), Check(biases, 8),
    Check(on_every_rank, 6), Check(too_many_ranks, 4),
)  # fmt: skip
