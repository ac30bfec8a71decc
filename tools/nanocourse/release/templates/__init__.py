"""The texts of a release that are the same for every chapter, with $words left open."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

HERE = Path(__file__).parent


def filled(name: str, words: Mapping[str, str]) -> str:
    """A template with its words filled in. KeyError for a word that is not given."""
    return Template((HERE / name).read_text(encoding="utf-8")).substitute(words)


def put(path: Path, text: str) -> None:
    """Write a text, in UTF-8 with newlines as they are on Linux, into a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
