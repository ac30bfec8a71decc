"""Penalties on what a row has generated, and logprobs of what it chose. Chapter 5."""
