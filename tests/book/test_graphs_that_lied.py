"""Graphs that lied: each lie lies, each right one does not, the marker marks both ways, the page says what runs."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from filelock import FileLock

from nanobench.core.records import Machine
from nanobook.examples import load, printed

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "chapters" / "04-cuda-graphs"
PAGE, FOLDER = CHAPTER / "graphs-that-lied.md", CHAPTER / "lies"
THREAD = re.compile(r"[\w.-]+#\d+")
OF_DEFECTS = {"vllm#16072"}  # of the six conventions: it decided one, and is no defect
SIDES = ("eager", "right graph", "wrong graph")
EQUAL = {"workspace", "one_part"}  # a fake graph cannot show it; what differs is the cost

MARKS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from loading import lies
marking, check = lies("marking"), lies("reference").check
names = [name for name in (*marking.RIGHT, *marking.LIARS) if name != "cold"]
print(json.dumps({name: marking.verdict(check, name, "cuda") for name in names}), flush=True)
"""

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")


def lies(name: str) -> ModuleType:
    module: ModuleType = load(FOLDER / "loading.py").lies(name)
    return module


def names(device: str) -> list[str]:
    """Nothing where there is no checkout, since this is asked before any test is skipped."""
    return list(lies("running").names(device)) if PAGE.is_file() else []


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


class TestStandIn:
    @pytest.mark.parametrize("name", [name for name in names("cpu") if name != "story"])
    def test_lies(self, name: str) -> None:
        told = lies("running").in_this_process(name, "cpu")
        lie = lies("catalogue").LIES[name]
        assert told.sides["right"] == told.sides["truth"]
        assert told.lied is lie.shown
        assert told.expected("cpu")
        assert (told.sides["wrong"] == told.sides["truth"]) == (name.replace("-", "_") in EQUAL)

    def test_the_story(self) -> None:
        """In float64 as it is told: the wrong text begins right, and the graph has everything but its attention."""
        told = lies("running").in_this_process("story", "cpu")
        (true,), (right,), (wrong,) = (told.sides[side] for side in ("truth", "right", "wrong"))
        assert true == right != wrong
        assert wrong.startswith(lies("story").PROMPT)
        assert lies("running").attentions() == {"right": 12, "wrong": 0}

    def test_at_least_sixteen_of_real_engines(self) -> None:
        cited = [lie for lie in lies("catalogue").LIES.values() if lie.threads]
        assert len(cited) >= 16
        assert len({lie.threads[0] for lie in cited}) >= 16
        assert sum(lie.shown for lie in cited) >= 16

    def test_each_is_short(self) -> None:
        """Wrong steps of 5 to 25 lines, or fewer."""
        place = lies("marking").LIARS.values()
        for liar in place:
            source = Path(sys.modules[liar.__module__].__file__ or "").read_text(encoding="utf-8")
            body = source.partition(f"class {liar.__name__}(")[2].split("\n\n\n")[0]
            assert len(body.splitlines()) <= 25, liar


