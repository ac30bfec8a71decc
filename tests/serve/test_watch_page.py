"""The page in a real browser: a recording from a file, and a server that is watched while it works."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.cli.watch import recorded
from nanoinfer.llm import LLM
from nanoinfer.requests import SamplingParams
from nanoinfer.serve import events as events_module
from nanoinfer.serve.recording import as_html
from tests.serve.serving import engine, model, serving, until

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]
EVIL = "</script><img src=x onerror=\"document.title='evil'\"> in a village"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open pages that may reach nothing but this machine, and whose scripts do not fail."""
    failures: list[str] = []

    def check(asked: Any) -> None:
        if not asked.url.startswith(("file:", "http://127.", "data:")):
            failures.append(asked.url)

    def opened(url: str, width: int = 1280, **settings: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, **settings)
        context.set_default_timeout(15000)
        page = context.new_page()
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("request", check)
        page.goto(url)
        return page

    yield opened
    for context in list(browser.contexts):
        context.close()
    assert failures == []


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Requests that share a beginning, over a pool that is too small for all of them."""
    beginning = "Once upon a time there was a little village by the sea. " * 3
    prompts = [beginning + end for end in ("The ship", "A dog", "Listen", EVIL)] + ["Short"]
    params = [SamplingParams(count, seed=1, ignore_eos=True) for count in (100, 100, 90, 60, 20)]
    settings = {"max_batch": 3, "kv_blocks": 17, "max_batched_tokens": 32, "prefix_caching": True, "preemption": True}
    with LLM(model(), engine="paged", threads=1, **settings) as llm:
        events = list(recorded(llm, llm.requests(prompts, params), [0, 0, 0, 4, 9], texts=True))
    assert any("preempted" in event for event in events)
    path = tmp_path_factory.mktemp("recording") / "run.html"
    path.write_text(as_html(events, "a run"), encoding="utf-8")
    return path.as_uri()


def step(page: Any) -> int:
    found = re.search(r"[Ss]tep (\d+)", page.inner_text("#headline"))
    return int(found[1]) if found else -1


def wait(page: Any, true: str) -> None:
    """Until the expression is true. The page's policy lets no script evaluate it there, so it is asked from here."""
    until(lambda: page.evaluate(true), 20)


def says(page: Any, where: str, pattern: str) -> None:
    """Wait until the text of an element has something that looks like this."""
    wait(page, f"/{pattern}/.test(document.getElementById('{where}').textContent)")


def at_step(page: Any, number: int) -> None:
    says(page, "headline", f"[Ss]tep {number}(?!\\d)")


def last(page: Any) -> int:
    """The number of the last step: the keyframe ahead of them is none."""
    return int(page.get_attribute("#scrub", "max")) - 1


def test_step_scrub_link_and_keys(open_page: Any, recording: str) -> None:
    page = open_page(recording)
    at_step(page, 0)
    end = last(page)
    ways: list[tuple[Callable[[], Any], int]] = [
        (lambda: page.click("#forward"), 1),
        (lambda: page.click("#back"), 0),
        (lambda: page.keyboard.press("ArrowRight"), 1),
        (lambda: page.keyboard.press("Shift+ArrowRight"), 11),
        (lambda: page.fill("#scrub", "21"), 20),
        (lambda: page.evaluate("location.hash = '#step=12'"), 12),
        (lambda: page.click("#last"), end),
    ]
    for move, number in ways:
        move()
        at_step(page, number)
        assert page.get_attribute("#link", "href") == f"#step={number}"
    page.click("#first")
    says(page, "headline", "^Before the first step")
    at_step(open_page(f"{recording}#step=33"), 33)


def test_play_and_pause(open_page: Any, recording: str) -> None:
    page = open_page(recording)
    at_step(page, 0)
    page.select_option("#speed", "60")
    page.click("h1")
    page.keyboard.press(" ")
    until(lambda: step(page) >= 8)
    page.keyboard.press(" ")
    says(page, "play", "^Play$")
    assert page.get_attribute("#words", "aria-live") == "polite"
    page.click("#play")
    at_step(page, last(page))
    says(page, "play", "^Play$")


