"""What a release asks for: points, editions and secrets by variant; and that the teachers' pages say the same."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from nanocourse.cli.course import app
from nanocourse.exercises import chapters, sources
from nanocourse.exercises.outcomes import local
from nanocourse.grade.hidden_inputs import judged, questions
from nanocourse.release import teacher
from nanocourse.release.plan import enough, plan, secret_of
from tests.course.learner_files import Released

VARIANT = "a name that is long enough"
TEACHING = chapters.root() / "chapters" / "TEACHING.md"


def test_a_variant_gives_editions_and_a_secret_of_its_own() -> None:
    chosen = {tuple(plan(1, variant=f"{VARIANT} {at}").editions.items()) for at in range(12)}
    assert len(chosen) > 4
    assert secret_of(1, "one") != secret_of(2, "one") != secret_of(1, "two")
    assert plan(1).secret != plan(1).secret  # without a variant it is random
    assert plan(1).editions == {}
    planned = plan(1, only="1.4, 1.2", points="1.4=20, 1.2=2.5")
    assert [(part.id, part.points) for part in planned.assignment.parts] == [("1.2", 2.5), ("1.4", 20)]


@pytest.mark.parametrize("number", [one.number for one in chapters.chapters()])
def test_a_variant_has_two_editions_and_half_the_points(number: int) -> None:
    for at in range(4):
        planned = plan(number, variant=f"{VARIANT} {at}")
        worth = {part.id: part.points for part in planned.assignment.parts}
        assert len(planned.editions) >= 2
        assert sum(worth[id] for id in planned.editions) >= 0.5 * planned.assignment.points
        assert enough(planned.editions, worth)
        assert planned.warnings == ()
        assert all(chapters.exercise(id).as_edition(name) for id, name in planned.editions.items())


def test_correct_variants_pass_on_hidden_inputs_of_any_secret() -> None:
    """1.5 has inputs at which float32 and float64 part, and both are right: no secret may draw them."""
    exercise = chapters.exercise("1.5")
    for at in range(2):
        for asked in questions(exercise, f"{at:064x}", "anna", 1):
            for right in exercise.right:
                got = local(sources.answer_function(exercise, right), asked.call(exercise))
                assert judged(exercise, asked, got) == "passed", (right.name, asked.check.name)


def test_sets_without_enough_variants_are_warned_about() -> None:
    planned = plan(1, only="1.3,1.7", variant=VARIANT)
    assert planned.editions == {"1.3": "time-first"}
    assert "1 of 2 exercises come in another edition" in planned.warnings[0]
    heavy = plan(1, only="1.3,1.4,1.7", points="1.7=100", variant=VARIANT)
    assert len(heavy.editions) == 2
    assert "17% of the points" in heavy.warnings[0]
    assert "can be guessed" in plan(1, variant="7").warnings[-1]
    said = teacher.risk(plan(1, only="1.3,1.4,1.7", variant=VARIANT))
    assert "At risk, since a copy from the book passes: 1.7, 10 of 30 points." in said
    assert teacher.risk(plan(4, only="4.2,4.6", variant=VARIANT)) == ""


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"only": "2.1"}, "only must name exercises from 1.1 to 1.8, not '2.1'"), ({"only": ""}, "not ''"),
        ({"only": "1.1,1.1"}, "only names 1.1 twice"), ({"points": "1.2"}, "points must be given as 1.2=10,1.4=20"),
        ({"points": "1.2=0"}, "above 0"), ({"points": "1.2=1e400"}, "above 0"),
        ({"points": "1.2=10,1.2=20"}, "points names 1.2 twice"), ({"variant": " "}, "variant must be a text"),
        ({"points": "1.2=10", "only": "1.3"}, "points names 1.2, which is none of 1.3"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_said_in_one_sentence(arguments: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        plan(1, **arguments)


def test_the_containers_commands_are_those_of_the_command_line(made: Released) -> None:
    """No container can be built in a test: its recipe is held against the release, its commands against our own."""
    recipe = (made.autograder / "Dockerfile").read_text(encoding="utf-8")
    venv = re.search(r"NANOINFER_VENV:-([\w/]+)\}", (made.autograder / "setup.sh").read_text(encoding="utf-8"))
    assert venv
    assert f'ENTRYPOINT ["{venv[1]}/bin/nanoinfer", "course"]' in recipe
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    runs = re.findall(r"^docker run .* nanoinfer-grader (.+)$", TEACHING.read_text(encoding="utf-8"), re.M)
    assert len(runs) == 4
    for name, *words in map(shlex.split, runs):
        known[name].make_context(name, words)  # raises for an option or an argument that there is not
