"""Which chapters are here. `nanoinfer rung` writes this file anew; all others are the same in every rung."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanoinfer.async_llm import AsyncLLM as AsyncLLM
    from nanoinfer.llm import LLM as LLM
    from nanoinfer.requests import Completion as Completion
    from nanoinfer.requests import Logprobs as Logprobs
    from nanoinfer.requests import Metrics as Metrics
    from nanoinfer.requests import Piece as Piece
    from nanoinfer.requests import SamplingParams as SamplingParams

# By name, the module that it is imported from.
HOME = {
    "AsyncLLM": "async_llm",
    "LLM": "llm",
    "Completion": "requests",
    "Logprobs": "requests",
    "Metrics": "requests",
    "Piece": "requests",
    "SamplingParams": "requests",
}
# By name, what makes an engine of a rung. Each is proven against the one before it.
ENGINES = {
    "naive": "nanoinfer.engines.naive:naive",
    "dense": "nanoinfer.engines.dense:dense",
    "paged": "nanoinfer.engines.paged:paged",
    "dense-graph": "nanoinfer.engines.graphs:dense_graph",
    "paged-graph": "nanoinfer.engines.graphs:paged_graph",
}
