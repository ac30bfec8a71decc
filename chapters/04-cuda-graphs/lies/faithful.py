"""Wrong steps that a graph replays faithfully: they lie without it, too, and are found where it is proven.

Each class has `truth`, `wrong` and `right`, and what they give is compared. `graph` is what was replayed last.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .library import told
from .toy import Recorder


class CausalCorner:
    """One query over a cache of six keys, under `is_causal`, whose triangle begins at the first key."""

    def __init__(self, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.q = torch.randn(1, 1, 1, 8, generator=generator).to(device)
        self.keys = torch.randn(1, 1, 6, 8, generator=generator).to(device)
        self.values = torch.arange(1.0, 7.0, device=device).view(1, 1, 6, 1).expand(1, 1, 6, 8).contiguous()

    def step(self, is_causal: bool) -> Tensor:
        """The first number of the attention's output."""
        return F.scaled_dot_product_attention(self.q, self.keys, self.values, is_causal=is_causal)[..., 0]

    def replayed(self, recorder: Recorder, is_causal: bool) -> list[str]:
        """Captured and replayed."""
        recorder.warm(lambda: self.step(is_causal))
        graph, out = recorder.record(lambda: self.step(is_causal))
        graph.replay()
        return told(out)

    def truth(self) -> list[str]:
        scores = (self.keys[0, 0] @ self.q[0, 0, 0]) / 8**0.5
        return told(scores.softmax(0) @ self.values[0, 0, :, 0])

    def wrong(self, recorder: Recorder) -> list[str]:
        return self.replayed(recorder, is_causal=True)

    def right(self, recorder: Recorder) -> list[str]:
        return self.replayed(recorder, is_causal=False)


class LeftPadding:
    """Two rows padded on the left to one length, and a position for each column."""

    def __init__(self, device: str) -> None:
        self.real = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]], device=device)  # "ox " and "crane "

    def by_column(self) -> Tensor:
        """A token stands where its column is."""
        return torch.arange(6, device=self.real.device).expand(2, 6) * self.real

    def by_token(self) -> Tensor:
        """A token stands behind the real ones before it."""
        return (self.real.cumsum(1) - 1) * self.real

    def replayed(self, recorder: Recorder, step: Any) -> list[str]:
        """The first row's positions where it has tokens."""
        recorder.warm(step)
        graph, out = recorder.record(step)
        graph.replay()
        return [" ".join(map(str, out[0, 3:].tolist()))]

    def truth(self) -> list[str]:
        return [" ".join(map(str, range(3)))]

    def wrong(self, recorder: Recorder) -> list[str]:
        return self.replayed(recorder, self.by_column)

    def right(self, recorder: Recorder) -> list[str]:
        return self.replayed(recorder, self.by_token)


class NarrowSlots:
    """A slot's number times the width of a slot, in 32 bits."""

    def __init__(self, device: str) -> None:
        self.slot = torch.tensor([2_796_203], dtype=torch.int32, device=device)  # gpt2: 768 numbers a slot

    def replayed(self, recorder: Recorder, dtype: torch.dtype) -> list[str]:
        """Where slot 2,796,203 begins."""

        def step() -> Tensor:
            return self.slot.to(dtype) * torch.full((1,), 768, dtype=dtype, device=self.slot.device)

        recorder.warm(step)
        graph, out = recorder.record(step)
        graph.replay()
        return [f"{out.tolist()[0]:,}"]

    def truth(self) -> list[str]:
        return [f"{2_796_203 * 768:,}"]

    def wrong(self, recorder: Recorder) -> list[str]:
        return self.replayed(recorder, torch.int32)

    def right(self, recorder: Recorder) -> list[str]:
        return self.replayed(recorder, torch.int64)
