"""Counters of an LLM. Chapter 1."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stats:
    """Counters of an LLM since it was made."""

    requests: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0  # tokens that were kept
    cached_tokens: int = 0  # prompt tokens that a prefix cache had already
    preemptions: int = 0  # times that a row had to give its room back
    recomputed_tokens: int = 0  # of preempted rows, prompt and new ones
    dropped_tokens: int = 0  # computed past a stop that the host had not seen yet
