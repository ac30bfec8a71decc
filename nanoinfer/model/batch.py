"""What one forward pass is given. Chapter 1."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Step:
    """One forward pass: B rows of T columns. Rows shorter than T are padded on the right.

    Columns past a row's `last` are padding: they come after every real column, so that causal attention hides
    them, and their results are dropped. Left padding would shift every position; here position 0 is the first token.
    """

    token_ids: Tensor  # (B, T) int64
    positions: Tensor  # (B, T) int64, of each token in its own text
    last: Tensor  # (B,) int64, column of each row's last real token
    rows: slice | Tensor  # which rows of the batch these are: the first B in decode, (B,) int64 in prefill
    longest: int  # no real token of this step stands at a position >= longest
    fresh: bool = False  # no row has tokens before those of this step
