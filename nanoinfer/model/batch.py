"""What one step is given: a list of tokens. Chapter 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from nanoinfer.engine.engine import Work


@dataclass(frozen=True)
class Batch:
    """The tokens of one step: N tokens of B sequences, each sequence's side by side and in order."""

    token_ids: Tensor  # (N,) int64
    positions: Tensor  # (N,) int64, of each token in its own sequence
    row: Tensor  # (N,) int64, the row of the sequence that each token belongs to
    starts: Tensor  # (B + 1,) int64, where each sequence's tokens begin, and N
    longest: int  # tokens that one sequence brings, at most
    past: int  # earlier tokens of one sequence, at most: 0 where each brings all it has

    @classmethod
    def of(cls, work: Sequence[Work], device: torch.device) -> Batch:
        """Put the tokens of some work side by side, in one copy to the device."""
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        starts = [0]
        for s, start, count in work:
            ids += s.tokens[start : start + count]
            positions += range(start, start + count)
            rows += [s.row] * count
            starts.append(len(ids))
        sizes = [len(ids)] * 3 + [len(starts)]
        numbers = torch.tensor([*ids, *positions, *rows, *starts], device=device)
        token_ids, at, of, begins = torch.split(numbers, sizes)
        return cls(token_ids, at, of, begins, max(n for _, _, n in work), max(n for _, n, _ in work))

    @property
    def rows(self) -> int:
        """B, how many sequences bring tokens."""
        return len(self.starts) - 1

    def last(self, x: Tensor) -> Tensor:
        """(N, ...) -> (B, ...), at the last token of each sequence: the next token is chosen after it."""
        return x if self.longest == 1 else x[self.starts[1:] - 1]

    @cached_property
    def _place(self) -> Tensor:
        """(N,) where each token stands in a rectangle of B rows and `longest` columns, read row by row."""
        n = torch.arange(len(self.token_ids), device=self.starts.device)
        b = torch.searchsorted(self.starts, n, right=True) - 1  # (N,) which of the B sequences it belongs to
        return n - self.starts[b] + b * self.longest

    def padded(self, x: Tensor) -> Tensor:
        """(N, ...) -> (B, longest, ...), for attention that needs a rectangle: zeros to the right of shorter rows."""
        if len(x) != self.rows * self.longest:
            x = x.new_zeros(self.rows * self.longest, *x.shape[1:]).index_copy(0, self._place, x)
        return x.view(self.rows, self.longest, *x.shape[1:])

    def packed(self, y: Tensor) -> Tensor:
        """(B, longest, ...) -> (N, ...): `padded` undone."""
        flat = y.flatten(0, 1)
        return flat if len(flat) == len(self.token_ids) else flat[self._place]
