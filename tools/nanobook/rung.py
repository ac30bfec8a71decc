"""`nanoinfer rung`: the package as of a chapter, as a folder that can be read from end to end and run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from nanobook.source import code_lines
from nanobook.syllabus import ENGINE, Syllabus, engine_root, file_of, syllabus
from nanocourse.exercises.chapters import root
from nanoinfer.chapters import ENGINES
from nanoinfer.cli import terminal
from nanoinfer.cli.errors import Refused

EPILOG = """\
Examples:

nanoinfer rung 1

nanoinfer rung 2 --diff

nanoinfer rung 5 --to my-rung"""

WHOLE = ("__init__",)  # modules of every rung, besides those of its chapters
DATA = {"data/gpt2.tiktoken": 1, "data/small": 1, "data/ngrams.safetensors": 7}  # from which chapter on
DOORS = {1: "first", 5: "second", 8: "third"}  # the front door, from which chapter on
RECORDS = {1: "records", 5: "requests"}
# From chapter 5 on, the newest chapter makes all engines; before, each its own.
MAKERS = {
    5: "nanoinfer.engines.queue:QueueMaker",
    6: "nanoinfer.engines.kernels:KernelMaker",
    7: "nanoinfer.engines.drafts:DraftMaker",
    8: "nanoinfer.engines.ranks:RankMaker",
}
CHAPTERS = '''\
"""Which chapters are here: written by `nanoinfer rung`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
{typed}
'''
README = """\
# nanoinfer, as of chapter {number}: {title}

These are the files of chapters 1 to {number}, as they are in the whole package; only `{engine}/chapters.py` was written
for this folder. It needs torch, numpy, tiktoken and safetensors{triton}.

    python {small}
    python -c "from nanoinfer import LLM; print(LLM({settings}).generate('Once upon a time')[0].text)"
    python -m pytest

Read in this order:

{table}
Some names are for you, and nothing here calls them: `weights.random_model`; `none.forward_logits`, the oracle;
`Tokenizer.decode`; `kv_numbers` and the caches' `bytes`, which say what a cache takes; and of `LLM.engine`, from
chapter 4 on, `stats` and `warm_up(samplers)`, which captures every step ahead of time.{more}
"""
# From which chapter on: settings to begin with, and what the folder holds that its front door does not use.
SETTINGS = {
    1: "", 5: "max_batched_tokens=64, prefill_chunk=16", 6: "engine='fused'", 7: "speculate='lookup'",
    8: "engine='dense', tensor_parallel=2",
}  # fmt: skip
QUEUE = """ From chapter 5 on,
`submit`, `cancel` and `observer` are for callers that come and go, `EngineLoop` runs an engine in a thread of its own,
and `LLM` takes the settings of the newest class in `engines/`."""
MORE = {1: "", 5: QUEUE, 8: f"{QUEUE} Only the whole package makes replicas and starts batches."}


def rung(
    number: Annotated[int, typer.Argument(min=1, max=8, metavar="N", help="The chapter, 1 to 8.")],
    to: Annotated[Path | None, typer.Option(help="Write the package as of it into a new folder.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Only what this chapter adds.")] = False,
) -> None:
    """Show the files of chapters 1 to N in the order in which they are read, with lines of code; or write them."""
    table = reading_order(syllabus(), number, number if diff else 1)
    if to is None:
        terminal.write(table)
        return
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise Refused(f"{to} exists and is not empty")
    write(to, number)
    terminal.write(f"{to}: read README.md first\n")


def files(book: Syllabus, number: int, first: int = 1) -> list[tuple[int, str]]:
    """Chapter and path, from the folder that the package lies in, of each module of these chapters."""
    chapters = [chapter for chapter in book.chapters if first <= chapter.number <= number]
    return [(chapter.number, file_of(module)) for chapter in chapters for module in chapter.modules]


def reading_order(book: Syllabus, number: int, first: int = 1) -> str:
    """A line for each file, with its chapter and its lines of code, and the sum."""
    rows = [
        (str(chapter), path, code_lines((engine_root() / path).read_text(encoding="utf-8")))
        for chapter, path in files(book, number, first)
    ]
    rows += [("", "in all", sum(lines for _, _, lines in rows))]
    width = max(len(path) for _, path, _ in rows)
    return "".join(f"    {chapter:2}{path:{width}}{lines:6}\n" for chapter, path, lines in rows)


def write(folder: Path, number: int) -> None:
    """Write the package as of a chapter into a folder, which is made."""
    book, source = syllabus(), engine_root()
    paths = [path for _, path in files(book, number)]
    packages = {str(Path(path).parent / "__init__.py") for path in paths}
    for path in sorted({*paths, *packages, *(file_of(module) for module in WHOLE)}):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target)
    for name in (name for name, since in DATA.items() if since <= number):
        copy = shutil.copytree if (source / ENGINE / name).is_dir() else shutil.copyfile
        (folder / ENGINE / name).parent.mkdir(exist_ok=True)
        copy(source / ENGINE / name, folder / ENGINE / name)
    (folder / ENGINE / "chapters.py").write_text(chapters_py(number), encoding="utf-8")
    own = next((root() / "chapters").glob(f"{number:02}-*"))
    small = Path("chapters", own.name, "small.py")  # it looks for the model from there
    (folder / small).parent.mkdir(parents=True)
    shutil.copyfile(own / "small.py", folder / small)
    for test in (root() / "chapters").glob("test_rung*.py"):
        if int(test.stem.partition("rung_")[2] or 1) <= number:
            shutil.copyfile(test, folder / test.name)
    title = next(chapter.title for chapter in book.chapters if chapter.number == number)
    triton = ", and Triton on a GPU" * (number > 2)
    table = reading_order(book, number)
    text = README.format(
        number=number, title=title, engine=ENGINE, triton=triton, small=small.as_posix(), table=table,
        settings=newest(SETTINGS, number), more=newest(MORE, number),
    )  # fmt: skip
    (folder / "README.md").write_text(text, encoding="utf-8")


def chapters_py(number: int) -> str:
    """The one file that is written anew: which names the package has, and which engines."""
    paths = [path for _, path in files(syllabus(), number)]
    door, records = newest(DOORS, number), newest(RECORDS, number)
    home = {"LLM": door, "Completion": records, "SamplingParams": records}
    there = {name: maker for name, maker in ENGINES.items() if file_of(maker.split(":")[0].partition(".")[2]) in paths}
    if number in MAKERS:
        there = dict.fromkeys([*there, *["fused"] * (number > 5)], MAKERS[number])
    tables = {"HOME": home, "ENGINES": there}
    entries = ["\n".join(f'    "{key}": "{value}",' for key, value in table.items()) for table in tables.values()]
    bodies = [f"{name} = {{\n{body}\n}}\n" for name, body in zip(tables, entries, strict=True)]
    typed = "".join(f"    from nanoinfer.{module} import {name} as {name}\n" for name, module in home.items())
    return CHAPTERS.format(typed=typed) + "".join(bodies)


def newest(since: dict[int, str], number: int) -> str:
    """What a chapter has of a table by the chapters that add something."""
    return since[max(chapter for chapter in since if chapter <= number)]


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rung", epilog=EPILOG)(rung)
