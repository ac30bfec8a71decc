"""The recordings of chapter 5: they follow schema and engine, their questions are answered rightly, L = lambda W."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import nanoinfer.serve
from nanobook.examples import load

CHAPTER = Path(__file__).parents[2] / "chapters" / "05-queue"
RECORDINGS = CHAPTER / "recordings"
NAMES = ("long-prompt", "preemption")
TIMES = ("time", "took", "ttft", "itl")
pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="not a checkout")
named = pytest.mark.parametrize("name", NAMES)

Event = dict[str, Any]


def module(name: str) -> ModuleType:
    return load(CHAPTER / f"{name}.py")


def events(name: str) -> list[Event]:
    found: list[Event] = module("littles_law").events_of(RECORDINGS / f"{name}.html")
    return found


def steps(name: str) -> dict[int, Event]:
    return {event["step"]: event for event in events(name)}


def without_times(event: Event) -> Event:
    """What any machine's run has: not its times, nor the texts, whose last bits may fall otherwise."""
    kept = {key: value for key, value in event.items() if key not in (*TIMES, "texts")}
    return kept | {"begun": [{**row, "text": ""} for row in event.get("begun", [])]}


class TestFiles:
    def test_there_is_a_function_a_file_a_still_and_a_section_for_each(self) -> None:
        assert tuple(module("recordings").RUNS) == tuple(module("recordings").STILLS) == NAMES
        assert {path.name for path in RECORDINGS.iterdir()} == {
            "README.md", *(f"{name}.{kind}" for name in NAMES for kind in ("html", "png"))
        }  # fmt: skip

    @named
    def test_is_small_and_loads_nothing(self, name: str) -> None:
        page = (RECORDINGS / f"{name}.html").read_text(encoding="utf-8")
        assert len(page) < 200_000
        assert not re.search(r"""(src|href)=["']?https?:""", page)
        assert (RECORDINGS / f"{name}.png").stat().st_size < 200_000

    @named
    def test_follows_the_schema(self, name: str) -> None:
        schema = Path(nanoinfer.serve.__file__).with_name("events.schema.json").read_text(encoding="utf-8")
        validator = Draft202012Validator(json.loads(schema))
        found = events(name)
        assert found[0]["kind"] == "keyframe"
        assert [event["step"] for event in found] == list(range(-1, len(found) - 1))
        for event in found:
            validator.validate(event)

    @named
    def test_is_what_the_engine_does(self, name: str) -> None:
        """The run is made anew: same pieces, rows, blocks and ends, step by step."""
        recordings = module("recordings")
        made = recordings.record(recordings.RUNS[name]())
        assert [without_times(event) for event in made] == [without_times(event) for event in events(name)]


class TestAnswers:
    """What recordings/README.md says of the steps after its questions."""

    def test_long_prompt(self) -> None:
        found = steps("long-prompt")
        assert (found[4]["decode"], found[4]["pieces"]) == ([0, 1, 2], [[3, 0, 16]])
        assert (found[6]["decode"], found[6]["pieces"]) == ([0, 1, 2], [[3, 32, 16], [4, 0, 4]])
        assert [id for id, _ in found[6]["ttft"]] == [4]
        assert found[11]["pieces"] == [[3, 112, 1]]
        assert len(found[11]["decode"]) == 5
        assert len(found[11]["tokens"]) == 6
        assert [id for id, _ in found[11]["ttft"]] == [3]
        engine = found[-1]["engine"]
        assert (engine["max_batched_tokens"], engine["mixed"], engine["block_size"]) == (24, True, 16)
        assert all(len(e.get("decode", [])) + sum(p[2] for p in e.get("pieces", [])) <= 24 for e in found.values())

    def test_preemption(self) -> None:
        found = steps("preemption")
        assert found[-1]["engine"]["blocks"] == 17
        assert (found[0]["pieces"], found[0]["blocks"]["taken"]) == ([[0, 0, 35]], [[0, [1, 2, 3]]])
        (row,) = found[2]["begun"]
        assert (row["id"], row["cached"], found[2]["pieces"]) == (1, 32, [[1, 32, 3]])
        (id, taken), shared = found[2]["blocks"]["taken"][0], {1, 2}
        assert (id, len(taken), len(set(taken) - shared)) == (1, 3, 1)
        assert (found[78]["preempted"], found[78]["waiting"]["ids"]) == ([2], [2, 3])
        assert len(found[78]["blocks"]["cached"]) == 4
        ((who, blocks),) = found[78]["blocks"]["taken"]
        assert (who, len(blocks)) == (0, 1)
        again, last = found[92]["begun"]
        assert (again["id"], again["cached"], again["new"]) == (2, 80, 74)
        assert (last["id"], found[92]["pieces"]) == (3, [[2, 80, 28], [3, 0, 17]])
        assert 2 in found[92]["tokens"]
        assert found[91]["ended"] == [[0, "length"]]

    def test_text_has_three_questions_each(self) -> None:
        text = (RECORDINGS / "README.md").read_text(encoding="utf-8")
        parts = text.split("\n## ")[1:]
        assert [len(re.findall(r"^\*\*Step \d+\.\*\*", part, re.M)) for part in parts] == [3, 3]
        assert [part.count("<details>") for part in parts] == [3, 3]
        assert all((RECORDINGS / target).exists() for target in re.findall(r"\]\(([^)#]+)\)", text))


class TestLittlesLaw:
    @named
    def test_holds_in_the_recording(self, name: str) -> None:
        law = module("littles_law").littles_law(events(name))
        assert law.requests == len(module("recordings").RUNS[name]().asked)
        assert law.in_system == pytest.approx(law.per_second * law.stay_s, rel=0.01)
        assert 1 < law.in_system < law.requests

    def test_of_a_run_by_hand(self) -> None:
        """One is there from 0 to 3 s, one asks at 1 s, waits until 3 s, and ends at 4 s."""
        by_hand: list[Event] = [
            {"time": 0.0, "rows": [], "waiting": {"count": 0, "ids": []}},
            {"time": 1.0, "took": 1.0, "begun": [{"id": 0}], "ttft": [[0, 1.0]]},
            {"time": 3.0, "took": 2.0, "waiting": {"count": 1, "ids": [1]}, "ended": [[0, "length"]]},
            {"time": 4.0, "took": 1.0, "waiting": {"count": 0, "ids": []}, "begun": [{"id": 1}], "ttft": [[1, 3.0]],
             "ended": [[1, "length"]]},
        ]  # fmt: skip
        assert module("littles_law").littles_law(by_hand) == (2, 4.0, 1.5, 0.5, 3.0)
        assert module("littles_law").littles_law(by_hand[:3]) == (2, 3.0, 5 / 3, 2 / 3, 2.5)

    def test_what_is_no_recording_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.html").write_text("<p>", encoding="utf-8")
        with pytest.raises(ValueError, match="no recording"):
            module("littles_law").events_of(tmp_path / "a.html")
        with pytest.raises(ValueError, match="no request"):
            module("littles_law").littles_law([{"time": 0.0}])

    def test_program(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert module("littles_law").main([str(RECORDINGS / "preemption.html")]) == 0
        told = capsys.readouterr().out
        assert "4 requests in" in told
        assert "lambda * W" in told
