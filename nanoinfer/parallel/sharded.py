"""One rank's part of GPT-2: two sums over all ranks a layer, and a head that is cut by vocabulary. Chapter 8.

A matrix whose columns are cut needs no word from others: each head, and each column of the MLP, is computed alone. The
matrix behind it is cut by rows, so that each rank has a term of the result, and their sum is an all-reduce. Shoeybi et
al. 2019, "Megatron-LM", section 3. The table of embeddings is on every rank; of the head, each computes a part.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.kernels.available import has_triton
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2, Cache
from nanoinfer.model.ops import TorchOps
from nanoinfer.model.weights import fill_model, open_model, sized
from nanoinfer.parallel.shard import Shard

if TYPE_CHECKING:
    from nanoinfer.parallel.group import Group


class Term(NamedTuple):
    """This rank's term of an update of the residual stream, in whatever form `ops` gives it."""

    value: Tensor


class ReducedOps:
    """Operations whose updates of the residual stream are sums over all ranks; all else is `ops`'s.

    The sum is left to `add_norm`, which can do all three at once where the group has an inbox.
    """

    def __init__(self, ops: TorchOps, group: Group) -> None:
        self._ops, self._group, self._half = ops, group, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def linear_update(self, x: Tensor, weight: Tensor, bias: Tensor) -> Term:
        """The bias is zero on all ranks but the first."""
        return Term(self._ops.linear_update(x, weight, bias))

    def add_norm(
        self, x: Tensor, update: Tensor | Term, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """As `TorchOps`'s. A plain tensor is the same on all ranks, and the first update of a step."""
        if not isinstance(update, Term):
            self._half = 0
            return self._ops.add_norm(x, update, weight, bias, eps)
        inbox, term = self._group.inbox, update.value
        if inbox and len(x) <= inbox.rows:
            from nanoinfer.kernels.reduce_norm import reduce_norm  # Triton is not everywhere

            self._half = 1 - self._half
            return reduce_norm(x, term, weight, bias, eps, inbox, self._half)
        total = self._group.all_reduce(term.sum(0) if term.dim() == 3 else term)  # (parts, N, C): fused ones
        return self._ops.add_norm(x, total, weight, bias, eps)


class ShardedGPT2(GPT2):
    """A rank's part. `forward` gives the logits of its own ids, for samplers that join them; `head` all logits."""

    def __init__(
        self, config: ModelConfig, shard: Shard, group: Group, device: torch.device, dtype: torch.dtype
    ) -> None:
        ops: Any = ReducedOps(TorchOps(), group)
        if device.type == "cuda" and has_triton():
            group.make_inbox(config.n_embd, dtype, device)
        super().__init__(shard.config(config), device, dtype, ops)
        self.group, self.ids, self.width = group, shard.vocab(config), shard.vocab_width(config)

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        """Logits (B, width) of this rank's ids; -inf where there are no more."""
        h = self.hidden(batch, partial(cache.attend, cache.plan(batch)))  # (N, C)
        return self.own_logits(batch.last(h))

    def own_logits(self, x: Tensor) -> Tensor:
        """(K, C) -> (K, width). Padding is no weight but a mask: a row of zeros would win over negative logits."""
        logits: Tensor = self.ops.head(x, self.wte.weight[self.ids])
        return F.pad(logits, (0, self.width - logits.shape[-1]), value=-torch.inf)

    def head(self, x: Tensor) -> Tensor:
        """(K, C) -> logits (K, vocab_size), on every rank."""
        return self.gathered(self.own_logits(x))

    def gathered(self, logits: Tensor) -> Tensor:
        """Logits (K, width) of each rank -> of all ids (K, vocab_size)."""
        every = self.group.all_gather(logits)  # (size, K, width)
        return every.transpose(0, 1).flatten(1)[:, : self.config.vocab_size]


class PartOf:
    """Loads one rank's part of a model."""

    def __init__(self, group: Group) -> None:
        self.shard, self.group = Shard(group.rank, group.size), group

    def load(
        self, name: str | Path, device: torch.device, dtype: torch.dtype, *, seed: int = 0, revision: str | None = None
    ) -> GPT2:
        """As `load_model`. Of a file, only the rank's slices are read."""
        with open_model(name, seed, revision) as (config, read), sized(config, device, dtype):
            return fill_model(self.make(config, device, dtype), lambda parameter: self.cut(parameter, read(parameter)))

    def make(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> GPT2:
        """The part of a model of that shape, its parameters left to be filled."""
        self._config = config
        return ShardedGPT2(config, self.shard, self.group, device, dtype)

    def cut(self, name: str, tensor: Any) -> Tensor:
        """The part of a parameter. tensor: it, or a file's view of it."""
        pieces = [tensor[index] for index in self.shard.pieces(name, self._config)]
        part = torch.cat(pieces, -1) if len(pieces) > 1 else pieces[0]
        return part if self.shard.adds(name) else torch.zeros_like(part)