class TestProcess:
    def test_what_comes_back_is_what_is_told_here(self) -> None:
        running = lies("running")
        assert running.in_a_process_of_its_own("narrow", "cpu").sides == running.in_this_process("narrow", "cpu").sides

    def test_a_death_is_told(self) -> None:
        """By the side that is missing, with what the process said last; and it is never as expected on a CPU."""
        told = lies("running").in_a_process_of_its_own("nobody", "cpu")
        assert told.sides["truth"][0].startswith("the process died: ")
        assert "nobody" in told.error
        assert not told.expected("cpu")
        assert told.verdict == "the right one lied"

    def test_a_death_when_it_is_timed_is_no_success(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All three sides came, and no cost: the story's time was missing from its results file for that."""
        running = lies("running")
        sides = "".join(json.dumps({"part": side, "value": [side]}) + "\n" for side in running.SIDES)
        dead = subprocess.CompletedProcess([], 1, stdout=sides, stderr="RuntimeError: the pool is gone")
        monkeypatch.setattr(running.subprocess, "run", lambda *_, **__: dead)
        told = running.in_a_process_of_its_own("story", "cuda")
        assert told.sides == {side: [side] for side in running.SIDES}
        assert "the pool is gone" in told.error
        assert not told.expected("cuda")

    def test_a_death_of_the_wrong_one_is_a_lie(self) -> None:
        sides = {"truth": ["1"], "right": ["1"], "wrong": ["the process died: CUDA error"]}
        assert lies("running").Told("slot", sides).expected("cuda")
        assert not lies("running").Told("slot", sides | {"wrong": ["1"]}).expected("cuda")
        assert lies("running").Told("library", sides | {"wrong": ["1"]}).expected("cuda")
        assert not lies("running").Told("library", sides | {"right": ["0"]}).expected("cuda")


class TestProgram:
    def main(self, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["lies", *words])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(FOLDER), run_name="__main__")
        return int(end.value.code or 0)

    def test_runs_those_that_are_named(self, tmp_path: Path) -> None:
        """As the page says, in a process of its own; and what is written down can be read."""
        command = [
            sys.executable,
            str(FOLDER),
            "slot",
            "one-part",
            "--device",
            "cpu",
            "--json",
            str(tmp_path / "a.json"),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert '  wrong  "wolf         "' in done.stdout
        assert "453 operations" in done.stdout
        assert done.stdout.endswith("2 of 2 as expected\n")
        made = lies("report").LiesReport.model_validate_json((tmp_path / "a.json").read_bytes())
        assert [one.name for one in made.told] == ["slot", "one-part"]
        assert lies("report").measured(tmp_path / "a.json") is None  # a CPU's, and no real graph's

    def test_a_lie_that_tells_the_truth_fails(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        catalogue, toy = lies("catalogue"), lies("toy")
        honest = replace(catalogue.LIES["slot"], liar=toy.Toy)
        monkeypatch.setitem(catalogue.LIES, "slot", honest)
        assert self.main(monkeypatch, "slot", "tail", "--device", "cpu") == 1
        assert "1 of 2 as expected; not so: slot" in capsys.readouterr().out

    def test_a_right_one_that_lies_fails(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        catalogue = lies("catalogue")
        broken = replace(catalogue.LIES["result"], right=lies("moved").ResultKept)
        monkeypatch.setitem(catalogue.LIES, "result", broken)
        assert self.main(monkeypatch, "result", "--device", "cpu") == 1
        assert "the right one lied, UNEXPECTED" in capsys.readouterr().out

    def test_list(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.main(monkeypatch, "--list") == 0
        listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert listed == ["story", *lies("catalogue").LIES]

    @pytest.mark.parametrize("words", [("nobody",), ("slot", "--device", "tpu")])
    def test_what_cannot_be_done_is_said(self, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
        assert self.main(monkeypatch, *words) == 2


class TestMarker:
    def ablated(self, old: str, new: str) -> set[str]:
        """The liars that pass the reference without one of its parts."""
        source = (FOLDER / "reference.py").read_text(encoding="utf-8")
        assert source.count(old) == 1
        space: dict[str, Any] = {"__name__": "ablated"}
        exec(source.replace(old, new).replace("from .toy import Toy", "Toy = object"), space)
        marking = lies("marking")
        return {name for name in marking.LIARS if marking.passes(space["check"], name)}

    def test_the_reference_passes_the_right_and_fails_the_liars(self) -> None:
        assert lies("marking").marks(lies("reference").check) == {}

    def test_a_test_that_sees_nothing_and_one_that_fails_everything(self) -> None:
        marking = lies("marking")

        def never(make: Callable[..., Any]) -> None:
            raise AssertionError("I do not trust it")

        assert marking.marks(lambda make: None) == dict.fromkeys(marking.LIARS, "lies, and passes")
        assert set(marking.marks(never)) == set(marking.RIGHT)

    def test_what_is_said_of_its_parts(self, text: str) -> None:
        assert "without the release of rows four" in text
        assert self.ablated("range(3)", "range(0)") == {"key", "slot", "tail", "evicted"}
        assert "without the second seed one" in text
        assert self.ablated("(1, 5.0), (2, 5.0), (2, 0.0)", "(1, 5.0), (1, 5.0), (1, 0.0)") == {"seed"}

    def test_how_many_there_are(self, text: str) -> None:
        assert (len(lies("marking").RIGHT), len(lies("marking").LIARS)) == (9, 20)
        assert "pass nine engines that are right" in text
        assert "fail twenty that lie" in text

    def test_right_ones_differ(self) -> None:
        assert len(set(lies("marking").RIGHT.values())) == len(lies("marking").RIGHT)
        assert not set(lies("marking").RIGHT) & set(lies("marking").LIARS)


class TestPage:
    def blocks(self, text: str) -> dict[str, dict[str, str]]:
        """What each lie told, by its name in the page: the page is held to what runs by the tests of the prose."""
        found = {}
        for name, body in re.findall(r'printed\("lies/shown:(\w+)"\) \]\]\]-->\n```text\n(.+?)\n```', text, re.S):
            sides = re.findall(r"^(eager|right graph|wrong graph) +(.+(?:\n {13}.+)*)", body, re.M)
            if sides:
                found[name] = dict(sides)
        return found

    def test_every_lie_is_shown(self, text: str) -> None:
        shown = self.blocks(text)
        expected = {name.replace("-", "_") for name in names("cpu")}
        assert set(shown) == expected
        assert len(shown) >= 16
        for name, sides in shown.items():
            assert tuple(sides) == SIDES
            if name not in EQUAL:
                assert sides["eager"] == sides["right graph"] != sides["wrong graph"], name

    def test_every_citation_is_in_the_list(self, text: str) -> None:
        known = set(THREAD.findall((CHAPTER / "defects.md").read_text(encoding="utf-8")))
        cited = set(THREAD.findall(re.sub(r"<!--.*?-->", "", text, flags=re.S)))
        assert cited - known <= OF_DEFECTS
        assert len(cited) >= 30

    def test_every_lie_is_cited_under_its_entry(self, text: str) -> None:
        rows = dict(re.findall(r"^\| ([A-Z]\d\d) \| ([^|]+) \|", (CHAPTER / "defects.md").read_text("utf-8"), re.M))
        for lie in lies("catalogue").LIES.values():
            assert lie.threads or lie.name == "evicted"
            of_entry = set(THREAD.findall(rows[lie.entry])) if lie.entry else set()
            assert not lie.threads or lie.threads[0] in of_entry or lie.entry == "G02", lie.name
            assert all(thread in text for thread in lie.threads[:1]), lie.name

    def test_sections_are_numbered_and_what_they_refer_to(self, text: str) -> None:
        titles = re.findall(r"^## (\d+)\. (.+)$", text, re.M)
        assert [int(number) for number, _ in titles] == list(range(1, len(titles) + 1))
        by_number = {int(number): title for number, title in titles}
        assert "three_in_a_graph_of_four" in text.partition(f"## 14. {by_number[14]}")[2].partition("## 15.")[0]
        assert "The series of section 3" in text
        assert "iPieter/nanoGPT-inference" in text.partition("## 3.")[2].partition("## 4.")[0]

    def test_names_stand_in_the_headings(self, text: str) -> None:
        """Exercise 4.8 tells engines by their names: liars are looked up here, right ones in section 25."""
        found = [
            name for heading in re.findall(r"^## \d+\. .+ \((`.+`)\)$", text, re.M) for name in heading.split(", ")
        ]
        assert found == [f"`{name}`" for name in ("story", *self.in_order(text))]
        told = text.partition("## 25.")[2].partition("## 26.")[0]
        assert all(f"(`{name}`)" in told for name in lies("marking").RIGHT)

    def in_order(self, text: str) -> list[str]:
        """All lies, in the order of the page."""
        return sorted(lies("catalogue").LIES, key=lambda name: text.index(f"`{name}`"))

    def test_links_lead_somewhere(self, text: str) -> None:
        targets = re.findall(r"\]\(([^)#]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))
        assert len(targets) >= 5
        assert all((CHAPTER / target).exists() for target in targets)

    def test_the_six_conventions(self, text: str) -> None:
        table = text.partition("## 26.")[2].partition("## 27.")[0]
        rows = [line for line in table.splitlines() if line.startswith("| ") and "#" in line]
        assert len(rows) == 6

    def test_the_checklist_fits_a_screen(self, text: str) -> None:
        points = re.findall(r"^\d+\. \*\*", text.partition("## 28.")[2], re.M)
        assert 8 <= len(points) <= 14

    def test_what_is_not_measured_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shown = load(FOLDER / "shown.py")
        monkeypatch.setattr(shown.report, "measured", lambda: None)
        for name in ("times", "real"):
            (line,) = printed(FOLDER / "shown.py", name)
            assert line.startswith("not yet run on a GPU: python chapters/04-cuda-graphs/lies --device cuda --json")
        assert all(line.endswith("not yet run on a GPU") for line in printed(FOLDER / "shown.py", "agreement")[1:])

    def test_what_is_measured_is_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file as a GPU would write it: verdicts, other outputs, times."""
        report, told = lies("report"), []
        for name in ("story", *lies("catalogue").LIES):
            sides = {"truth": ["wolf"], "right": ["wolf"], "wrong": ["w" if name == "workspace" else "wolf"]}
            costs = {"truth": 3e-3, "right": 1e-4, "wrong": 5e-5} if name == "story" else {}
            told.append(report.Lied(name=name, verdict="lied", as_expected=True, sides=sides, costs=costs))
        machine = Machine.model_construct(device="NVIDIA H200", kind="cuda")
        made = report.LiesReport.model_construct(told=tuple(told), machine=machine)
        shown = load(FOLDER / "shown.py")
        monkeypatch.setattr(shown.report, "measured", lambda: made)
        expected = "one step on NVIDIA H200: called 3000 µs, right graph 100 µs, wrong graph 50 µs"
        assert printed(FOLDER / "shown.py", "times") == [expected]
        table = printed(FOLDER / "shown.py", "agreement")
        assert table[0].endswith("real graph on NVIDIA H200")
        assert all(line.endswith("lied") for line in table[1:])
        assert any(re.fullmatch(r'\s+wrong  "w"', line) for line in printed(FOLDER / "shown.py", "real"))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every lie by a real graph, each in a process of its own; run once, also where pytest has several workers."""
    folder = tmp_path_factory.getbasetemp()
    path = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "lies.json"
    with FileLock(path.with_suffix(".lock")):
        if not path.is_file():
            command = [sys.executable, str(FOLDER), "--device", "cuda", "--json", str(path)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
            print(done.stdout, done.stderr[-3000:], sep="\n")
    return {one["name"]: one for one in json.loads(path.read_text(encoding="utf-8"))["told"]}


@pytest.mark.gpu
class TestGraphs:
    @pytest.mark.parametrize("name", names("cuda"))
    def test_lies(self, told: dict[str, Any], name: str) -> None:
        assert told[name]["sides"]["right"] == told[name]["sides"]["truth"], told[name]
        assert told[name]["as_expected"], told[name]

    def test_the_reference(self) -> None:
        """In a process of its own, and without the liar whose capture fails: it would end all further captures."""
        command = [sys.executable, "-c", MARKS, str(FOLDER)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
        found = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(found, indent=1), done.stderr[-3000:], sep="\n")
        assert {name: found[name] for name in lies("marking").RIGHT} == dict.fromkeys(lies("marking").RIGHT, "")
        assert all(found[name] for name in lies("marking").LIARS if name != "cold")
