"""What libraries and memory do in a capture: a choice that is made once, and two workspaces.

Each class has `truth`, `wrong` and `right`, and what they give is compared. `graph` is what was replayed last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .toy import Recorder

TILE, LONG = 64, 2048  # slots of a part; slots of the longest text


def told(numbers: Tensor) -> list[str]:
    """Numbers with three digits."""
    return [" ".join(f"{number:.3f}" for number in numbers.flatten().tolist())]


class OnePart:
    """Into how many parts a context is cut is chosen from the lengths at the capture: dummies, all of them 1."""

    def __init__(self, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.q, keys, values = torch.randn(3, LONG, generator=generator).to(device)
        self.keys, self.values = keys.view(-1, TILE), values.view(-1, TILE)  # (parts, TILE): head size 1
        self.graph: Any = None

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

    def replayed(self, recorder: Recorder, longest: int) -> list[str]:
        """Capture with that length, replay with the longest text."""
        recorder.warm(lambda: self.step(longest))
        self.graph, out = recorder.record(lambda: self.step(longest))
        self.graph.replay()
        return told(out)

    def truth(self) -> list[str]:
        return told(self.step(LONG))

    def wrong(self, recorder: Recorder) -> list[str]:
        return self.replayed(recorder, longest=1)

    def right(self, recorder: Recorder) -> list[str]:
        return self.replayed(recorder, longest=LONG)


class WorkspaceInside:
    """A buffer that lasts is first made within a capture, where a temporary was a moment ago."""

    def __init__(self, device: str) -> None:
        self.x = torch.ones(2**18, device=device)
        self.kept: Tensor | None = None

    def step(self) -> Tensor:
        """A sum over a temporary, whose memory is then free; and the buffer, if it is not there yet."""
        doubled = self.x * 2
        total = doubled.sum()
        del doubled
        if self.kept is None:
            self.kept = torch.empty_like(self.x)
        return total

    def replayed(self, recorder: Recorder) -> list[str]:
        """What stands in the buffer after a replay: it was filled with fives before."""
        recorder.warm(self.x.mul(2).sum)
        graph, _ = recorder.record(self.step)
        assert self.kept is not None
        self.kept.fill_(5.0)
        graph.replay()
        return told(self.kept[:4])

    def truth(self) -> list[str]:
        return told(torch.full((4,), 5.0))

    def wrong(self, recorder: Recorder) -> list[str]:
        return self.replayed(recorder)

    def right(self, recorder: Recorder) -> list[str]:
        self.kept = torch.empty_like(self.x)  # before the capture
        return self.replayed(recorder)


class WorkspaceOutside:
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

    def wrong(self, recorder: Recorder) -> list[str]:
        return self.replayed(recorder, first=False)

    def right(self, recorder: Recorder) -> list[str]:
        return self.replayed(recorder, first=True)
