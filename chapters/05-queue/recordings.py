"""The chapter's two recordings, and how they are made: `python chapters/05-queue/recordings.py`.

Each is a run of the engine on a CPU, recorded as `nanoinfer watch` does. Who arrives before which step is fixed, and so
is every length: each machine makes the same steps, in times of its own. recordings/README.md has questions about them.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoinfer.requests import SamplingParams

if TYPE_CHECKING:
    from nanoinfer.serve.events import Event

FOLDER = Path(__file__).parent / "recordings"
VILLAGE = "Once upon a time there was a little village by the sea. "
TALE = (
    "The people who lived there were kind, and every evening they met at the harbour to tell each other stories. One"
    " evening an old man began to speak of a ship that he had seen when he was a boy, far out, where nobody sails."
)


@dataclass(frozen=True)
class Run:
    """What is asked, ahead of which step, for how many tokens; and how the engine is set up."""

    title: str
    settings: dict[str, Any]
    asked: tuple[tuple[int, str, int], ...]


def long_prompt() -> Run:
    """Short prompts write when a long one comes. It goes in by chunks, beside them, within a budget of 24 tokens."""
    short = ((0, "The fox", 32), (0, "She said to herself: ", 26), (1, "It was a cold night", 22))
    late = ((4, VILLAGE + TALE * 2, 12), (6, "Who is there?", 10), (9, "We have no time", 10))
    settings = {"max_batch": 6, "max_batched_tokens": 24, "prefill_chunk": 16, "kv_blocks": 40}
    return Run("A long prompt among short ones", settings, short + late)


def preemption() -> Run:
    """Texts that begin alike share two blocks, and outgrow a pool of 17: the youngest gives its room back."""
    asked = tuple((2 * at, VILLAGE + TALE[:98] + end, 92) for at, end in enumerate((" The ship", " A dog", " Listen")))
    settings = {"max_batch": 4, "max_batched_tokens": 48, "kv_blocks": 17}
    return Run("Shared blocks, and a pool that is too small", settings, (*asked, (50, VILLAGE + "Where are you?", 16)))


RUNS: dict[str, Callable[[], Run]] = {"long-prompt": long_prompt, "preemption": preemption}
STILLS = {"long-prompt": 8, "preemption": 78}  # the step that a picture shows


def record(run: Run) -> list[Event]:
    """The events of a run with the small model, on a CPU."""
    from nanoinfer.cli.watch import recorded
    from nanoinfer.llm import LLM

    prompts = [prompt for _, prompt, _ in run.asked]
    params = [SamplingParams(count, temperature=0.8, top_k=40, seed=at, ignore_eos=True)
              for at, (_, _, count) in enumerate(run.asked)]  # fmt: skip
    fixed = {"device": "cpu", "threads": 1, "prefix_caching": True, "preemption": True}
    with LLM("small", engine="paged", **fixed, **run.settings) as llm:
        llm.core.mixed = True  # as on a GPU; on a CPU chunks of prompts and decode steps take turns
        return list(recorded(llm, llm.requests(prompts, params), [float(step) for step, _, _ in run.asked], texts=True))


def still(name: str, step: int) -> None:
    """A picture of one step of a recording, as a browser shows it. Needs playwright and Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 640})
        page.goto(f"{(FOLDER / f'{name}.html').as_uri()}#step={step}")
        page.locator("#headline", has_text=f"tep {step}").wait_for()
        page.screenshot(path=FOLDER / f"{name}.png")
        browser.close()


def main(names: Sequence[str]) -> int:
    """Write these recordings, or all of them: of three runs each the quickest one, and a picture of one step."""
    from nanoinfer.serve.recording import as_html

    for name in names or RUNS:
        run = RUNS[name]()
        events = min((record(run) for _ in range(3)), key=lambda events: float(events[-1]["time"]))
        (FOLDER / f"{name}.html").write_text(as_html(events, run.title), encoding="utf-8")
        still(name, STILLS[name])
        print(f"recordings/{name}.html: {run.title}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
