"""nanoinfer: GPT-2 inference from scratch, from a naive loop to a dict of CUDA graphs.

    from nanoinfer import LLM, SamplingParams

Importing this package loads neither torch nor Triton; making an `LLM` does.
"""

from typing import TYPE_CHECKING

from nanoinfer.chapters import HOME

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nanoinfer.chapters import *  # noqa: F403

__all__ = [*HOME, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in HOME:
        raise AttributeError(f"module 'nanoinfer' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"nanoinfer.{HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
