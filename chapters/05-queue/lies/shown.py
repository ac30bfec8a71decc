"""What queues-that-starved.md shows: a block for each lie."""

from __future__ import annotations

from pathlib import Path

from nanobook.lies import blocks

__getattr__ = blocks(Path(__file__).resolve().parent)
