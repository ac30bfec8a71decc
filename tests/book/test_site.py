"""The book as a site: pages are rewritten as they should be, and the whole is built without a warning."""

from __future__ import annotations

import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nanobook.site import build, contents, source_page
from nanobook.site.pages import Pages, one_title, outside_code
from nanobook.site.source_index import Index
from nanoinfer.cli import run

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "nanoinfer"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
TEXT = "chapters/03-paged-attention/README.md"

pytestmark = pytest.mark.skipif(not (ROOT / "chapters").is_dir(), reason="not a checkout")


@pytest.fixture(scope="module")
def index() -> Index:
    return Index([name for names in contents.source().values() for name in names])


@pytest.fixture(scope="module")
def pages(index: Index) -> Pages:
    return Pages(ROOT, {TEXT, "README.md", "nanoinfer/cache/paged.py", "chapters/01-naive/README.md"}, index)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(tmp_path_factory.mktemp("book") / "site").parent


class Links(HTMLParser):
    """The targets of a page's links, images, scripts and styles, and the ids in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.without_alt: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.targets += [value for name in ("href", "src") if (value := named.get(name))]
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
        html = (site / "index.html").read_text(encoding="utf-8")
        first, last = ["chapter 1: naive generation", "nanoinfer/model/gpt2.html"], "nanoinfer/llm.html"
        places = [html.index(text) for text in [*first, "Source of chapter 4", "Source of no chapter", last]]
        assert places == sorted(places)

    def test_links_and_anchors_lead_somewhere(self, site: Path) -> None:
        parsed = {p.resolve(): Links(p.read_text(encoding="utf-8")) for p in site.rglob("*.html")}
        broken = []
        for page, links in parsed.items():
            for target in links.targets:
                path, _, fragment = target.partition("#")
                if re.match(r"[a-z]+:", path):
                    continue
                meant = (page.parent / path.partition("?")[0]).resolve() if path else page
                if not meant.is_file() or (fragment and meant in parsed and fragment not in parsed[meant].ids):
                    broken.append(f"{page.name}: {target}")
        assert not broken

    def test_nothing_comes_from_another_host(self, site: Path) -> None:
        loaded = re.compile(r'<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//')
        assert not [p.name for p in site.rglob("*.html") if loaded.search(p.read_text(encoding="utf-8"))]
        assert not [p.name for p in site.rglob("*.css") if re.search(r"url\(['\"]?https?:", p.read_text("utf-8"))]

    def test_every_image_is_told_in_words(self, site: Path) -> None:
        assert not [(p.name, m) for p in site.rglob("*.html") if (m := Links(p.read_text("utf-8")).without_alt)]

    def test_source_stands_beside_its_section(self, site: Path) -> None:
        html = (site / TEXT).with_suffix(".html").read_text(encoding="utf-8")
        assert html.count('<details class="beside"') >= 5
        assert html.count('<img alt="') == (ROOT / TEXT).read_text(encoding="utf-8").count("<img ") > 0

    @pytest.mark.parametrize("page", ["README.html", "recordings/README.html"])
    def test_recordings_run_on_their_pages(self, site: Path, page: str) -> None:
        html = (site / "chapters/05-queue" / page).read_text(encoding="utf-8")
        frames = re.findall(r'<iframe class="recording" src="([^"]+)" title="[^"]{20,}"', html)
        assert [Path(frame).name for frame in frames] == ["long-prompt.html", "preemption.html"]

    def test_it_is_built_once(self, site: Path) -> None:
        assert build.built(site)
        (site / build.MARK).write_text("another book", encoding="utf-8")
        assert not build.built(site)


class TestPages:
    def test_links(self, pages: Pages) -> None:
        def there(text: str) -> str:
            return pages.text(TEXT, text).strip()

        assert there("[paged](../../nanoinfer/cache/paged.py)") == "[paged](../../nanoinfer/cache/paged.md)"
        assert there("[one](../01-naive/README.md#x)") == "[one](../01-naive/README.md#x)"
        assert there("[home](../../README.md)") == "[home](../../index.md)"
        assert there("[away](https://example.org/a)") == "[away](https://example.org/a)"
        assert there("[not a page](exercises/chapter.json)") == "not a page"
        assert (
            there("```text\n[x](../../nanoinfer/cache/paged.py)\n```")
            == "```text\n[x](../../nanoinfer/cache/paged.py)\n```"
        )

    @pytest.mark.parametrize(
        "words, shown",
        [
            ('<!--[[[cog excerpt("nanoinfer.cache.paged:PagedCache.plan", begin="block =") ]]]-->', (1, 1)),
            ('<!--[[[cog excerpt("nanoinfer.cache.paged:PagedCache.plan", doc=False) ]]]-->', (1, 0)),  # quoted whole
            ("`GraphRunner.decode`", (0, 0)),  # of chapter 4
        ],
    )
    def test_the_source_is_there_where_it_adds_something(
        self, pages: Pages, words: str, shown: tuple[int, int]
    ) -> None:
        text = pages.text(TEXT, f"## 1. A table\n{words}\n", beside=True)
        assert (text.count('class="beside"'), text.count("literalinclude")) == shown

    def test_marks_of_generated_text_are_gone(self, pages: Pages) -> None:
        text = "a\n<!--[[[cog printed('x') ]]]-->\nb\n<!--[[[end]]]-->\n36.9 kB<!--= token --> c"
        assert pages.text(TEXT, text).split() == ["a", "b", "36.9", "kB", "c"]

    def test_a_figure_has_words_and_numbers(self, pages: Pages) -> None:
        html = (ROOT / TEXT).read_text(encoding="utf-8")
        (picture, *_) = re.findall(r"<img [^>]*>", html)
        text = pages.text(TEXT, picture)
        assert text.count("{image}") == 1
        assert ":alt: Four rows of 20, 40, 100, 300 tokens" in text
        assert "The figure in numbers" in text

    def test_one_title(self) -> None:
        assert one_title("# A\n# B\n```sh\n# no heading\n```\n# C\n") == "# A\n## B\n```sh\n# no heading\n```\n## C\n"
        assert one_title("no title\n") == "no title\n\n"

    def test_outside_code(self) -> None:
        assert outside_code("a\n```\na\n```\na", str.upper) == "A\n```\na\n```\nA"


class TestIndex:
    def test_what_a_section_speaks_of(self, index: Index) -> None:
        section = '<!--[[[cog excerpt("nanoinfer.cache.paged:PagedCache.plan") ]]]-->\n`BlockAllocator.free()`, `nix`'
        assert [named.path for named in index.of(section)] == ["PagedCache.plan", "BlockAllocator.free"]

    def test_a_name_of_several_modules_is_taken_for_none(self, index: Index) -> None:
        assert index.of("`write_pages`") == []  # of the kernels, and of their reference
        assert [named.module for named in index.of("`paged_attention_torch.write_pages`")] == [
            "kernels.paged_attention_torch"
        ]

    def test_a_method_of_classes_is_taken_for_no_function(self, index: Index) -> None:
        assert index.of("`attend` and `free`") == []  # of each cache, and of one kernel; of the allocator

    def test_a_class_comes_whole_or_in_parts(self, index: Index) -> None:
        assert [named.path for named in index.of("`EagerRunner` and `EagerRunner.decode`")] == ["EagerRunner"]


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
    chapters = sorted(site.glob("chapters/0*/README.html"))
    others = [
        "index",
        "chapters/TEACHING",
        "chapters/SERVING",
        "chapters/WATCHING",
        "chapters/03-paged-attention/triton",
    ]
    wide = "kind => [...document.querySelectorAll(kind)].map(each => each.scrollWidth > each.clientWidth + 1)"
    cut: dict[str, list[bool]] = {}
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        for path in (*chapters, *(site / f"{name}.html" for name in others)):
            page.goto(path.as_uri())
            cut[str(path)] = page.evaluate(wide, "pre")
            page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
            cut[str(path)] += page.evaluate(wide, "pre")
            if width > 390:  # on a phone wide tables scroll within themselves
                cut[str(path)] += page.evaluate(wide, "table")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.evaluate("document.querySelectorAll('pre').forEach(each => { each.style.whiteSpace = 'pre' })")
            cut[str(path)] += page.evaluate(wide, "[style*='--columns'] pre")
        browser.close()
    assert all(cut.values())
    assert min(len(cut[str(path)]) for path in chapters) > 20
    assert not {name for name, blocks in cut.items() if any(blocks)}


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(build.Unbuilt, match="is not empty"):
        build.build(tmp_path)
    assert (tmp_path / "letter.txt").is_file()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["read", "1", "--terminal"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("# Chapter 1")
    assert "**Answer.** Position 2" in told
    assert "<details" not in told
    for arguments, said in ((["read", "77"], "there is no 77"), (["read", "--terminal"], "needs a chapter")):
        assert run(arguments) == 2
        assert said in capsys.readouterr().err
    monkeypatch.setattr(build, "missing", lambda: ["sphinx"])
    assert run(["read", "--to", str(tmp_path / "x"), "--no-open"]) == 2
    assert "pip install 'nanoinfer[docs]'" in capsys.readouterr().err
