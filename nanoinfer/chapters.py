"""Which chapters are here. `nanoinfer rung` writes this file anew; all others are the same in every rung."""

from __future__ import annotations

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
