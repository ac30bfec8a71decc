"""The texts of a release that are the same for every chapter, with $words left open."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

HERE = Path(__file__).parent


def filled(name: str, words: Mapping[str, str]) -> str:
    """A template with its words filled in. KeyError for a word that is missing."""
    return Template((HERE / name).read_text(encoding="utf-8")).substitute(words)


def put(path: Path, content: str | bytes) -> None:
    """Write bytes, or a text in UTF-8 with newlines as on Linux, creating its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
