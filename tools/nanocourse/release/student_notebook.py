"""The chapter's notebook as students get it: in percent format and as .ipynb, without outputs."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

from nanocourse.release import student_text as text

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def released(source: str, left_out: dict[str, str], ids: Sequence[str]) -> str:
    """The percent-format source, without what would print an answer."""
    cells = re.split(r"(?m)^(?=# %%)", source)
    prose = ("[markdown]" in cell.partition("\n")[0] for cell in cells)
    pairs = zip(cells, prose, strict=True)
    return "".join(cell if is_prose else text.released_cell(cell, left_out, ids) for cell, is_prose in pairs)


def ipynb(source: str) -> str:
    """The notebook of a percent-format source, always with the same bytes. ValueError if jupytext is missing."""
    jupytext = required()
    notebook = jupytext.reads(source, fmt="py:percent")
    for at, cell in enumerate(notebook.cells):
        cell.update(id=f"cell-{at:02d}", metadata={})
    notebook.update(metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}}, nbformat_minor=5)
    text: str = jupytext.writes(notebook, fmt="ipynb")
    return text + "\n"


def required() -> Any:
    """jupytext, which makes notebooks. ValueError if it is missing."""
    try:
        return importlib.import_module("jupytext")
    except ImportError:
        raise ValueError("jupytext is missing, which makes the notebook: pip install jupytext") from None
