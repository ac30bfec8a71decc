"""GPT-2, written once. Chapter 1.

Every engine of the book runs this model. It computes queries, keys and values and hands them to a *memory*, which
gives attention's output back: what a query may read, and where it is read from, is the memory's business, and the
one thing that chapters 1 to 3 change. Architecture: Radford et al. 2019, "Language Models are Unsupervised
Multitask Learners", section 2.3; pre-LayerNorm blocks, learned positions, one matrix for embedding and head.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanoinfer.model.batch import Step
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.ops import TorchOps


class Memory(Protocol):
    """What a query may read. `Naive`, and in later chapters `DenseCache` and `PagedCache`."""

    def begin(self, step: Step) -> Step:
        """Take the new tokens in, once a step; return the step that the model must run."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of one layer: q, k, v (B, T, H, D) -> (B, T, H, D)."""


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


class Layer(NamedTuple):
    """Weight and bias of each map of a block, looked up once: a module's attributes are slow to find."""

    ln_1: tuple[Tensor, Tensor]
    c_attn: tuple[Tensor, Tensor]
    attn_proj: tuple[Tensor, Tensor]
    ln_2: tuple[Tensor, Tensor]
    c_fc: tuple[Tensor, Tensor]
    mlp_proj: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, block: Block) -> Layer:
        maps = block.ln_1, block.attn.c_attn, block.attn.c_proj, block.ln_2, block.mlp.c_fc, block.mlp.c_proj
        return cls(*((each.weight, each.bias) for each in maps))


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
        ops: TorchOps | None = None,
    ) -> None:
        super().__init__()
        self.config, self.ops = config, ops or TorchOps()
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.wte = Table(config.padded_vocab, config.n_embd, **kind)
        self.wpe = Table(config.n_positions, config.n_embd, **kind)
        self.h = nn.ModuleList(Block(config, **kind) for _ in range(config.n_layer))
        self.ln_f = Norm(config.n_embd, **kind)
        self.layers = [Layer.of(block) for block in cast(Iterable[Block], self.h)]

    @property
    def device(self) -> torch.device:
        return self.wte.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.wte.weight.dtype

    def forward(self, step: Step, memory: Memory) -> Tensor:
        """Logits (B, vocab_size) after each row's last real token; float32, or what `ops.head` gives."""
        h = self.hidden(step, memory)  # (B, T, C)
        last = h[:, 0] if h.shape[1] == 1 else h[torch.arange(len(h), device=h.device), step.last]
        return self.head(last)  # of (B, C)

    def hidden(self, step: Step, memory: Memory) -> Tensor:
        """The residual stream after the final LayerNorm, (B, T, C), at every column.

        The stream begins as the token's embedding, and all that follows are updates to it: the position's embedding
        first, then one from each sublayer. A sublayer reads the stream normalised, and never writes over it.
        """
        (B, T), C = step.token_ids.shape, self.config.n_embd
        x = F.embedding(step.token_ids, self.wte.weight).view(B * T, C)  # but for attention, no token knows of another
        update = F.embedding(step.positions, self.wpe.weight).view(B * T, C)
        ops, eps = self.ops, self.config.layer_norm_epsilon
        for index, layer in enumerate(self.layers):
            x, h = ops.add_norm(x, update, *layer.ln_1, eps)
            qkv = ops.linear(h, *layer.c_attn)  # (B * T, 3 * C)
            q, k, v = qkv.view(B, T, 3, self.config.n_head, self.config.head_size).unbind(2)  # (B, T, H, D) each
            y = memory.attend(index, q, k, v).reshape(B * T, C)  # heads side by side
            update = ops.linear_update(y, *layer.attn_proj)

            x, h = ops.add_norm(x, update, *layer.ln_2, eps)
            h = ops.linear_gelu(h, *layer.c_fc)  # (B * T, 4 * C)
            update = ops.linear_update(h, *layer.mlp_proj)
        _, h = ops.add_norm(x, update, self.ln_f.weight, self.ln_f.bias, eps)
        return h.view(B, T, C)

    def head(self, x: Tensor) -> Tensor:
        """(..., C) -> logits (..., vocab_size). The head is the token embedding, transposed."""
        return self.ops.head(x, self.wte.weight)[..., : self.config.vocab_size]
