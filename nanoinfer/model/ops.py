"""What the model computes with besides attention, one PyTorch call each. Chapter 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class TorchOps:
    """What the model computes with besides attention, one PyTorch call each; x is (N, width), a row a token.

    Another set may replace it: with dropout for training, with fused kernels for speed.
    """

    def add_norm(self, x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Add a sublayer's update to the residual stream; return the stream, and LayerNorm of it."""
        x = x + update
        return x, F.layer_norm(x, weight.shape, weight, bias, eps)  # over the last dimension

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.addmm(bias, x, weight)  # GPT-2's files hold matrices as (in, out)

    def linear_gelu(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(self.linear(x, weight, bias), approximate="tanh")  # `gelu_new`

    def linear_update(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """A linear map whose result goes into `add_norm` and nowhere else, in whatever form `add_norm` takes it."""
        return self.linear(x, weight, bias)

    def head(self, x: Tensor, weight: Tensor) -> Tensor:
        """Logits, in any dtype that holds them exactly, of x (N, C) and the token embedding (rows, C)."""
        return F.linear(x, weight).float()
