"""Short runs of equal time that chose the small model's shape and settings: `python -m training.recipes --help`.

Every recipe gets the same seconds on the same device, and its learning rate falls to zero within them. Their logs
lie in `tools/training/logs`; the model card's table is made from them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

MUON = {"width": 160, "layers": 12, "heads": 5, "dropout": 0.05}
RECIPES: dict[str, dict[str, str | int | float]] = {
    "adamw-160x8": {"width": 160, "layers": 8, "heads": 5, "dropout": 0.1, "optimizer": "adamw", "lr": 0.003},
    "muon-160x12": MUON,
    "muon-160x12-no-dropout": MUON | {"dropout": 0.0},
    "muon-160x12-double-lr": MUON | {"dropout": 0.0, "lr": 0.008},
    "muon-160x12-double-rates": MUON | {"dropout": 0.0, "lr": 0.008, "matrix_lr": 0.04},
    "muon-160x12-half-rates": MUON | {"lr": 0.002, "matrix_lr": 0.01},
    "muon-128x26": MUON | {"width": 128, "layers": 26, "heads": 4},
    "muon-192x4": MUON | {"width": 192, "layers": 4, "heads": 6},
    "muon-144x18": MUON | {"width": 144, "layers": 18, "heads": 3},
    "muon-160x12-decay-0.3": MUON | {"decay": 0.3},
}


def row(name: str, folder: Path) -> str:
    """One line of the table, from the recipe's log."""
    log = json.loads((folder / "log.json").read_text(encoding="utf-8"))
    end = log["curve"][-1]
    numbers = f"{log['parameters'] / 1e6:5.2f} M {end['tokens'] / 1e6:6.1f} M tokens {end['seconds']:6.1f} s"
    return f"{name:26} {numbers}  train {end['train']:.4f}  held-out {end['heldout']:.4f}"


def main(
    train_tokens: Path,
    heldout_tokens: Path,
    out: Path,
    seconds: float = 60.0,
    only: Annotated[list[str] | None, typer.Option(help="names of recipes; all if none is given")] = None,
) -> None:
    """Run each recipe for SECONDS of training, into a folder of its name under OUT."""
    done = []
    for name in only or RECIPES:
        options = [f"--{key.replace('_', '-')}={value}" for key, value in RECIPES[name].items()]
        command = [sys.executable, "-m", "training.train", train_tokens, heldout_tokens, out / name, *options]
        subprocess.run([*map(str, command), f"--seconds={seconds}", "--evaluations=4"], check=False)
        if (out / name / "log.json").exists():
            done.append(row(name, out / name))
            print(done[-1], flush=True)
    print("\n".join(["", *done]))


if __name__ == "__main__":
    typer.run(main)
