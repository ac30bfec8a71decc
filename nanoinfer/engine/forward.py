"""What a decode step computes, as a part that can be exchanged. Chapter 6.

`decode_step` is the plain one: the model operation by operation, a sampler, the next state. Another may fuse all of it.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from nanoinfer.engine.samplers import Sampler


class Forward(Protocol):
    """A decode step from token ids to next tokens, beside `decode_step`, which serves what this does not.

    It is made over model, cache and batch state, and all that changes from step to step it reads there and writes back:
    newest token, position and step of each row, keys and values through the block tables. So a `GraphEngine` captures
    it as it stands, and one that is a single kernel is a graph of one node. It returns tokens, not logits, since a
    kernel that chooses for itself never writes any: one that serves a sampler chooses by the rule of sampling.py.
    Whatever it works in besides, it holds, at addresses that stay. Rows that are not live are padding: token 0 at
    position 0 of `state.row`, the dummy row, whose table names the null block; `state.live` keeps them as they are.
    """

    name: str  # as the counters call it

    def why_not(self, rows: int, sampler: Sampler) -> str | None:
        """Why it cannot do a step of so many rows with that sampler, for the counters; None where it can."""

    def decode(self, rows: int, longest: int, sampler: Sampler) -> Tensor:
        """As `decode_step`, of rows 0..rows-1: the tokens that follow (rows,), which are the state's own.

        The first call may compile; a captured one may not, and launches alone happen then.
        """

    def refresh(self) -> None:
        """The model's weights lie elsewhere now: copies and addresses of them are made anew."""
