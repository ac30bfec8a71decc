"""The wheel of a release: built from a checkout, or reassembled from an installation.

Everything else that a release copies and pins is read from that wheel, so that it cannot differ from it.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import nanoinfer

DATE = (2020, 2, 2, 0, 0, 0)  # of every file in an archive, so that the same content gives the same bytes
NOT_PACKED = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}


def make(folder: Path) -> Path:
    """The wheel of this package, in `folder`. ValueError if it cannot be made."""
    root = Path(nanoinfer.__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file() and (root / "chapters").is_dir():
        return _build(root, folder)
    return _pack(importlib.metadata.distribution("nanoinfer"), folder)


def _build(root: Path, folder: Path) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        raise ValueError("hatchling is missing, which builds the wheel of a checkout: pip install hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    built = sorted(folder.glob("*.whl"))
    if done.returncode or not built:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ValueError(f"the wheel cannot be built: {said[-1] if said else 'hatchling said nothing'}")
    return built[0]


def _pack(of: importlib.metadata.Distribution, folder: Path) -> Path:
    """The wheel that an installation came from: its files, with a new RECORD."""
    content = {}
    for file in of.files or ():
        if ".." in file.parts or "__pycache__" in file.parts or file.name in NOT_PACKED:
            continue
        content[file.as_posix()] = Path(str(file.locate())).read_bytes()
    info = next((name.split("/")[0] for name in content if name.endswith(".dist-info/METADATA")), None)
    if info is None or "nanoinfer/__init__.py" not in content:
        raise ValueError("this installation is not made from a wheel: release from a checkout, or from a wheel")
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in sorted(content.items())]
    content[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    write_zip(path, content)
    return path


def write_zip(path: Path, content: dict[str, bytes], executable: frozenset[str] = frozenset()) -> None:
    """An archive whose bytes depend only on its content. executable: names that get mode 755 instead of 644."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(content.items()):
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr = (0o755 if name in executable else 0o644) << 16
            entry.create_system = 3  # Unix, on any system: the modes are Unix's
            entry.compress_type = zipfile.ZIP_STORED if name.endswith(".whl") else zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)


def metadata(wheel: Path) -> Message:
    """The wheel's METADATA: name, version, what it requires."""
    return Parser().parsestr(read(wheel, ".dist-info/METADATA").decode("utf-8"))


def read(wheel: Path, ending: str) -> bytes:
    """The content of the one file of a wheel whose name ends in `ending`."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(ending))
        return archive.read(name)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
