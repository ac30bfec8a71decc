"""The autograder: what Gradescope unpacks, and the archive of it.

The contract is Gradescope's (https://gradescope-autograders.readthedocs.io/en/latest/specs/): `setup.sh` and
`run_autograder` at the root of a zip, which becomes /autograder/source.
"""

from __future__ import annotations

from pathlib import Path

from nanocourse.grade.assignment import FILE, SECRET_FILE
from nanocourse.release import pins, templates, wheels
from nanocourse.release.plan import Plan
from nanocourse.release.student import LICENCES, words

SCRIPTS = ("setup.sh", "run_autograder")
RECIPE = "Dockerfile"  # of a container in which a class is graded on macOS or Windows


def write(plan: Plan, wheel: Path, to: Path) -> None:
    """Write the folder `to`, and beside it the archive of the same name."""
    to.mkdir()
    content = {
        FILE: plan.assignment.to_json().encode(),
        SECRET_FILE: f"{plan.secret}\n".encode(),
        "requirements.txt": pins.requirements(wheel, cpu=True).encode(),
        "README.md": templates.filled("autograder.md", words(plan, wheel)).encode(),
        wheel.name: wheel.read_bytes(),
    }
    content |= {name: wheels.read(wheel, f"/licenses/{name}") for name in LICENCES}
    content |= {name: (templates.HERE / name).read_bytes() for name in (*SCRIPTS, RECIPE)}
    for name, data in content.items():
        (to / name).write_bytes(data)
        (to / name).chmod(0o755 if name in SCRIPTS else 0o600 if name == SECRET_FILE else 0o644)
    wheels.write_zip(to.with_suffix(".zip"), content, frozenset(SCRIPTS))
    to.with_suffix(".zip").chmod(0o600)  # it holds the secret
