"""The page in a real browser: a recording from a file, and a server that is watched while it works."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanoinfer.cli.watch import recorded
from nanoinfer.llm import LLM
from nanoinfer.requests import SamplingParams
from nanoinfer.serve import events as events_module
from nanoinfer.serve.recording import as_html
from nanoinfer.serve.watch import add_watch
from tests.serve.serving import engine, model, serving, until

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
EVIL = "</script><img src=x onerror=\"document.title='evil'\"> in a village"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that may reach nothing but this machine, and whose scripts do not fail."""
    context, failures = browser.new_context(viewport={"width": 1280, "height": 800}), []
    context.set_default_timeout(15000)
    page = context.new_page()
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on(
        "request", lambda asked: asked.url.startswith(("file:", "http://127.", "data:")) or failures.append(asked.url)
    )
    yield page
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


def at_step(page: Any, number: int) -> None:
    wait(page, f"/[Ss]tep {number}(?!\\d)/.test(document.getElementById('headline').textContent)")


def last(page: Any) -> int:
    """The number of the last step: the keyframe ahead of them is none."""
    return int(page.get_attribute("#scrub", "max")) - 1


def test_step_scrub_link_and_keys(page: Any, recording: str) -> None:
    page.goto(recording)
    at_step(page, 0)
    page.click("#forward")
    at_step(page, 1)
    page.click("#back")
    at_step(page, 0)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    at_step(page, 11)
    page.keyboard.press("ArrowLeft")
    at_step(page, 10)
    page.keyboard.press("End")
    at_step(page, end := last(page))
    page.keyboard.press("Home")
    wait(page, "document.getElementById('headline').textContent.startsWith('Before the first step')")
    page.fill("#scrub", "21")
    at_step(page, 20)
    assert page.evaluate("location.hash") == "#step=20"
    assert page.get_attribute("#link", "href") == "#step=20"
    page.evaluate("location.hash = '#step=12'")
    at_step(page, 12)
    page.goto("about:blank")
    page.goto(f"{recording}#step=33")
    at_step(page, 33)
    page.click("#last")
    at_step(page, end)
    page.click("#first")
    wait(page, "document.getElementById('scrub').value === '0'")


def test_play_and_pause(page: Any, recording: str) -> None:
    page.goto(recording)
    at_step(page, 0)
    page.select_option("#speed", "60")
    page.click("h1")
    page.keyboard.press(" ")
    until(lambda: step(page) >= 8)
    page.keyboard.press(" ")
    wait(page, "document.getElementById('play').textContent === 'Play'")
    stopped = step(page)
    assert page.get_attribute("#words", "aria-live") == "polite"
    page.click("#play")
    until(lambda: step(page) >= stopped + 3)
    assert page.get_attribute("#words", "aria-live") == "off"
    at_step(page, last(page))
    wait(page, "document.getElementById('play').textContent === 'Play'")


def test_forward_and_back_show_the_same(page: Any, recording: str) -> None:
    """Whatever way a step is come to, from a snapshot or event by event, its picture and table are the same."""
    page.goto(recording)
    at_step(page, 0)
    end = last(page)
    assert end > 60
    shots: dict[int, Any] = {}
    pictures = "['lanes', 'grid', 'itls'].map((id) => $(id).toDataURL())"
    script = f"(place) => {{ seek(place); draw(); return [...{pictures}, $('text').innerText] }}"
    for place in range(0, end + 1, 13):
        shots[place] = page.evaluate(script, place)
    for place in reversed(shots):
        assert page.evaluate(script, place) == shots[place]
    assert len({tuple(shot) for shot in shots.values()}) == len(shots)


def test_the_table_says_what_the_step_did_and_texts_stay_texts(page: Any, recording: str) -> None:
    page.goto(f"{recording}#step=0")
    at_step(page, 0)
    assert "1 prompt piece of 32 tokens; 2 wait" in page.inner_text("#headline")
    assert "prompt, 32 tokens from 0" in page.inner_text("#tbody")
    preempted = page.evaluate("events.findIndex(({e}) => e.preempted)")
    page.evaluate(f"seek({preempted}, 'user')")
    wait(page, "/is preempted and waits again/.test(document.getElementById('more').textContent)")
    assert "preempted, waits" in page.inner_text("#tbody")
    evil = page.evaluate("events.findIndex(({e}) => (e.begun || []).some((row) => row.id === 3))")
    page.evaluate(f"seek({evil}, 'user')")
    wait(page, "document.getElementById('tbody').textContent.includes('onerror')")
    page.click("#tbody tr:has-text('onerror') button")
    wait(page, "document.getElementById('chosen').textContent.includes('<img src=x')")
    assert page.title() != "evil"
    assert page.locator("img").count() == 0
    assert "shared" in page.get_attribute("#grid", "aria-label")


