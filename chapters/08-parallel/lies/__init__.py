"""Ranks that disagreed: right and wrong ranks, which ../ranks-that-disagreed.md shows."""
