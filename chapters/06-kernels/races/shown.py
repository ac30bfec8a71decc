"""What kernels-that-raced.md shows: a block for each lie, and `verdicts`, what the test says of both sides."""

from __future__ import annotations

from pathlib import Path

from nanobook.lies import blocks

__getattr__ = blocks(Path(__file__).resolve().parent)
