"""GPT-2, written once. Chapter 1.

Every engine of the book runs this model. It computes queries, keys and values and hands them to a *memory*, which
gives attention's output back: what a query may read, and where it is read from, is the memory's business, and the
one thing that chapters 1 to 3 change. Architecture: Radford et al. 2019, "Language Models are Unsupervised
Multitask Learners", section 2.3; pre-LayerNorm blocks, learned positions, one matrix for embedding and head.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanoinfer.config import ModelConfig


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


class Memory(Protocol):
    """What a query may read. `Naive`, and in later chapters `DenseCache` and `PagedCache`."""

    def begin(self, step: Step) -> Step:
        """Take the new tokens in, once a step; return the step that the model must run."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of one layer: q, k, v (B, T, H, D) -> (B, T, H, D)."""


class TorchOps:
    """What the model computes with besides attention, one PyTorch call each; x is (N, width), a row a token.

    Another set may replace it: with dropout for training, with fused kernels for speed.
    """

    @staticmethod
    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps)  # over the last dimension

    @staticmethod
    def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.addmm(bias, x, weight)  # GPT-2's files hold matrices as (in, out)

    @staticmethod
    def gelu(x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")  # `gelu_new`

    @staticmethod
    def add(x: Tensor, update: Tensor) -> Tensor:
        return x + update  # back into the residual stream


class Matrix(nn.Module):
    """Weight (in, out) and bias (out,): the parameters of one linear map, left to be filled."""

    def __init__(self, n_in: int, n_out: int, **kind: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out, **kind))
        self.bias = nn.Parameter(torch.empty(n_out, **kind))


class Norm(nn.Module):
    """Weight and bias (C,) of one LayerNorm, left to be filled."""

    def __init__(self, width: int, **kind: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, **kind))
        self.bias = nn.Parameter(torch.empty(width, **kind))


class Table(nn.Module):
    """Weight (rows, C): an embedding, left to be filled."""

    def __init__(self, rows: int, width: int, **kind: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width, **kind))


class Attention(nn.Module):
    """The two matrices around attention: into queries, keys and values, and out of the heads."""

    def __init__(self, width: int, **kind: Any) -> None:
        super().__init__()
        self.c_attn = Matrix(width, 3 * width, **kind)
        self.c_proj = Matrix(width, width, **kind)


class MLP(nn.Module):
    """The two matrices around GELU."""

    def __init__(self, width: int, inner: int, **kind: Any) -> None:
        super().__init__()
        self.c_fc = Matrix(width, inner, **kind)
        self.c_proj = Matrix(inner, width, **kind)


class Block(nn.Module):
    """The parameters of one transformer block, under the names that the published files give them."""

    def __init__(self, config: ModelConfig, **kind: Any) -> None:
        super().__init__()
        self.ln_1 = Norm(config.n_embd, **kind)
        self.attn = Attention(config.n_embd, **kind)
        self.ln_2 = Norm(config.n_embd, **kind)
        self.mlp = MLP(config.n_embd, config.inner, **kind)


class GPT2(nn.Module):
    """GPT-2. Its parameters have the names of the published files; `weights.py` fills them.

    config: the shape. device, dtype: where and in what the parameters are held (floating point).
    ops: what it computes with besides attention; plain PyTorch unless given.
    The token embedding holds `config.padded_vocab` rows; logits come for the first `config.vocab_size` only.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        ops: type[TorchOps] = TorchOps,
    ) -> None:
        super().__init__()
        self.config, self.ops = config, ops
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.wte = Table(config.padded_vocab, config.n_embd, **kind)
        self.wpe = Table(config.n_positions, config.n_embd, **kind)
        self.h = nn.ModuleList(Block(config, **kind) for _ in range(config.n_layer))
        self.ln_f = Norm(config.n_embd, **kind)

    @property
    def device(self) -> torch.device:
        return self.wte.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.wte.weight.dtype

    def forward(self, step: Step, memory: Memory) -> Tensor:
        """Logits (B, vocab_size), float32, after each row's last real token."""
        x = self.hidden(step, memory)  # (B, T, C)
        return self.head(x[torch.arange(len(x), device=x.device), step.last])  # of (B, C)

    def hidden(self, step: Step, memory: Memory) -> Tensor:
        """The residual stream after the final LayerNorm, (B, T, C), at every column."""
        x = F.embedding(step.token_ids, self.wte.weight) + F.embedding(step.positions, self.wpe.weight)  # (B, T, C)
        B, T, C = x.shape
        x = x.view(B * T, C)  # but for attention, no token knows of another
        for layer, block in enumerate(cast(Iterable[Block], self.h)):
            qkv = self.linear(self.norm(x, block.ln_1), block.attn.c_attn)  # (B * T, 3 * C)
            q, k, v = qkv.view(B, T, 3, self.config.n_head, self.config.head_size).unbind(2)  # (B, T, H, D) each
            y = memory.attend(layer, q, k, v).reshape(B * T, C)  # heads side by side
            x = self.ops.add(x, self.linear(y, block.attn.c_proj))

            y = self.ops.gelu(self.linear(self.norm(x, block.ln_2), block.mlp.c_fc))  # (B * T, 4 * C)
            x = self.ops.add(x, self.linear(y, block.mlp.c_proj))
        return self.norm(x, self.ln_f).view(B, T, C)

    def linear(self, x: Tensor, matrix: Matrix) -> Tensor:
        return self.ops.linear(x, matrix.weight, matrix.bias)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return self.ops.layer_norm(x, norm.weight, norm.bias, self.config.layer_norm_epsilon)

    def head(self, x: Tensor) -> Tensor:
        """(..., C) -> logits (..., vocab_size), float32. The head is the token embedding, transposed."""
        return F.linear(x, self.wte.weight)[..., : self.config.vocab_size].float()
