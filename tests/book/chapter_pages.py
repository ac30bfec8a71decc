"""What every chapter's text is held to, whatever it is about. Each function asserts one thing, or cuts a page up."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

from nanobook.text.page_blocks import Place, excerpt
from nanocourse.exercises import chapters
from nanoinfer.devices import has_triton


def without_code(text: str) -> str:
    """The page without its code fences, in which a # begins a comment."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)


def numbered_sections(text: str) -> dict[str, str]:
    """The numbered sections, by their titles."""
    parts = re.split(r"^## (.+)$", text, flags=re.M)[1:]
    return {title: body for title, body in zip(parts[::2], parts[1::2], strict=True) if title[0].isdigit()}


def links_lead_somewhere(folder: Path, text: str) -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if not target.startswith("http")]
    assert len(targets) > 8
    for target in targets:
        assert (folder / target).exists(), target


def linked_names_exist(text: str, least: int) -> None:
    """[`step.decode_step`](../../nanoinfer/engine/step.py): that module has it, and has not imported it."""
    named = re.findall(r"\[`([\w.]+)`\]\(\.\./\.\./(nanoinfer/[\w/]+)\.py\)", text)
    assert len(named) >= least
    for path, file in named:
        if re.fullmatch(r"nanoinfer/kernels/\w+(?<!_torch)", file) and not has_triton():
            continue
        module = file.replace("/", ".")
        found = importlib.import_module(module)
        for part in path.removeprefix(f"{Path(file).name}.").split("."):
            found = getattr(found, part)
        assert not hasattr(found, "__qualname__") or found.__module__ == module, path  # a class or a function


def blocks_can_be_made(page: Path, text: str, example: ModuleType) -> None:
    """Every printed block is a function of the example's, and every excerpt is found."""
    place = Place(page, page.parents[2])
    for name in re.findall(r'\[\[\[cog printed\("(\w+)"\)', text):
        assert callable(getattr(example, name))
    for call in re.findall(r"\[\[\[cog excerpt\((.+?)\) \]\]\]", text):
        arguments = ast.parse(f"f({call})", mode="eval").body
        assert isinstance(arguments, ast.Call)
        options = {k.arg or "": ast.literal_eval(k.value) for k in arguments.keywords}
        assert len(excerpt(place, ast.literal_eval(arguments.args[0]), **options)) > 2


def exercises_have_their_sections(number: int, text: str, sections: dict[str, str]) -> None:
    """By their names, and with the command at the first: no link leads to their files, which hold the solutions."""
    titles = {re.sub(r"^\d+\. ", "", title): " ".join(body.split()) for title, body in sections.items()}
    exercises = {each.id: each.spec.section for each in chapters.exercises(chapters.chapter(number))}
    assert set(re.findall(rf"\b({number}\.\d),\s[`*]", text)) == set(exercises)
    for name, section in exercises.items():
        assert f" {name}, " in titles[section], name
    first = re.search(r"Now\s+write\s+it:.*?\n\n", text, re.S)
    assert first
    assert f"`nanoinfer course start {number}`" in first[0]
    assert not re.search(r"\]\(exercises/\w+\.py", text)


def has_ten_questions(chapter: Path) -> None:
    page = (chapter / "questions.md").read_text(encoding="utf-8")
    assert [int(n) for n in re.findall(r"^(\d+)\. \*\*", page, re.M)] == list(range(1, 11))


def pictures_have_words(text: str) -> None:
    pictures = re.findall(r"<img [^>]*>", text)
    assert len(pictures) >= 5
    for picture in pictures:
        assert len(re.search(r'alt="([^"]*)"', picture)[1]) > 60  # type: ignore[index]


def is_short_and_stands_alone(small: Path, lines: int = 60) -> None:
    source = small.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= lines
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    names = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"torch", "tiktoken"}


def words(text: str) -> int:
    """Of a page's prose: not of code, tables, comments, pictures and folded answers."""
    other = r"```.*?```|<details>.*?</details>|<!--.*?-->|<img [^>]*>|^\|[^\n]*"
    return len(re.sub(other, " ", text, flags=re.S | re.M).split())


def ends_with_a_question(title: str, body: str) -> None:
    """Behind which stands its answer, folded."""
    *_, question, opened, answer, closed = body.split("\n# ", maxsplit=1)[0].strip().split("\n\n")
    assert question.startswith("**Question.**"), title
    assert "?" in question, title
    assert (opened, closed) == ("<details><summary>Answer</summary>", "</details>"), title
    assert not answer.startswith("<"), title
