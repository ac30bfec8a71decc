"""What the teacher keeps: notes on this release, criteria for written questions, oral questions, syllabi."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nanocourse.exercises.chapters import root
from nanocourse.grade.variant_strength import VariantStrength
from nanocourse.release import student, templates
from nanocourse.release import student_text as text
from nanocourse.release.plan import Plan


def write(plan: Plan, wheel: Path, to: Path, strength: Sequence[VariantStrength] | None) -> None:
    """Write the folder. strength: None if it was not measured."""
    rows = []
    for one in plan.exercises:
        form = one.edition.name if one.edition else "as printed"
        rows.append(f"| {one.id} | {one.spec.title} | {plan.points(one.id):g} | {form} |")
    words = student.words(plan, wheel) | {
        "rows": "\n".join(rows), "editions": editions(plan),
        "warnings": "\n".join(f"**Note.** {text}\n" for text in plan.warnings).rstrip(),
        "strength": "\n".join(strength_lines(strength)),
        "isolation": (templates.HERE / "isolation.md").read_text(encoding="utf-8").rstrip(),
    }  # fmt: skip
    templates.put(to / "README.md", templates.filled("teacher.md", words))
    templates.put(to / "oral.md", templates.filled("oral.md", words))
    own = plan.chapter.folder
    for path in (own / "criteria.md", own / "teacher.md", root() / "chapters" / "TEACHING.md"):
        name = "chapter.md" if path.name == "teacher.md" else path.name
        page = path.read_text(encoding="utf-8").replace("../figures/", "figures/")
        student.figures(page, to / "figures")
        templates.put(to / name, text.released(page, {}, lambda link: (to / link).exists()))


def editions(plan: Plan) -> str:
    """What is asked instead of the printed form, in words."""
    said = [f"- {one.id}: {one.edition.says}." for one in plan.exercises if one.edition]
    worth = sum(plan.points(id) for id in plan.editions)
    if not said:
        return f"All exercises are as the chapter prints them. {risk(plan)}"
    head = f"Exercises worth {worth:g} of {plan.assignment.points:g} points come in another edition:"
    return "\n".join([head, "", *said, "", risk(plan)]).rstrip()


def risk(plan: Plan) -> str:
    """Which exercises can be handed in as a copy of a public page, in one sentence; empty if none can."""
    if not plan.at_risk:
        return ""
    worth = sum(plan.points(id) for id in plan.at_risk)
    without = [one.id for one in plan.exercises if one.id in plan.at_risk and not one.editions]
    none = f" Of {', '.join(without)} there is no other edition." if without else ""
    return (
        f"At risk, since a copy from the book passes: {', '.join(plan.at_risk)}, {worth:g} of "
        f"{plan.assignment.points:g} points. Ask about these in the oral.{none}"
    )


def strength_lines(strength: Sequence[VariantStrength] | None) -> list[str]:
    """How many known wrong answers the hidden inputs of this release reject."""
    if strength is None:
        return ["Not measured; `nanoinfer course grade SUBMISSIONS ... --strength` does it before it grades."]
    caught, of = sum(one.caught for one in strength), sum(one.total for one in strength)
    each = []
    for one in strength:
        others = f"; not {', '.join(one.missed)}" if one.missed else ""
        each.append(f"- {one.id}: {one.caught} of {one.total}{others}")
    head = f"Of {of} known wrong answers, {caught} are rejected in each of three draws of this secret's hidden inputs:"
    return [head, "", *each]
