"""nanoinfer: GPT-2 inference from scratch, from a naive loop to a dict of CUDA graphs.

    from nanoinfer import LLM, SamplingParams

Importing this package loads neither torch nor Triton; making an `LLM` does.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nanoinfer.async_llm import AsyncLLM
    from nanoinfer.llm import LLM
    from nanoinfer.requests import Completion, Logprobs, Metrics, Piece, SamplingParams

_HOME = {
    "AsyncLLM": "async_llm",
    "LLM": "llm",
    "Completion": "requests",
    "Logprobs": "requests",
    "Metrics": "requests",
    "Piece": "requests",
    "SamplingParams": "requests",
}
__all__ = ["LLM", "AsyncLLM", "Completion", "Logprobs", "Metrics", "Piece", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'nanoinfer' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"nanoinfer.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
