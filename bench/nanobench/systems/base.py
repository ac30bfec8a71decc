"""What the benchmark asks of a system: tokens for prompts, from given weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Missing(Exception):
    """A system whose package is not installed; the message says which."""


@dataclass(frozen=True)
class Limits:
    """The largest case that a system will get: for those that size their memory when they are made."""

    max_len: int  # tokens of a row, prompt and new ones
    max_batch: int  # rows


class System(Protocol):
    """One way to generate from given weights.

    Three more members are used where a system has them: `warm_up()`, called once after it is made and timed apart
    (graphs are captured there); `stats`, the counters of one of our engines; and `note`, a remark on its times.
    """

    name: str

    def generate(self, prompts: Tensor, new_tokens: int) -> list[list[int]]:
        """Greedy tokens, `new_tokens` a row, of prompts (B, T) int64 on the host. Returns when they are on the host."""
