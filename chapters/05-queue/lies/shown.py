"""What queues-that-starved.md shows: a block for each lie."""

from nanobook.lies import blocks

__getattr__ = blocks(__file__)
