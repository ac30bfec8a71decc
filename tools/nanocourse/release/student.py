"""The tree that students get: stubs, text, notebook, questions, policy, requirements, weights, licences.

It contains no answer. The package that students install does, as does the public source; the teacher's notes say so.
"""

from __future__ import annotations

import re
from pathlib import Path

from nanocourse.exercises import stubs
from nanocourse.exercises.chapters import root
from nanocourse.learner.folder import DEFAULT, LICENCE, Folder, Progress
from nanocourse.release import pins, templates, wheels
from nanocourse.release import student_notebook as notebook
from nanocourse.release import student_text as text
from nanocourse.release.plan import Plan

WEIGHTS = ("model.safetensors", "config.json", "README.md")
LICENCES = {"LICENSE": "MIT.txt", "LICENSE-TEXT": "CC-BY-4.0.txt", "THIRD_PARTY.md": "THIRD_PARTY.md"}
PICTURE = re.compile(r"figures/([\w./-]+\.svg)")


def write(plan: Plan, wheel: Path, to: Path) -> None:
    """Write the tree into the new folder `to`."""
    left_out = text.answers(plan.exercises)
    name = plan.chapter.folder.name
    source = _beside("notebooks", f"{name}.py").read_text(encoding="utf-8")
    source = notebook.released(source, left_out, [one.id for one in plan.exercises])
    page = (plan.chapter.folder / "README.md").read_text(encoding="utf-8")
    figures(page, to / "figures")
    said = words(plan, wheel)
    made = files(wheel) | {
        "README.md": templates.filled("student.md", said),
        "ASSISTANTS.md": templates.filled("assistants.md", said),
        "LICENCES.md": templates.filled("licences.md", said),
        "questions.md": (plan.chapter.folder / "written.md").read_text(encoding="utf-8"),
        "requirements.txt": pins.requirements(wheel),
        "requirements-notebook.txt": pins.notebook_requirements(wheel),
        f"notebooks/{name}.py": source,
        f"notebooks/{name}.ipynb": notebook.ipynb(source),
    }
    for path, content in made.items():
        templates.put(to / path, content)
    _stubs(plan, to / DEFAULT)
    own = to / "chapters" / name
    own.mkdir(parents=True)
    templates.put(own / "README.md", text.released(page, left_out, lambda link: (own / link).exists()))


def files(wheel: Path) -> dict[str, str | bytes]:
    """Licences and weights, by their places in the tree."""
    found = {f"licences/{name}": f"/licenses/{of}" for of, name in LICENCES.items()}
    found |= {f"weights/{name}": f"nanoinfer/data/small/{name}" for name in WEIGHTS}
    return {"licences/MIT-0.txt": LICENCE} | {place: wheels.read(wheel, of) for place, of in found.items()}


def _stubs(plan: Plan, mine: Path) -> None:
    """The learner's folder as `course start` would leave it, for these exercises and editions."""
    folder = Folder(mine)
    own = folder.chapter(plan.chapter)
    own.mkdir(parents=True)
    for one in plan.exercises:
        stubs.write(one, plan.chapter, own)
    templates.put(mine / "LICENSE", LICENCE)
    folder.save(Progress(editions=plan.editions))


def figures(page: str, to: Path) -> None:
    """Copy the figures that a page shows into `to`."""
    for name in sorted(set(PICTURE.findall(page))):
        templates.put(to / name, _beside("figures", name).read_bytes())


def _beside(folder: str, name: str) -> Path:
    """A file of the book beside the chapters. ValueError if this installation does not have it."""
    path = root() / folder / name
    if not path.is_file():
        raise ValueError(f"this installation has no {folder}/{name}: release from a checkout of the repository")
    return path


def words(plan: Plan, wheel: Path) -> dict[str, str]:
    """The words that templates leave open."""
    folder = plan.chapter.folder.name
    rows = []
    for one in plan.exercises:
        rows.append(f"| {one.id} | {one.spec.title} | `{DEFAULT}/{folder}/{one.file}` | {plan.points(one.id):g} |")
    first = plan.exercises[0].id
    return {
        "title": plan.assignment.title, "folder": folder, "wheel": wheel.name, "mine": DEFAULT, "first": first,
        "number": str(plan.chapter.number), "rows": "\n".join(rows), "points": f"{plan.assignment.points:g}",
        "torch": next(line for line in pins.requirements(wheel).splitlines() if line.startswith("torch==")),
        "checks": "\n".join(f"nanoinfer course check {one.id}" for one in plan.exercises),
    }  # fmt: skip
