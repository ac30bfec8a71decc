"""Measurements of one thing each: a kernel, a step, a cache, a sampler."""
