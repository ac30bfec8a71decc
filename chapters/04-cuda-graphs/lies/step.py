"""One step of the toy, as a graph records it: write the newest letter, attend, choose, advance.

Tokens are letters; attention looks for the last place where the newest letter stood before, and the letter that
followed there comes next. So "wolf " becomes "wolf wolf wolf" on every machine, and a wrong letter can be seen.
Each line that a lie writes otherwise is a method of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

LETTERS = " abcdefghijklmnopqrstuvwxyz.,'!?"
V = len(LETTERS)
ROWS, BLOCK, WIDTH = 6, 4, 8  # rows at most; slots of a block; blocks of a row at most
BLOCKS = 1 + ROWS * WIDTH  # block 0 is the null block: padding writes there, and empty entries of a table name it


class Step:
    """State and cache, and the step over them. All that changes from step to step is in tensors that stay.

    fill: what unwritten slots of the cache hold.
    """

    def __init__(self, device: str = "cpu", fill: float = 0.0) -> None:
        self.device = device
        self.k, self.v = torch.full((2, BLOCKS, BLOCK, V), fill, device=device)  # (BLOCKS, BLOCK, V) each
        integers = torch.zeros(5, ROWS, dtype=torch.int64, device=device)
        self.letter, self.before, self.position, self.live, self.seed = integers  # (ROWS,) each
        self.temperature = torch.zeros(ROWS, device=device)
        self.table = torch.zeros(ROWS, WIDTH, dtype=torch.int64, device=device)
        self.column = torch.arange(WIDTH * BLOCK, device=device)
        self.onehot = torch.eye(V, device=device)

    def state(self) -> list[Tensor]:
        """All that belongs to rows; the table comes last."""
        return [self.letter, self.before, self.position, self.live, self.seed, self.temperature, self.table]

    def recorded(self, B: int, longest: int) -> Tensor:
        """One letter (B,) for each of rows 0..B-1, which hold no more than `longest` letters."""
        self.write(B)
        return self.advance(self.choose(self.attend(B, longest), B), B)

    def write(self, B: int) -> None:
        """Put each row's newest letter into the cache."""
        slot = self.slots(B)  # (B,)
        block, place = slot // BLOCK, slot % BLOCK
        self.k[block, place] = self.onehot[self.before[:B]]
        self.v[block, place] = self.onehot[self.letter[:B]]

    def slots(self, B: int) -> Tensor:
        """Where the newest letters go (B,). The table of a padding row is empty, so it writes into block 0."""
        position = self.positions(B)
        block = self.table[:B].gather(1, (position // BLOCK)[:, None])[:, 0]
        return block * BLOCK + position % BLOCK

    def positions(self, B: int) -> Tensor:
        """Where the newest letters stand in their texts (B,)."""
        return self.position[:B]

    def lengths(self, B: int) -> Tensor:
        """How many slots each row reads (B,); a padding row reads one."""
        return self.positions(B) + 1

    def attend(self, B: int, longest: int) -> Tensor:
        """What followed the newest letter where it stood before (B, V); the last such place counts most."""
        table = self.table[:B, : longest // BLOCK]
        keys, values = self.k[table].flatten(1, 2), self.v[table].flatten(1, 2)  # (B, longest, V)
        hidden = self.column[:longest] >= self.lengths(B)[:, None]  # (B, longest)
        query = self.onehot[self.letter[:B]][:, :, None]  # (B, V, 1)
        scores = 20 * (keys @ query)[:, :, 0] + 0.5 * self.column[:longest]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return (weights[:, None] @ self.readable(values, hidden))[:, 0]

    def readable(self, values: Tensor, hidden: Tensor) -> Tensor:
        """The values (B, longest, V), zero where hidden: a weight of 0 is not enough, as 0 * NaN is NaN."""
        return values.masked_fill(hidden[:, :, None], 0.0)

    def choose(self, out: Tensor, B: int) -> Tensor:
        """The next letters (B,): the best one at temperature 0, else by noise of seed, position and letter."""
        return (4 * out + self.heat(B)[:, None] * self.noise(B)).argmax(-1)

    def heat(self, B: int) -> Tensor:
        """The rows' temperatures (B,)."""
        return self.temperature[:B]

    def noise(self, B: int) -> Tensor:
        """Noise (B, V) that is new in every step."""
        return gumbel(self.seed[:B], self.position[:B])

    def advance(self, chosen: Tensor, B: int) -> Tensor:
        """Write the chosen letters (B,) where the next step reads them; padding rows stay as they are."""
        live = self.live[:B]
        self.before[:B] = self.letter[:B]
        self.letter[:B] = chosen * live
        self.position[:B] += live
        return chosen


def gumbel(seed: Tensor, count: Tensor) -> Tensor:
    """Noise (B, V) by seed (B,) and count (B,) alone: a hash, not a generator with a state."""
    x = (seed * 7919 + count * 104729)[:, None] + torch.arange(V, device=seed.device) * 15485863
    for _ in range(2):
        x = (x ^ (x >> 16)) * 0x45D9F3B % 2**32
    uniform = (x.double() + 0.5) / 2**32
    return -(-uniform.log()).log().float()


def spell(letters: list[int]) -> str:
    """Letters of their numbers."""
    return "".join(LETTERS[letter] for letter in letters)
