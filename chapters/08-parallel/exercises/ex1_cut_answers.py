"""Exercise 8.1: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

BEGIN = "begin = rank * each + min(rank, more)"
RUN = "return slice(begin, begin + each + (rank < more))"
HEADS = """thirds = whole.unflatten(-1, (3, heads, -1))
        return thirds[..., run(heads), :].flatten(-3)"""
ROWS = "return whole.unflatten(0, (heads, -1))[run(heads)].flatten(0, 1)"
COLUMNS = "return whole[..., run(whole.shape[-1])]"
ONCE = 'if kind.endswith("c_proj.bias") and rank > 0:'
ZEROS = "return torch.zeros_like(whole)"
REFUSED = "if size > heads:\n"
WRONG = (
    Wrong.patch(
        "cut-straight", "c_attn is a matrix, and its columns are cut.", HEADS, COLUMNS,
        "ndif-team/nnsight#719, tenstorrent/tt-metal#52818: an even cut gives rank 0 all queries and half of the keys",
    ),
    Wrong.patch(
        "head-by-head", "c_attn holds query, key and value of one head after the other.", HEADS,
        "return whole.unflatten(-1, (heads, 3, -1))[..., run(heads), :, :].flatten(-3)",
        "deepspeedai/DeepSpeed#3844: models fuse in several orders; cut by the wrong one, nothing raised",
    ),
    Wrong.patch(
        "bias-cut-straight", "Three parts stand side by side in the matrix; a bias is one run.", HEADS,
        f'if kind.endswith("bias"):\n            return whole[run(len(whole))]\n        {HEADS}',
        "an author's own slip: the bias has one dimension, and nothing in its shape says that it is three in a row",
        unnamed="cut-straight",
    ),
    Wrong.patch(
        "rank-0-everywhere", "The rank is whoever runs this.", BEGIN, "begin = 0 * each + min(0, more)",
        "a loader of vLLM's (vllm-gguf-plugin#103) that took the rank from an argument which nobody passed",
    ),
    Wrong.patch(
        "remainder-lost", "Each rank has count // size of them.", RUN, "return slice(rank * each, (rank + 1) * each)",
        "vllm-project/vllm#1705 and #578 refuse what does not divide; without the refusal the rest is lost in silence",
    ),
    Wrong.patch(
        "last-has-the-rest", "What does not divide goes to the last rank.", RUN,
        "return slice(rank * each, (rank + 1) * each + more * (rank == size - 1))",
        "an author's own slip: with 2 ranks nobody is told apart by more than where the odd one is",
    ),
    Wrong.patch(
        "full-parts-first", "All ranks have as many, rounded up; the last one has what is left.", RUN,
        "each += more > 0\n        return slice(min(count, rank * each), min(count, (rank + 1) * each))",
        "torch.chunk cuts so: with 5 heads the fourth of 4 ranks gets none",
    ),
    Wrong.patch(
        "head-in-two", "Columns are cut evenly, whatever they belong to.", HEADS,
        "return torch.cat([third[..., run(third.shape[-1])] for third in whole.chunk(3, -1)], -1)",
        "vllm-project/vllm#31474 and its kin divide widths; where heads do not divide, a cut goes through one",
    ),
    Wrong.patch(
        "rows-in-two", "Rows of a projection are cut evenly.", ROWS, "return whole[run(len(whole))]",
        "an author's own slip: c_attn by heads, and the matrix behind it by its width",
    ),
    Wrong.patch(
        "inner-by-heads", "A rank has the same share of the MLP as of the heads.", COLUMNS,
        "own, each = run(heads), whole.shape[-1] // heads\n"
        "        return whole[..., own.start * each : own.stop * each]",
        "an author's own slip: 13 and 12 heads of 25, and so 13 and 12 parts of the MLP",
    ),
    Wrong.patch(
        "projection-by-columns", "All matrices are cut by columns.", ROWS,
        "return whole.unflatten(1, (heads, -1))[:, run(heads)].flatten(1, 2)",
        "PyTorch's own layout, (out, in), read into files that hold (in, out)",
    ),
    Wrong.patch(
        "bias-on-every-rank", "A bias that is not cut is whole on every rank.", ONCE, "if False:",
        "MinivLLM#80, PaddlePaddle/Paddle#35186: as many biases in the sum as there are ranks",
    ),
    Wrong.patch(
        "attention-alone", "The bias of attention's projection is there once.", ONCE,
        'if kind == "attn.c_proj.bias" and rank > 0:',
        "PaddlePaddle/FastDeploy#5247: mended in one layer, and left in its neighbour", unnamed="bias-on-every-rank",
    ),
    Wrong.patch(
        "bias-divided", "Each rank has a share of the bias.", ONCE + "\n        " + ZEROS,
        'if kind.endswith("c_proj.bias"):\n        return whole / size',
        "one of the cures in MinivLLM#81: right up to rounding, and not what is asked for here",
    ),
    Wrong.patch(
        "bias-with-its-matrix", "A bias is cut like its matrix.", ONCE + "\n        " + ZEROS,
        'if kind.endswith("c_proj.bias"):\n        return whole[run(len(whole))]',
        "GeeeekExplorer/nano-vllm#203: the loader cut a one-dimensional bias, too",
    ),
    Wrong.patch(
        "zeros-by-product", "Zeros are the bias times 0.", ZEROS, "return whole * 0",
        "an author's own slip: NaN times 0 is NaN, and so is an infinite number's",
    ),
    Wrong.patch(
        "zeros-of-another-kind", "Zeros are zeros.", ZEROS, "return torch.zeros(whole.shape)",
        "an author's own slip: float32 beside a model in 16 bits",
    ),
    Wrong.patch(
        "nobody-refuses", "A rank may have nothing.", REFUSED, "if size > 10**9:\n",
        "an author's own slip: an empty part of a matrix raises nothing, and attention without heads later does",
    ),
    Wrong.patch(
        "refused-where-cut", "What is whole on every rank needs no heads.", REFUSED,
        'if size > heads and "attn" in name:\n',
        "an author's own slip: ranks that begin, and fail one by one when they come to a layer",
        unnamed="nobody-refuses",
    ),
    Wrong.patch(
        "must-divide", "Heads must divide.", REFUSED, "if heads % size:\n",
        "vllm-project/vllm#1705: gpt2-xl has 25 heads, and is refused on 2 GPUs",
    ),
    Wrong.patch(
        "layers-of-one-digit", "A layer's name begins behind four letters.", 'name.split(".", 2)[-1]', "name[4:]",
        "an author's own slip: layer 10 is the first that is not cut",
    ),
    Wrong.patch(
        "rounded-cuts", "The n-th cut is at n times the share, rounded.", RUN,
        "return slice(round(rank * count / size), round((rank + 1) * count / size))",
        "from the stub alone, by the author: who has one more is then another rank",
    ),
    Wrong.patch(
        "multiples-of-64", "Columns are cut at multiples of 64, which is faster.", COLUMNS,
        "unit = 64 if whole.shape[-1] % 64 == 0 else 1\n        own = run(whole.shape[-1] // unit)\n"
        "        return whole[..., own.start * unit : own.stop * unit]",
        "deepspeedai/DeepSpeed#4697 and this project's own engine cut so; the exercise asks for something else",
    ),
    Wrong.patch(
        "those-without-refuse", "A rank that has no head refuses.", REFUSED, "if rank >= heads:\n",
        "from the stub alone, by the author: one rank ends, and the others wait for it",
        unnamed="nobody-refuses",
    ),
    Wrong.patch(
        "norms-cut", "A rank has a part of every parameter.", ONCE,
        'if "ln_" in name:\n        return whole[run(len(whole))]\n    ' + ONCE,
        "an author's own slip: a norm needs all numbers of a row, and each rank has all of them",
    ),
    Wrong.patch(
        "embedding-cut", "The table of embeddings is cut by vocabulary.", ONCE,
        'if name == "wte.weight":\n        return whole[run(len(whole))]\n    ' + ONCE,
        "Shoeybi et al. 2019, section 3, cut it, for another all-reduce; here it is whole on every rank",
    ),
)  # fmt: skip


def by_columns(name: str, whole: Tensor, heads: int, rank: int, size: int) -> Tensor:
    """The numbers of all columns or rows that are a rank's, and one look-up."""
    if heads < size:
        raise ValueError("a rank without a head")

    def mine(count: int) -> list[int]:
        return [at for at in range(count) if at // -(-count // size) == rank] if count % size == 0 else _dealt(count)

    def _dealt(count: int) -> list[int]:
        sizes = [count // size + (other < count % size) for other in range(size)]
        return list(range(sum(sizes[:rank]), sum(sizes[: rank + 1])))

    words = name.split(".")
    layer, kind = ".".join(words[-3:-1]), words[-1]
    if layer == "attn.c_attn":
        D = whole.size(-1) // 3 // heads
        ids = [third * heads * D + head * D + d for third in range(3) for head in mine(heads) for d in range(D)]
        return whole.index_select(-1, torch.tensor(ids))
    if layer == "mlp.c_fc":
        return whole.index_select(-1, torch.tensor(mine(whole.size(-1))))
    if layer in ("attn.c_proj", "mlp.c_proj") and kind == "bias":
        return whole if rank == 0 else whole.new_zeros(whole.shape)
    if layer == "attn.c_proj":
        D = whole.size(0) // heads
        return whole[[head * D + d for head in mine(heads) for d in range(D)]]
    return whole[mine(len(whole))] if layer == "mlp.c_proj" else whole


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


RIGHT = (Right(by_columns), Right(by_tensor_split), Right(by_masks))
EQUIVALENT = {"begin = rank * each + min(more, rank)": "the smaller of two, in any order"}


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


def _turned(name: str, tensor: Tensor) -> Tensor:
    return tensor.mT if ".c_" in name and tensor.dim() == 2 else tensor


EDITIONS = (
    Edition(
        "by-rows", "matrices are (out, in), as in PyTorch's Linear, and ranks are counted from 1", cut_rows,
        args=lambda name, whole, heads, rank, size: (name, _turned(name, whole), heads, rank + 1, size),
        back=lambda name, whole, heads, rank, size: (name, _turned(name, whole), heads, rank - 1, size),
        result=lambda result, name, *_: _turned(name, result),
    ),
)  # fmt: skip
