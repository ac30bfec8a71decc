"""The bank of wrong answers: one table a chapter, `wrong.toml`, of rows by exercise and name.

A row is [misconception, replace, by]: the reference with the one occurrence of a text replaced by another. There may be
more such pairs; behind them stands who made the mistake, and where, unless it is a slip of an author's own. In a text
that is replaced, "…" is everything up to what follows it; "" is the whole body. A table at the end holds `lesson` or
`unnamed`.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from nanocourse.exercises.exercise import Wrong

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def wrong_answers(table: Path, id: str) -> tuple[Wrong, ...]:
    """The wrong answers of one exercise, in the order of the table; none where there is no table."""
    rows = _parsed(table.read_text(encoding="utf-8")) if table.is_file() else {}
    return tuple(_wrong(name, *row) for name, row in rows.get(id, {}).items())


@functools.lru_cache
def _parsed(text: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(text)
    return found


def _wrong(name: str, says: str, *rest: Any) -> Wrong:
    *texts, more = rest if isinstance(rest[-1], dict) else (*rest, {})
    origin = texts.pop() if len(texts) % 2 else ""
    return Wrong(name, says, origin, tuple(texts), **more)
