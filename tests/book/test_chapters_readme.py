"""The page of all chapters: its links lead somewhere, its terms are linked both ways, its names and minutes are so."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

from nanobook.site import build
from tests.book.chapter_pages import words

ROOT = Path(__file__).parents[2]
CHAPTERS = ROOT / "chapters"
PAGE = CHAPTERS / "README.md"
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
SECTION = re.compile(r"^Chapter (\d), \[section (\d+)\]\(([^)#]+)#([^)]+)\)", re.M)

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")


def without_code(text: str) -> str:
    """The page without its code fences, in which a # begins a comment."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)


def slug(heading: str) -> str:
    """The anchor that GitHub, and the site, give a heading."""
    words = LINK.sub(r"\1", heading).strip().lower().replace(" ", "-")
    return re.sub(r"[^\w-]", "", words)


@lru_cache
def sections(path: Path) -> dict[str, str]:
    """The text under each heading of a page, up to the next heading, by anchor."""
    parts = re.split(r"^#{1,6} (.+)$", without_code(path.read_text(encoding="utf-8")), flags=re.M)[1:]
    anchors = [slug(heading) for heading in parts[::2]]
    assert len(set(anchors)) == len(anchors), path
    return dict(zip(anchors, parts[1::2], strict=True))


def body(text: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    return text.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]


