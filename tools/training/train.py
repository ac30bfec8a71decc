"""Train a small GPT-2, the project's own model, on a token file: `python -m training.train --help`.

Muon for the blocks' matrices and AdamW for the rest, or AdamW for all; bfloat16 arithmetic on float32 weights; a
learning rate that rises, stays and falls to zero. Writes OUT/model.safetensors (float16) with config.json, and
OUT/log.json, after each look at the held-out loss.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
import typer

from nanoinfer.model.files import save_model
from training.data import Epochs, load
from training.evaluate import sample_of
from training.run import Run, Settings


def now(device: torch.device) -> float:
    """Seconds, once the device has done all it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def train(run: Run, batches: Epochs, heldout_path: Path, train_path: Path, out: Path, evaluations: int) -> None:
    """Train to the last step, with `evaluations` looks at the held-out loss, after each of which all is saved."""
    settings, device = run.settings, run.model.device
    heldout = load(heldout_path)
    seen = sample_of(load(train_path), len(heldout))
    log = {"settings": asdict(settings), "parameters": run.model.config.parameters}
    curve = list[dict[str, float]]()
    every, seconds, begin = max(1, settings.steps // evaluations), 0.0, now(device)
    losses: list[torch.Tensor] = []
    for step, (inputs, targets) in zip(range(settings.steps), batches, strict=False):
        losses.append(run.train_step(inputs, targets, settings.share(step)))
        done = step + 1
        if done % every and done < settings.steps:
            continue
        seconds += now(device) - begin
        point = {
            "step": done, "tokens": done * settings.batch * settings.context, "seconds": round(seconds, 1),
            "batch_loss": torch.stack(losses).mean().item(),
            "heldout": run.evaluate(heldout), "train": run.evaluate(seen),
        }  # fmt: skip
        print(*(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v:,}" for k, v in point.items()), flush=True)
        curve.append(point)
        save_model(run.model, out, torch.float16)
        (out / "log.json").write_text(json.dumps(log | {"curve": curve}, indent=1) + "\n", encoding="utf-8")
        losses, begin = [], now(device)


def main(
    train_tokens: Path,
    heldout_tokens: Path,
    out: Path,
    layers: int = 12,
    width: int = 160,
    heads: int = 5,
    context: int = 1024,
    batch: int = 64,
    steps: int = 20000,
    optimizer: str = "muon",
    lr: float = 0.004,
    matrix_lr: float = 0.02,
    decay: float = 0.1,
    dropout: float = 0.05,
    cooldown: float = 0.7,
    seed: int = 0,
    evaluations: int = 20,
    compile: bool = True,
) -> None:
    """Train on TRAIN_TOKENS, watch HELDOUT_TOKENS, write into OUT.

    BATCH windows of CONTEXT tokens a step. LR is AdamW's peak rate, MATRIX_LR Muon's, DECAY the weight decay of both.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    settings = Settings(
        layers, width, heads, context, batch, steps, optimizer, lr, matrix_lr, decay, dropout, cooldown, seed
    )
    out.mkdir(parents=True, exist_ok=True)
    run = Run(settings, compile, device)
    batches = Epochs(load(train_tokens), batch, context, seed, device)
    print(json.dumps(asdict(settings)), f"{run.model.config.parameters:,} parameters", flush=True)
    train(run, batches, heldout_tokens, train_tokens, out, evaluations)


if __name__ == "__main__":
    typer.run(main)
