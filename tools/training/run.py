"""One training run of the project's own GPT-2: settings, initial weights, optimizers, one step.

The model runs with `NoCache`, the attention of chapter 1. Dropout comes in as `ops`, like the fused kernels of
chapter 4: the model's code is the same in training and in the engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.ops import TorchOps
from training.evaluate import hidden_of, loss_of
from training.optim import Muon

HEAD_ROWS = 16384  # tokens whose logits are made at a time: 50304 * 16384 elements can still be counted in 32 bits


@dataclass(frozen=True)
class Settings:
    """What makes a run; printed, and kept in its log."""

    layers: int
    width: int
    heads: int
    context: int
    batch: int
    steps: int
    optimizer: str
    lr: float
    matrix_lr: float
    decay: float
    dropout: float
    cooldown: float
    seed: int

    def share(self, step: int) -> float:
        """Share of the peak learning rates: a rise over 1% of the steps, a plain, a straight fall to zero."""
        return min(1.0, (step + 1) / max(1, self.steps // 100), (1 - step / self.steps) / self.cooldown)


class DropoutOps(TorchOps):
    """TorchOps that forget a share `p` of every update to the residual stream, as GPT-2's training did.

    The position's embedding counts as an update. The logged runs, made before it did, left it whole.
    """

    def __init__(self, p: float) -> None:
        self.p = p

    def add_norm(self, x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return super().add_norm(x, F.dropout(update, self.p), weight, bias, eps)


def new_model(config: ModelConfig, seed: int, device: torch.device) -> GPT2:
    """GPT-2's initial weights: normal 0.02, smaller where a block adds to the stream, biases 0, norms 1."""
    model = GPT2(config, "cpu")
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
        elif parameter.ndim == 1:
            torch.nn.init.ones_(parameter)
        else:
            std = 0.02 / math.sqrt(2 * config.n_layer) if name.endswith("c_proj.weight") else 0.02
            torch.nn.init.normal_(parameter, 0.0, std, generator=generator)
    return model.to(device)


def optimizers(model: GPT2, settings: Settings) -> list[torch.optim.Optimizer]:
    """AdamW, and before it Muon if asked for; weight decay for matrices and embeddings only."""
    matrices = [p for name, p in model.named_parameters() if name.startswith("h.") and p.ndim == 2]
    tables = [model.wte.weight, model.wpe.weight]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    muon = settings.optimizer == "muon"
    adamw = torch.optim.AdamW(
        [{"params": tables if muon else tables + matrices, "weight_decay": settings.decay},
         {"params": vectors, "weight_decay": 0.0}],
        lr=settings.lr, betas=(0.9, 0.95), fused=model.device.type == "cuda",
    )  # fmt: skip
    found = [Muon(matrices, settings.matrix_lr, settings.decay), adamw] if muon else [adamw]
    for optimizer in found:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return found


class Run:
    """One training run: the model and its optimizers."""

    def __init__(self, settings: Settings, compile: bool, device: torch.device) -> None:
        self.settings = settings
        config = ModelConfig(settings.layers, settings.heads, settings.width, settings.context)
        self.model = new_model(config, settings.seed, device)
        self.hidden = torch.compile(self._hidden) if compile else self._hidden
        self.head = torch.compile(self._head) if compile else self._head
        self.train_ops = DropoutOps(settings.dropout) if settings.dropout else TorchOps()
        self.optimizers = optimizers(self.model, settings)

    def _hidden(self, inputs: Tensor) -> Tensor:
        """Windows (B, T) -> (B * T, C), what the head reads."""
        return hidden_of(self.model, inputs)

    def _head(self, x: Tensor, targets: Tensor) -> Tensor:
        """Summed loss of x (N, C)."""
        # All padded columns: the extra ones are never a target, so that they only learn to be unlikely, and rows of
        # a round length are faster in this, the largest part of a step. They are dropped when saved.
        return F.cross_entropy(F.linear(x, self.model.wte.weight).float(), targets, reduction="sum")

    def train_step(self, inputs: Tensor, targets: Tensor, share: float) -> Tensor:
        """One step at `share` of the peak learning rates; returns the loss, still on the device."""
        self.model.ops = self.train_ops
        with torch.autocast(inputs.device.type, torch.bfloat16):
            pieces = zip(self.hidden(inputs).split(HEAD_ROWS), targets.flatten().split(HEAD_ROWS), strict=True)
            loss = torch.stack([self.head(*piece) for piece in pieces]).sum() / targets.numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def evaluate(self, tokens: np.ndarray) -> float:
        """Loss on plain windows without dropout, in bfloat16 as trained."""
        self.model.ops = TorchOps()
        with torch.autocast(self.model.device.type, torch.bfloat16):
            return loss_of(self.model, tokens, self.settings.context, batch=32)
