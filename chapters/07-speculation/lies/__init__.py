"""Guesses that lied: right and wrong decoders, which ../guesses-that-lied.md shows."""
