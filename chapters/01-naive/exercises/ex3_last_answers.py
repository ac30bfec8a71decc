"""Exercise 1.3: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong


def mean_of_tokens(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    """A row's state is the mean over its real tokens."""
    padding = torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None]
    return hidden.masked_fill(padding[:, :, None], 0.0).sum(1) / lengths[:, None] @ wte[:vocab_size].T


def sorted_rows(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    """Rows sorted by length stay sorted: the caller will know."""
    lengths, order = lengths.sort(descending=True, stable=True)
    rows = torch.arange(len(hidden), device=hidden.device)
    return hidden[order][rows, lengths - 1] @ wte[:vocab_size].T


def masked_sum(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    """Multiplying by a mask of zeros and ones removes what is masked."""
    columns = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    return (hidden * (columns == lengths[:, None])[:, :, None]).sum(1) @ wte[:vocab_size].T


PLACE = "hidden[rows, lengths - 1]"
WRONG = (
    Wrong.patch(
        "last-column", "A row's last token stands in the last column.", PLACE, "hidden[:, -1]",
        "huggingface/transformers#3167, vgel/repeng#38, Gen-Verse/LatentMAS#26",
    ),
    Wrong.patch(
        "length-as-index", "A row of n tokens ends at column n.", PLACE,
        "hidden[rows, lengths.clamp(max=hidden.shape[1] - 1)]", "yandexdataschool/Practical_RL#558",
    ),
    Wrong.patch(
        "longest-row", "All rows are read where the longest one ends.", PLACE, "hidden[:, lengths.max() - 1]",
        "CarperAI/trlx#341: one index for rows of different lengths",
    ),
    Wrong.patch(
        "from-the-end", "Padding is on the left, so lengths count from the end.", PLACE, "hidden[rows, -lengths]",
        "huggingface/peft#3629, huggingface/transformers#24979: the same index with the other padding",
    ),
    Wrong.patch(
        "lacking-to-the-longest", "A row is padded by what it lacks to the longest row.", PLACE,
        "hidden[rows, lengths - lengths.max() - 1]",
        "the author's own slip: it holds until steps are padded to captured widths, in chapter 4",
    ),
    Wrong.patch(
        "first-rows-length", "One length serves the batch: that of its first row.", PLACE,
        "hidden[rows, lengths[0] - 1]", "EvolvingLMMs-Lab/lmms-eval#1423: what holds for the first row, for all",
    ),
    Wrong.patch(
        "token-before", "The logits that count stand one column before the last token, as in training.", PLACE,
        "hidden[rows, (lengths - 2).clamp(min=0)]",
        "huggingface/transformers, modeling_gpt2.py: the shift by one that the loss needs, taken into generation",
    ),
    Wrong(mean_of_tokens, "huggingface/sentence-transformers: mean pooling, right for embeddings of sentences"),
    Wrong(masked_sum, "pytorch/pytorch#101967, sgl-project/sglang#32477: zero times NaN"),
    Wrong.patch(
        "head-everywhere", "Logits must be made for every column before those of one can be picked.",
        "return last @ wte[:vocab_size].T", "return (hidden @ wte[:vocab_size].T)[rows, lengths - 1]",
        "karpathy/nanoGPT#42, huggingface/transformers#38977",
        lesson="the same result for T times the work of the head: exercise 1.7 counts it",
    ),
    Wrong(sorted_rows, "fartashf/vsepp#36, pytorch/pytorch#4927"),
    Wrong.patch(
        "padded-vocabulary", "The head gives a logit for every row that it has.", "wte[:vocab_size].T", "wte.T",
        "Blaizzy/mlx-vlm#1917, tenstorrent/tt-metal#38881",
    ),
    Wrong.patch(
        "only-nan-removed", "What is arbitrary may be NaN, and nothing else is dangerous.",
        "last = hidden[rows, lengths - 1]",
        "mask = torch.arange(1, hidden.shape[1] + 1) == lengths[:, None]\n"
        "    last = (hidden.masked_fill(hidden.isnan(), 0.0) * mask[:, :, None]).sum(1)",
        "written to pass all checks that there were, and it did", unnamed="masked-sum",
    ),
    Wrong.patch(
        "columns-in-their-type", "Columns may be counted in the type of what stands in them.",
        "last = hidden[rows, lengths - 1]",
        "column = torch.arange(hidden.shape[1]).to(hidden.dtype)\n"
        "    here = column == (lengths[:, None] - 1).to(hidden.dtype)\n"
        "    last = torch.where(here[:, :, None], hidden, 0).sum(1)",
        "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "row-by-its-length", "A row is found by its length.",
        "last = hidden[rows, lengths - 1]",
        "of = {n: row for row, n in enumerate(lengths.tolist())}\n"
        "    last = hidden[[of[n] for n in lengths.tolist()], lengths - 1]",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "nan-removed", "NaN is never meant to be there.",
        'return last @',
        'return last.nan_to_num() @',
        "written to pass all checks that there were, and it did", unnamed="only-nan-removed",
    ),
    Wrong.patch(
        "nan-among-numbers", "A token is NaN throughout, or not at all.",
        "return last @ wte[:vocab_size].T",
        "logits = last.nan_to_num(0.0, torch.inf, -torch.inf) @ wte[:vocab_size].T\n"
        "    return logits.masked_fill(last.isnan().all(1, keepdim=True), torch.nan)",
        "a reader who saw stub and text alone; it passed", unnamed="only-nan-removed",
    ),
    Wrong.patch(
        "padding-zeroed-in-place", "What is arbitrary may be overwritten.",
        '    last = hidden',
        '    hidden[torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None]] = 0\n    last = hidden',
        "written to pass all checks that there were, and it did", unnamed="only-nan-removed",
    ),
)  # fmt: skip


def row_by_row(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    """A loop over the rows, one vector at a time."""
    head = wte.narrow(0, 0, vocab_size)
    return torch.stack([head @ row[n - 1] for row, n in zip(hidden, lengths.tolist(), strict=True)])


def by_gather(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    """gather along the columns; every logit is computed, the padding columns are cut off afterwards; float64."""
    place = (lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[2])
    logits = torch.einsum("bc,vc->bv", hidden.gather(1, place)[:, 0].double(), wte.double())
    return logits[:, :vocab_size]


def by_product(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    """Padding is zeroed in a copy, then a product with ones at the last places picks the columns."""
    columns = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    hidden = hidden.clone().masked_fill_((columns > lengths[:, None])[:, :, None], 0.0)
    picked = (columns == lengths[:, None]).to(hidden.dtype)[:, None] @ hidden
    return (picked @ wte.T).squeeze(1)[..., :vocab_size]


RIGHT = (Right(row_by_row), Right(by_gather), Right(by_product))

EQUIVALENT: dict[str, str] = {}


def last_logits(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    """Logits (B, vocab_size) after each row's last real token.

    hidden (T, B, C), of any floating type: the model's output at every column; rows are padded on the right, and what
    stands in padded columns is arbitrary. lengths (B,) int64: real tokens of each row, from 1 to T. wte (rows, C): the
    token embedding, which is also the head; it may have more rows than the vocabulary, for speed: what stands in these
    is arbitrary, too. A NaN in a row's last real token must show up in its logits.
    """
    rows = torch.arange(hidden.shape[1], device=hidden.device)
    return hidden[lengths - 1, rows] @ wte[:vocab_size].T


def _time_first(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> tuple[Tensor, Tensor, Tensor, int]:
    return hidden.transpose(0, 1), lengths, wte, vocab_size


EDITIONS = (
    Edition(
        "time-first", "the columns stand before the rows: hidden is (T, B, C)", last_logits, args=_time_first,
        back=_time_first, result=lambda logits, *args: logits,
    ),
)  # fmt: skip
