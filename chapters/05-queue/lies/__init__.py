"""Queues that starved: right and wrong ones, which ../queues-that-starved.md shows."""
