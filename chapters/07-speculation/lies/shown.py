"""What guesses-that-lied.md shows: a block for each lie, and `verdicts`, what the test says of each."""

from nanobook.lies import blocks

__getattr__ = blocks(__file__)
