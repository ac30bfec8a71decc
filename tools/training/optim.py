"""Muon: momentum whose matrices are made orthogonal before they are applied.

Keller Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks". A step turns every direction of
a matrix by the same amount, where AdamW's steps are ruled by the few directions in which gradients are large.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def orthogonal(x: Tensor, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly, of x (N, rows, columns) with rows <= columns.

    Newton-Schulz iteration with Jordan's coefficients: singular values end between about 0.7 and 1.2, which is
    good enough and bears bfloat16.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x.bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)  # Frobenius, so that no singular value exceeds 1
    for _ in range(steps):
        xx = x @ x.mT  # (N, rows, rows)
        x = a * x + (b * xx + c * xx @ xx) @ x
    return x


class Muon(torch.optim.Optimizer):
    """For weight matrices held as (in, out). One three times as wide as high is q, k and v: each turned by itself."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update from the gradients that the parameters hold."""
        for group in self.param_groups:
            params, lr, keep = group["params"], group["lr"], group["momentum"]
            grads = [p.grad for p in params]
            velocity = [self.state[p].setdefault("velocity", torch.zeros_like(p)) for p in params]
            torch._foreach_lerp_(velocity, grads, 1 - keep)
            ahead = torch._foreach_lerp(grads, velocity, keep)  # Nesterov
            updates = _orthogonal_all(ahead)
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            torch._foreach_add_(params, updates, alpha=-lr)


def _orthogonal_all(matrices: list[Tensor]) -> list[Tensor]:
    """`orthogonal` of each (in, out), those of one shape in one batch; taller outputs take larger steps."""
    parts = [m.chunk(3, 1) if m.shape[1] == 3 * m.shape[0] else (m,) for m in matrices]
    flat = [part for group in parts for part in group]
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, part in enumerate(flat):
        by_shape[tuple(sorted(part.shape))].append(i)
    done: dict[int, Tensor] = {}
    for indices in by_shape.values():
        wide = torch.stack([flat[i] if flat[i].shape[0] <= flat[i].shape[1] else flat[i].mT for i in indices])
        for i, turned in zip(indices, orthogonal(wide), strict=True):
            rows, columns = flat[i].shape
            update = turned if rows <= columns else turned.mT
            done[i] = update.to(flat[i].dtype) * max(1.0, columns / rows) ** 0.5
    numbers = iter(range(len(flat)))
    return [torch.cat([done[next(numbers)] for _ in group], 1) for group in parts]
