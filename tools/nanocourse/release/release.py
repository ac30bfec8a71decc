"""Writing a release: all of it, or nothing.

Everything is written into a temporary folder beside the target, which is renamed at the end; an error or Ctrl-C leaves
nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from nanocourse.grade.variant_strength import VariantStrength
from nanocourse.release import autograder, student, teacher, templates, wheels
from nanocourse.release import student_notebook as notebook
from nanocourse.release.plan import Plan


def release(plan: Plan, to: Path, strength: Sequence[VariantStrength] | None = None) -> None:
    """Write student/, autograder/, autograder.zip, wheel/ and teacher/ into `to`.

    strength: of the variant, if it was measured. ValueError if `to` is not empty, or if this installation lacks what a
    release needs; then nothing is written.
    """
    check_target(to)
    notebook.required()
    home = next(folder for folder in to.absolute().parents if folder.exists())
    with TemporaryDirectory(prefix=".release-", dir=home) as folder:
        work = Path(folder, "release")
        (work / "wheel").mkdir(parents=True)
        wheel = wheels.make(work / "wheel")
        student.write(plan, wheel, work / "student")
        autograder.write(plan, wheel, work / "autograder")
        teacher.write(plan, wheel, work / "teacher", strength)
        for name in student.LICENCES:
            templates.put(work / "wheel" / name, wheels.read(wheel, f"/licenses/{name}"))
        to.parent.mkdir(parents=True, exist_ok=True)
        check_target(to)
        if to.is_dir():
            to.rmdir()
        os.replace(work, to)


def check_target(to: Path) -> None:
    """ValueError if a release cannot be put there, because something exists there."""
    if (to.exists() or to.is_symlink()) and not (to.is_dir() and not any(to.iterdir())):
        raise ValueError(f"to must be a folder that is empty or not there yet, and {to} is neither")
    home = next(folder for folder in to.absolute().parents if folder.exists())
    if not home.is_dir():
        raise ValueError(f"to must be a folder, and {home} is a file")
