"""Exercise 1.3: the logits that count, in a batch whose rows have different lengths."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import MANY, Call, Case, Check, Function, Places, Spec, call
from nanoinfer.model.batch import Batch


def last_logits(hidden: Tensor, lengths: Tensor, wte: Tensor, vocab_size: int) -> Tensor:
    """Logits (B, vocab_size) after each row's last real token.

    hidden (B, T, C), of any floating type: the model's output at every column; rows are padded on the right, and what
    stands in padded columns is arbitrary. lengths (B,) int64: real tokens of each row, from 1 to T. wte (rows, C): the
    token embedding, which is also the head; it may have more rows than the vocabulary, for speed: what stands in these
    is arbitrary, too. A NaN in a row's last real token must show up in its logits.
    """
    rows = torch.arange(len(hidden), device=hidden.device)
    last = hidden[rows, lengths - 1]  # (B, C)
    return last @ wte[:vocab_size].T


def swap(mine: Function) -> Places:
    """GPT2.forward ends with it, its tokens as a rectangle; of a batch that is padded already, the last ones."""

    def forward(self: Any, batch: Any, cache: Any) -> Tensor:
        hidden = self.hidden(batch, partial(cache.attend, cache.plan(batch)))  # (N, C)
        if type(batch) is Batch:
            column = torch.arange(batch.longest, device=hidden.device).expand(batch.rows, -1)  # (B, T)
            hidden, lengths = batch.padded(hidden), batch.last(batch.packed(column)) + 1
        else:
            hidden = batch.last(hidden)[:, None]  # (B, 1, C)
            lengths = torch.ones(len(hidden), dtype=torch.long, device=hidden.device)
        logits: Tensor = mine(hidden, lengths, self.wte.weight, self.config.vocab_size)
        return logits.float()

    return {"nanoinfer.model.gpt2:GPT2.forward": forward}


def _example() -> Call:
    hidden = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]], [[4.0, 0.0], [5.0, 1.0], [9.0, 9.0]]])
    return call(hidden, torch.tensor([3, 2]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 2)


EXERCISE = Spec(
    reference=last_logits,
    lines=3,
    example=_example,
    section="Two sequences of different lengths",
    axes=("row", "id"),
    refuse=("nanoinfer.model.gpt2:GPT2.forward",),
    swap=swap,
)


def _parts(case: Case, lengths: Tensor, tokens: int, vocab: int, padding: int, width: int = 0) -> Call:
    width = width or case.size("width", 2, 5)
    hidden = case.floats("hidden", len(lengths), tokens, width) + torch.arange(tokens)[:, None] * 0.5
    return call(hidden, lengths, case.floats("wte", vocab + padding, width), vocab)


def _lengths(case: Case, longest: int) -> Tensor:
    """Different lengths, the longest among them, in any order."""
    rows = min(case.size("rows", 2, 4), longest)
    lengths = torch.tensor([*case.sample("lengths", range(1, longest), rows - 1), longest])
    return lengths[case.permutation("order", rows)]


def ragged(case: Case) -> Call:
    """Each row is read at its own last real token, in whatever order the lengths come, however wide the batch is."""
    longest = case.size("longest", 2, 5)
    tokens = longest + case.size("more columns", 0, 2)
    return _parts(case, _lengths(case, longest), tokens, case.size("vocabulary", 2, 5), 0)


def poisoned_padding(case: Case) -> Call:
    """Padded columns may hold anything, NaN too, and must not be touched: 0 * NaN is NaN."""
    length = case.size("length", 1, 3)
    asked = _parts(case, torch.tensor([length]), length + 3, case.size("vocabulary", 2, 4), 0)
    asked.args[0][:, length + 1] = case.turn((torch.nan, torch.inf, -torch.inf, 3e38))
    return asked


def padded_vocabulary(case: Case) -> Call:
    """Rows of the embedding beyond the vocabulary are no tokens and get no logits."""
    tokens = case.size("tokens", 1, 3)
    asked = _parts(case, torch.tensor([tokens]), tokens, case.size("vocabulary", 2, 5), case.size("spare", 1, 3))
    asked.args[2][asked.args[3] :] = case.turn((torch.nan, 7.0, torch.inf))
    return asked


SIZES = {
    "rows": (MANY, 2, 3, 1), "columns": (2, 2**16 + 3, 3, 1), "ids": (2, 2, 70_001, 1), "width": (2, 2, 3, MANY),
}  # fmt: skip
SCALES = {"large": 1e30, "little": 1e-30}  # of hidden, while wte is the other
ONE = {"one NaN": torch.nan, "one infinite": torch.inf, "one below all": -torch.inf}  # of a last token's numbers


def _any_size(case: Case, kind: str) -> Call:
    """Many rows, columns, ids, numbers of one token, a few of each; and large, small or no numbers in a last token."""
    few = case.small("rows columns vocabulary width")
    rows, tokens, vocab, width = SIZES.get(kind, few if kind == "few" else (3, 3, 3, 3))
    lengths = torch.tensor([tokens - 1, tokens]).roll(case.choice("roll", (0, 1))).repeat(rows)[:rows].clamp(min=1)
    if kind == "256":
        lengths, tokens = torch.tensor([256, 255]), 259
        rows = 2
    asked = _parts(case, lengths, tokens, vocab, 1, width)
    hidden, wte = asked.args[0], asked.args[2]
    if kind in ONE:  # wherever no number is 0, so that infinity comes out as itself
        wte.abs_().add_(0.1)
        row = case.choice("row", range(3))
        hidden[row, lengths[row] - 1, case.choice("which", range(width))] = ONE[kind]
    if kind == "nothing":  # that is, zeros, in a last token, in a first one, and in all of a text
        hidden[0, lengths[0] - 1], hidden[1, 0], hidden[2] = 0, 0, 0
    if kind == "no number":
        hidden[0, lengths[0] - 1] = torch.nan
    return call(hidden * (by := SCALES.get(kind, 1.0)), lengths, wte / by, vocab)


NOTHING = ("nothing", "no number")
NARROW = (torch.bfloat16, torch.float16, torch.float64)


def any_batch(case: Case) -> Call:
    """Rows may be as long as each other, many, or one of one token, and what pads them is arbitrary in all columns."""
    kind = case.turn((None,) * 6 + NARROW + (*SIZES, *SCALES, *ONE, "256", *NOTHING, *["few"] * 9))
    if isinstance(kind, str):
        return _any_size(case, kind)
    if kind is not None:  # 257 columns and more are not all counted in 8 bits, nor 2049 in 11; the sums are exact
        hidden, wte = case.ints("hidden", -4, 4, 2, 2100, 3), case.ints("wte", -4, 4, 5, 3)
        if kind == torch.float64:  # beyond the range of 32 bits
            hidden = hidden * torch.tensor(1e200, dtype=kind)
        return call(hidden.to(kind), torch.tensor([2049, 257]), wte.to(kind), 4)
    lengths = case.turn((
        torch.tensor([2, 3, 2]), case.ints("lengths", 1, 4, 70), torch.tensor([1]), torch.tensor([3, 1, 2]),
        torch.tensor([2, 2]), torch.tensor([2, 1, 3]),
    ))  # fmt: skip
    asked = _parts(case, lengths, case.turn((4, 6, 1, 4, 4, 4)), 2, case.turn((1, 0, 0, 1, 0, 0)), 3)
    padding = torch.arange(asked.args[0].shape[1]) >= lengths[:, None]
    asked.args[0][padding] = case.turn((1e30, torch.nan, 0.0, torch.inf, 7.0, -torch.inf))
    return asked


CHECKS = (Check(ragged, 5), Check(poisoned_padding, 4), Check(padded_vocabulary, 3), Check(any_batch, 30, wide=True))
