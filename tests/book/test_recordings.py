"""The recordings of chapter 5: they follow schema and engine, their page's answers are what they show, L = lambda W."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import nanoinfer.serve
from tests.book.chapter_pages import CHAPTERS, checkout, module

RECORDINGS = CHAPTERS / "05-queue" / "recordings"
Event = dict[str, Any]

pytestmark = checkout
named = pytest.mark.parametrize("name", module(5, "recordings").RUNS if RECORDINGS.is_dir() else [])


def events(name: str) -> list[Event]:
    found: list[Event] = module(5, "littles_law").events_of(RECORDINGS / f"{name}.html")
    return found


def without_times(event: Event) -> Event:
    """What any machine's run has: not its times, nor the texts, whose last bits may fall otherwise."""
    kept = {key: value for key, value in event.items() if key not in ("time", "took", "ttft", "itl", "texts")}
    return kept | {"begun": [{**row, "text": ""} for row in event.get("begun", [])]}


@named
def test_it_follows_the_schema_and_is_what_the_engine_does(name: str) -> None:
    """The run is made anew: same pieces, rows, blocks and ends, step by step."""
    schema = Path(nanoinfer.serve.__file__).with_name("events.schema.json").read_text(encoding="utf-8")
    validator, found, recordings = Draft202012Validator(json.loads(schema)), events(name), module(5, "recordings")
    assert found[0]["kind"] == "keyframe"
    assert [event["step"] for event in found] == list(range(-1, len(found) - 1))
    for event in found:
        validator.validate(event)
    made = recordings.record(recordings.RUNS[name]())
    assert [without_times(event) for event in made] == [without_times(event) for event in found]


def test_what_is_said_of_preemption() -> None:
    """A prompt that is known is not fed again; a row is preempted, and begins again with its own blocks found."""
    found = {event["step"]: event for event in events("preemption")}
    (row,) = found[2]["begun"]
    assert (row["id"], row["cached"], found[2]["pieces"]) == (1, 32, [[1, 32, 3]])
    assert (found[78]["preempted"], found[78]["waiting"]["ids"]) == ([2], [2, 3])
    assert found[91]["ended"] == [[0, "length"]]
    again, last = found[92]["begun"]
    assert (again["id"], again["cached"], again["new"]) == (2, 80, 74)
    assert (last["id"], found[92]["pieces"]) == (3, [[2, 80, 28], [3, 0, 17]])


@named
def test_littles_law_holds_in_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    law = module(5, "littles_law").littles_law(events(name))
    assert law.requests == len(module(5, "recordings").RUNS[name]().asked)
    assert law.in_system == pytest.approx(law.per_second * law.stay_s, rel=0.01)
    assert module(5, "littles_law").main([str(RECORDINGS / f"{name}.html")]) == 0
    assert f"{law.requests} requests in" in capsys.readouterr().out
