"""Lies that need no engine: what libraries and memory do in a capture, and wrong steps that are replayed faithfully."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .recorders import Recorder

TILE, LONG = 64, 2048  # slots of a part; slots of the longest text


def told(numbers: Tensor) -> list[str]:
    """Numbers on one line: whole ones, or with three digits."""
    style = ".3f" if numbers.is_floating_point() else ","
    return [" ".join(format(number, style) for number in numbers.flatten().tolist())]


class Alone:
    """A step, recorded and replayed in a wrong and in a right way. again: what a replay that is timed calls."""

    wrong: Any = False
    right: Any = True
    graph: Any = None
    again: Callable[[], object] | None = None
    step: Callable[..., Tensor]
    truth: Callable[[], list[str]]

    def __init__(self, device: str) -> None:
        self.device = device

    def replayed(self, recorder: Recorder, way: Any) -> list[str]:
        """What a replay of the step gives."""
        step = partial(self.step, way)
        recorder.warm(step)
        self.graph, out = recorder.record(step)
        self.again = self.graph.replay
        self.again()
        return told(out)


class OnePart(Alone):
    """Into how many parts a context is cut is chosen from the lengths at the capture: dummies, all of them 1."""

    wrong, right = 1, LONG

    def __init__(self, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.q, keys, values = torch.randn(3, LONG, generator=generator).to(device)
        self.keys, self.values = keys.view(-1, TILE), values.view(-1, TILE)  # (parts, TILE): head size 1

    def step(self, longest: int) -> Tensor:
        """Attention of one query: short texts in one part, tile after tile; long ones in all parts at once."""
        scores = self.q[0] * self.keys  # (parts, TILE)
        if longest > TILE:
            return (scores.flatten().softmax(0) @ self.values.flatten())[None]
        top, total, acc = torch.full((3, 1), -1e9, device=scores.device).unbind()
        total, acc = total * 0, acc * 0
        for tile, values in zip(scores, self.values, strict=True):  # a graph must do for every length
            higher = torch.maximum(top, tile.amax())
            weights = (tile - higher).exp()
            total = total * (top - higher).exp() + weights.sum()
            acc = acc * (top - higher).exp() + weights @ values
            top = higher
        return acc / total

    def truth(self) -> list[str]:
        return told(self.step(LONG))


class WorkspaceInside(Alone):
    """A buffer that lasts is first made within a capture, where a temporary was a moment ago."""

    kept: Tensor | None = None

    def __init__(self, device: str) -> None:
        self.x = torch.ones(2**18, device=device)

    def step(self) -> Tensor:
        """A sum over a temporary, whose memory is then free; and the buffer, if it is not there yet."""
        doubled = self.x * 2
        total = doubled.sum()
        del doubled
        if self.kept is None:
            self.kept = torch.empty_like(self.x)
        return total

    def replayed(self, recorder: Recorder, first: bool) -> list[str]:
        """What stands in the buffer after a replay: it was filled with fives. first: it is made before the capture."""
        if first:
            self.kept = torch.empty_like(self.x)
        recorder.warm(self.x.mul(2).sum)
        graph, _ = recorder.record(self.step)
        self.kept.fill_(5.0)
        graph.replay()
        return told(self.kept[:4])

    def truth(self) -> list[str]:
        return told(torch.full((4,), 5.0))


class WorkspaceOutside(Alone):
    """The matrix library's workspace is made by a warm-up, outside the graph; others free it, and it becomes theirs."""

    SHAPES = ((8, 3072, 768), (8, 16384, 64), (64, 8192, 64), (16, 4096, 256))

    def __init__(self, device: str) -> None:
        self.products: list[tuple[Tensor, Tensor]] = []
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for rows, inner, columns in self.SHAPES:
                left, right = torch.ones(rows, inner, device=device), torch.ones(inner, columns, device=device)
                self.products.append((left.to(dtype), right.to(dtype)))

    def step(self) -> Tensor:
        """Matrix products of long rows, which are added up in parts; and the parts lie in the workspace."""
        return torch.stack([(left @ right)[0, 0].float() for left, right in self.products])

    def replayed(self, recorder: Recorder, first: bool) -> list[str]:
        """How many tensors of others a replay has written into. first: clear the workspace before the capture."""
        recorder.warm(self.step)
        if first:
            torch._C._cuda_clearCublasWorkspaces()
        graph, _ = recorder.record(self.step)
        torch._C._cuda_clearCublasWorkspaces()  # as torch.compile does, in the middle of a process
        torch.cuda.empty_cache()
        others = [torch.full((2**22,), torch.nan, device="cuda") for _ in range(64)]
        graph.replay()
        torch.cuda.synchronize()
        return [f"tensors of others that were written into: {sum(not bool(o.isnan().all()) for o in others)}"]

    def truth(self) -> list[str]:
        return ["tensors of others that were written into: 0"]


class CausalCorner(Alone):
    """One query over a cache of six keys, under `is_causal`, whose triangle begins at the first key."""

    wrong, right = True, False

    def __init__(self, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.q = torch.randn(1, 1, 1, 8, generator=generator).to(device)
        self.keys = torch.randn(1, 1, 6, 8, generator=generator).to(device)
        self.values = torch.arange(1.0, 7.0, device=device).view(1, 1, 6, 1).expand(1, 1, 6, 8).contiguous()

    def step(self, is_causal: bool) -> Tensor:
        """The first number of the attention's output."""
        return F.scaled_dot_product_attention(self.q, self.keys, self.values, is_causal=is_causal)[..., 0]

    def truth(self) -> list[str]:
        scores = (self.keys[0, 0] @ self.q[0, 0, 0]) / 8**0.5
        return told(scores.softmax(0) @ self.values[0, 0, :, 0])


class LeftPadding(Alone):
    """Two rows padded on the left to one length, and a position for each column, or for each token."""

    def __init__(self, device: str) -> None:
        self.real = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]], device=device)  # "ox " and "crane "

    def step(self, by_token: bool) -> Tensor:
        """The first row's positions where it has tokens."""
        columns = torch.arange(6, device=self.real.device).expand(2, 6)
        return (self.real.cumsum(1) - 1 if by_token else columns)[0, 3:]

    def truth(self) -> list[str]:
        return told(torch.arange(3))


class NarrowSlots(Alone):
    """A slot's number times the width of a slot, in 32 bits."""

    SLOT, WIDTH = 2_796_203, 768  # gpt2: 768 numbers a slot
    wrong, right = torch.int32, torch.int64

    def step(self, dtype: torch.dtype) -> Tensor:
        """Where the slot begins."""
        return torch.full((1,), self.SLOT, dtype=dtype, device=self.device) * self.WIDTH

    def truth(self) -> list[str]:
        return told(torch.tensor(self.SLOT * self.WIDTH))