def glossary() -> dict[str, str]:
    """The entries by their terms, in the page's order."""
    parts = re.split(r"^### (.+)$", body(PAGE.read_text(encoding="utf-8"), "Glossary"), flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


ENTRIES = glossary() if PAGE.is_file() else {}


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


@lru_cache
def names(path: Path) -> frozenset[str]:
    """All names of a module: `f`, `CONSTANT`, `Class`, `Class.method`, `Class.field`, and what a class sets on self."""
    found = {path.stem}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        found |= _bound(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for inner in node.body for name in _bound(inner)}
            found |= {
                f"{node.name}.{inner.attr}"
                for inner in ast.walk(node)
                if isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and isinstance(inner.value, ast.Name)
                and inner.value.id == "self"
            }
    return frozenset(found)


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


class TestLinks:
    def test_files_and_anchors_are_there(self, text: str) -> None:
        targets = [target for _, target in LINK.findall(text) if not re.match(r"[a-z]+:", target)]
        assert len(targets) > 100
        for target in targets:
            path, _, anchor = target.partition("#")
            meant = (CHAPTERS / path).resolve() if path else PAGE
            assert meant.exists(), target
            if anchor and meant.suffix == ".md":
                assert anchor in sections(meant), target

    def test_the_site_has_the_page_without_source_beside_it(self, tmp_path: Path) -> None:
        """Names of the whole package stand in its sections; the source of three of them would be of no use there."""
        build.write(ROOT, tmp_path)
        page = (tmp_path / "chapters" / "README.md").read_text(encoding="utf-8")
        assert "### Block table" in page
        assert 'class="beside"' not in page

    @pytest.mark.parametrize(
        "heading, anchor",
        [
            ("11. A row's own noise", "11-a-rows-own-noise"),
            ('15. What "equal tokens" means', "15-what-equal-tokens-means"),
            ("Top-k, top-p", "top-k-top-p"),
            ("14. Start-up and memory", "14-start-up-and-memory"),
        ],
    )
    def test_anchors_are_githubs(self, heading: str, anchor: str) -> None:
        assert slug(heading) == anchor


class TestGlossary:
    def test_alphabetical(self) -> None:
        assert list(ENTRIES) == sorted(ENTRIES, key=str.casefold)
        assert 25 <= len(ENTRIES) <= 70

    @pytest.mark.parametrize("term", ENTRIES)
    def test_an_entry_is_short_and_names_its_section(self, term: str) -> None:
        found = SECTION.findall(ENTRIES[term])
        assert len(found) == 1, "one section explains a term"
        chapter, section, path, anchor = found[0]
        assert path.startswith(f"0{chapter}-")
        assert anchor.startswith(f"{section}-")
        told = SECTION.split(ENTRIES[term])[0]
        assert 5 <= len(told.split()) <= 60

    @pytest.mark.parametrize("term", ENTRIES)
    def test_the_section_links_back(self, term: str) -> None:
        (chapter, _, path, anchor), *_ = SECTION.findall(ENTRIES[term])
        chapter_page = CHAPTERS / path
        if chapter == "4" and (
            not chapter_page.is_file() or "](../README.md#" not in chapter_page.read_text(encoding="utf-8")
        ):
            pytest.skip(f"chapter 4 links no term yet: {term}")
        assert f"](../README.md#{slug(term)})" in sections(chapter_page)[anchor]

    def test_chapters_link_to_entries_alone(self) -> None:
        terms = {slug(term) for term in ENTRIES}
        for path in sorted(CHAPTERS.glob("??-*/README.md")):
            linked = set(re.findall(r"\]\(\.\./README\.md#([^)]+)\)", path.read_text(encoding="utf-8")))
            assert linked <= terms | set(sections(PAGE)), path

    @pytest.mark.parametrize("term", ENTRIES)
    def test_names_in_the_code_exist(self, term: str) -> None:
        """[`paged.PagedCache.tables`](../nanoinfer/cache/paged.py): that module has it."""
        named = re.findall(r"\[`([\w.]+)`\]\((\.\./(?:nanoinfer|bench)/(?:\w+/)*(\w+)\.py)\)", ENTRIES[term])
        assert named
        for path, target, module in named:
            assert path.split(".")[0] == module, path
            assert path.removeprefix(f"{module}.") in names((CHAPTERS / target).resolve()), path


class TestElsewhere:
    @pytest.fixture
    def rows(self, text: str) -> list[list[str]]:
        table = re.findall(r"^\|(.+)\|$", body(text, "Where this is elsewhere"), re.M)
        return [[cell.strip() for cell in line.split(" | ")] for line in table]

    def test_every_idea_is_looked_up_in_every_engine(self, rows: list[list[str]]) -> None:
        head, _, *ideas = rows
        assert head == ["idea", "here", "vLLM", "SGLang", "mini-sglang", "nano-vllm", "mistral.rs"]
        assert len(ideas) >= 15
        assert all(len(row) == 7 and all(row) for row in ideas)

    def test_names_here_exist(self, rows: list[list[str]]) -> None:
        for idea, here, *_ in rows[2:]:
            found = re.fullmatch(r"`([\w.]+)`, \[(?:\w+/)*\w+\.py\]\((\.\./nanoinfer/(?:\w+/)*\w+\.py)\)", here)
            assert found, idea
            assert found[1] in names((CHAPTERS / found[2]).resolve()), idea

    def test_every_file_of_theirs_is_listed_with_its_commit(self, rows: list[list[str]], text: str) -> None:
        files = re.split(r"^- ", text.split("\n### The files\n")[1], flags=re.M)[1:]
        assert len(files) == 5
        for column, listed in enumerate(files, start=2):
            paths = re.findall(r"`([\w./]+\.\w+)`\s+(?:at v[\d.]+|[0-9a-f]{8})\b", listed)
            looked_up = {file for row in rows[2:] for file in re.findall(r", ([\w/]+\.(?:py|rs|cuh?))", row[column])}
            assert looked_up
            for file in looked_up:
                meant = [path for path in paths if f"/{path}".endswith(f"/{file}")]
                assert len(meant) == 1, f"{file}: {meant}"
            unused = [path for path in paths if not any(f"/{path}".endswith(f"/{file}") for file in looked_up)]
            assert not unused


class TestTimes:
    @pytest.fixture
    def rows(self, text: str) -> dict[int, list[str]]:
        """Reading, exercises, sittings, by chapter."""
        found = re.findall(r"^\| (\d) \| (.+) \|$", body(text, "How long it takes"), re.M)
        return {int(chapter): line.split(" | ") for chapter, line in found}

    @pytest.mark.parametrize("chapter", [1, 2, 3, 4, 5, 6, 7, 8])
    def test_exercises_are_those_of_the_teachers_notes(self, rows: dict[int, list[str]], chapter: int) -> None:
        (folder,) = CHAPTERS.glob(f"0{chapter}-*")
        notes = folder / "teacher.md"
        said = [int(n) for n in re.findall(r"\d+", rows[chapter][1])]
        if not notes.is_file() or not said:
            pytest.skip(f"the exercises of chapter {chapter} are not estimated yet")
        lines = re.findall(rf"^\| {chapter}\.\d+ [^|]+ \| (\d+) to (\d+) \|", notes.read_text(encoding="utf-8"), re.M)
        assert said == [sum(int(low) for low, _ in lines), sum(int(high) for _, high in lines)]

    def test_reading_follows_the_words(self, rows: dict[int, list[str]]) -> None:
        for chapter, (reading, _, sittings) in rows.items():
            (path,) = CHAPTERS.glob(f"0{chapter}-*/README.md")
            page = path.read_text(encoding="utf-8")
            assert abs(int(reading.split()[0]) - words(page) / 50) <= 10, chapter
            last = max(int(n) for n in re.findall(r"^## (\d+)\.", without_code(page), re.M))
            spans = [tuple(map(int, span.split(" to "))) for span in sittings.split("; ")]
            assert [n for low, high in spans for n in range(low, high + 1)] == list(range(1, last + 1)), chapter

    def test_all_chapters_are_told(self, rows: dict[int, list[str]]) -> None:
        assert list(rows) == [int(path.parent.name[:2]) for path in sorted(CHAPTERS.glob("??-*/README.md"))]