def test_the_pages_state_is_the_recorders(page: Any, recording: str) -> None:
    """What the script makes of all changes is what a keyframe would say: nobody runs, and nothing is owned."""
    page.goto(recording)
    at_step(page, 0)
    state = page.evaluate(
        "(() => { const s = stateAt(last());"
        " return [s.rows.size, s.waiting.count, s.cached.size, [...s.tables.values()].flat().length] })()"
    )
    assert state[:2] == [0, 0]
    assert state[2] > 0
    assert state[3] == 0
    most = page.evaluate(
        "Math.max(...events.map((_, place) => { const owners = {};"
        " for (const table of stateAt(place).tables.values())"
        "   for (const block of table) owners[block] = (owners[block] || 0) + 1;"
        " return Math.max(0, ...Object.values(owners)) }))"
    )
    assert most >= 2


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_widths_and_colours(browser: Any, recording: str, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{recording}#step=30")
    at_step(page, 30)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    light = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) > 128"
    assert page.evaluate(light) == (scheme == "light")
    page.keyboard.press("t")
    wait(page, f"({light}) === {str(scheme == 'dark').lower()}")
    assert page.evaluate("$('lanes').width > 0 && $('grid').width > 0")
    context.close()


def test_less_motion(browser: Any, recording: str) -> None:
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(recording)
    at_step(page, 0)
    assert page.input_value("#speed") == "1"
    assert page.inner_text("#play") == "Play"
    context.close()


def test_a_large_pool_and_a_large_batch_are_aggregated_visibly(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "CELLS", 10)
    monkeypatch.setattr(events_module, "LANES", 2)
    with LLM(model(), engine="paged", threads=1, max_batch=4, kv_blocks=64) as llm:
        events = list(recorded(llm, llm.requests(["a b c"] * 4, SamplingParams(9, ignore_eos=True)), [0] * 4, False))
    path = tmp_path / "large.html"
    path.write_text(as_html(events, "large"), encoding="utf-8")
    page.goto(f"{path.as_uri()}#step=4")
    at_step(page, 4)
    note = page.inner_text("#note")
    assert "Aggregated: 2 rows beyond" in note
    assert "each cell of the pool stands for 7 blocks" in note
    assert page.inner_text("#rows") == "4 of 4 rows"
    assert page.inner_text("#blocks") == "4 of 64 used"


def test_the_live_page(page: Any) -> None:
    llm = engine()
    with serving(llm, api_key="right", classroom=True) as served:
        add_watch(served.server.config.app, llm, served.service.config)  # type: ignore[arg-type]
        page.goto(served.url)
        page.fill("#key", "wrong")
        page.click("#door button")
        wait(page, "document.getElementById('note').textContent.includes('not the server')")
        page.fill("#key", "right")
        page.click("#door button")
        page.wait_for_selector("#try:not([hidden])")
        assert "right" not in page.url
        page.evaluate("performance.now = () => 5")  # events that come together are all shown, the last one too
        page.fill("#prompt", EVIL)
        page.fill("#count", "40")
        page.click("#send")
        wait(page, "document.getElementById('answer').textContent.length > 90")
        wait(page, "/ends \\((length|stop)\\)/.test(document.getElementById('more').textContent)")
        wait(page, "/ended \\((length|stop)\\)/.test(document.getElementById('tbody').textContent)")
        assert page.locator("#answer img").count() == 0
        assert "village" not in page.inner_text("#tbody")
        page.keyboard.press("Home")
        page.click("h1")
        page.keyboard.press("Home")
        wait(page, "document.getElementById('play').textContent === 'Go live'")
        page.fill("#pace", "0.1")
        wait(page, "document.getElementById('paced').textContent === '0.1 s'")
        page.click("#play")
        wait(page, "document.getElementById('play').textContent === 'Pause'")
        page.goto("about:blank")
