"""Each notebook of the book runs from top to bottom on a CPU, and shows the code that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanobook.notebooks import check_one, sources

ROOT = Path(__file__).parents[2]


@pytest.mark.notebook
@pytest.mark.parametrize("name", [source.stem for source in sources(ROOT)])
def test_runs(name: str) -> None:
    assert check_one(ROOT / "notebooks" / f"{name}.py", ROOT) == []
