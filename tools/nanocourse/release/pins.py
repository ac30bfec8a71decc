"""Requirements, pinned to what is installed where a release is made: one environment for students and grading.

What the package itself requires is pinned for every Python. What those packages require in turn is pinned only for the
Python that made the release, since another one may need other versions.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from nanocourse.release import wheels

NOTEBOOK = ("jupyter", "matplotlib")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def requirements(wheel: Path, *, cpu: bool = False) -> str:
    """A requirements file for the wheel beside it. cpu: with PyTorch's index of builds without CUDA."""
    lines = [
        f"# What `nanoinfer course release` found installed, under Python {PYTHON}. Lines with python_version hold for",
        "# that Python alone; under another one pip chooses. The wheel lies beside this file.",
    ]
    if cpu:
        lines.append("--extra-index-url https://download.pytorch.org/whl/cpu")
    return "\n".join([*lines, f"./{wheel.name}", *pins(_required(wheel, ""))]) + "\n"


def notebook_requirements(wheel: Path) -> str:
    """What the notebook needs in addition: pinned if installed here, otherwise as the package declares it."""
    wanted = [one for one in _required(wheel, "notebooks") if one.name in NOTEBOOK]
    lines = [_pin(one) if _version(one.name) else f"{one.name}{one.specifier}" for one in wanted]
    return "\n".join(["-r requirements.txt", *sorted(lines)]) + "\n"


def pins(direct: Sequence[Requirement]) -> list[str]:
    """The requirements and everything they require, each at the version installed here."""
    found = {canonicalize_name(one.name): _pin(one) for one in direct}
    waiting = list(direct)
    while waiting:
        for one in _of_installed(waiting.pop().name):
            name = canonicalize_name(one.name)
            if name not in found and _version(name):
                exact = any(part.operator == "==" for part in one.specifier)  # pinned by what requires it
                found[name] = "" if exact else _pin(one, f'python_version == "{PYTHON}"')
                waiting.append(one)
    return [found[name] for name in sorted(found) if found[name]]


def _required(wheel: Path, extra: str) -> list[Requirement]:
    """What the wheel, or one of its extras, requires on any platform."""
    of = [Requirement(text) for text in wheels.metadata(wheel).get_all("Requires-Dist") or ()]
    if not extra:
        return [one for one in of if "extra" not in str(one.marker or "")]
    return [one for one in of if one.marker and f'extra == "{extra}"' in str(one.marker)]


def _of_installed(name: str) -> Iterator[Requirement]:
    """What an installed package requires here."""
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for one in map(Requirement, texts):
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield one


def _pin(one: Requirement, and_marker: str = "") -> str:
    version = _version(one.name)
    marker = str(one.marker).split(" and extra ==")[0].split("extra ==")[0] if one.marker else ""
    both = " and ".join(f"({part})" if " or " in part else part for part in (marker, and_marker) if part)
    text = f"{one.name}=={version}" if version else f"{one.name}{one.specifier}"
    return f"{text}; {Marker(both)}" if both else text


def _version(name: str) -> str:
    """The installed version without its local part (2.13.0 of 2.13.0+cpu); empty if it is not installed."""
    try:
        return Version(importlib.metadata.version(name)).public
    except importlib.metadata.PackageNotFoundError:
        return ""
