"""What the pages refer to is there: files, headings, names of the code, tests, exercises, terms and minutes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nanocourse.exercises import chapters
from tests.book.chapter_pages import CHAPTERS, FOLDERS, ROOT, broken_links, by_anchor, checkout, page, slug, words

PAGE = CHAPTERS / "README.md"
ALL = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "THIRD_PARTY.md", "tools/training/README.md")]
ALL += sorted(CHAPTERS.glob("**/*.md"))
SECTION = re.compile(r"^Chapter (\d), \[section (\d+)\]\(([^)#]+)#([^)]+)\)", re.M)
DEFECT = re.compile(r"^\| (?P<name>[A-Z]\d\d) \| (?P<threads>[^|]+) \| (?P<wrong>[^|]+) \| (?P<here>[^|]+) \|$", re.M)

pytestmark = checkout
chapter = pytest.mark.parametrize("chapter", FOLDERS)


def defines(path: Path, name: str) -> bool:
    """Whether a module defines each part of a name, as in `Class.method`; to import it is not enough."""
    source = path.read_text(encoding="utf-8")
    parts = (rf"^ *(?:(?:async )?def |class |self\.)?{re.escape(part)}\b" for part in name.split("."))
    return all(re.search(rf"{part}(?:\(|:| = |\[)", source, re.M) for part in parts)


def test_links_lead_somewhere() -> None:
    assert [link for path in ALL for link in broken_links(path)] == []


def test_names_in_the_code_exist() -> None:
    """[`step.decode_step`](../../nanoinfer/engine/step.py): that module defines it, and does not import it."""
    link = re.compile(r"`([\w.]+)`(?:\]|, \[[\w/]+\.py\])\(((?:\.\./)*(?:nanoinfer|bench)/[\w/]*?(\w+)\.py)\)")
    for path in (PAGE, *CHAPTERS.glob("*/README.md")):
        named = link.findall(path.read_text(encoding="utf-8"))
        assert named, path
        for name, target, stem in named:
            own = name.removeprefix(f"{stem}.")
            assert own == stem or defines((path.parent / target).resolve(), own), (path, name)


@chapter
def test_exercises_that_are_named_exist_and_have_their_sections(chapter: int) -> None:
    """And no link leads to their files, which hold the solutions."""
    exercises = {each.id: each.spec.section for each in chapters.exercises(chapters.chapter(chapter))}
    assert set(re.findall(rf"exercise\s+({chapter}\.\d+)", page(chapter))) <= set(exercises)
    assert all(chapters.read(chapters.chapter(chapter), section) for section in exercises.values())
    assert not re.search(r"\]\(exercises/\w+\.py", page(chapter))


def test_tests_that_pages_name_are_there() -> None:
    """`test_name` is a function somewhere in tests/, `file.py::test_name` a function of that file."""
    defined = {
        path.relative_to(ROOT / "tests").as_posix(): set(re.findall(r"def (test_\w+)\(", path.read_text("utf-8")))
        for path in (ROOT / "tests").glob("**/test_*.py")
    }
    anywhere = set().union(*defined.values())
    named = {
        name for path in ALL for name in re.findall(r"`((?:\w+/test_\w+\.py::)?test_\w+)`", path.read_text("utf-8"))
    }
    assert named
    missing = [name for name in named if name.partition("::")[2] not in defined.get(name.partition("::")[0], ())]
    assert [name for name in missing if name not in anywhere] == []


def test_every_defect_cites_a_thread_and_says_what_stands_against_it() -> None:
    text = (FOLDERS[4] / "defects.md").read_text(encoding="utf-8")
    rows = {row["name"]: row for row in DEFECT.finditer(text)}
    assert len(rows) == len(re.findall(r"^\| [A-Z]\d", text, re.M))
    assert {*(f"G{n:02d}" for n in (*range(1, 25), *range(30, 39))), *(f"P{n:02d}" for n in range(1, 11))} <= set(rows)
    for name, row in rows.items():
        for thread in row["threads"].split(", "):
            assert re.fullmatch(r"[\w.-]+#\d+", thread), name
            assert re.search(rf"\b{re.escape(thread.split('#')[0])}\b", text.split("## ")[0]), thread
        assert row["here"].endswith(".") or "`" in row["here"], name


TERMS = re.split(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:] if PAGE.is_file() else []
GLOSSARY = {term: text for term, text in zip(TERMS[::2], TERMS[1::2], strict=True) if SECTION.search(text)}


def test_an_entry_of_the_glossary_and_the_section_that_explains_it_link_to_each_other() -> None:
    assert list(GLOSSARY) == sorted(GLOSSARY, key=str.casefold)
    for term, entry in GLOSSARY.items():
        ((number, section, path, anchor),) = SECTION.findall(entry)
        assert path.startswith(f"0{number}-"), term
        assert anchor.startswith(f"{section}-"), term
        assert f"](../README.md#{slug(term)})" in by_anchor(CHAPTERS / path)[anchor], term


@chapter
def test_minutes_follow_the_words_and_the_teachers_notes(chapter: int) -> None:
    (row,) = re.findall(rf"^\| {chapter} \| (\d.+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    reading, exercises, *_ = row.split(" | ")
    assert abs(int(reading.split()[0]) - words(page(chapter)) / 50) <= 10
    notes = (FOLDERS[chapter] / "teacher.md").read_text(encoding="utf-8")
    spans = re.findall(rf"^\| {chapter}\.\d+ [^|]+ \| (\d+) to (\d+) \|", notes, re.M)
    assert [int(n) for n in re.findall(r"\d+", exercises)] == [sum(int(span[at]) for span in spans) for at in (0, 1)]
