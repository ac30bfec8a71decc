"""GPT-2, written once. Chapter 1.

Every engine of the book runs this model. It computes queries, keys and values and hands them to a *cache*, which gives
attention's output back: what a query may read, and where it is read from, is the cache's business, and the one thing
that chapters 1 to 3 change. Architecture: Radford et al. 2019, "Language Models are Unsupervised
Multitask Learners", section 2.3; pre-LayerNorm blocks, learned positions, one matrix for embedding and head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.ops import TorchOps


class Cache(Protocol):
    """What a query may read: the one thing that chapters 1 to 3 change."""

    def plan(self, batch: Batch) -> Any:
        """What there is to know of a batch for all layers, made once a step."""

    def attend(self, plan: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of one layer, for the plan that was made: q, k, v (N, H, D) -> (N, H, D)."""


Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # `Cache.attend` of one plan


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

    def __init__(self, width: int, heads_width: int, **kind: Any) -> None:
        super().__init__()
        self.c_attn = Matrix(width, 3 * heads_width, **kind)
        self.c_proj = Matrix(heads_width, width, **kind)


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
        self.attn = Attention(config.n_embd, config.n_head * config.head_size, **kind)
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

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        """Logits (B, vocab_size) after the last token of each sequence; float32, or what `ops.head` gives."""
        plan = cache.plan(batch)
        h = self.hidden(batch, partial(cache.attend, plan))  # (N, C)
        return self.head(batch.last(h))

    def hidden(self, batch: Batch, attend: Attend) -> Tensor:
        """The residual stream after the final LayerNorm, (N, C), at every token.

        The stream begins as the token's embedding, and all that follows are updates to it: the position's embedding
        first, then one from each sublayer. A sublayer reads the stream normalised, and never writes over it. But for
        attention, no token knows of another.
        """
        N = len(batch.token_ids)
        x = F.embedding(batch.token_ids, self.wte.weight)  # (N, C)
        update = F.embedding(batch.positions, self.wpe.weight)
        ops, eps = self.ops, self.config.layer_norm_epsilon
        for index, layer in enumerate(self.layers):
            x, h = ops.add_norm(x, update, *layer.ln_1, eps)
            qkv = ops.linear(h, *layer.c_attn)  # (N, 3 * C)
            q, k, v = qkv.view(N, 3, self.config.n_head, self.config.head_size).unbind(1)  # (N, H, D) each
            y = attend(index, q, k, v).flatten(1)  # (N, C), heads side by side
            update = ops.linear_update(y, *layer.attn_proj)

            x, h = ops.add_norm(x, update, *layer.ln_2, eps)
            h = ops.linear_gelu(h, *layer.c_fc)  # (N, 4 * C)
            update = ops.linear_update(h, *layer.mlp_proj)
        return ops.add_norm(x, update, self.ln_f.weight, self.ln_f.bias, eps)[1]

    def head(self, x: Tensor) -> Tensor:
        """(..., C) -> logits (..., vocab_size). The head is the token embedding, transposed."""
        return self.ops.head(x, self.wte.weight)[..., : self.config.vocab_size]
