"""Notebooks are made from their sources and run: a stale one, one with an error and one never run are told apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanobook.__main__ import app
from nanobook.notebooks import INSTALL, REPOSITORY, VERSION, check, made, run, sources, stale, write

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("jupytext")
pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[2]
SOURCE = "# %% [markdown]\n# # A title\n\n# %%\nx = 6 * 7\nprint(x)\n"


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A repository with one notebook's source."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01-one.py").write_text(SOURCE)
    return tmp_path


def written(book: Path) -> Path:
    """The notebook as `write` would leave it, without running anything."""
    notebook = made(book / "notebooks" / "01-one.py")
    for at, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.execution_count = at + 1
    nbformat.write(notebook, book / "notebooks" / "01-one.ipynb")
    return book / "notebooks" / "01-one.ipynb"


def test_write_runs_and_keeps_the_outputs(book: Path) -> None:
    assert write(book, lambda line: None) == []
    notebook = nbformat.read(book / "notebooks" / "01-one.ipynb", as_version=4)
    assert [cell.cell_type for cell in notebook.cells][bool(REPOSITORY) :] == ["code", "markdown", "code"]
    assert notebook.cells[-1].outputs[0].text == "42\n"
    assert stale(book) == []


def test_an_error_is_a_fault_and_nothing_is_written(book: Path) -> None:
    (book / "notebooks" / "01-one.py").write_text(SOURCE + "raise KeyError('gone')\n")
    assert write(book) == ["notebooks/01-one.py: KeyError: 'gone'"]
    assert not (book / "notebooks" / "01-one.ipynb").exists()
    faults = check(book)
    assert "notebooks/01-one.ipynb is missing: run `python -m nanobook notebooks`" in faults
    assert "notebooks/01-one.py: KeyError: 'gone'" in faults


def test_cells_see_the_clones_package_and_no_gpu(book: Path) -> None:
    (book / "mine.py").write_text("answer = 42\n")
    (book / "notebooks" / "01-one.py").write_text(
        "# %%\nimport os\nimport mine\nassert mine.answer == 42\nassert os.environ['CUDA_VISIBLE_DEVICES'] == ''\n"
    )
    assert run(made(book / "notebooks" / "01-one.py"), book) == ""


@pytest.mark.parametrize(
    "old, new",
    [("6 * 7", "6 * 8"), ("# # A title", "# # Another title"), ("print(x)\n", "print(x)\n\n# %%\ny = 1\n")],
)
def test_a_changed_source_is_stale(book: Path, old: str, new: str) -> None:
    written(book)
    assert stale(book) == []
    source = book / "notebooks" / "01-one.py"
    source.write_text(SOURCE.replace(old, new))
    assert stale(book) == ["notebooks/01-one.ipynb is stale: run `python -m nanobook notebooks`"]


def test_a_cell_that_was_not_run(book: Path) -> None:
    path = written(book)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].execution_count = None
    nbformat.write(notebook, path)
    assert stale(book) == ["notebooks/01-one.ipynb was not run to its end: run `python -m nanobook notebooks`"]


def test_shown_code_that_has_changed(book: Path) -> None:
    """A cell that shows a function's source is held to the function as it is now."""
    (book / "mine.py").write_text("def one():\n    return 1\n")
    head = "# %%\nimport inspect\nimport mine\n\n\ndef source(thing):\n    print(inspect.getsource(thing))\n"
    (book / "notebooks" / "01-one.py").write_text(f"{head}\n\n# %%\nsource(mine.one)\n")
    assert write(book, lambda line: None) == []
    assert check(book) == []
    (book / "mine.py").write_text("def one():\n    return 2\n")
    assert check(book) == ["notebooks/01-one.ipynb shows code that has changed: run `python -m nanobook notebooks`"]


def test_a_notebook_without_a_source(book: Path) -> None:
    written(book).rename(book / "notebooks" / "02-two.ipynb")
    assert stale(book) == [
        "notebooks/01-one.ipynb is missing: run `python -m nanobook notebooks`",
        "notebooks/02-two.ipynb has no source: notebooks are made from 02-two.py",
    ]


def test_the_command_ends_with_1(book: Path) -> None:
    done = CliRunner().invoke(app, ["notebooks", "--check", "--root", str(book)])
    assert done.exit_code == 1
    assert "is missing" in done.output


def test_installation_is_pinned_and_leaves_torch_alone() -> None:
    """The first cell names a version, takes no dependencies, and never names torch but in its remark."""
    code = "\n".join(line for line in INSTALL.splitlines() if not line.startswith("#"))
    assert "torch" not in code
    assert re.fullmatch(r"v\d+\.\d+\.\d+", VERSION)


@pytest.mark.parametrize("address", ["", "https://github.com/somebody/nanoinfer"])
def test_a_button_leads_somewhere_or_is_not_there(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an address there is neither a badge for Colab nor an installation from one."""
    monkeypatch.setattr("nanobook.notebooks.REPOSITORY", address)
    (tmp_path / "01-title.py").write_text("# %% [markdown]\n# # A title\n")
    cells = [cell.source for cell in made(tmp_path / "01-title.py").cells]
    compile(cells[-2], "install", "exec")
    assert ("git+" in cells[-2]) == bool(address)
    if address:
        place = "colab.research.google.com/github/somebody/nanoinfer/blob"
        assert f"{place}/{VERSION}/notebooks/01-title.ipynb" in cells[0]
        assert f'"--no-deps", "git+{address}@{VERSION}"' in cells[1]
    else:
        assert len(cells) == 2
        assert "colab" not in cells[0]


@pytest.mark.skipif(not sources(ROOT), reason="not a checkout")
class TestTheNotebooks:
    def test_none_is_stale(self) -> None:
        assert stale(ROOT) == []

    @pytest.mark.parametrize("source", sources(ROOT), ids=lambda path: path.stem)
    def test_begins_with_the_installation(self, source: Path) -> None:
        cells = nbformat.read(source.with_suffix(".ipynb"), as_version=4).cells[bool(REPOSITORY) :]
        assert cells[0].source.startswith("# Installs what is missing")
        assert cells[1].source.startswith("# ")

    @pytest.mark.parametrize("source", sources(ROOT), ids=lambda path: path.stem)
    def test_says_where_the_project_lives_in_one_place(self, source: Path) -> None:
        assert "github.com" not in source.read_text(encoding="utf-8")

    @pytest.mark.parametrize("source", sources(ROOT), ids=lambda path: path.stem)
    def test_has_outputs_and_no_error(self, source: Path) -> None:
        notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
        outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
        assert len(outputs) > 10
        assert not [output for output in outputs if output.output_type == "error"]
        assert not re.search(r"(/home|/root|/tmp|/work)/", str(outputs)), "a path of the machine that it was run on"

    def test_chapter_1_walks_a_step_and_breaks_the_engine(self) -> None:
        cells = made(ROOT / "notebooks" / "01-naive.py").cells
        code = [cell.source for cell in cells if cell.cell_type == "code"]
        assert sum("show(" in source for source in code) >= 8
        broken = [at for at, source in enumerate(code) if "with answers.mistake(" in source]
        assert len(broken) >= 3
        for at in broken:  # a guess before, a repair after
            assert 'guess = "..."' in code[at]
            assert any("assert" in source and "answers.mistake" not in source for source in code[at + 1 : at + 3])
        assert sum("source(" in source for source in code) >= 4
        assert any('results("h200-gpu")' in source for source in code)
