"""What kernels-that-raced.md shows: a block for each lie, and `verdicts`, what the test says of both sides."""

from nanobook.lies import blocks

__getattr__ = blocks(__file__)
