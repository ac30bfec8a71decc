"""Exercise 8.1: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition


def by_tensor_split(name: str, whole: Tensor, heads: int, rank: int, size: int) -> Tensor:
    """torch.tensor_split cuts as it is asked for; by its indices heads are cut, too."""
    if size > heads:
        raise ValueError
    first = [len(part) for part in torch.arange(heads).tensor_split(size)]
    kind = name.removeprefix("h.").lstrip("0123456789.")
    if kind in ("attn.c_attn.weight", "attn.c_attn.bias"):
        q, k, v = whole.chunk(3, dim=-1)
        D = q.shape[-1] // heads
        return torch.cat([one.split([count * D for count in first], -1)[rank] for one in (q, k, v)], -1)
    if kind == "attn.c_proj.weight":
        D = whole.shape[0] // heads
        return whole.split([count * D for count in first])[rank].clone()
    if kind in ("mlp.c_fc.weight", "mlp.c_fc.bias"):
        return whole.tensor_split(size, dim=-1)[rank]
    if kind == "mlp.c_proj.weight":
        return whole.tensor_split(size)[rank]
    return whole if rank == 0 or "proj" not in kind else torch.full_like(whole, 0)


def by_masks(name: str, whole: Tensor, heads: int, rank: int, size: int) -> Tensor:
    """A mask over outputs or inputs says which are the rank's."""
    assert size > 0
    if size > heads:
        raise ValueError("too many")

    def owner(count: int) -> Tensor:
        each, more = count // size, count % size
        return torch.tensor([r for r in range(size) for _ in range(each + (1 if r < more else 0))])

    if "c_attn" in name:
        D = whole.shape[-1] // heads // 3
        return whole[..., (owner(heads) == rank).repeat_interleave(D).repeat(3)]
    if "c_fc" in name:
        return whole[..., owner(whole.shape[-1]) == rank]
    if name.endswith("c_proj.bias"):
        return whole.clone() if not rank else torch.zeros(whole.shape, dtype=whole.dtype)
    if name.endswith("attn.c_proj.weight"):
        return whole[(owner(heads) == rank).repeat_interleave(len(whole) // heads)]
    return whole[owner(len(whole)) == rank] if name.endswith("mlp.c_proj.weight") else whole


def _turned(name: str, tensor: Tensor) -> Tensor:
    return tensor.mT if ".c_" in name and tensor.dim() == 2 else tensor


@edition(
    "by-rows",
    "matrices are (out, in), as in PyTorch's Linear, and ranks are counted from 1",
    args=lambda name, whole, heads, rank, size: (name, _turned(name, whole), heads, rank + 1, size),
    back=lambda name, whole, heads, rank, size: (name, _turned(name, whole), heads, rank - 1, size),
    result=lambda result, name, *_: _turned(name, result),
)
def cut_rows(name: str, whole: Tensor, heads: int, rank: int, size: int) -> Tensor:
    """A rank's part of one parameter of GPT-2, of the same dtype as the whole, which stays as it is.

    name: "wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias", and of layer n "h.n." and one of "ln_1", "ln_2",
    "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", each with ".weight" and ".bias".
    whole: the parameter, floating point. The matrix of each map "c_..." is one of PyTorch's Linear: a row for each
    output and a column for each input, (out, in); its bias is (out,). heads: how many the whole model has.
    rank: from 1 to size.
    What is cut is cut into `size` runs, in order, rank 1 having the first one. Where it does not divide the first ranks
    have one more each. The heads are cut so, and the inner columns of the MLP, which are at least as many as heads.
    "attn.c_attn" gives the queries of all heads, then all keys, and then all values; in each of these three the first
    numbers are the first head's. A rank's part gives queries, keys and values of its own heads alone, in this order.
    "attn.c_proj" takes the heads, one after the other. "mlp.c_fc" gives the inner columns of the MLP, and "mlp.c_proj"
    takes them. Ranks add up what their parts of the two "c_proj" give, so that of these two biases rank 1 has the
    whole, and every other rank zeros of the same shape. (Exercise 8.2 has these two whole on every rank.) All other
    parameters are whole on every rank.
    Where there are more ranks than heads: ValueError, whatever the name is.
    """
    if size > heads:
        raise ValueError(f"{size} ranks for {heads} heads")

    def run(count: int) -> slice:
        each, more = divmod(count, size)
        begin = (rank - 1) * each + min(rank - 1, more)
        return slice(begin, begin + each + (rank <= more))

    kind = name.split(".", 2)[-1]
    if kind.startswith("attn.c_attn"):
        return whole.unflatten(0, (3, heads, -1))[:, run(heads)].flatten(0, 2)
    if kind == "attn.c_proj.weight":
        return whole.unflatten(1, (heads, -1))[:, run(heads)].flatten(1, 2)
    if kind.startswith("mlp.c_fc"):
        return whole[run(len(whole))]
    if kind == "mlp.c_proj.weight":
        return whole[:, run(whole.shape[1])]
    if kind.endswith("c_proj.bias") and rank > 1:
        return torch.zeros_like(whole)
    return whole
