"""Notebooks are made from their sources and run: a stale one, one with an error and one never run are told apart."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from nanobook.notebooks import REPOSITORY, VERSION, check, made, sources, stale, write
from tests.book.chapter_pages import ROOT, checkout

SOURCE = "# %% [markdown]\n# # A title\n\n# %%\nx = 6 * 7\nprint(x)\n"
AGAIN = "run `python -m nanobook notebooks`"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The source of the one notebook of a repository."""
    (tmp_path / "notebooks").mkdir()
    file = tmp_path / "notebooks" / "01-one.py"
    file.write_text(SOURCE)
    return file


def written(source: Path, last: int | None = 2) -> None:
    """The notebook as `write` would leave it, without running anything. last: the count of its last cell."""
    notebook = made(source)
    first, *_, end = (cell for cell in notebook.cells if cell.cell_type == "code")
    first.execution_count, end.execution_count = 1, last
    nbformat.write(notebook, source.with_suffix(".ipynb"))


def test_write_runs_and_keeps_the_outputs_and_check_sees_changed_code(source: Path) -> None:
    """A cell that shows a function's source is held to the function as it is now."""
    book = source.parents[1]
    (book / "mine.py").write_text("def one():\n    return 1\n")
    shows = "import inspect\nimport os\nimport mine\n\n\ndef source(thing):\n    print(inspect.getsource(thing))\n"
    no_gpu = "assert os.environ['CUDA_VISIBLE_DEVICES'] == ''\n"
    source.write_text(f"{SOURCE}\n# %%\n{shows}\n{no_gpu}\n# %%\nsource(mine.one)\n")
    assert write(book, lambda line: None) == []
    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code[1].outputs[0].text == "42\n"
    assert stale(book) == []
    (book / "mine.py").write_text("def one():\n    return 2\n")
    assert check(book) == [f"notebooks/01-one.ipynb shows code that has changed: {AGAIN}"]


def test_an_error_is_a_fault_and_nothing_is_written(source: Path) -> None:
    source.write_text(SOURCE + "raise KeyError('gone')\n")
    assert write(source.parents[1]) == ["notebooks/01-one.py: KeyError: 'gone'"]
    assert not source.with_suffix(".ipynb").exists()


@pytest.mark.parametrize("changed", [SOURCE.replace("A title", "Another"), SOURCE + "\n# %%\ny = 1\n"])
def test_a_changed_source_is_stale(source: Path, changed: str) -> None:
    written(source)
    assert stale(source.parents[1]) == []
    source.write_text(changed)
    assert stale(source.parents[1]) == [f"notebooks/01-one.ipynb is stale: {AGAIN}"]


def test_a_cell_that_was_not_run(source: Path) -> None:
    written(source, last=None)
    assert stale(source.parents[1]) == [f"notebooks/01-one.ipynb was not run to its end: {AGAIN}"]


def test_a_notebook_without_a_source(source: Path) -> None:
    written(source)
    source.with_suffix(".ipynb").rename(source.with_name("02-two.ipynb"))
    assert stale(source.parents[1]) == [
        f"notebooks/01-one.ipynb is missing: {AGAIN}",
        "notebooks/02-two.ipynb has no source: notebooks are made from 02-two.py",
    ]


@pytest.mark.parametrize("address", ["", "https://github.com/somebody/nanoinfer"])
def test_a_button_leads_somewhere_or_is_not_there(address: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an address there is neither a badge for Colab nor an installation from one. No cell installs anything."""
    monkeypatch.setattr("nanobook.notebooks.REPOSITORY", address)
    *badge, check, _, _ = (cell.source for cell in made(source).cells)
    with pytest.raises(SystemExit, match=r"^nanoinfer missing\. Type .*pip install") as said:
        exec(check.replace("importlib.util.find_spec(name) is None", "name == 'nanoinfer'"), {})
    assert "torch" not in str(said.value)
    if address:
        place = "colab.research.google.com/github/somebody/nanoinfer/blob"
        assert f"{place}/{VERSION}/notebooks/01-one.ipynb" in badge[0]
        assert f"--no-deps git+{address}@{VERSION}" in str(said.value)
    else:
        assert not badge
        assert "git+" not in str(said.value)


@checkout
class TestTheNotebooks:
    def test_none_is_stale(self) -> None:
        assert stale(ROOT) == []

    @pytest.mark.parametrize("source", sources(ROOT), ids=lambda path: path.stem)
    def test_begins_with_the_check_and_ran_without_error(self, source: Path) -> None:
        """The project's address stands in one place, and no path of the machine that it was run on anywhere."""
        notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
        assert notebook.cells[bool(REPOSITORY)].source.startswith("# Installs nothing.")
        assert "github.com" not in source.read_text(encoding="utf-8")
        outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
        assert outputs
        assert not [output for output in outputs if output.output_type == "error"]
        assert not re.search(r"(/home|/root|/tmp|/work)/", str(outputs))