def test_forward_and_back_show_the_same(open_page: Any, recording: str) -> None:
    """Whatever way a step is come to, from a snapshot or event by event, its picture and table are the same."""
    page = open_page(recording)
    at_step(page, 0)
    places = range(0, last(page) + 1, 13)
    assert len(places) > 4
    pictures = "['lanes', 'grid', 'itls'].map((id) => $(id).toDataURL())"
    script = f"(place) => {{ seek(place); draw(); showTable(); return [...{pictures}, $('text').innerText] }}"
    shots = [page.evaluate(script, place) for place in places]
    assert [page.evaluate(script, place) for place in reversed(places)] == shots[::-1]
    assert len(set(map(tuple, shots))) == len(shots)
    rows, waiting, cached, owned = page.evaluate(  # in the end no row runs, and nothing is owned
        "(() => { const s = stateAt(last());"
        " return [s.rows.size, s.waiting.count, s.cached.size, [...s.tables.values()].flat().length] })()"
    )
    assert (rows, waiting, owned) == (0, 0, 0)
    assert cached > 0


def test_the_table_says_what_the_step_did_and_texts_stay_texts(open_page: Any, recording: str) -> None:
    page = open_page(f"{recording}#step=0")
    at_step(page, 0)
    assert "1 prompt piece of 32 tokens; 2 wait" in page.inner_text("#headline")
    assert "prompt, 32 tokens from 0" in page.inner_text("#tbody")
    page.evaluate("go(events.findIndex(({e}) => e.preempted.length))")
    says(page, "more", "is preempted and waits again")
    assert "preempted, waits" in page.inner_text("#tbody")
    page.evaluate("go(events.findIndex(({e}) => e.begun.some((row) => row.id === 3)))")
    says(page, "tbody", "onerror")
    page.click("#tbody tr:has-text('onerror') button")
    says(page, "chosen", "<img src=x")
    assert page.title() != "evil"
    assert page.locator("img").count() == 0
    assert "shared" in page.get_attribute("#grid", "aria-label")


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_widths_colours_and_less_motion(open_page: Any, recording: str, width: int, scheme: str) -> None:
    page = open_page(f"{recording}#step=30", width, color_scheme=scheme, reduced_motion="reduce")
    at_step(page, 30)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    light = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) > 128"
    assert page.evaluate(light) == (scheme == "light")
    page.keyboard.press("t")
    wait(page, f"({light}) === {str(scheme == 'dark').lower()}")
    assert page.evaluate("$('lanes').width > 0 && $('grid').width > 0")
    assert (page.input_value("#speed"), page.inner_text("#play")) == ("1", "Play")


def test_a_large_pool_is_aggregated_visibly(open_page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "CELLS", 10)
    monkeypatch.setattr(events_module, "LANES", 2)
    with LLM(model(), engine="paged", threads=1, max_batch=4, kv_blocks=64) as llm:
        events = list(recorded(llm, llm.requests(["a b c"] * 4, SamplingParams(9, ignore_eos=True)), [0] * 4, False))
    path = tmp_path / "large.html"
    path.write_text(as_html(events, "large"), encoding="utf-8")
    page = open_page(f"{path.as_uri()}#step=4")
    at_step(page, 4)
    note = page.inner_text("#note")
    assert "Aggregated: 2 rows beyond" in note
    assert "each cell of the pool stands for 7 blocks" in note
    assert (page.inner_text("#rows"), page.inner_text("#blocks")) == ("4 of 4 rows", "4 of 64 used")


def test_the_live_page(open_page: Any) -> None:
    with serving(engine(), watch=True, api_key="right", classroom=True) as served:
        page = open_page(served.url)
        page.fill("#key", "wrong")
        page.click("#door button")
        says(page, "note", "not the server")
        page.fill("#key", "right")
        page.click("#door button")
        page.wait_for_selector("#try:not([hidden])")
        assert "right" not in page.url
        page.evaluate("performance.now = () => 5")  # events that come together are all shown, the last one too
        page.fill("#prompt", EVIL)
        page.fill("#count", "40")
        page.click("#send")
        says(page, "answer", "[^]{91}")
        says(page, "more", "ends \\((length|stop)\\)")
        says(page, "tbody", "ended \\((length|stop)\\)")
        assert page.locator("#answer img").count() == 0
        assert "village" not in page.inner_text("#tbody")
        page.click("h1")
        page.keyboard.press("Home")
        says(page, "play", "^Go live$")
        page.fill("#pace", "0.1")
        says(page, "paced", "^0.1 s$")
        page.click("#play")
        says(page, "play", "^Pause$")
        page.goto("about:blank")
