"""Loss of a model on a token file, in nats a token: every token of the file predicted exactly once.

An end-of-text is put in front, so that the first token is predicted too. `plain`: windows of `context` inputs that
do not overlap, so that a token sees 0 to `context - 1` tokens before the one it follows. `sliding`: windows begin
`stride` apart and only the tokens that are new in each are counted, so that all but the first see at least
`context - stride` tokens.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import typer

from nanoinfer.cache.none import NoCache
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import END_OF_TEXT
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model
from training.data import load


def hidden_of(model: GPT2, inputs: torch.Tensor) -> torch.Tensor:
    """What the head reads of windows (B, T), each from position 0: (B * T, C)."""
    B, T = inputs.shape
    row, column = torch.arange(B + 1, device=inputs.device), torch.arange(T, device=inputs.device)
    positions, rows = column.repeat(B), row[:B].repeat_interleave(T)
    batch = Batch(inputs.flatten(), positions, rows, starts=row * T, longest=T, past=0)
    return model.hidden(batch, partial(NoCache().attend, batch))


@torch.inference_mode()
def loss_of(model: GPT2, tokens: np.ndarray, context: int, stride: int | None = None, batch: int = 16) -> float:
    """Mean loss over all of `tokens`; `stride` None means plain windows."""
    stream = torch.from_numpy(np.concatenate([[END_OF_TEXT], tokens]).astype(np.int64))
    *whole, last = windows_of(len(tokens), context, stride or context)  # only the last may be shorter
    total = 0.0
    for group in [*(whole[at : at + batch] for at in range(0, len(whole), batch)), [last]]:
        rows = torch.stack([stream[start : end + 1] for start, end, _ in group]).to(model.device)
        hidden = hidden_of(model, rows[:, :-1]).unflatten(0, (len(group), -1))  # (b, T, C)
        for x, targets, (start, _, new) in zip(hidden, rows[:, 1:], group, strict=True):
            losses = F.cross_entropy(model.head(x[new - start :]), targets[new - start :], reduction="sum")
            total += losses.double().item()
    return total / len(tokens)


def windows_of(length: int, context: int, stride: int) -> list[tuple[int, int, int]]:
    """(start, end, new): inputs start..end - 1; only targets from `new` on are counted, each in one window."""
    ends = [*range(min(context, length), length, stride), length]
    news = [0, *ends[:-1]]
    return [(max(0, end - context) if stride < context else new, end, new) for end, new in zip(ends, news, strict=True)]


def sample_of(tokens: np.ndarray, size: int, pieces: int = 64) -> np.ndarray:
    """About `size` tokens of a large file: `pieces` stretches, evenly apart, one behind the other."""
    length = size // pieces
    return np.concatenate([tokens[at : at + length] for at in np.linspace(0, len(tokens) - length, pieces, dtype=int)])


def main(model: Path, heldout: Path, train: Path | None = None, stride: int = 512, out: Path | None = None) -> None:
    """Loss of the folder MODEL in float32 on the token file HELDOUT, and on as many tokens of TRAIN."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpt2 = load_model(model, device, torch.float32)
    tokens, context = load(heldout), gpt2.config.n_positions
    result: dict[str, float] = {"context": context, "stride": stride, "heldout_tokens": len(tokens)}
    result["heldout"] = loss_of(gpt2, tokens, context)
    result["heldout_sliding"] = loss_of(gpt2, tokens, context, stride)
    if train is not None:
        result["train"] = loss_of(gpt2, sample_of(load(train), len(tokens)), context)
    for name in ("heldout", "heldout_sliding", "train"):
        if name in result:
            print(f"{name}: {result[name]:.4f} nats a token, perplexity {math.exp(result[name]):.2f}")
    if out is not None:
        out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
