"""Makes the notebooks: `notebooks/name.py`, in percent format, is the source of `name.ipynb`, which is run.

Every notebook begins with cells that are added here: a badge that opens it on Colab, once the project has an address,
and a look at what is installed. The committed outputs are those of a CPU; `check` runs all notebooks again and fails on
an error or a changed source.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import v4

from nanobook.source import PACKAGES, folder_of

REPOSITORY = ""  # the one place that says where the project lives: https://github.com/OWNER/NAME
VERSION = "v0.1.0"  # the tag that notebooks are for
TIMEOUT_S = 120  # a cell

BADGE = """\
[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]\
(https://colab.research.google.com/github/{path}/blob/{version}/notebooks/{name}.ipynb)"""
CHECK = """\
# Installs nothing. If a package is missing, this cell says what to type.
import importlib.util

names = "nanoinfer", "nanocourse", "tiktoken", "safetensors", "matplotlib"
if missing := [name for name in names if importlib.util.find_spec(name) is None]:
    raise SystemExit(f"{{', '.join(missing)}} missing. {how}")"""
SHOWS = re.compile(r"(print\()?(\w+\.)?source\([^\n]*\)")
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def sources(root: Path) -> list[Path]:
    """The sources, in the chapters' order; those of no chapter come last."""
    return sorted((root / "notebooks").glob("*.py"))


def made(source: Path) -> Any:
    """The notebook of a source: badge, the look at what is installed and the source's cells, without outputs."""
    cells = [v4.new_code_cell(CHECK.format(how=_how(REPOSITORY))), *jupytext.read(source).cells]
    if REPOSITORY:
        path = REPOSITORY.removeprefix("https://github.com/")
        cells.insert(0, v4.new_markdown_cell(BADGE.format(name=source.stem, path=path, version=VERSION)))
    for at, cell in enumerate(cells):
        cell["id"] = f"cell-{at:02d}"  # the same each time
    return v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}})


def _how(repository: str) -> str:
    """The one line that installs the course, from its address or in the reader's clone; it leaves PyTorch alone."""
    if repository:
        course = f"--no-deps git+{repository}@{VERSION}"
        return f"Type in a cell: !pip install tiktoken safetensors matplotlib && pip install {course}"
    return "Type in your clone: pip install -e '.[notebooks]'"


def run(notebook: Any, root: Path) -> str:
    """Run all cells on the CPU, with the packages that this process has; what went wrong, or an empty string."""
    paths = [root.resolve(), *(folder_of(name).parent for name in PACKAGES), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",  # enough for models so small; on a busy machine, threads that wait cost minutes
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    place = {"metadata": {"path": str(root / "notebooks")}}
    client = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", resources=place, record_timing=False)
    try:
        client.execute(env=environment)
    except CellTimeoutError:
        return f"a cell took more than {TIMEOUT_S} s"
    except CellExecutionError as error:
        return f"{error.ename}: {error.evalue}".splitlines()[0]
    except DeadKernelError as error:
        return str(error)
    return ""


def write(root: Path, say: Callable[[str], object] = print) -> list[str]:
    """Make and run every notebook. Returns what failed; such a notebook is not written."""
    faults = []
    for source in sources(root):
        start, notebook = time.perf_counter(), made(source)
        if fault := run(notebook, root):
            faults.append(f"{_name(source, root)}: {fault}")
            continue
        nbformat.write(notebook, source.with_suffix(".ipynb"))
        say(f"{source.with_suffix('.ipynb').name}: {len(notebook.cells)} cells in {time.perf_counter() - start:.0f} s")
    return faults


def check(root: Path) -> list[str]:
    """Notebooks that are stale, that fail when they are run, or that show code that has changed."""
    return _without_source(root) + [fault for source in sources(root) for fault in check_one(source, root)]


def check_one(source: Path, root: Path) -> list[str]:
    """What is wrong with the notebook of one source, after running it."""
    if faults := _stale(source, root):
        return faults
    notebook, path = made(source), source.with_suffix(".ipynb")
    if fault := run(notebook, root):
        return [f"{_name(source, root)}: {fault}"]
    if _shown(notebook) != _shown(nbformat.read(path, as_version=4)):
        return [f"{_name(path, root)} shows code that has changed: run `python -m nanobook notebooks`"]
    return []


def _shown(notebook: Any) -> list[str]:
    """The output of the cells that only show a function's source: it is the same on every machine."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and SHOWS.fullmatch(cell.source)]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


def stale(root: Path) -> list[str]:
    """Notebooks that differ from their sources, were not run to the end, or have no source. Runs nothing."""
    return [fault for source in sources(root) for fault in _stale(source, root)] + _without_source(root)


def _stale(source: Path, root: Path) -> list[str]:
    path = source.with_suffix(".ipynb")
    if not path.is_file():
        return [f"{_name(path, root)} is missing: run `python -m nanobook notebooks`"]
    notebook, new = nbformat.read(path, as_version=4), made(source)
    if [(c.cell_type, c.source) for c in notebook.cells] != [(c.cell_type, c.source) for c in new.cells]:
        return [f"{_name(path, root)} is stale: run `python -m nanobook notebooks`"]
    if any(c.source and c.execution_count is None for c in notebook.cells if c.cell_type == "code"):
        return [f"{_name(path, root)} was not run to its end: run `python -m nanobook notebooks`"]
    return []


def _without_source(root: Path) -> list[str]:
    named = {source.stem for source in sources(root)}
    orphans = [path for path in sorted((root / "notebooks").glob("*.ipynb")) if path.stem not in named]
    return [f"{_name(path, root)} has no source: notebooks are made from {path.stem}.py" for path in orphans]


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
