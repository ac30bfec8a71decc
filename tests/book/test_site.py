"""The book as a site: pages are rewritten as they should be, and the whole is built without a warning."""

from __future__ import annotations

import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nanobook.site import build, contents, source_page
from nanobook.site.pages import Pages
from nanobook.site.source_index import Index
from nanoinfer.cli import run
from tests.book.chapter_pages import CHAPTERS, ROOT, checkout

PACKAGE = ROOT / "nanoinfer"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
TEXT = "chapters/03-paged-attention/README.md"
OUTSIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")]
  .filter(each => each.getBoundingClientRect().right > innerWidth)
  .map(each => [each.localName, ...each.classList].join("."))"""

pytestmark = checkout


@pytest.fixture(scope="module")
def index() -> Index:
    return Index([name for names in contents.source().values() for name in names])


@pytest.fixture(scope="module")
def pages(index: Index) -> Pages:
    return Pages(ROOT, {TEXT, "README.md", "nanoinfer/cache/paged.py", "chapters/01-naive/README.md"}, index)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(tmp_path_factory.mktemp("book") / "site").parent


@pytest.fixture(scope="module")
def html(site: Path) -> dict[Path, Html]:
    return {path: Html(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


class Html(HTMLParser):
    """A page with the targets of its links, images, scripts and styles, and the ids in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.targets, self.loaded, self.ids, self.without_alt = text, [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        targets = [value for name in ("href", "src") if (value := named.get(name))]
        self.targets += targets
        self.loaded += targets if tag in ("script", "img", "link", "iframe") else []
        self.ids |= {value for name in ("id", "name") if (value := named.get(name))}
        if tag == "img" and not named.get("alt"):
            self.without_alt.append(str(named.get("src")))


class TestSite:
    def test_all_chapters_and_modules_are_in_it(self, site: Path) -> None:
        for folder in contents.chapter_folders(ROOT):
            assert (site / "chapters" / folder.name / "README.html").is_file()
        for path in PACKAGE.rglob("*.py"):
            shown = (site / path.relative_to(ROOT)).with_suffix(".html").is_file()
            assert shown or path.name.startswith("__") or "cli" in path.parts, path

    def test_links_and_anchors_lead_somewhere_and_images_are_told_in_words(self, html: dict[Path, Html]) -> None:
        """And nothing comes from another host."""
        for page, parsed in html.items():
            assert not parsed.without_alt, page
            assert not [target for target in parsed.loaded if re.match(r"(https?:)?//", target)], page
            for target in parsed.targets:
                path, _, fragment = target.partition("#")
                if re.match(r"[a-z]+:", path):
                    continue
                meant = Path(os.path.normpath(page.parent / path.partition("?")[0])) if path else page
                assert meant.is_file(), f"{page}: {target}"
                assert not fragment or meant not in html or fragment in html[meant].ids, f"{page}: {target}"

    def test_styles_come_from_no_other_host(self, site: Path) -> None:
        assert not [p.name for p in site.rglob("*.css") if re.search(r"url\(['\"]?https?:", p.read_text("utf-8"))]

    def test_source_stands_beside_sections_of_chapters_alone(self, site: Path, html: dict[Path, Html]) -> None:
        """The page of all chapters names the whole package: the source of three names would be of no use there."""
        text = html[(site / TEXT).with_suffix(".html")].text
        assert '<details class="beside"' in text
        assert "The figure in numbers" in text
        assert text.count('<img alt="') == (ROOT / TEXT).read_text(encoding="utf-8").count("<img ") > 0
        assert 'class="beside"' not in html[site / "chapters" / "README.html"].text

    @pytest.mark.parametrize("page", ["README.html", "recordings/README.html"])
    def test_recordings_run_on_their_pages(self, site: Path, html: dict[Path, Html], page: str) -> None:
        frames = re.findall(
            r'<iframe class="recording" src="([^"]+)" title=', html[site / "chapters/05-queue" / page].text
        )
        assert {Path(frame).name for frame in frames} == {path.name for path in CHAPTERS.glob("*/recordings/*.html")}

    def test_formulas_are_typeset(self, html: dict[Path, Html], site: Path) -> None:
        text = html[site / "chapters/bridge/README.html"].text
        assert text.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"') >= 5
        assert "$" not in text

    def test_it_is_built_once(self, site: Path) -> None:
        assert build.built(site)
        (site / build.MARK).write_text("another book", encoding="utf-8")
        assert not build.built(site)


class TestPages:
    @pytest.mark.parametrize(
        "written, made",
        [
            ("[paged](../../nanoinfer/cache/paged.py)", "[paged](../../nanoinfer/cache/paged.md)"),
            ("[one](../01-naive/README.md#x)", "[one](../01-naive/README.md#x)"),
            ("[home](../../README.md)", "[home](../../index.md)"),
            ("[away](https://example.org/a)", "[away](https://example.org/a)"),
            ("[not a page](exercises/chapter.json)", "not a page"),
            ("```text\n[x](../../nanoinfer/llm.py)\n```", "```text\n[x](../../nanoinfer/llm.py)\n```"),
            ("a\n<!--[[[cog printed('x') ]]]-->\nb\n<!--[[[end]]]-->\n36.9 kB<!--= token --> c", "a\nb\n36.9 kB c"),
        ],
    )
    def test_links_and_marks(self, pages: Pages, written: str, made: str) -> None:
        assert pages.text(TEXT, written).strip() == made

    @pytest.mark.parametrize(
        "words, shown",
        [
            ('<!--[[[cog excerpt("nanoinfer.cache.paged:PagedCache.plan", begin="block =") ]]]-->', (1, 1)),
            ('<!--[[[cog excerpt("nanoinfer.cache.paged:PagedCache.plan", doc=False) ]]]-->', (1, 0)),  # quoted whole
            ("`GraphEngine.decode`", (0, 0)),  # of chapter 4
        ],
    )
    def test_the_source_is_there_where_it_adds_something(
        self, pages: Pages, words: str, shown: tuple[int, int]
    ) -> None:
        text = pages.text(TEXT, f"## 1. A table\n{words}\n", beside=True)
        assert (text.count('class="beside"'), text.count("literalinclude")) == shown


@pytest.mark.parametrize(
    "section, found",
    [
        (
            '<!--[[[cog excerpt("nanoinfer.cache.paged:PagedCache.plan") ]]]-->\n`BlockManager.reserve()`, `nix`',
            ["cache.paged PagedCache.plan", "cache.blocks BlockManager.reserve"],
        ),
        ("`write_pages`", []),  # of the kernels, and of their reference
        ("`paged_attention_torch.write_pages`", ["kernels.paged_attention_torch write_pages"]),
        ("`attend` and `free`", []),  # methods of each cache, and functions
        ("`BatchState` and `BatchState.admit`", ["engine.state BatchState"]),  # whole, or in parts
    ],
)
def test_what_a_section_speaks_of(index: Index, section: str, found: list[str]) -> None:
    assert [f"{named.module} {named.path}" for named in index.of(section)] == found


def test_a_listing_holds_every_line_once() -> None:
    source = PACKAGE / "kernels" / "paged_attention.py"
    text = source_page.page("nanoinfer/kernels/paged_attention.py", source)
    spans = [tuple(map(int, span.split("-"))) for span in re.findall(r":lines: (\d+-\d+)", text)]
    shown = [line for first, last in spans for line in range(first, last + 1)]
    assert shown == sorted(set(shown))
    lines = source.read_text(encoding="utf-8").split("\n")
    code = {at for at, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")}
    assert code - set(shown) <= set(range(1, 9))  # the opening lines are text


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_is_cut(site: Path, width: int) -> None:
    """Code has all its columns, folded or not; what a program printed is not even wrapped, up to 88 columns."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    paths = [
        *site.glob("chapters/0*/README.html"),
        site / "chapters/bridge/README.html",
        site / "index.html",
        *site.glob("chapters/[TSW]*.html"),
    ]
    wide = "kind => [...document.querySelectorAll(kind)].filter(each => each.scrollWidth > each.clientWidth + 1).length"
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        for path in (*paths, site / "chapters/03-paged-attention/triton.html"):
            page.goto(path.as_uri())
            assert page.evaluate("document.querySelectorAll('pre').length") or "0" not in path.parent.name, path
            assert page.evaluate(wide, "pre") == 0, path
            page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
            assert page.evaluate(wide, "pre") == 0, path
            assert width == 390 or page.evaluate(wide, "table") == 0, path  # on a phone they scroll within themselves
            page.evaluate("document.querySelectorAll('pre').forEach(each => { each.style.whiteSpace = 'pre' })")
            assert page.evaluate(wide, "[style*='--columns'] pre") == 0, path
        browser.close()


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_no_page_is_wider_than_the_window(site: Path) -> None:
    """The front page and each chapter, with everything unfolded, on a phone and on the usual laptops."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    outside = {}
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        for path in (site / "index.html", *sorted(site.glob("chapters/0*/README.html"))):
            page.goto(path.as_uri())
            page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
            for width in (390, 1100, 1280, 1366, 1440, 1536, 1600, 1920):
                page.set_viewport_size({"width": width, "height": 900})
                if found := page.evaluate(OUTSIDE):
                    outside[path.parent.name, width] = found[:5]
        browser.close()
    assert outside == {}


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(build.Unbuilt, match="is not empty"):
        build.build(tmp_path)
    assert (tmp_path / "letter.txt").is_file()


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Answers are unfolded in the terminal; what cannot be done is refused by one sentence."""
    assert run(["read", "1", "--terminal"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("# Chapter 1")
    assert "**Answer.** " in told
    assert "<details" not in told
    monkeypatch.setattr("typer.get_app_dir", lambda name: __file__)  # no folder
    monkeypatch.setattr(build, "missing", [["sphinx"], []].pop)  # of the second build
    lacking = ["--to", str(tmp_path / "x"), "--no-open"], "pip install 'nanoinfer[docs]'"
    for words, said in ((["77"], "is no 77"), (["--terminal"], "needs a chapter"), ([], "--to DIR builds"), lacking):
        assert run(["read", *words]) == 2
        assert said in capsys.readouterr().err
