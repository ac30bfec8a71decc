"""Train a small GPT-2, the project's own model, on a token file: `python -m training.train --help`.

Muon for the blocks' matrices and AdamW for the rest, or AdamW for all; bfloat16 arithmetic on float32 weights; a
learning rate that rises, stays and falls to zero. Writes OUT/model.safetensors (float16) with config.json,
OUT/log.json, and OUT/checkpoint.pt, from which the same command goes on after a break.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
import typer

from training.data import Epochs, load
from training.evaluate import sample_of
from training.run import Run, Settings

PROBE = 60  # steps before the run, of which the second half are timed to turn --seconds into a number of steps


def now(device: torch.device) -> float:
    """Seconds, once the device has done all it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_a_step(run: Run, batches: Epochs) -> float:
    """Time of a step, compilation left out. Learning rates are zero meanwhile: the weights stay as they are."""
    begin = 0.0
    for step, (inputs, targets) in zip(range(PROBE), batches.from_step(0), strict=False):
        if step == PROBE // 2:
            begin = now(run.model.device)
        run.train_step(inputs, targets, share=0.0)
    spent = now(run.model.device) - begin
    run.reset_optimizers()
    return spent / (PROBE - PROBE // 2)


def report(run: Run, out: Path) -> None:
    """Print the newest point of the curve; save weights, checkpoint and log."""
    values = (f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v:,}" for k, v in run.curve[-1].items())
    print(*values, flush=True)
    run.save(out)
    log = {"settings": asdict(run.settings), "parameters": run.parameters(), "curve": run.curve}
    (out / "log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


def train(run: Run, batches: Epochs, heldout_path: Path, train_path: Path, out: Path, evaluations: int) -> None:
    """Steps until the last, with `evaluations` looks at the held-out loss, after each of which all is saved."""
    settings, device = run.settings, run.model.device
    heldout = load(heldout_path)
    seen = sample_of(load(train_path), len(heldout))
    every = max(1, settings.steps // evaluations)
    begin = now(device)
    losses: list[torch.Tensor] = []
    for inputs, targets in batches.from_step(run.step):
        losses.append(run.train_step(inputs, targets, settings.share(run.step)))
        run.step += 1
        if run.step % every == 0 or run.step == settings.steps:
            run.seconds += now(device) - begin
            run.curve.append({
                "step": run.step, "tokens": run.step * settings.batch * settings.context,
                "seconds": round(run.seconds, 1), "batch_loss": torch.stack(losses).mean().item(),
                "heldout": run.evaluate(heldout), "train": run.evaluate(seen),
            })  # fmt: skip
            report(run, out)
            losses, begin = [], now(device)
        if run.step == settings.steps:
            return


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
    seconds: float = 0.0,
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
    """Train on TRAIN_TOKENS, watch HELDOUT_TOKENS, write into OUT. --seconds, if given, overrides --steps.

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
    if (out / "checkpoint.pt").exists():
        run.restore(out / "checkpoint.pt")
        print(f"going on from step {run.step:,}")
    elif seconds:
        step_time = seconds_a_step(run, batches)
        run.settings = replace(settings, steps=int(seconds / step_time))
        print(f"{step_time * 1e3:.2f} ms a step, {batch * context / step_time / 1e6:.2f} M tokens/s")
    print(json.dumps(asdict(run.settings)), f"{run.parameters():,} parameters", flush=True)
    if run.step < run.settings.steps:
        train(run, batches, heldout_tokens, train_tokens, out, evaluations)


if __name__ == "__main__":
    typer.run(main)
