"""The files of the page, which lie in the package."""

from __future__ import annotations

from importlib.resources import files


def read(name: str) -> str:
    """A file of the page by its name, as text."""
    return files("nanoinfer.serve").joinpath("page").joinpath(name).read_text(encoding="utf-8")
